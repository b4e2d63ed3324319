//! A client of one osd: connect, send requests, take replies.
//!
//! ```text
//!  Request ─▶ v1::Framer ─▶ chain ─▶ StreamSender ─▶ ┐
//!                                                    socket
//!  replies ◀─ v1::Deframer ◀─ Receiver ◀──────────── ┘        what was read lands in our own pages
//! ```
//!
//! Requests are sent one at a time. While the socket takes no more, and when too many are unanswered, replies are taken.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use segchain::chain::{ChainBuilder, Outgoing, Payload, SegmentChain};
use segchain::framer::{Deframer, Framer, LentSlices, Targets};
use segchain::recv::{Received, Receiver, RecvOptions, RecvStats};
use segchain::send::{Progress, SendStats, StreamSender};
use segchain::slab::SlabPool;
use segchain::transport::{Interest, SocketRef, Wait};
use segchain_ceph::osd::{self, Request};
use segchain_ceph::v1::handshake::{self, Authorizer, ClientOptions, Session, Turn};
use segchain_ceph::v1::{self, Frame};
use segchain_ceph::{Data, EntityAddr, EntityName};

use crate::Failure;

/// Both directions of one connection share it.
pub(crate) type Socket = SocketRef<Arc<TcpStream>>;

/// How many requests may be unanswered.
const IN_FLIGHT: usize = 64;
/// How long nothing may move.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest front: an osd map of a large cluster does not fit into the 64 KiB that a receiver takes by default.
pub(crate) const FRONT_LIMIT: u32 = 4 << 20;
/// The most data of one message.
pub(crate) const DATA_LIMIT: u32 = 64 << 20;
/// What an osd answers to a name that is too long.
pub(crate) const NAME_TOO_LONG: i32 = -36;
/// With `auth none` a client may call itself what it likes.
const GLOBAL_ID: u64 = 4199;

/// A connection to an osd.
pub(crate) struct Client {
    sender: StreamSender<Socket>,
    receiver: Receiver<Socket, v1::Deframer>,
    framer: v1::Framer,
    /// Of the message before, for the next one's memory.
    spare: Option<SegmentChain<'static>>,
    next_tid: u64,
    replies: Replies,
    reading: Reading,
}

