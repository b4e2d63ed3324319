//! What the queue costs, and what it wins.
//!
//! * `overhead`, and the same in turns: a message through an uncontended queue and through a bare `StreamSender`, on a
//!   transport that does nothing. The target is a difference of less than 300 ns.
//! * `producers`: messages of 100 bytes, of 4 KiB, and of a head of 100 bytes with a page of 4 KiB, from four threads over
//!   loopback TCP, a thread reading at the other end: one sendmsg a message, a mutex around a blocking writer, and the
//!   queue. The methods take turns in one run, so that whatever else the machine does hits all. The program
//!   `throughput` has the same with both ends pinned.

#![allow(clippy::cast_precision_loss, reason = "counts of messages")]

use std::hint::black_box;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use segchain::chain::{ChainBuilder, ChainError, Outgoing, SegmentChain};
use segchain::framer::Framer;
use segchain::queue::{QueueOptions, Queued, SendQueue};
use segchain::send::StreamSender;
use segchain::transport::{SendFlags, SocketRef, VectoredSend};

const PRODUCERS: usize = 4;
const MESSAGES: usize = 4000;
const ROUNDS: usize = 15;
const METHODS: [&str; 4] = ["one sendmsg each", "mutex, blocking", "queue", "queue and thread"];

struct Record {
    head: &'static [u8],
    body: Bytes,
}

impl Record {
    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

impl Queued for Record {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

struct Lengths;

impl Framer<Record> for Lengths {
    type Error = ChainError;
    fn overhead(&self, _: u64) -> u64 {
        4
    }
    fn frame<'m>(&mut self, record: Record, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
    where
        Record: 'm,
    {
        out.put_u32_be(record.len() as u32);
        out.put(record.head);
        out.push(record.body);
        out.check()
    }
}

struct Nothing;

impl VectoredSend for Nothing {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], _: SendFlags) -> io::Result<usize> {
        Ok(black_box(bufs).iter().map(|buf| buf.len()).sum())
    }
}

fn overhead(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("overhead");
    for len in [100, 4096] {
        let body = Bytes::from(vec![7; len]);
        group.bench_function(format!("sender/{len}"), |bencher| {
            let mut sender = StreamSender::new(Nothing);
            let mut recycled = Some(ChainBuilder::new().finish().expect("empty"));
            let mut framer = Lengths;
            bencher.iter(|| {
                let mut out = recycled.take().map(SegmentChain::recycle).unwrap_or_default();
                framer.frame(Record { head: &[], body: body.clone() }, &mut out).expect("a good message");
                let mut message = Outgoing::new(out.finish().expect("a good chain"));
                let progress = sender.send(&mut message).expect("sent");
                let _ = black_box(progress);
                recycled = message.into_chain();
            });
        });
        group.bench_function(format!("queue/{len}"), |bencher| {
            let queue = SendQueue::new(Lengths, Nothing);
            bencher.iter(|| {
                let ticket = queue.try_push(Record { head: &[], body: body.clone() });
                drop(black_box(ticket).expect("room"));
            });
        });
    }
    group.finish();
}

/// Reads until the end, and says how many bytes there were.
fn drain(mut peer: TcpStream) -> thread::JoinHandle<u64> {
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 18];
        let mut total = 0;
        loop {
            match peer.read(&mut buffer).expect("a good socket") {
                0 => return total,
                n => total += n as u64,
            }
        }
    })
}

/// The head of every message that has one.
static HEAD: [u8; 100] = [1; 100];
/// Pages that the messages take in turn, warm in the cache: 16 MiB.
const PAGES: usize = 4096;

/// What the messages are made of: the head, if they have one, and the page behind it.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    head: &'static [u8],
    body: usize,
}

const SHAPES: [Shape; 3] = [
    Shape { name: "100 B", head: &[], body: 100 },
    Shape { name: "4 KiB", head: &[], body: 4096 },
    Shape { name: "100 B + 4 KiB", head: &HEAD, body: 4096 },
];

