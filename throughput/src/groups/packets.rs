//! What a message costs in packets, counted on the wire.
//!
//! Two network namespaces joined by a veth pair, MTU 1500, segmentation and receive offloads off, so that a packet is a
//! packet; the receiving one has a packet socket that sees each. A message is a record marker of 4 bytes, head, pages and
//! footer, and the next one leaves when the receiver has said that it has this one: no two messages share a packet, and a
//! congestion window that is full joins nothing. Reported for Linux (see [`groups`](super)): 5 to 10 % fewer
//! packets than a page at a time.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::thread;

use rustix::net::{SendFlags, sockopt};
use segchain::chain::{ChainBuilder, Outgoing};
use segchain::send::StreamSender;
use segchain::transport::SocketRef;

use super::Group;
use crate::args::size;
use crate::bench::Bench;
use crate::contest::Counts;
use crate::machine::{Machine, Side};
use crate::netns::{Capture, Veth};
use crate::ours::{self, chain};
use crate::pages::{FOOT, HEAD, Message, Random, Sum};
use crate::plot::Chart;
use crate::raw;
use crate::report::{Report, Row, Section};
use crate::stats::Spread;

/// `packets`.
pub const GROUP: Group = Group {
    name: "packets",
    about: "Two network namespaces, veth, MTU 1500, offloads off, counted by a packet socket at the receiver; data segments \
            only, without what was sent again. Each message begins with a record marker of 4 bytes and is answered before \
            the next one. Baseline: marker and head, each page and the footer in a send of their own, MSG_MORE on all but \
            the last. The minimum is the message's bytes by the MSS, rounded up.",
    run,
};

const SIZES: &[u64] = &[128 << 10];
const PAGE: u64 = 4096;
/// The record marker in front of each message.
const MARKER: [u8; 4] = *b"mark";
/// Messages of one method in one round.
const MESSAGES: u64 = 200;
const BASELINE: &str = "page by page, MSG_MORE";
/// How many pieces may be taken again.
const RETAKEN: u32 = 10;
/// Room for a whole message, so that no call is short.
const SEND_BUFFER: usize = 4 << 20;

/// Segments by bytes of payload: the key of a column, and its upper end. The last one is for full segments.
const BUCKETS: [(&str, usize); 4] =
    [("below_256", 256), ("below_512", 512), ("below_1024", 1024), ("below_mss", usize::MAX)];

const COLUMNS: &[&str] = &[
    "packets_per_message",
    "minimum",
    "packet_ratio",
    "short_per_message",
    "below_256",
    "below_512",
    "below_1024",
    "below_mss",
    "full",
    "resent_per_message",
    "calls_per_message",
];

fn run(bench: &Bench, report: &mut Report) -> io::Result<()> {
    let veth = match Veth::new() {
        Ok(veth) => veth,
        Err(why) => {
            report.skipped = Some(why);
            return Ok(());
        }
    };
    bench.machine.pin(Side::Sender)?;
    let pool = bench.pool(PAGE);
    let mut section = Section::new("Packets per message", COLUMNS);
    for bytes in bench.sizes(SIZES) {
        let mut wire = Wire::over(&veth)?;
        section.rows.extend(wire.contest(bench, &pool.messages(bytes))?);
        if wire.retaken > 0 {
            let (size, retaken) = (size(bytes), wire.retaken);
            report.notes.push(format!(
                "{size}: {retaken} pieces were taken again: the packet socket dropped packets."
            ));
        }
        // Marker, head and footer beside the pages; two calls can be two packets more.
        if bytes.div_ceil(PAGE) + 3 <= raw::MAX_SLICES as u64 {
            let name = |what: &str| format!("{}: {what}", size(bytes));
            let (minimum, short) = wire.minimum(wire_bytes(bytes));
            let get = |key: &str| section.get("whole", bytes, key);
            report.exactly(name("packets a message"), minimum, get("packets_per_message"));
            report.exactly(name("below MSS"), short, get("short_per_message"));
        }
    }
    report.charts.extend(histogram(&section));
    report.sections.push(section);
    Ok(())
}

/// How a method sends one message.
type Send<'m> = Box<dyn FnMut(&TcpStream, &'m Message<'m>) -> io::Result<Counts> + 'm>;

fn methods(socket: &TcpStream) -> Vec<(&'static str, Send<'_>)> {
    vec![
        (BASELINE, Box::new(|socket, message| page_by_page(socket, message, SendFlags::MORE))),
        ("page by page", Box::new(|socket, message| page_by_page(socket, message, SendFlags::empty()))),
        ("page by page, corked", Box::new(corked)),
        ("raw", Box::new(raw_whole)),
        ("raw again", Box::new(raw_whole)),
        ("whole", whole(socket)),
    ]
}