impl Client {
    /// Connects and shakes hands.
    pub(crate) fn connect(
        address: SocketAddr,
        nonce: Option<u32>,
        options: v1::Options,
    ) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)
            .map_err(|error| format!("cannot reach {address}: {error}"))?;
        let socket = SocketRef::new(Arc::new(stream));
        socket.set_nodelay(true)?;

        let mut ours = ClientOptions::new(handshake::OSD_PROTOCOL, Authorizer::none("admin", GLOBAL_ID));
        ours.peer = nonce.map(|nonce| EntityAddr::new(address, nonce));
        let mut sender = StreamSender::new(socket.clone());
        let limits = RecvOptions::new().contiguous(FRONT_LIMIT.into());
        let receiver =
            Receiver::with_options(socket, handshake::Client::new(ours), limits, SlabPool::default());
        let (session, receiver) = shake_hands(&mut sender, receiver)
            .map_err(|failure| format!("no handshake with {address}: {failure}"))?;

        let options = options.features(session.features);
        let receiver =
            receiver.replace(v1::Deframer::new(&options)).map_err(|_| "in the middle of a frame")?;
        // An osd answers a tid that it has seen before of this global id, and does nothing: never use one twice.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(Self {
            sender,
            receiver,
            framer: v1::Framer::new(&options),
            spare: None,
            next_tid: now.as_nanos() as u64,
            replies: Replies::default(),
            reading: Reading::default(),
        })
    }

    /// Declares which result is a success; 0 unless set.
    pub(crate) fn expect_result(&mut self, result: i32) {
        self.replies.expected = result;
    }

    /// Sends a request, and takes the replies that come meanwhile.
    pub(crate) fn send(&mut self, request: &Request, data: impl Payload) -> Result<(), Failure> {
        while self.replies.waiting.len() >= IN_FLIGHT {
            self.wait_for_reply()?;
        }
        let tid = self.next_tid;
        let message = request.message(EntityName::client(GLOBAL_ID), tid, data)?;
        let mut out = self.spare.take().map_or_else(ChainBuilder::new, SegmentChain::recycle);
        self.framer.frame(message, &mut out)?;
        self.next_tid += 1;
        self.replies.waiting.insert(tid);

        let mut message = Outgoing::new(out.finish()?);
        let (mut sent, mut moved) = (0, Instant::now());
        while self.sender.send(&mut message)? != Progress::Done {
            self.take_replies()?;
            self.sender.transport().wait(Interest::Writable, Some(Duration::from_millis(50)))?;
            if std::mem::replace(&mut sent, message.sent()) != message.sent() {
                moved = Instant::now();
            } else if moved.elapsed() > PATIENCE {
                return Err(format!("the peer takes nothing more for {PATIENCE:?}").into());
            }
        }
        self.spare = message.into_chain().map(|chain| chain.recycle().finish()).transpose()?;
        self.take_replies()
    }

    /// Waits until every request is answered.
    pub(crate) fn wait_for_all(&mut self, mut on_reply: impl FnMut(u64)) -> Result<(), Failure> {
        while !self.replies.waiting.is_empty() {
            self.wait_for_reply()?;
            on_reply(self.answered());
        }
        Ok(())
    }

    /// Sends a READ and waits for it; what comes lands in pages that are made here, of `page` bytes each.
    pub(crate) fn read(&mut self, request: &Request, page: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let len: usize = request.ops.iter().map(|op| op.length as usize).sum();
        let pages = (0..len).step_by(page).map(|at| vec![0; page.min(len - at)]).collect();
        self.reading = Reading { tid: self.next_tid, page, len: len as u64, pages };
        self.send(request, ())?;
        self.wait_for_all(|_| {})?;
        let pages = std::mem::take(&mut self.reading).pages;
        match self.replies.read.take() {
            _ if self.replies.failed > 0 => Ok(Vec::new()),
            Some(Data::Target { len: read, whole: true }) if read == len as u64 => Ok(pages),
            None | Some(Data::None) if len == 0 => Ok(pages),
            data => Err(format!("expected {len} bytes, read {}", data.unwrap_or_default().len()).into()),
        }
    }

    /// How many replies have come.
    pub(crate) fn answered(&self) -> u64 {
        self.replies.ok + self.replies.failed
    }

    /// How many replies were as expected, how many were not, and what the first of those said.
    pub(crate) fn results(&self) -> (u64, u64, Option<String>) {
        (self.replies.ok, self.replies.failed, self.replies.failure.clone())
    }

    /// What was sent so far.
    pub(crate) fn send_stats(&self) -> SendStats {
        self.sender.stats()
    }

    /// What was received so far.
    pub(crate) fn recv_stats(&self) -> RecvStats {
        self.receiver.stats()
    }

    fn wait_for_reply(&mut self) -> Result<(), Failure> {
        let (before, begin) = (self.answered(), Instant::now());
        loop {
            self.take_replies()?;
            if self.answered() > before {
                return Ok(());
            }
            let left = PATIENCE.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let hint = match self.replies.maps {
                    0 => "",
                    _ => "; the peer has sent a newer osd map: is the epoch too old?",
                };
                return Err(format!("no reply for {PATIENCE:?}{hint}").into());
            }
            self.receiver.transport().wait(Interest::Readable, Some(left))?;
        }
    }

    /// Takes the replies that are there. Never waits.
    fn take_replies(&mut self) -> Result<(), Failure> {
        let Self { receiver, replies, reading, .. } = self;
        let mut result = Ok(());
        let received = receiver.receive(reading, |frame| {
            result = replies.take(frame);
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        result?;
        match received {
            Received::Eof => {
                let waiting = self.replies.waiting.len();
                Err(format!("the peer closed the connection, {waiting} requests unanswered").into())
            }
            _ => Ok(()),
        }
    }
}

/// Speaks one side of the handshake; the receiver comes back at the first byte behind it.
pub(crate) fn shake_hands<D>(
    sender: &mut StreamSender<Socket>,
    mut receiver: Receiver<Socket, D>,
) -> Result<(Session, Receiver<Socket, D>), Failure>
where
    D: for<'h> Deframer<Frame<'h> = Turn, Error = handshake::Error>,
{
    let deadline = Some(Instant::now() + PATIENCE);
    loop {
        let turn = receiver.next(&mut (), deadline, |turn| turn)?.ok_or("the peer closed the connection")?;
        let mut out = ChainBuilder::new();
        out.put(&turn.send);
        sender.send_blocking(&mut Outgoing::new(out.finish()?), deadline)?;
        if let Some(session) = turn.done {
            return Ok((session, receiver));
        }
    }
}

/// Requests without a reply, and what the replies say.
#[derive(Default)]
struct Replies {
    waiting: HashSet<u64>,
    expected: i32,
    ok: u64,
    failed: u64,
    failure: Option<String>,
    maps: u64,
    read: Option<Data>,
}

impl Replies {
    fn take(&mut self, frame: Frame) -> Result<(), osd::Error> {
        let Frame::Message(message) = frame else { return Ok(()) };
        match message.header.kind {
            osd::OP_REPLY => {}
            osd::MAP => {
                self.maps += 1;
                return Ok(());
            }
            _ => return Ok(()),
        }
        let reply = osd::Reply::decode(&message.front)?;
        if !self.waiting.remove(&message.header.tid) {
            return Ok(());
        }
        if reply.result == self.expected {
            self.ok += 1;
        } else {
            self.failed += 1;
            self.failure.get_or_insert_with(|| refusal(&reply, self.expected));
        }
        self.read = Some(message.data);
        Ok(())
    }
}

fn refusal(reply: &osd::Reply, expected: i32) -> String {
    let object = String::from_utf8_lossy(&reply.object);
    match (reply.result, expected) {
        (0.., NAME_TOO_LONG) => "the osd takes a name of 120 bytes: set osd_max_object_name_len = 100".into(),
        (0.., _) => format!("{object}: unexpected result {}", reply.result),
        (errno, _) => format!("{object}: {}", std::io::Error::from_raw_os_error(-errno)),
    }
}

/// The pages of a READ under way.
#[derive(Default)]
struct Reading {
    tid: u64,
    page: usize,
    len: u64,
    pages: Vec<Vec<u8>>,
}

impl Targets for Reading {
    fn expect(&mut self, tid: u64) -> Option<u64> {
        (tid == self.tid && !self.pages.is_empty()).then_some(self.len)
    }

    fn lend<'a>(&'a mut self, tid: u64, at: u64, _: usize, out: &mut LentSlices<'a>) -> bool {
        if self.expect(tid).is_none() {
            return false;
        }
        let mut skip = at as usize % self.page;
        for page in &mut self.pages[at as usize / self.page..] {
            out.push(&mut page[std::mem::take(&mut skip)..]);
            if out.wanted() == 0 {
                break;
            }
        }
        true
    }
}
