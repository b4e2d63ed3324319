//! What a record marker (RFC 5531 section 11) costs that is sent by itself.
//!
//! Baseline, *same call*: marker, head, payload and footer in one sendmsg of ready iovecs. Reported for
//! Linux (see [`groups`](super)): a marker of its own costs sunrpc 5 %.
//!
//! Packets are counted by the kernel, for one message at a time: the next is sent when the last byte has arrived.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::thread;

use rustix::net::SendFlags;
use rustix::net::sockopt::set_tcp_cork;

use super::Group;
use crate::args::size;
use crate::bench::Bench;
use crate::contest::{Contest, Counts, Method};
use crate::link;
use crate::machine::Side;
use crate::ours::Whole;
use crate::packets;
use crate::pages::{FOOT, HEAD, Message, expected};
use crate::partner::Partner;
use crate::raw;
use crate::report::{Report, Row, Section};
use crate::stats::Spread;

/// `marker`.
pub const GROUP: Group = Group {
    name: "marker",
    about: "Baseline: the four bytes of the marker in the same sendmsg as the rest, ready iovecs. Against it a send of \
            its own for the marker, with and without MSG_MORE, and both sends under TCP_CORK, whose two setsockopt \
            calls count as calls. Whole is segchain. Reported for Linux: a marker of its own costs 5 %.",
    run,
};

const SIZES: &[u64] = &[4 << 10, 64 << 10, 1 << 20];
const COLUMNS: &[&str] = &[
    "speed",
    "speed_ratio",
    "reported",
    "cpu_ratio",
    "sender_cpu",
    "receiver_cpu",
    "calls_per_message",
    "resumed_per_message",
    "packets_per_message",
];
const MARKER: usize = 4;

fn run(bench: &Bench, report: &mut Report) -> io::Result<()> {
    let pool = bench.pool(4096);
    let title =
        format!("Marker, {} bytes of head, 4k pages, footer; pool {}", HEAD - MARKER, size(pool.len()));
    let mut section = Section::new(title, COLUMNS);
    for bytes in bench.sizes(SIZES) {
        section.rows.extend(rows(bench, report, &pool.messages(bytes))?);
    }
    for bytes in bench.sizes(SIZES) {
        let name = |what: &str| format!("{}, whole: {what}", size(bytes));
        let get = |method: &str, key: &str| section.get(method, bytes, key);
        let calls = |method: &str| Some(get(method, "calls_per_message")?.median);
        // The least: on a busy machine there are probes, and segments cut short, in any of them.
        let packets = |method: &str| Some(get(method, "packets_per_message")?.min);
        let extra = |of: &dyn Fn(&str) -> Option<f64>| {
            Some(Spread::exact((of("whole")? - of("same call")?).max(0.0)))
        };
        report.exactly(name("extra calls"), 0.0, extra(&calls));
        report.exactly(name("extra packets"), 0.0, extra(&packets));
    }
    report.sections.push(section);
    Ok(())
}

fn rows(bench: &Bench, report: &mut Report, messages: &[Message<'_>]) -> io::Result<Vec<Row>> {
    let (near, far) = link::tcp()?;
    let (near, far) = (&near, &far);
    let payload = messages[0].payload();
    let wire = payload + (HEAD + FOOT) as u64;
    let ready: Vec<_> = messages.iter().map(|message| message.ready(false)).collect();
    let ready = &ready;
    let parts: Vec<_> = ready.iter().map(|slices| Parts::of(slices)).collect();
    let parts = &parts;
    let mut contest = Contest::new(format!("marker {}", size(payload)), Side::Sender, payload)
        .partner(move |task| Box::new(move || raw::drain(far, wire * task.messages, task.check)))
        .expected(|task| expected(messages, task.messages, task.sealed));
    for name in ["same call", "same call again"] {
        contest.add(Method::new(name, move |count, _| {
            each(ready, count, |slices, counts| raw::send_ready(near, slices, counts))
        }));
    }
    let mut whole = Whole::new(near);
    contest.add(Method::new("whole", move |count, _| whole.send(messages, count, false)));
    for (name, flags) in [("own send, MSG_MORE", SendFlags::MORE), ("own send", SendFlags::empty())] {
        contest.add(Method::new(name, move |count, _| {
            each(parts, count, |parts, counts| parts.send(near, flags, counts))
        }));
    }
    contest.add(Method::new("own send, TCP_CORK", move |count, _| {
        each(parts, count, |parts, counts| {
            set_tcp_cork(near, true)?;
            parts.send(near, SendFlags::empty(), counts)?;
            set_tcp_cork(near, false)?;
            counts.calls += 2;
            Ok(())
        })
    }));
    contest.each(|method| method.against("same call"));
    let mut rows = contest.run(bench)?.rows();
    match packets(bench, &mut contest, near, far, wire) {
        Ok(counts) => {
            rows.iter_mut().zip(counts).for_each(|(row, count)| row.set("packets_per_message", Some(count)));
        }
        Err(error) => report.notes.push(format!("{}: packets were not counted: {error}.", size(payload))),
    }
    let rows =
        rows.into_iter().map(|row| if row.method() == "own send" { row.with("reported", 0.95) } else { row });
    Ok(rows.collect())
}

/// A message in two: the marker, and the rest in one array.
struct Parts<'r> {
    marker: IoSlice<'r>,
    rest: Vec<IoSlice<'r>>,
}

impl<'r> Parts<'r> {
    fn of(ready: &'r [IoSlice<'r>]) -> Self {
        let (marker, head) = ready[0].split_at(MARKER);
        let rest = [IoSlice::new(head)].into_iter().chain(ready[1..].iter().copied()).collect();
        Self { marker: IoSlice::new(marker), rest }
    }

    fn send(&self, socket: &TcpStream, flags: SendFlags, counts: &mut Counts) -> io::Result<()> {
        raw::send(socket, &[self.marker], flags, counts)?;
        raw::send_ready(socket, &self.rest, counts)
    }
}

fn each<M>(
    messages: &[M],
    count: u64,
    mut send: impl FnMut(&M, &mut Counts) -> io::Result<()>,
) -> io::Result<Counts> {
    let mut counts = Counts::default();
    for message in messages.iter().cycle().take(count as usize) {
        send(message, &mut counts)?;
    }
    Ok(counts)
}

/// Packets a message of each method, one message at a time.
fn packets(
    bench: &Bench,
    contest: &mut Contest<'_>,
    near: &TcpStream,
    far: &TcpStream,
    wire: u64,
) -> io::Result<Vec<Spread>> {
    let messages = if bench.args.short { 15 } else { 31 };
    packets::sent(near)?;
    thread::scope(|scope| {
        let partner = Partner::start(scope, bench.machine.clone(), Side::Receiver);
        let mut counts = vec![Vec::new(); contest.methods_mut().len()];
        // In turns: a connection learns in time how large its segments may be.
        for _ in 0..messages {
            for (method, counts) in contest.methods_mut().iter_mut().zip(&mut counts) {
                let before = packets::sent(near)?;
                partner.begin(Box::new(move || raw::drain(far, wire, false)))?;
                method.once(1)?;
                partner.end()?;
                counts.push((packets::sent(near)? - before) as f64);
            }
        }
        Ok(counts.into_iter().filter_map(Spread::of).collect())
    })
}