fn page_by_page(socket: &TcpStream, message: &Message<'_>, more: SendFlags) -> io::Result<Counts> {
    let mut counts = Counts::default();
    raw::send(socket, &[IoSlice::new(&MARKER), IoSlice::new(&message.head)], more, &mut counts)?;
    for segment in &message.segments {
        raw::send(socket, &[IoSlice::new(segment)], more, &mut counts)?;
    }
    raw::send(socket, &[IoSlice::new(&message.foot)], SendFlags::empty(), &mut counts)?;
    Ok(counts)
}

/// `TCP_CORK` around it, which takes two more system calls, not counted.
fn corked(socket: &TcpStream, message: &Message<'_>) -> io::Result<Counts> {
    sockopt::set_tcp_cork(socket, true)?;
    let counts = page_by_page(socket, message, SendFlags::empty())?;
    sockopt::set_tcp_cork(socket, false)?;
    Ok(counts)
}

fn raw_whole(socket: &TcpStream, message: &Message<'_>) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let mut ready = vec![IoSlice::new(&MARKER)];
    ready.extend(message.ready(false));
    raw::send_ready(socket, &ready, &mut counts)?;
    Ok(counts)
}

/// Ours: one chain, one flush.
fn whole(socket: &TcpStream) -> Send<'_> {
    let mut sender = StreamSender::new(SocketRef::new(socket));
    Box::new(move |_, message| {
        let before = sender.stats();
        let mut out = ChainBuilder::new();
        out.put(&MARKER);
        sender.send_blocking(&mut Outgoing::new(chain(message, false, out)?), None)?;
        Ok(ours::counts(before, sender.stats()))
    })
}

fn wire_bytes(payload: u64) -> u64 {
    payload + (MARKER.len() + HEAD + FOOT) as u64
}

/// A connection between the namespaces, and what sees its packets.
struct Wire {
    near: TcpStream,
    far: TcpStream,
    capture: Capture,
    mss: usize,
    /// Pieces that were taken again, for not every packet was seen.
    retaken: u32,
}

/// What one method's messages were on the wire.
#[derive(Default)]
struct Seen {
    /// Segments by bytes of payload.
    sizes: BTreeMap<usize, u64>,
    resent: u64,
    calls: u64,
    /// Bytes that came and were not seen.
    dropped: usize,
}

impl Wire {
    fn over(veth: &Veth) -> io::Result<Self> {
        let (near, far, capture) = veth.connect()?;
        sockopt::set_socket_send_buffer_size_force(&near, SEND_BUFFER)?;
        let mss = socket2::SockRef::from(&near).tcp_mss()? as usize;
        Ok(Self { near, far, capture, mss, retaken: 0 })
    }

    /// The least packets of a message of so many bytes, and how many of them are below the MSS.
    fn minimum(&self, bytes: u64) -> (f64, f64) {
        let mss = self.mss as u64;
        (bytes.div_ceil(mss) as f64, f64::from(u8::from(!bytes.is_multiple_of(mss))))
    }

