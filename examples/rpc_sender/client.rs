//! One connection to an RPC program: calls in flight, replies matched by transaction id.
//!
//! ```text
//!  start ─▶ Pending, Window ─▶ SendQueue (RecordFramer) ─▶ ┐
//!                                                          socket
//!  next  ◀─ InFlight ◀─ RecordDeframer ◀─ Receiver ◀────── ┘      data of replies lands in our own pages
//! ```
//!
//! Calls are pushed by whoever has them; one thread sees to it that the queue goes on when the socket was full, one
//! receives.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use segchain::framer::{LentSlices, Targets};
use segchain::queue::SendQueue;
use segchain::recv::{Received, Receiver, RecvStats};
use segchain::transport::{Interest, SocketRef, Wait};
use segchain::window::{InFlight, Request, Window};
use segchain_oncrpc::rpc::{Auth, AuthSys, CallHeader, ReplyHeader};
use segchain_oncrpc::xdr::{Reader, Writer};
use segchain_oncrpc::{Dropped, Layout, Message, Pending, RecordDeframer, RecordFramer};

use crate::Result;
use crate::report::Report;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// How long a peer may take, for a connection and for a reply.
const PATIENCE: Duration = Duration::from_secs(30);

type Socket = SocketRef<Arc<Stream>>;
type Call = Message<'static, Vec<Bytes>>;

/// A connection to one version of one program.
pub struct Client {
    peer: String,
    protocol: &'static str,
    program: u32,
    version: u32,
    xid: u32,
    queue: SendQueue<Call, RecordFramer, Socket>,
    /// A call carries its transaction id; its reply is a record, but for the data that is in the pages.
    calls: InFlight<u32, Vec<u8>, String>,
    pending: Pending,
    table: Arc<Mutex<Table>>,
    threads: Vec<JoinHandle<()>>,
    replies_ok: u64,
    replies_failed: u64,
    failure: Option<String>,
}

/// What the receiving thread shares with the one that calls.
#[derive(Default)]
struct Table {
    waiting: HashMap<u32, Request<u32, Vec<u8>, String>>,
    pages: Pages,
    stats: RecvStats,
    /// Why no more replies will come.
    ended: Option<String>,
}

/// A reply.
pub struct Answer {
    /// Which call it answers.
    pub xid: u32,
    /// The results, without the data that is in the pages; or why there are none.
    pub results: std::result::Result<Vec<u8>, String>,
    /// The pages that went with the call.
    pub pages: Option<Vec<Vec<u8>>>,
}

impl Client {
    /// Connects over TCP. `window` bounds what is in flight.
    pub fn tcp(peer: &str, program: u32, version: u32, window: Window) -> Result<Self> {
        let stream = connect(peer).map_err(|error| format!("cannot reach {peer}: {error}"))?;
        stream.set_nodelay(true)?;
        Self::new(peer, "oncrpc-tcp", Stream::Tcp(stream), program, version, window)
    }

