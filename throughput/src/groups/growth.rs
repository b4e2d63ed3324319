//! Whether a message may be of any size.
//!
//! Baseline: messages of 1 MiB, 256 pages. All methods move the same pool once per round, in messages of 16 KiB to one of
//! all of it, so that cold memory costs all of them the same. Limit, *raw*: ready iovecs, messages of the same size.
//!
//! Short writes: a small send buffer over AF_UNIX (loopback TCP stalls 30 ms on each, for its segments are 64 KiB). Limit
//! and baseline there: a ready array, advanced after each short write.

use std::io::{self, IoSlice};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};

use super::Group;
use super::whole_write::raw_whole;
use crate::args::size;
use crate::bench::Bench;
use crate::contest::{Contest, Counts, Method};
use crate::link;
use crate::machine::Side;
use crate::ours::Whole;
use crate::pages::{FOOT, HEAD, Message, Pool, expected};
use crate::plot::Chart;
use crate::raw;
use crate::report::{Report, Row, Section};

/// `growth`.
pub const GROUP: Group = Group {
    name: "growth",
    about: "Baseline: messages of 1m, 256 pages. Every method moves the same pool, whatever the size of its messages. \
            Raw: ready iovecs, messages of the same size. Short writes go over AF_UNIX with a small send buffer; \
            there the baseline is a ready array that is advanced after each.",
    run,
};

const SIZES: &[u64] = &[16 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];
const BASE: u64 = 1 << 20;
const POOL: u64 = 256 << 20;
const PAGE: u64 = 4096;
const SEND_BUFFER: usize = 16 << 10;
const COLUMNS: &[&str] = &[
    "speed",
    "speed_ratio",
    "limit_speed_ratio",
    "cpu_ratio",
    "limit_cpu_ratio",
    "sender_cpu",
    "receiver_cpu",
    "calls_per_message",
    "resumed_per_message",
    "slices_per_call",
];
const SHORT: &[&str] = &[
    "speed",
    "speed_ratio",
    "cpu_ratio",
    "sender_cpu",
    "receiver_cpu",
    "calls_per_message",
    "resumed_per_message",
    "slices_per_call",
];

fn run(bench: &Bench, report: &mut Report) -> io::Result<()> {
    let largest = if bench.args.short { 4 << 20 } else { POOL };
    let pool = Pool::new(largest, PAGE);
    let sizes: Vec<u64> = SIZES.iter().copied().filter(|&bytes| bytes <= largest).collect();
    let sizes = if bench.args.sizes.is_empty() { sizes } else { bench.args.sizes.clone() };
    let title = format!("Messages of up to {} pages, pool {} in every row", largest / PAGE, size(pool.len()));
    let mut section = Section::new(title, COLUMNS);
    section.rows = grow(bench, &pool, &sizes)?;
    if sizes.contains(&POOL) {
        let what = "65536 pages / 256 pages, CPU per GiB";
        report.at_most(what, 1.2, section.get("whole", POOL, "cpu_ratio"));
    }
    report.charts.push(Chart::over_size(
        "growth",
        "Sender CPU per GiB from 16 KiB to 256 MiB a message",
        &section,
        ("sender_cpu", "s/GiB"),
        &["whole", "raw"],
    ));
    report.sections.push(section);

    let title = format!(
        "Short writes: AF_UNIX, SO_SNDBUF {}, pool {}",
        size(SEND_BUFFER as u64),
        size(bench.args.page_pool())
    );
    let mut section = Section::new(title, SHORT);
    let pool = bench.pool(PAGE);
    let sizes = bench.sizes(&[256 << 10, 1 << 20, 16 << 20]);
    for &bytes in &sizes {
        section.rows.extend(short_writes(bench, &pool.messages(bytes))?);
    }
    for bytes in sizes {
        let name = format!("{} in short writes: whole / ready array, CPU", size(bytes));
        report.at_most(name, 1.1, section.get("whole", bytes, "cpu_ratio"));
    }
    report.sections.push(section);
    Ok(())
}

