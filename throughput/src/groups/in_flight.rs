//! Many requests at once against a peer that takes a set time for each.
//!
//! Baseline, *one by one*: the next request is sent when the one before is answered. *Batches* of 5, 10 and 20 are sent
//! without waiting and then all awaited, *windows* keep as many in flight all the time, *all at once* bounds nothing. All go
//! through the same `SendQueue`, `InFlight`, flushing thread and receiving thread, over one connection. Published for batches
//! of 1, 5, 10, 20 and of all: 56, 23, 14, 9 and 5 % of a baseline that is not one by one; so compare how they fall.
//!
//! Limit, *raw, all at once*: sendmsg of ready iovecs, one after the other, then the replies are awaited: the time that the
//! bytes need on this connection, which from 1 MiB up is far more than 9 % of one by one with 2 ms of service. CPU times of
//! this group are those of the thread that pushes, without its two helpers, and are not shown.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use segchain::chain::{ChainBuilder, ChainError};
use segchain::framer::{Deframer, Filled, Framer, Step, Targets};
use segchain::queue::{Queued, SendQueue};
use segchain::recv::Receiver;
use segchain::transport::SocketRef;
use segchain::window::{InFlight, Request, Window};

use super::Group;
use crate::args::size;
use crate::bench::Bench;
use crate::contest::{Contest, Counts, Method};
use crate::link;
use crate::machine::Side;
use crate::ours;
use crate::pages::{FOOT, HEAD, Message, expected};
use crate::plot::Chart;
use crate::raw;
use crate::report::{Report, Row, Section};
use crate::service::{REPLY, Service};

/// `in-flight`.
pub const GROUP: Group = Group {
    name: "in-flight",
    about: "200 requests over one connection to a peer that answers each 2 ms (--service) after it has arrived in whole. \
            Baseline: one by one; batches are awaited as a whole, a window is refilled at each reply. Raw: ready iovecs sent \
            one after the other, the time that the bytes alone take.",
    run,
};

const SIZES: &[u64] = &[64 << 10, 1 << 20, 4 << 20];
const PAGE: u64 = 4096;
const REQUESTS: u64 = 200;
const SHORT_REQUESTS: u64 = 20;
const BOUNDS: &[u64] = &[5, 10, 20];
const PUBLISHED: &[(&str, f64)] =
    &[(ONE, 56.0), ("batches of 5", 23.0), ("batches of 10", 14.0), ("batches of 20", 9.0), (ALL, 5.0)];
const ONE: &str = "one by one";
const ALL: &str = "all at once";
const RAW: &str = "raw, all at once";
const COLUMNS: &[&str] = &["time_percent", "published_percent", "speed_ratio", "rate", "speed"];

fn run(bench: &Bench, report: &mut Report) -> io::Result<()> {
    let service = Duration::from_micros(bench.args.service);
    let pool = bench.pool(PAGE);
    let title = format!(
        "{REQUESTS} requests, {} ms of service, pool {}",
        service.as_secs_f64() * 1e3,
        size(pool.len())
    );
    let mut section = Section::new(title, COLUMNS);
    for bytes in bench.sizes(SIZES) {
        section.rows.extend(rows(bench, &pool.messages(bytes), service)?);
    }
    for row in section.rows.iter().filter(|row| row.method().ends_with("of 20")) {
        let name = |what: &str| format!("{}, {}: {what}", size(row.size()), row.method());
        report.at_most(name("% of one by one"), 9.0, row.get("time_percent"));
        report.beside(section.get(RAW, row.size(), "time_percent"));
        report.exactly(name("bytes copied"), 0.0, row.get("copied_per_message"));
    }
    report.charts.push(Chart::over_size(
        "in-flight",
        "200 requests, 2 ms of service each",
        &section,
        ("time_percent", "% of one by one"),
        &["batches of 5", "batches of 20", "window of 5", "window of 20", RAW],
    ));
    report.sections.push(section);
    Ok(())
}

