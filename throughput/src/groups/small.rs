//! Small messages: many in one call.
//!
//! Baseline, *raw, 1 a call*: one sendmsg of ready iovecs a message (with a checksum: computed by hand). Limit of a batch:
//! one sendmsg of ready iovecs for as many messages. Messages are 100 bytes of head and a 4 KiB page, and records of a
//! length and 200 bytes; with a checksum four bytes follow. Received records compare with tokio-util
//! `LengthDelimitedCodec`.

use std::convert::Infallible;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use segchain::chain::{ChainBuilder, ChainError, Mark, Outgoing, SegmentChain};
use segchain::checksum::Crc32c;
use segchain::framer::{Deframer, Filled, Framer, Step, Targets};
use segchain::queue::{Queued, SendQueue};
use segchain::recv::Receiver;
use segchain::send::{SendStats, StreamSender};
use segchain::transport::SocketRef;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

use super::Group;
use crate::args::size;
use crate::bench::Bench;
use crate::contest::{Contest, Counts, Method};
use crate::deframe;
use crate::link::{self, or_shut_down};
use crate::machine::{Side, thread_cpu};
use crate::ours::counts;
use crate::pages::{Pool, Sum, crc_by_hand};
use crate::plot::Chart;
use crate::raw;
use crate::report::{Report, Row, Section};
use crate::tokio_io::Async;

/// `small`.
pub const GROUP: Group = Group {
    name: "small",
    about: "Baseline: one sendmsg of ready iovecs a message. Raw: one sendmsg of ready iovecs for as many messages as \
            the row's. Batches are segchain's send_batch; producers are threads that push into one SendQueue, or \
            take turns with a mutex, a buffer and a write each, all on the sender's core. Pieces are four times as long as --piece. Of records received the baseline is tokio-util LengthDelimitedCodec.",
    run,
};

const A_CALL: &[usize] = &[1, 4, 16, 64, 256];
/// What the contest counts as one: the longest batch.
const UNIT: u64 = 256;
const PRODUCERS: &[u64] = &[1, 2, 4];
const QUEUE: &str = "queue, producers: 4";
const MUTEX: &str = "mutex around a blocking writer, producers: 4";
const RECORD: u64 = 200;
const PAGE: u64 = 4096;
const COLUMNS: &[&str] = &[
    "rate",
    "speed_ratio",
    "limit_speed_ratio",
    "mutex_speed_ratio",
    "cpu_ratio",
    "limit_cpu_ratio",
    "sender_us",
    "receiver_us",
    "calls_per_message",
    "slices_per_call",
    "copied_per_message",
];
const RECEIVED: &[&str] = &[
    "rate",
    "speed_ratio",
    "cpu_ratio",
    "receiver_us",
    "sender_us",
    "calls_per_message",
    "resumed_per_message",
];

fn run(bench: &Bench, report: &mut Report) -> io::Result<()> {
    for (head, body, what) in [(100, PAGE, "100 B and a 4k page"), (4, RECORD, "records of 200 B")] {
        let pool = bench.pool(PAGE);
        let mut section = Section::new(format!("Sending {what}, pool {}", size(pool.len())), COLUMNS);
        let messages = Small::all(pool, head, body);
        for sealed in [false, true] {
            section.rows.extend(send_rows(bench, &messages, sealed)?);
        }
        targets(report, &section, body);
        report.charts.push(chart(&section, what, body));
        report.sections.push(section);
    }
    let mut section = Section::new("Receiving records of 200 B", RECEIVED);
    section.rows = receive_rows(bench)?;
    for (what, key) in [("", "cpu_ratio"), (", 64k buffer", "limit_cpu_ratio")] {
        let what = format!("receiving 200 B: segchain / LengthDelimitedCodec{what}, CPU");
        report.at_most(what, 1.0, section.get("segchain", RECORD, key));
    }
    report.sections.push(section);
    Ok(())
}