fn grow(bench: &Bench, pool: &Pool, sizes: &[u64]) -> io::Result<Vec<Row>> {
    let (near, far) = link::tcp()?;
    let (near, far) = (&near, &far);
    let sets: Vec<(u64, Vec<Message<'_>>)> =
        sizes.iter().map(|&bytes| (bytes, pool.messages(bytes))).collect();
    let sets = &sets;
    let ready: Vec<Vec<_>> = sets
        .iter()
        .map(|(_, messages)| messages.iter().map(|message| message.ready(false)).collect())
        .collect();
    let mut contest = Contest::new("growth", Side::Sender, pool.len())
        .partner(move |task| {
            let wire = task.size + (HEAD + FOOT) as u64;
            Box::new(move || raw::drain(far, wire * task.messages, task.check))
        })
        .expected(move |task| {
            let set = sets.iter().find(|(bytes, _)| *bytes == task.size);
            set.map_or(0, |(_, messages)| expected(messages, task.messages, task.sealed))
        })
        .checked(1);
    for ((bytes, messages), ready) in sets.iter().zip(&ready) {
        let per = messages.len() as u64;
        let name = |method: &str| format!("{method} {}", size(*bytes));
        let base = |method: &str| format!("{method} {}", size(BASE));
        let again = (*bytes == BASE).then_some("whole again");
        for method in ["whole"].into_iter().chain(again) {
            let mut whole = Whole::new(near);
            let run = Method::new(name(method), move |count, _| whole.send(messages, count, false));
            contest.add(run.against(base("whole")).limit(name("raw")).messages_of(*bytes, per));
        }
        let run = Method::new(name("raw"), move |count, _| raw_whole(near, messages, ready, count, false));
        contest.add(run.against(base("raw")).limit(name("raw")).messages_of(*bytes, per));
    }
    // The size is a column of its own.
    let rows = contest.run(bench)?.rows().into_iter().map(|row| {
        let name = row.method().rsplit_once(' ').map_or("", |(method, _)| method).to_string();
        row.renamed(name)
    });
    Ok(rows.collect())
}

fn short_writes(bench: &Bench, messages: &[Message<'_>]) -> io::Result<Vec<Row>> {
    let (near, far) = UnixStream::pair()?;
    sockopt::set_socket_send_buffer_size(&near, SEND_BUFFER)?;
    let (near, far) = (&near, &far);
    let payload = messages[0].payload();
    let wire = payload + (HEAD + FOOT) as u64;
    let ready: Vec<_> = messages.iter().map(|message| message.ready(false)).collect();
    let ready = &ready;
    let what = format!("growth, short writes {}", size(payload));
    let mut contest = Contest::new(what, Side::Sender, payload)
        .partner(move |task| Box::new(move || raw::drain(far, wire * task.messages, task.check)))
        .expected(|task| expected(messages, task.messages, task.sealed));
    for name in ["ready array", "ready array again"] {
        let mut slices = Vec::new();
        contest.add(Method::new(name, move |count, _| {
            let mut counts = Counts::default();
            for ready in ready.iter().cycle().take(count as usize) {
                send_on(near, ready, &mut slices, &mut counts)?;
            }
            Ok(counts)
        }));
    }
    let mut whole = Whole::new(near);
    contest.add(Method::new("whole", move |count, _| whole.send(messages, count, false)));
    contest.each(|method| method.against("ready array"));
    Ok(contest.run(bench)?.rows())
}

/// One non-blocking sendmsg after the other from a ready array, which is advanced, never rebuilt.
fn send_on<'r>(
    socket: &UnixStream,
    ready: &[IoSlice<'r>],
    slices: &mut Vec<IoSlice<'r>>,
    counts: &mut Counts,
) -> io::Result<()> {
    slices.clear();
    slices.extend_from_slice(ready);
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let offered = &rest[..rest.len().min(raw::MAX_SLICES)];
        let bytes: usize = offered.iter().map(|slice| slice.len()).sum();
        counts.calls += 1;
        counts.slices += offered.len() as u64;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(socket, offered, &mut SendAncillaryBuffer::default(), flags) {
            Ok(sent) => {
                counts.resumed += u64::from(sent < bytes);
                IoSlice::advance_slices(&mut rest, sent);
            }
            Err(rustix::io::Errno::AGAIN) => {
                counts.resumed += 1;
                poll(&mut [PollFd::new(socket, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