fn rows(bench: &Bench, messages: &[Message<'_>], service: Duration) -> io::Result<Vec<Row>> {
    let (near, far) = link::tcp()?;
    let (near, far) = (Arc::new(near), &far);
    let payload = messages[0].payload();
    bench.machine.pin(Side::Sender)?;
    thread::scope(|scope| {
        let service = Service::start(scope, &bench.machine, far, service);
        let client = Client::start(near.clone(), messages)?;
        let client = &client;
        let requests = if bench.args.short { SHORT_REQUESTS } else { REQUESTS };
        let what = format!("in-flight {}", size(payload));
        let mut contest = Contest::new(what, Side::Sender, payload)
            .messages(requests)
            .partner(move |task| {
                let service = service.clone();
                Box::new(move || service.receive(far, payload, task.messages, task.check))
            })
            .expected(|task| expected(messages, task.messages, false));
        let mut add = |name: String, bound: u64, waits: bool| {
            let requests = Client::bounded(bound, payload);
            contest.add(
                Method::new(name, move |count, _| {
                    client.run(&requests, count, if waits { bound } else { count })
                })
                .against(ONE)
                .limit(RAW),
            );
        };
        add(ONE.into(), 1, true);
        add(format!("{ONE} again"), 1, true);
        for &bound in BOUNDS {
            add(format!("batches of {bound}"), bound, true);
            add(format!("window of {bound}"), bound, false);
        }
        add(ALL.into(), REQUESTS, false);
        let ready: Vec<Vec<IoSlice<'_>>> = messages.iter().map(|message| message.ready(false)).collect();
        let (requests, near) = (Client::bounded(REQUESTS, payload), &near);
        let raw = Method::new(RAW, move |count, _| client.run_raw(&requests, near, &ready, count));
        contest.add(raw.against(ONE).limit(RAW));
        let rows = contest.run(bench)?.rows().into_iter().map(|mut row| {
            row.set("time_percent", row.get("speed_ratio").map(|speed| speed.inverse().times(100.0)));
            match PUBLISHED.iter().find(|(method, _)| *method == row.method()) {
                Some((_, percent)) => row.with("published_percent", *percent),
                None => row,
            }
        });
        Ok(rows.collect())
    })
}

type Socket = SocketRef<Arc<TcpStream>>;
type Queue = SendQueue<Shared, Framing, Socket>;
/// A request carries its number.
type Requests = InFlight<u64, (), io::Error>;
type Waiting = Mutex<VecDeque<Request<u64, (), io::Error>>>;

/// Requests over one connection: whoever pushes, a thread that flushes when the socket was full, one that receives.
struct Client {
    queue: Queue,
    messages: Vec<Shared>,
    /// The peer answers in order.
    waiting: Arc<Waiting>,
    threads: Vec<JoinHandle<()>>,
}

impl Client {
    fn start(socket: Arc<TcpStream>, messages: &[Message<'_>]) -> io::Result<Self> {
        let socket = SocketRef::new(socket);
        let queue = SendQueue::new(Framing, socket.clone());
        let waiting = Arc::new(Waiting::default());
        let (flusher, shared) = (queue.clone(), waiting.clone());
        let flush = move || drop(flusher.run());
        let receive = move || receive(&socket, &shared);
        let threads = vec![
            thread::Builder::new().name("flush".into()).spawn(flush)?,
            thread::Builder::new().name("receive".into()).spawn(receive)?,
        ];
        Ok(Self { queue, messages: messages.iter().map(Shared::of).collect(), waiting, threads })
    }

    /// Requests of `bytes` each, so many at once.
    fn bounded(bound: u64, bytes: u64) -> Requests {
        InFlight::new(Window::new(bound * bytes, bound as usize))
    }

    /// Starts requests as the window has room; after each `batch` of them it waits for all.
    fn run(&self, requests: &Requests, count: u64, batch: u64) -> io::Result<Counts> {
        let before = self.queue.stats();
        let mut all = self.messages.iter().cycle().take(count as usize).peekable();
        while all.peek().is_some() {
            for message in all.by_ref().take(batch as usize) {
                let request = requests.start(message.payload(), message.number);
                lock(&self.waiting).push_back(request);
                drop(self.queue.push(message.clone())?);
            }
            all_answered(requests)?;
        }
        Ok(ours::counts(before, self.queue.stats()))
    }

    /// The same bytes past the queue, as fast as the socket takes them.
    fn run_raw(
        &self,
        requests: &Requests,
        socket: &TcpStream,
        ready: &[Vec<IoSlice<'_>>],
        count: u64,
    ) -> io::Result<Counts> {
        let mut counts = Counts::default();
        for (message, ready) in self.messages.iter().zip(ready).cycle().take(count as usize) {
            let request = requests.start(message.payload(), message.number);
            lock(&self.waiting).push_back(request);
            raw::send_ready(socket, ready, &mut counts)?;
        }
        all_answered(requests)?;
        Ok(counts)
    }
}

fn all_answered(requests: &Requests) -> io::Result<()> {
    match requests.wait_all() {
        Ok(_) => Ok(()),
        Err(partial) => Err(io::Error::other(partial.to_string())),
    }
}

/// Ends the threads, however the contest ended.
impl Drop for Client {
    fn drop(&mut self) {
        self.queue.shut_down();
        let _ = self.queue.transport().get_ref().shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Takes replies until the stream ends. Requests that are left then fail as abandoned.
fn receive(socket: &Socket, waiting: &Waiting) {
    let mut receiver = Receiver::new(socket.clone(), Numbers);
    let _ = receiver.receive_blocking(&mut (), None, |number| {
        let Some(request) = lock(waiting).pop_front() else { return ControlFlow::Break(()) };
        let result = if request.value() == Some(&number) {
            Ok(())
        } else {
            Err(io::Error::other(format!("a reply to {number}, expected one to {:?}", request.value())))
        };
        request.complete(result);
        ControlFlow::Continue(())
    });
    lock(waiting).clear();
}

fn lock(waiting: &Waiting) -> MutexGuard<'_, VecDeque<Request<u64, (), io::Error>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replies: a number, little-endian.
struct Numbers;

impl Deframer for Numbers {
    type Frame<'h> = u64;
    type Error = Infallible;

    fn decode(&mut self, head: &[u8], _: &mut dyn Targets) -> Result<Step<u64>, Infallible> {
        Ok(match head.first_chunk() {
            Some(number) => Step::Frame { frame: u64::from_le_bytes(*number), head: REPLY },
            None => Step::Need(REPLY),
        })
    }

    fn body(&mut self, _: Filled) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A message that can wait in a queue: its pages are shared, each by itself.
#[derive(Clone)]
struct Shared {
    number: u64,
    head: [u8; HEAD],
    pages: Arc<[Bytes]>,
    foot: [u8; FOOT],
}

impl Shared {
    fn of(message: &Message<'_>) -> Self {
        let number = message.head.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
        let pages = message.segments.iter().map(|page| Bytes::copy_from_slice(page)).collect();
        Self { number, head: message.head, pages, foot: message.foot }
    }

    fn payload(&self) -> u64 {
        self.pages.iter().map(|page| page.len() as u64).sum()
    }
}

impl Queued for Shared {
    fn bytes(&self) -> u64 {
        self.payload() + (HEAD + FOOT) as u64
    }
}

struct Framing;

impl Framer<Shared> for Framing {
    type Error = ChainError;

    fn overhead(&self, _: u64) -> u64 {
        (HEAD + FOOT) as u64
    }

    fn frame<'m>(&mut self, message: Shared, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
    where
        Shared: 'm,
    {
        out.put(&message.head);
        for page in message.pages.iter() {
            out.push(page.clone());
        }
        out.put(&message.foot);
        out.check()
    }
}