/// Over the number of messages a call.
fn chart(section: &Section, what: &str, body: u64) -> Chart {
    let line = |name: &str, method: &dyn Fn(usize) -> String| {
        let values = A_CALL.iter().map(|&batch| section.get(&method(batch), body, "speed_ratio"));
        (name.to_string(), values.collect())
    };
    Chart {
        file: format!("small-{}", size(body)),
        title: format!("Many messages a call, {what}"),
        x: "messages a call".into(),
        y: "speed / raw, 1 a call".into(),
        steps: A_CALL.iter().map(usize::to_string).collect(),
        lines: vec![
            line("segchain", &|batch| format!("{batch} a call")),
            line("raw", &|batch| format!("raw, {batch} a call")),
            line("segchain + crc", &|batch| format!("{batch} a call + crc")),
            line("raw + crc", &|batch| format!("raw, {batch} a call + crc")),
        ],
        bars: false,
    }
}

fn targets(report: &mut Report, section: &Section, body: u64) {
    for (crc, sixteen, sixty_four) in [("", 3.3, 4.2), (" + crc", 3.0, 3.8)] {
        for &batch in A_CALL {
            let method = format!("{batch} a call{crc}");
            let get = |key| section.get(&method, body, key);
            let name = |what: &str| format!("{}, {method}: {what}", size(body));
            report.exactly(name("calls a message"), 1.0 / batch as f64, get("calls_per_message"));
            let wanted = match batch {
                16 => sixteen,
                64 => sixty_four,
                _ => continue,
            };
            if body == PAGE {
                report.at_least(name("speed / 1 a call"), wanted, get("speed_ratio"));
                report.beside(section.get(&format!("raw, {method}"), body, "speed_ratio"));
            }
        }
    }
    if body == PAGE {
        let name = |what: &str| format!("{}, {QUEUE}: speed / {what}", size(body));
        report.at_least(name("1 a call"), 3.3, section.get(QUEUE, body, "speed_ratio"));
        report.beside(section.get("raw, 256 a call", body, "speed_ratio"));
        report.at_least(name(MUTEX), 2.0, section.get(QUEUE, body, "mutex_speed_ratio"));
    }
}

/// One small message. Heads and bodies are slices of one memory each, which all rows send.
#[derive(Clone)]
struct Small {
    head: Bytes,
    body: Bytes,
    /// The checksum of the body, little-endian.
    crc: [u8; 4],
}

impl Small {
    /// As many as there are pages, in whole batches of any length. The head is the length of the body, big-endian, and
    /// as much of the number of the message as has room, up to `head` bytes.
    fn all(pool: Pool, head: usize, body: u64) -> Vec<Self> {
        let pages = pool.into_segments();
        let count = (pages.len() as u64 / UNIT).max(1) * UNIT;
        let mut heads = Vec::new();
        for number in 0..count as usize {
            let mut bytes = (body as u32).to_be_bytes().to_vec();
            bytes.extend_from_slice(&number.to_be_bytes());
            bytes.resize(head, b'h');
            heads.extend_from_slice(&bytes);
        }
        let heads = Bytes::from(heads);
        let small = pages.iter().cycle().take(count as usize).enumerate().map(|(number, page)| {
            let body = page.slice(..body as usize);
            let crc = crc_by_hand(&[&body]).to_le_bytes();
            Self { head: heads.slice(number * head..(number + 1) * head), body, crc }
        });
        small.collect()
    }

    fn wire(&self, sealed: bool) -> u64 {
        (self.head.len() + self.body.len() + if sealed { 4 } else { 0 }) as u64
    }

    /// A batch of them as slices.
    fn ready<'m>(batch: &'m [Self], sealed: bool) -> Vec<IoSlice<'m>> {
        let each = |small: &'m Self| {
            let crc = sealed.then_some(&small.crc[..]);
            [&small.head[..], &small.body].into_iter().chain(crc).map(IoSlice::new)
        };
        batch.iter().flat_map(each).collect()
    }

    fn put<'m>(&'m self, out: &mut ChainBuilder<'m>, sealed: bool) {
        out.put(&self.head);
        let body = out.push_borrowed(&self.body);
        put_crc(out, body, sealed);
    }
}

fn put_crc(out: &mut ChainBuilder<'_>, body: Mark, sealed: bool) {
    if sealed {
        let crc = out.put(&[0; 4]);
        out.slot(body..crc, Crc32c::raw(0), crc);
    }
}

impl Queued for Small {
    fn bytes(&self) -> u64 {
        (self.head.len() + self.body.len()) as u64
    }
}

