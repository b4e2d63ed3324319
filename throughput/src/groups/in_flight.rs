//! Many requests at once against a peer that takes a set time for each.
//!
//! Baseline, *one by one*: the next request is sent when the one before is answered. *Batches* of 5, 10 and 20 are sent
//! without waiting and then all awaited, *windows* keep as many in flight all the time, *all at once* bounds nothing. All go
//! through the same `SendQueue`, `InFlight`, flushing thread and receiving thread, over one connection. Reported
//! for Linux (see [`groups`](super)) for batches of 1, 5, 10, 20 and of all: 56, 23, 14, 9 and 5 % of a baseline that is not
//! one by one; so compare how they fall.
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
use std::time::{Duration, Instant};

use segchain::framer::{Deframer, Filled, Step, Targets};
use segchain::queue::SendQueue;
use segchain::recv::Receiver;
use segchain::transport::SocketRef;
use segchain::window::{InFlight, Request, Window};

use super::Group;
use crate::args::size;
use crate::bench::Bench;
use crate::contest::{Contest, Counts, Method};
use crate::link::{self, or_shut_down};
use crate::machine::Side;
use crate::ours;
use crate::pages::{Message, expected};
use crate::plot::Chart;
use crate::queued::{Framing, Shared};
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
const REPORTED: &[(&str, f64)] =
    &[(ONE, 56.0), ("batches of 5", 23.0), ("batches of 10", 14.0), ("batches of 20", 9.0), (ALL, 5.0)];
/// Which have a target.
const TARGETED: [&str; 2] = ["batches of 20", "window of 20"];
const ONE: &str = "one by one";
const ALL: &str = "all at once";
const RAW: &str = "raw, all at once";
const COLUMNS: &[&str] = &["time_percent", "reported_percent", "speed_ratio", "rate", "speed"];

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
    for (bytes, method) in bench.sizes(SIZES).iter().flat_map(|&bytes| TARGETED.map(|method| (bytes, method)))
    {
        let name = |what: &str| format!("{}, {method}: {what}", size(bytes));
        report.at_most(name("% of one by one"), 9.0, section.get(method, bytes, "time_percent"));
        report.beside(section.get(RAW, bytes, "time_percent"));
        report.exactly(name("bytes copied"), 0.0, section.get(method, bytes, "copied_per_message"));
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
            match REPORTED.iter().find(|(method, _)| *method == row.method()) {
                Some((_, percent)) => row.with("reported_percent", *percent),
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
type Expected = VecDeque<Request<u64, (), io::Error>>;
/// `None` when nobody receives any more.
type Waiting = Mutex<Option<Expected>>;

/// Requests over one connection: whoever pushes, a thread that flushes when the socket was full, one that receives.
struct Client {
    queue: Queue,
    /// With their numbers.
    messages: Vec<(u64, Shared)>,
    /// The peer answers in order.
    waiting: Arc<Waiting>,
    threads: Vec<JoinHandle<()>>,
    /// How long to wait for the next reply.
    patience: Duration,
}

impl Client {
    fn start(socket: Arc<TcpStream>, messages: &[Message<'_>]) -> io::Result<Self> {
        let socket = SocketRef::new(socket);
        let queue = SendQueue::new(Framing, socket.clone());
        let waiting = Arc::new(Waiting::new(Some(Expected::new())));
        let (flusher, shared) = (queue.clone(), waiting.clone());
        let flush = move || drop(flusher.run());
        let receive = move || receive(&socket, &shared);
        let threads = vec![
            thread::Builder::new().name("flush".into()).spawn(flush)?,
            thread::Builder::new().name("receive".into()).spawn(receive)?,
        ];
        let messages = messages.iter().map(numbered).collect();
        Ok(Self { queue, messages, waiting, threads, patience: link::STALL })
    }

    /// Requests of `bytes` each, so many at once.
    fn bounded(bound: u64, bytes: u64) -> Requests {
        InFlight::new(Window::new(bound * bytes, bound as usize))
    }

    /// Starts requests as the window has room; after each `batch` of them it waits for all. On an error the connection is
    /// shut down.
    fn run(&self, requests: &Requests, count: u64, batch: u64) -> io::Result<Counts> {
        let before = self.queue.stats();
        self.or_shut_down(self.push_all(requests, count, batch))?;
        Ok(ours::counts(before, self.queue.stats()))
    }

    fn push_all(&self, requests: &Requests, count: u64, batch: u64) -> io::Result<()> {
        let mut all = self.messages.iter().cycle().take(count as usize).peekable();
        while all.peek().is_some() {
            for (number, message) in all.by_ref().take(batch as usize) {
                self.expect(requests, *number, message)?;
                drop(self.queue.push(message.clone())?);
            }
            self.all_answered(requests)?;
        }
        Ok(())
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
        let mut all = self.messages.iter().zip(ready).cycle().take(count as usize);
        let sent = all.try_for_each(|((number, message), ready)| {
            self.expect(requests, *number, message)?;
            raw::send_ready(socket, ready, &mut counts)
        });
        self.or_shut_down(sent.and_then(|()| self.all_answered(requests)))?;
        Ok(counts)
    }

    /// Starts a request, as soon as the window has room.
    fn expect(&self, requests: &Requests, number: u64, message: &Shared) -> io::Result<()> {
        let deadline = Some(Instant::now() + self.patience);
        let permit = requests.window().acquire_until(message.payload(), deadline).ok_or_else(no_reply)?;
        let request = requests.start_with(permit, number);
        let mut waiting = lock(&self.waiting);
        waiting.as_mut().ok_or(io::ErrorKind::ConnectionAborted)?.push_back(request);
        Ok(())
    }

    /// Waits for all replies, for none longer than it has patience.
    fn all_answered(&self, requests: &Requests) -> io::Result<()> {
        while let Some((number, result)) = requests.wait_one(Some(Instant::now() + self.patience)) {
            result.map_err(|failure| io::Error::other(format!("request {number}: {failure:?}")))?;
        }
        if requests.in_flight() > 0 { Err(no_reply()) } else { Ok(()) }
    }

    fn or_shut_down<T>(&self, result: io::Result<T>) -> io::Result<T> {
        or_shut_down(&**self.queue.transport().get_ref(), result)
    }
}

fn no_reply() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer does not answer")
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
        let Some(request) = lock(waiting).as_mut().and_then(Expected::pop_front) else {
            return ControlFlow::Break(());
        };
        let result = if request.value() == Some(&number) {
            Ok(())
        } else {
            Err(io::Error::other(format!("a reply to {number}, expected one to {:?}", request.value())))
        };
        request.complete(result);
        ControlFlow::Continue(())
    });
    // Outside of the lock: each of them tells whoever waits.
    let left = lock(waiting).take();
    drop(left);
}

