//! One connection to an RPC program: calls in flight, replies matched by transaction id.
//!
//! ```text
//!  start ─▶ Pending, Pages ─▶ RecordFramer ─▶ StreamSender ─▶ socket
//!  next  ◀─ results, pages ◀─ RecordDeframer ◀─ Receiver ◀───┘
//! ```
//!
//! One thread does both. Sending waits for the socket, so what is in flight has to be bounded: a peer that cannot get rid
//! of its replies stops reading calls. [`WINDOW`] calls, of which either the call or the reply is small, are far from that.

use std::collections::HashMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use segchain::chain::{ChainBuilder, Outgoing, Payload};
use segchain::framer::{Framer, LentSlices, Targets};
use segchain::recv::{Received, Receiver};
use segchain::send::StreamSender;
use segchain::transport::{Interest, SocketRef, Wait};
use segchain_oncrpc::rpc::{Auth, AuthSys, CallHeader, ReplyHeader};
use segchain_oncrpc::xdr::{Reader, Writer};
use segchain_oncrpc::{Dropped, Layout, Message, Pending, RecordDeframer, RecordFramer};

use crate::Result;
use crate::report::Report;

/// Calls in flight.
pub const WINDOW: usize = 16;
/// Bytes in flight, about.
const WINDOW_BYTES: u32 = 16 << 20;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// How long a peer may take, for a connection and for a reply.
const PATIENCE: Duration = Duration::from_secs(30);

type Socket = SocketRef<Arc<OwnedFd>>;

/// A connection to one version of one program.
pub struct Client {
    peer: String,
    protocol: &'static str,
    program: u32,
    version: u32,
    xid: u32,
    framer: RecordFramer,
    sender: StreamSender<Socket>,
    receiver: Receiver<Socket, RecordDeframer>,
    pending: Pending,
    pages: Pages,
    dropped: mpsc::Receiver<Dropped>,
    replies_ok: u64,
    replies_failed: u64,
    failure: Option<String>,
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
    /// Connects over TCP.
    pub fn tcp(peer: &str, program: u32, version: u32) -> Result<Self> {
        let stream = connect(peer).map_err(|error| format!("cannot reach {peer}: {error}"))?;
        stream.set_nodelay(true)?;
        Ok(Self::new(peer, "oncrpc-tcp", stream.into(), program, version))
    }

    /// Connects to a socket of this machine.
    pub fn unix(path: &str, program: u32, version: u32) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| format!("cannot reach {path}: {error}"))?;
        Ok(Self::new(path, "oncrpc-unix", stream.into(), program, version))
    }

    fn new(peer: &str, protocol: &'static str, socket: OwnedFd, program: u32, version: u32) -> Self {
        let socket = SocketRef::new(Arc::new(socket));
        let pending = Pending::new();
        let (log, dropped) = mpsc::channel();
        let deframer = RecordDeframer::new(pending.clone()).refuse_calls().on_dropped(move |record| {
            let _ = log.send(record);
        });
        Self {
            peer: peer.into(),
            protocol,
            program,
            version,
            xid: std::process::id() << 16,
            framer: RecordFramer::new(),
            sender: StreamSender::new(socket.clone()),
            receiver: Receiver::new(socket, deframer),
            pending,
            pages: Pages::default(),
            dropped,
            replies_ok: 0,
            replies_failed: 0,
            failure: None,
        }
    }

    /// Sends a call without payload whose reply comes whole; returns its transaction id.
    pub fn start(&mut self, procedure: u32, args: impl FnOnce(&mut Writer)) -> Result<u32> {
        let (xid, message) = self.message(procedure, args)?;
        self.pending.expect(xid, Layout::Whole)?;
        self.send(message)?;
        Ok(xid)
    }

    /// Sends a call whose last argument is an opaque: the payload, which is not copied.
    pub fn start_with(
        &mut self,
        procedure: u32,
        args: impl FnOnce(&mut Writer),
        payload: impl Payload,
    ) -> Result<u32> {
        let (xid, message) = self.message(procedure, args)?;
        self.pending.expect(xid, Layout::Whole)?;
        self.send(message.opaque(payload))?;
        Ok(xid)
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
        self.pending.expect(xid, layout)?;
        self.pages.0.insert(xid.into(), pages);
        self.send(message)?;
        Ok(xid)
    }

    /// The next reply, whichever call it answers.
    pub fn next(&mut self) -> Result<Answer> {
        let reply = self.wait()?;
        let mut results = Reader::new(&reply);
        let header = ReplyHeader::decode(&mut results).map_err(|error| format!("{}: {error}", self.peer))?;
        let results = if header.is_success() {
            self.replies_ok += 1;
            Ok(results.rest().to_vec())
        } else {
            Err(self.failed(&format!("the call was answered with {}", header.reply)))
        };
        Ok(Answer { xid: header.xid, results, pages: self.pages.0.remove(&header.xid.into()) })
    }

    /// Counts a reply that is no good; returns what to say about it.
    fn failed(&mut self, why: &str) -> String {
        self.replies_failed += 1;
        let text = format!("{}: {why}", self.peer);
        self.failure.get_or_insert_with(|| text.clone());
        text
    }

    /// Waits for a record; returns it, but for the data that is in the pages.
    fn wait(&mut self) -> Result<Vec<u8>> {
        let Self { receiver, pages, peer, .. } = self;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut reply = None;
            let received = receiver.receive(pages, |record| {
                reply = Some(record.to_bytes().into());
                ControlFlow::Break(())
            });
            let received = received.map_err(|error| format!("{peer}: {error}"))?;
            if let Some(reply) = reply {
                return Ok(reply);
            }
            if let Ok(dropped) = self.dropped.try_recv() {
                return Err(format!("{peer}: {dropped}").into());
            }
            if received == Received::Eof {
                return Err(format!("{peer}: the peer closed the connection before it answered").into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("{peer}: no answer in {} s", PATIENCE.as_secs()).into());
            }
            if received == Received::Blocked {
                receiver.transport().wait(Interest::Readable, Some(left))?;
            }
        }
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
            while started < count && started - answered < WINDOW as u64 {
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
        Report {
            peer: self.peer.clone(),
            protocol: self.protocol,
            elapsed,
            send: self.sender.stats(),
            recv_calls: self.receiver.stats().calls,
            recv_bytes_copied: self.receiver.stats().copied,
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

    fn send<P: Payload>(&mut self, message: Message<'_, P>) -> Result<()> {
        let mut out = ChainBuilder::new();
        self.framer.frame(message, &mut out)?;
        let mut outgoing = Outgoing::new(out.finish()?);
        let sent = self.sender.send_blocking(&mut outgoing, Some(Instant::now() + PATIENCE));
        Ok(sent.map_err(|error| format!("{}: {error}", self.peer))?)
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

/// How many calls of so many bytes may be in flight.
pub fn window(bytes: u32) -> usize {
    (WINDOW_BYTES / bytes.max(1)).clamp(1, WINDOW as u32) as usize
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