/// Frames what waits in a queue.
struct Framing {
    sealed: bool,
}

impl Framer<Small> for Framing {
    type Error = ChainError;

    fn overhead(&self, _: u64) -> u64 {
        0
    }

    fn frame<'m>(&mut self, small: Small, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
    where
        Small: 'm,
    {
        out.put(&small.head);
        let body = out.push(small.body);
        put_crc(out, body, self.sealed);
        out.check()
    }
}

fn send_rows<'m>(bench: &Bench, messages: &'m [Small], sealed: bool) -> io::Result<Vec<Row>> {
    let (near, far) = link::tcp()?;
    let (near, far) = (Arc::new(near), &far);
    let body = messages[0].body.len() as u64;
    let crc = if sealed { " + crc" } else { "" };
    let raw_name = |batch: usize| format!("raw, {batch} a call{crc}");
    let ready: Vec<Vec<Vec<IoSlice<'m>>>> = A_CALL
        .iter()
        .map(|&batch| messages.chunks(batch).map(|batch| Small::ready(batch, sealed)).collect())
        .collect();

    let what = format!("small, sending {}{crc}", size(body));
    // Producers on one core send one by one until the scheduler first takes it from one that sends, which can last some
    // milliseconds: a piece has to be long beside that.
    let mut contest = Contest::new(what, Side::Sender, UNIT * body)
        .longer(4)
        .partner(move |task| {
            let bytes = task.messages * messages[0].wire(sealed);
            Box::new(move || raw::drain(far, bytes, task.check))
        })
        .expected(|task| digest(messages, task.messages, sealed));
    let socket = &*near;
    let again = [(format!("raw, 1 a call, again{crc}"), 1, &ready[0])];
    let raws = A_CALL.iter().zip(&ready).map(|(&batch, ready)| (raw_name(batch), batch, ready));
    for (name, batch, ready) in raws.chain(again) {
        let method = Method::new(name, move |count, _| send_ready(socket, messages, ready, count, sealed));
        contest.add(method.limit(raw_name(batch)));
    }
    for &batch in A_CALL {
        let mut batches = Batches::new(socket);
        let method = Method::new(format!("{batch} a call{crc}"), move |count, _| {
            batches.send(messages, count, batch, sealed)
        });
        contest.add(method.limit(raw_name(batch)));
    }
    for &threads in PRODUCERS {
        let near = &near;
        contest.add(Method::new(format!("queue, producers: {threads}{crc}"), move |count, sum| {
            queued(near, messages, count, sealed, Producers { threads, one_by_one: sum.is_some() })
        }));
    }
    contest.add(Method::new(format!("{MUTEX}{crc}"), move |count, sum| {
        locked(socket, messages, count, sealed, Producers { threads: 4, one_by_one: sum.is_some() })
    }));
    contest.each(|method| method.sealed(sealed).against(raw_name(1)).messages_of(body, UNIT));
    let outcome = contest.run(bench)?;
    let rows = outcome.rows().into_iter().map(|mut row| {
        if row.method().starts_with("queue") {
            let ratio = outcome.speed_ratio(row.method(), &format!("{MUTEX}{crc}"));
            row.set("mutex_speed_ratio", ratio);
        }
        row
    });
    Ok(rows.collect())
}

fn digest(messages: &[Small], count: u64, sealed: bool) -> u64 {
    let mut sum = Sum::new();
    for small in messages.iter().cycle().take(count as usize) {
        for slice in Small::ready(std::slice::from_ref(small), sealed) {
            sum.update(&slice);
        }
    }
    sum.value()
}

fn send_ready(
    socket: &TcpStream,
    messages: &[Small],
    ready: &[Vec<IoSlice<'_>>],
    count: u64,
    sealed: bool,
) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let batch = messages.len() / ready.len();
    let calls = count as usize / batch;
    for (messages, ready) in messages.chunks(batch).zip(ready).cycle().take(calls) {
        if sealed && messages.iter().any(|small| crc_by_hand(&[&small.body]).to_le_bytes() != small.crc) {
            return Err(io::Error::other("the checksum by hand differs"));
        }
        raw::send_ready(socket, ready, &mut counts)?;
    }
    Ok(counts)
}