/// A message that can wait in a queue, and the number in its head.
fn numbered(message: &Message<'_>) -> (u64, Shared) {
    let number = message.head.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
    (number, Shared::new(&message.head, message.segments.iter().copied(), &message.foot))
}

fn lock(waiting: &Waiting) -> MutexGuard<'_, Option<Expected>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pool;

    /// What becomes of three requests to a peer that does this with the connection, and a client that waits so long.
    fn against(peer: impl FnOnce(&TcpStream) + Send, patience: Duration) -> io::Error {
        let pool = Pool::new(16 << 10, PAGE);
        let messages = pool.messages(PAGE);
        let (near, far) = link::tcp().expect("loopback");
        thread::scope(|scope| {
            let mut client = Client::start(Arc::new(near), &messages).expect("two threads");
            client.patience = patience;
            scope.spawn(|| peer(&far));
            client.run(&Client::bounded(2, PAGE), 3, 3).expect_err("no reply comes")
        })
    }

    #[test]
    fn a_client_ends_when_its_peer_fails() {
        let fails = |far: &TcpStream| {
            Service::broken().receive(far, PAGE, 3, false).expect_err("there is no timer");
        };
        assert_ne!(against(fails, link::STALL).kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_client_ends_when_its_peer_is_silent() {
        let silent = |far: &TcpStream| drop(raw::drain(far, 1 << 40, false));
        assert_eq!(against(silent, Duration::from_millis(50)).kind(), io::ErrorKind::TimedOut);
    }
}