    /// Connects to a socket of this machine.
    pub fn unix(path: &str, program: u32, version: u32, window: Window) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| format!("cannot reach {path}: {error}"))?;
        Self::new(path, "oncrpc-unix", Stream::Unix(stream), program, version, window)
    }

    fn new(
        peer: &str,
        protocol: &'static str,
        stream: Stream,
        program: u32,
        version: u32,
        window: Window,
    ) -> Result<Self> {
        let socket = SocketRef::new(Arc::new(stream));
        let pending = Pending::new();
        let (log, dropped) = mpsc::channel();
        let deframer = RecordDeframer::new(pending.clone()).refuse_calls().on_dropped(move |record| {
            let _ = log.send(record);
        });
        let receiver = Receiver::new(socket.clone(), deframer);
        let queue = SendQueue::new(RecordFramer::new(), socket);
        let table = Arc::new(Mutex::new(Table::default()));
        let (pusher, shared) = (queue.clone(), table.clone());
        // What ends the queue ends the connection, and so the receiving thread tells everybody.
        let send = move || drop(pusher.run());
        let receive = move || receive(receiver, &dropped, &shared);
        let threads = vec![
            thread::Builder::new().name("send".into()).spawn(send)?,
            thread::Builder::new().name("receive".into()).spawn(receive)?,
        ];
        Ok(Self {
            peer: peer.into(),
            protocol,
            program,
            version,
            xid: std::process::id() << 16,
            queue,
            calls: InFlight::new(window),
            pending,
            table,
            threads,
            replies_ok: 0,
            replies_failed: 0,
            failure: None,
        })
    }

    /// How many calls may be in flight.
    pub fn in_flight(&self) -> usize {
        self.calls.window().max_requests()
    }

    /// Sends a call without payload whose reply comes whole; returns its transaction id.
    pub fn start(&mut self, procedure: u32, args: impl FnOnce(&mut Writer)) -> Result<u32> {
        let (xid, message) = self.message(procedure, args)?;
        self.send(xid, message.raw(Vec::new()), 0, Layout::Whole)
    }

    /// Sends a call whose last argument is an opaque: the payload, which is not copied.
    pub fn start_with(
        &mut self,
        procedure: u32,
        args: impl FnOnce(&mut Writer),
        payload: Vec<Bytes>,
    ) -> Result<u32> {
        let (xid, message) = self.message(procedure, args)?;
        let bytes = payload.iter().map(|page| page.len() as u64).sum();
        self.send(xid, message.opaque(payload), bytes, Layout::Whole)
    }

    /// Sends a call whose reply's data lands in `pages`; they come back with the answer.
    pub fn start_into(
        &mut self,
        procedure: u32,
        args: impl FnOnce(&mut Writer),
        layout: Layout,
        pages: Vec<Vec<u8>>,
    ) -> Result<u32> {
        let (xid, message) = self.message(procedure, args)?;
        let bytes = pages.iter().map(|page| page.len() as u64).sum();
        lock(&self.table).pages.0.insert(xid.into(), pages);
        self.send(xid, message.raw(Vec::new()), bytes, layout)
    }

    /// The next reply, whichever call it answers.
    pub fn next(&mut self) -> Result<Answer> {
        let Some((xid, reply)) = self.calls.wait_one(Some(Instant::now() + PATIENCE)) else {
            return Err(format!("{}: no answer in {} s", self.peer, PATIENCE.as_secs()).into());
        };
        let pages = lock(&self.table).pages.0.remove(&xid.into());
        let reply = reply.map_err(|failure| format!("{}: {failure}", self.peer))?;
        let mut results = Reader::new(&reply);
        let header = ReplyHeader::decode(&mut results).map_err(|error| format!("{}: {error}", self.peer))?;
        let results = if header.is_success() {
            self.replies_ok += 1;
            Ok(results.rest().to_vec())
        } else {
            Err(self.failed(&format!("the call was answered with {}", header.reply)))
        };
        Ok(Answer { xid, results, pages })
    }

    /// Counts a reply that is no good; returns what to say about it.
    fn failed(&mut self, why: &str) -> String {
        self.replies_failed += 1;
        let text = format!("{}: {why}", self.peer);
        self.failure.get_or_insert_with(|| text.clone());
        text
    }

    /// One call and its results.
    pub fn call(&mut self, procedure: u32, args: impl FnOnce(&mut Writer)) -> Result<Vec<u8>> {
        let xid = self.start(procedure, args)?;
        let answer = self.next()?;
        if answer.xid != xid {
            return Err(format!("{}: another call was answered", self.peer).into());
        }
        Ok(answer.results?)
    }

    /// Calls procedure 0 so many times.
    pub fn null(&mut self, count: u64, mut done: impl FnMut(u64)) -> Result<()> {
        let (mut started, mut answered) = (0, 0);
        while answered < count {
            while started < count && started - answered < self.in_flight() as u64 {
                self.start(0, |_| {})?;
                started += 1;
            }
            self.next()?;
            answered += 1;
            done(answered);
        }
        Ok(())
    }

    /// The peer's name.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The figures of this connection.
    pub fn report(&self, elapsed: Duration) -> Report {
        let received = lock(&self.table).stats;
        Report {
            peer: self.peer.clone(),
            protocol: self.protocol,
            elapsed,
            send: self.queue.stats(),
            recv_calls: received.calls,
            recv_bytes_copied: received.copied,
            replies_ok: self.replies_ok,
            replies_failed: self.replies_failed,
            failure: self.failure.clone(),
            checksum_ok: true,
            ..Report::default()
        }
    }

    fn message(&mut self, procedure: u32, args: impl FnOnce(&mut Writer)) -> Result<(u32, Message<'static>)> {
        self.xid = self.xid.wrapping_add(1);
        let mut head = Writer::new();
        CallHeader::new(self.xid, self.program, self.version, procedure)
            .with_credential(credential())
            .encode(&mut head);
        args(&mut head);
        Ok((self.xid, Message::new(head.finish()?)))
    }

    /// Sends a call as soon as there is room in the window.
    fn send(&mut self, xid: u32, call: Call, bytes: u64, layout: Layout) -> Result<u32> {
        let peer = &self.peer;
        let Some(permit) = self.calls.window().acquire_until(bytes, Some(Instant::now() + PATIENCE)) else {
            return Err(format!("{peer}: no answer in {} s", PATIENCE.as_secs()).into());
        };
        self.pending.expect(xid, layout)?;
        {
            let mut table = lock(&self.table);
            if let Some(why) = &table.ended {
                return Err(format!("{peer}: {why}").into());
            }
            table.waiting.insert(xid, self.calls.start_with(permit, xid));
        }
        // From here on the receiving thread tells what becomes of it: a call that does not leave ends the connection.
        let ticket = self.queue.push(call).map_err(|error| format!("{peer}: {error}"))?;
        match ticket.result() {
            Some(Err(error)) => Err(format!("{peer}: {error}").into()),
            _ => Ok(xid),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.queue.shut_down();
        // Both threads see the end of the stream.
        let _ = self.queue.transport().get_ref().shut_down();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Takes replies until the connection ends, and tells every call that is left.
fn receive(
    mut receiver: Receiver<Socket, RecordDeframer>,
    dropped: &mpsc::Receiver<Dropped>,
    table: &Mutex<Table>,
) {
    let why = loop {
        // Locked for one step that does not wait, for the pages that it lends are in the table.
        let received = {
            let mut table = lock(table);
            let Table { waiting, pages, stats, .. } = &mut *table;
            let received = receiver.receive(pages, |record| {
                if let Some(call) = waiting.remove(&record.xid()) {
                    call.complete(Ok(record.to_bytes().into()));
                }
                ControlFlow::Continue(())
            });
            *stats = receiver.stats();
            received
        };
        // A record that is of no use is one that no call of ours has asked for.
        if let Ok(dropped) = dropped.try_recv() {
            break dropped.to_string();
        }
        match received {
            Ok(Received::Eof) => break "the peer closed the connection before it answered".to_owned(),
            Ok(Received::Blocked) => {
                if let Err(error) = receiver.transport().wait(Interest::Readable, None) {
                    break error.to_string();
                }
            }
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
    };
    let mut table = lock(table);
    table.ended = Some(why.clone());
    for (_, call) in table.waiting.drain() {
        call.complete(Err(why.clone()));
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream socket of either family.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn shut_down(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Pages that data of replies lands in, by transaction id.
#[derive(Debug, Default)]
struct Pages(HashMap<u64, Vec<Vec<u8>>>);

impl Targets for Pages {
    fn expect(&mut self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|pages| pages.iter().map(|page| page.len() as u64).sum())
    }

    fn lend<'a>(&'a mut self, key: u64, at: u64, _: usize, out: &mut LentSlices<'a>) -> bool {
        let Some(pages) = self.0.get_mut(&key) else { return false };
        let mut skip = at as usize;
        for page in pages {
            let start = skip.min(page.len());
            skip -= start;
            if out.wanted() == 0 {
                break;
            }
            out.push(&mut page[start..]);
        }
        true
    }
}

/// So many bytes in pages of their own, as a cache would have them.
pub fn pages(len: usize) -> Vec<Vec<u8>> {
    (0..len).step_by(PAGE).map(|at| vec![0; PAGE.min(len - at)]).collect()
}

/// Who runs this process, as AUTH_SYS has it.
fn credential() -> Auth {
    use std::os::unix::fs::MetadataExt;
    let (uid, gid) = std::fs::metadata("/proc/self").map_or((65534, 65534), |own| (own.uid(), own.gid()));
    Auth::Sys(AuthSys::new("segchain", uid, gid))
}

fn connect(peer: &str) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in peer.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