/// segchain, so many messages a call.
struct Batches<'m, 's> {
    sender: StreamSender<SocketRef<&'s TcpStream>>,
    batch: Vec<Outgoing<'m>>,
    spare: Vec<SegmentChain<'m>>,
}

impl<'m, 's> Batches<'m, 's> {
    fn new(socket: &'s TcpStream) -> Self {
        Self { sender: StreamSender::new(SocketRef::new(socket)), batch: Vec::new(), spare: Vec::new() }
    }

    fn send(&mut self, messages: &'m [Small], count: u64, batch: usize, sealed: bool) -> io::Result<Counts> {
        let before = self.sender.stats();
        for messages in messages.chunks(batch).cycle().take(count as usize / batch) {
            for small in messages {
                let mut out = self.spare.pop().map(SegmentChain::recycle).unwrap_or_default();
                small.put(&mut out, sealed);
                self.batch.push(Outgoing::new(out.finish()?));
            }
            self.sender.send_batch_blocking(&mut self.batch, None)?;
            self.spare.extend(self.batch.drain(..).filter_map(Outgoing::into_chain));
        }
        Ok(counts(before, self.sender.stats()))
    }
}

/// Threads that push into one queue; each flushes if no other does.
fn queued(
    socket: &Arc<TcpStream>,
    messages: &[Small],
    count: u64,
    sealed: bool,
    producers: Producers,
) -> io::Result<Counts> {
    let queue = SendQueue::new(Framing { sealed }, SocketRef::new(socket.clone()));
    let cpu = producers.run(count, messages.len(), |at| {
        drop(queue.push(messages[at].clone())?);
        Ok(())
    })?;
    queue.close();
    queue.run()?;
    Ok(Counts { cpu, ..counts(SendStats::default(), queue.stats()) })
}

/// Threads that write into one socket behind a mutex: each copies its message into the one buffer and writes it, while it
/// has the lock.
fn locked(
    socket: &TcpStream,
    messages: &[Small],
    count: u64,
    sealed: bool,
    producers: Producers,
) -> io::Result<Counts> {
    let writer = Mutex::new((socket, Vec::new()));
    let cpu = producers.run(count, messages.len(), |at| {
        let small = &messages[at];
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let (socket, buffer) = &mut *writer;
        buffer.clear();
        buffer.extend_from_slice(&small.head);
        buffer.extend_from_slice(&small.body);
        if sealed {
            buffer.extend_from_slice(&crc_by_hand(&[&small.body]).to_le_bytes());
        }
        socket.write_all(buffer)
    })?;
    let copied = count * messages[0].body.len() as u64;
    Ok(Counts { calls: count, slices: count, copied, cpu, ..Counts::default() })
}

/// Threads that send, each the next message that nobody has: all of them are at it until the last one has left.
#[derive(Clone, Copy)]
struct Producers {
    threads: u64,
    /// Only one after the other do they send in an order that can be foretold.
    one_by_one: bool,
}

impl Producers {
    /// Sends `count` of `len` messages, given by their place; the CPU time of the threads.
    fn run(
        self,
        count: u64,
        len: usize,
        send: impl Fn(usize) -> io::Result<()> + Sync,
    ) -> io::Result<Duration> {
        let (next, send) = (&AtomicU64::new(0), &send);
        let next = move || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < count);
        thread::scope(|scope| {
            let mut threads = Vec::new();
            let mut cpu = Duration::ZERO;
            for _ in 0..self.threads {
                let thread = scope.spawn(move || {
                    while let Some(number) = next() {
                        send(number as usize % len)?;
                    }
                    Ok(thread_cpu())
                });
                if self.one_by_one {
                    cpu += end(thread)?;
                } else {
                    threads.push(thread);
                }
            }
            threads.into_iter().try_fold(cpu, |cpu, thread| Ok(cpu + end(thread)?))
        })
    }
}

fn end(thread: ScopedJoinHandle<'_, io::Result<Duration>>) -> io::Result<Duration> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a producer panicked")))
}