impl Shape {
    fn bodies(self) -> Vec<Bytes> {
        (0..PAGES).map(|_| Bytes::from(vec![2; self.body])).collect()
    }
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    for stream in [&socket, &peer] {
        stream.set_nodelay(true)?;
        #[cfg(target_os = "linux")]
        socket2::SockRef::from(stream).set_tcp_congestion(b"cubic")?;
    }
    Ok((socket, peer))
}

/// Runs the producers; `each` makes what one of them calls with every message.
fn produce<F: FnMut(Record) + Send>(shape: Shape, bodies: &[Bytes], each: impl Fn() -> F + Sync) {
    thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let each = &each;
            scope.spawn(move || {
                let mut send = each();
                for n in 0..MESSAGES {
                    let body = bodies[(producer * MESSAGES + n) % bodies.len()].clone();
                    send(Record { head: shape.head, body });
                }
            });
        }
    });
}

/// A sender behind a mutex, one sendmsg a message: what a careful protocol crate does without a queue.
fn one_call_a_message(socket: TcpStream, shape: Shape, bodies: &[Bytes]) {
    let sender = Mutex::new((StreamSender::new(SocketRef::new(socket)), None::<SegmentChain<'static>>));
    produce(shape, bodies, || {
        |record| {
            let mut sender = sender.lock().expect("no panic");
            let (sender, memory) = &mut *sender;
            let mut out = memory.take().map(SegmentChain::recycle).unwrap_or_default();
            Lengths.frame(record, &mut out).expect("a good message");
            let mut message = Outgoing::new(out.finish().expect("a good chain"));
            sender.send_blocking(&mut message, None).expect("sent");
            *memory = message.into_chain();
        }
    });
}

/// A mutex around a blocking writer: one `write_all` of a copied message each.
fn mutex(socket: TcpStream, shape: Shape, bodies: &[Bytes]) {
    let writer = Mutex::new((socket, Vec::new()));
    produce(shape, bodies, || {
        |record: Record| {
            let mut writer = writer.lock().expect("no panic");
            let (socket, buffer) = &mut *writer;
            buffer.clear();
            buffer.extend_from_slice(&(record.len() as u32).to_be_bytes());
            buffer.extend_from_slice(record.head);
            buffer.extend_from_slice(&record.body);
            socket.write_all(buffer).expect("sent");
        }
    });
}

/// Flushed by whoever pushes, or by a thread that does nothing else. Returns the calls that it took.
fn queued(socket: TcpStream, shape: Shape, bodies: &[Bytes], runner: bool) -> u64 {
    let options = QueueOptions::new().pushers_flush(!runner);
    let queue = SendQueue::with_options(Lengths, SocketRef::new(socket), options);
    let runner = runner.then(|| {
        let queue = queue.clone();
        thread::spawn(move || queue.run())
    });
    produce(shape, bodies, || {
        let queue = queue.clone();
        move |record| drop(queue.push(record).expect("an open queue"))
    });
    queue.close();
    queue.run().expect("a good socket");
    if let Some(runner) = runner {
        runner.join().expect("no panic").expect("a good socket");
    }
    queue.stats().calls
}

fn timed(shape: Shape, method: impl FnOnce(TcpStream)) -> f64 {
    let (socket, peer) = pair().expect("loopback TCP");
    let reader = drain(peer);
    let began = Instant::now();
    method(socket);
    let took = began.elapsed();
    let expected = PRODUCERS * MESSAGES * (4 + shape.head.len() + shape.body);
    assert_eq!(reader.join().expect("no panic"), expected as u64);
    (PRODUCERS * MESSAGES) as f64 / took.as_secs_f64()
}

/// CPU time of this process so far, in seconds; its ended threads included.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // utime and stime, in hundredths, are fields 14 and 15; the name before them is in brackets.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Both ways in turns, for a machine that is not idle: the fastest turn of each is the least disturbed one.
fn in_turns(_: &mut Criterion) {
    const TURN: u32 = 2000;
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    for len in [100, 4096] {
        let body = Bytes::from(vec![7; len]);
        let mut sender = StreamSender::new(Nothing);
        let mut recycled = Some(ChainBuilder::new().finish().expect("empty"));
        let queue = SendQueue::new(Lengths, Nothing);
        let (mut bare, mut queued) = (Vec::new(), Vec::new());
        for _ in 0..400 {
            let began = Instant::now();
            for _ in 0..TURN {
                let mut out = recycled.take().map(SegmentChain::recycle).unwrap_or_default();
                Lengths.frame(Record { head: &[], body: body.clone() }, &mut out).expect("a good message");
                let mut message = Outgoing::new(out.finish().expect("a good chain"));
                let progress = sender.send(&mut message).expect("sent");
                let _ = black_box(progress);
                recycled = message.into_chain();
            }
            bare.push(began.elapsed() / TURN);
            let began = Instant::now();
            for _ in 0..TURN {
                drop(black_box(queue.try_push(Record { head: &[], body: body.clone() })).expect("room"));
            }
            queued.push(began.elapsed() / TURN);
        }
        bare.sort_unstable();
        queued.sort_unstable();
        let (fastest, median) = (queued[0].saturating_sub(bare[0]), queued[200].saturating_sub(bare[200]));
        println!(
            "{len} bytes: sender {:?} (fastest {:?}), queue {:?} ({:?}); the queue adds {median:?} ({fastest:?})",
            bare[200], bare[0], queued[200], queued[0]
        );
    }
}

fn producers(_: &mut Criterion) {
    // As criterion does with a filter that does not name it.
    let named = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    if named.is_some_and(|named| !"producers".contains(&*named))
        || std::env::args().any(|arg| arg == "--test")
    {
        return;
    }
    for shape in SHAPES {
        let (name, bodies) = (shape.name, shape.bodies());
        let mut rates: [Vec<f64>; 4] = Default::default();
        let mut spent = [0.0; 4];
        let mut calls = [0; 2];
        for _ in 0..ROUNDS {
            for method in 0..4 {
                let before = cpu();
                rates[method].push(match method {
                    0 => timed(shape, |socket| one_call_a_message(socket, shape, &bodies)),
                    1 => timed(shape, |socket| mutex(socket, shape, &bodies)),
                    _ => timed(shape, |socket| {
                        calls[method - 2] = queued(socket, shape, &bodies, method == 3);
                    }),
                });
                spent[method] += cpu() - before;
            }
        }
        println!(
            "\n{name}, {PRODUCERS} producers, {ROUNDS} rounds, thousand messages/s: median (min to max)"
        );
        let mut medians = [0.0; 4];
        for (index, method) in METHODS.into_iter().enumerate() {
            let rates = &mut rates[index];
            rates.sort_by(f64::total_cmp);
            medians[index] = rates[ROUNDS / 2];
            let [low, median, high] = [rates[0], medians[index], rates[ROUNDS - 1]].map(|rate| rate / 1e3);
            let cpu = spent[index] * 1e9 / (ROUNDS * PRODUCERS * MESSAGES) as f64;
            println!("  {method:18}{median:9.0} ({low:.0} to {high:.0}), {cpu:.0} ns CPU a message");
        }
        let messages = (PRODUCERS * MESSAGES) as f64;
        for queue in [2, 3] {
            println!(
                "  {}: {:.2} times one sendmsg each, {:.2} times the mutex; {:.1} messages a call",
                METHODS[queue],
                medians[queue] / medians[0],
                medians[queue] / medians[1],
                messages / calls[queue - 2] as f64
            );
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(Duration::from_secs(1))
        .warm_up_time(Duration::from_millis(300));
    targets = overhead, in_turns, producers
}
criterion_main!(benches);