    /// Every method once a round; before that once with the bytes compared.
    fn contest<'m>(&mut self, bench: &Bench, messages: &'m [Message<'m>]) -> io::Result<Vec<Row>> {
        let payload = messages[0].payload();
        let each = wire_bytes(payload);
        let (minimum, minimum_short) = self.minimum(each);
        let Self { near, far, capture, mss, retaken } = self;
        let (near, far) = (&*near, &*far);
        let mut methods = methods(near);
        let count = if bench.args.short { 8 } else { MESSAGES.min((64 << 20) / each).max(8) };
        let bar = bench.bar(&format!("packets {}", size(payload)), bench.rounds() * methods.len());
        for (name, send) in &mut methods {
            let (_, digest) = exchange((near, far, capture), &bench.machine, each, (messages, 3), send)?;
            if digest != expected(messages, 3) {
                return Err(io::Error::other(format!("packets: {name} sends the wrong bytes")));
            }
        }
        let mut rounds: Vec<Vec<Seen>> = methods.iter().map(|_| Vec::new()).collect();
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        for _ in 0..bench.rounds() {
            for method in random.shuffled(methods.len()) {
                let send = &mut methods[method].1;
                let seen = loop {
                    let (seen, _) =
                        exchange((near, far, capture), &bench.machine, each, (messages, count), send)?;
                    match seen.dropped {
                        0 => break seen,
                        _ if *retaken < RETAKEN => *retaken += 1,
                        bytes => {
                            let why =
                                format!("packets: the packet socket dropped {bytes} bytes, again and again");
                            return Err(io::Error::other(why));
                        }
                    }
                };
                rounds[method].push(seen);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let mss = *mss;
        let base = rounds[0].iter().map(Seen::packets).collect::<Vec<_>>();
        let row = |(name, rounds): (&str, &Vec<Seen>)| {
            let mut row =
                Row::new(name, payload).with("minimum", minimum).with("minimum_short", minimum_short);
            let per_message =
                |of: &dyn Fn(&Seen) -> f64| Spread::of(rounds.iter().map(|seen| of(seen) / count as f64));
            row.set("packets_per_message", per_message(&Seen::packets));
            let packets: Vec<f64> = rounds.iter().map(Seen::packets).collect();
            row.set("packet_ratio", Spread::of_ratios(&packets, &base));
            row.set("short_per_message", per_message(&|seen| seen.between(0, mss)));
            let mut from = 0;
            for (key, to) in BUCKETS {
                row.set(key, per_message(&|seen| seen.between(from, to.min(mss))));
                from = to;
            }
            row.set("full", per_message(&|seen| seen.between(mss, usize::MAX)));
            row.set("resent_per_message", per_message(&|seen| seen.resent as f64));
            row.set("calls_per_message", per_message(&|seen| seen.calls as f64));
            row.with("mss", mss as f64)
        };
        Ok(methods.iter().map(|method| method.0).zip(&rounds).map(row).collect())
    }
}

impl Seen {
    fn packets(&self) -> f64 {
        self.between(0, usize::MAX)
    }

    /// Segments of at least `from` and less than `to` bytes.
    fn between(&self, from: usize, to: usize) -> f64 {
        let count: u64 = self.sizes.range(from..to.max(from)).map(|(_, count)| count).sum();
        count as f64
    }
}

/// Sends `count` messages, each when the one before has arrived; what was on the wire, and a digest of it.
fn exchange<'m>(
    (near, far, capture): (&TcpStream, &TcpStream, &mut Capture),
    machine: &Machine,
    each: u64,
    (messages, count): (&'m [Message<'m>], u64),
    send: &mut Send<'m>,
) -> io::Result<(Seen, u64)> {
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let pinned = machine.pin(Side::Receiver);
            let received = pinned.and_then(|()| receive(far, capture, each, count));
            if received.is_err() {
                let _ = far.shutdown(std::net::Shutdown::Both);
            }
            received
        });
        let mut calls = 0;
        let mut sent = Ok(());
        for message in messages.iter().cycle().take(count as usize) {
            sent = send(near, message).and_then(|counts| {
                calls += counts.calls;
                (&*near).read_exact(&mut [0])
            });
            if sent.is_err() {
                let _ = near.shutdown(std::net::Shutdown::Both);
                break;
            }
        }
        let received = receiver.join().map_err(|_| io::Error::other("the receiver panicked"))?;
        let (mut seen, digest) = received?;
        sent?;
        seen.calls = calls;
        Ok((seen, digest))
    })
}

/// The other side: takes one message after the other, looks what it came in, and says so.
fn receive(mut far: &TcpStream, capture: &mut Capture, each: u64, count: u64) -> io::Result<(Seen, u64)> {
    let port = far.local_addr()?.port();
    let (mut seen, mut sum) = (Seen::default(), Sum::new());
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..count {
        let mut left = each;
        while left > 0 {
            let room = buffer.len().min(left as usize);
            let n = match far.read(&mut buffer[..room])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => n,
            };
            sum.update(&buffer[..n]);
            left -= n as u64;
            // A packet is seen here before its bytes are in the socket.
            capture.take(port, |segment| {
                if segment.fresh == segment.bytes {
                    *seen.sizes.entry(segment.bytes).or_default() += 1;
                } else {
                    seen.resent += 1;
                }
            })?;
        }
        seen.dropped += capture.dropped();
        far.write_all(&[1])?;
    }
    Ok((seen, sum.value()))
}

/// The digest of the first `count` messages with their markers.
fn expected(messages: &[Message<'_>], count: usize) -> u64 {
    let mut sum = Sum::new();
    for message in messages.iter().cycle().take(count) {
        sum.update(&MARKER);
        message.ready(false).iter().for_each(|slice| sum.update(slice));
    }
    sum.value()
}

/// Segments per message by size, of the first message size.
fn histogram(section: &Section) -> Option<Chart> {
    let first = section.rows.first()?.size();
    let mut keys: Vec<_> = BUCKETS.iter().map(|bucket| bucket.0).collect();
    keys.push("full");
    let rows = section.rows.iter().filter(|row| row.size() == first && row.method() != "raw again");
    let line = |row: &Row| (row.method().to_string(), keys.iter().map(|key| row.get(key)).collect());
    Some(Chart {
        file: "packets".into(),
        title: format!("Packets of a message of {}", size(first)),
        x: "bytes in the segment".into(),
        y: "packets per message".into(),
        steps: ["to 255", "to 511", "to 1023", "below MSS", "MSS"].map(String::from).into(),
        lines: rows.map(line).collect(),
        bars: true,
    })
}