fn receive_rows(bench: &Bench) -> io::Result<Vec<Row>> {
    let (near, far) = link::tcp()?;
    let (near, far) = (&near, &far);
    let runtime = Async::new(far)?;
    let runtime = &runtime;
    let pool = bench.pool(PAGE);
    let messages = Small::all(pool, 4, RECORD);
    let messages = &messages;
    let stream: Vec<u8> = messages.iter().flat_map(|small| [&small.head[..], &small.body].concat()).collect();
    let stream = &stream;
    let mut contest = Contest::new("small, receiving", Side::Receiver, UNIT * RECORD)
        .partner(move |task| Box::new(move || send_stream(near, stream, task.messages * (4 + RECORD))))
        .expected(|task| bodies(messages, task.messages));
    const CODEC: &str = "LengthDelimitedCodec";
    const LARGE: &str = "LengthDelimitedCodec, 64k buffer";
    for (name, capacity) in [(CODEC, 8 << 10), ("LengthDelimitedCodec again", 8 << 10), (LARGE, 64 << 10)] {
        contest.add(Method::new(name, move |count, mut sum| {
            runtime.run(async |socket| {
                let mut framed = FramedRead::with_capacity(socket, LengthDelimitedCodec::new(), capacity);
                for _ in 0..count {
                    let record = framed.next().await.ok_or(io::ErrorKind::UnexpectedEof)??;
                    look(&record, &mut sum);
                }
                Ok(Counts::default())
            })
        }));
    }
    let mut receiver = Receiver::new(SocketRef::new(far), Records);
    contest.add(Method::new("segchain", move |count, mut sum| {
        let before = receiver.stats();
        let mut left = count;
        let received = receiver.receive_blocking(&mut (), None, |record| {
            look(record, &mut sum);
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let _ = received.map_err(io::Error::other)?;
        Ok(deframe::counts(before, receiver.stats()))
    }));
    contest.add(Method::new("recv a header, recv the rest", move |count, mut sum| {
        let mut counts = Counts::default();
        let (mut head, mut body) = ([0; 4], [0; RECORD as usize]);
        for _ in 0..count {
            raw::recv_all(far, &mut [IoSliceMut::new(&mut head)], &mut counts)?;
            let body = &mut body[..u32::from_be_bytes(head) as usize];
            raw::recv_all(far, &mut [IoSliceMut::new(body)], &mut counts)?;
            look(body, &mut sum);
        }
        Ok(counts)
    }));
    contest.each(|method| method.against(CODEC).limit(LARGE).messages_of(RECORD, UNIT));
    Ok(contest.run(bench)?.rows())
}

/// The other side of every receiver of records: 64 KiB a call, whatever that cuts.
fn send_stream(socket: &TcpStream, stream: &[u8], mut left: u64) -> io::Result<u64> {
    let mut counts = Counts::default();
    for chunk in stream.chunks(64 << 10).cycle() {
        let n = left.min(chunk.len() as u64);
        if n == 0 {
            break;
        }
        or_shut_down(socket, raw::send_ready(socket, &[IoSlice::new(&chunk[..n as usize])], &mut counts))?;
        left -= n;
    }
    Ok(0)
}

fn bodies(messages: &[Small], count: u64) -> u64 {
    let mut sum = Sum::new();
    messages.iter().cycle().take(count as usize).for_each(|small| sum.update(&small.body));
    sum.value()
}

/// What is done with a record: nothing that costs, but nothing that could be left out.
fn look(record: &[u8], sum: &mut Option<&mut Sum>) {
    std::hint::black_box(record);
    if let Some(sum) = sum {
        sum.update(record);
    }
}

/// A length and that many bytes, borrowed from the read-ahead.
struct Records;

impl Deframer for Records {
    type Frame<'h> = &'h [u8];
    type Error = Infallible;

    fn decode<'h>(&mut self, head: &'h [u8], _: &mut dyn Targets) -> Result<Step<&'h [u8]>, Infallible> {
        let Some(len) = head.first_chunk() else { return Ok(Step::Need(4)) };
        let end = 4 + u32::from_be_bytes(*len) as usize;
        Ok(head.get(4..end).map_or(Step::Need(end), |frame| Step::Frame { frame, head: end }))
    }

    fn body(&mut self, _: Filled) -> Result<(), Infallible> {
        Ok(())
    }
}
