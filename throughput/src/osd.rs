//! A client of one osd that does as little as it can: one connection, one thread that sends and receives.
//!
//! ```text
//!  requests ─frame─▶ batch ─▶ StreamSender ─▶ socket ─wait for either─▶ Receiver ─▶ replies, counted
//!      ▲──────────────────────────── as many again ◀──────────────────────┘
//! ```
//!
//! With nobody else to share the connection with there is no queue and no second thread: a request costs a send, a wait and
//! a receive. `examples/ceph_sender` is the client for many threads.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use segchain::chain::{ChainBuilder, Outgoing, SegmentChain};
use segchain::framer::{Deframer, Framer};
use segchain::recv::{Received, Receiver, RecvOptions};
use segchain::send::{Progress, StreamSender};
use segchain::slab::SlabPool;
use segchain::transport::{Interest, SocketRef, Wait as _};
use segchain_ceph::osd::{self, Op, Request};
use segchain_ceph::v1::handshake::{Authorizer, OSD_PROTOCOL};
use segchain_ceph::{EntityAddr, EntityName, Incoming, Message, v1, v2};

use crate::contest::Counts;
use crate::machine::thread_cpu;
use crate::pages;

/// Where an osd is, and what has to be known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Osd {
    /// The address of one version of the messenger.
    pub address: SocketAddr,
    /// The nonce of that address.
    pub nonce: u32,
    /// The osd map's epoch.
    pub epoch: u32,
    /// The number of a pool with one placement group.
    pub pool: u64,
}

/// A version of the messenger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Version {
    /// Banner `ceph v027`.
    V1,
    /// Banner `ceph v2`, crc mode.
    V2,
}

/// What a run of requests took.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Ran {
    /// Requests answered.
    pub requests: u64,
    /// From the first request to the last reply.
    pub wall: Duration,
    /// CPU time of the client, all of it.
    pub cpu: Duration,
    /// System calls that moved bytes, and what was in them.
    pub counts: Counts,
}

/// A connected client.
pub trait Client<'p> {
    /// Keeps `depth` null operations in flight for as long as it is told, then waits for the last reply: writes to an object
    /// whose name is too long, which the osd receives, checks and refuses.
    ///
    /// # Errors
    /// As the system and the protocol report them; an osd that does not refuse.
    fn run(&mut self, messages: &'p [pages::Message<'p>], depth: u64, lasting: Duration) -> io::Result<Ran>;
}

type Socket = SocketRef<Arc<TcpStream>>;
type Pages<'p> = &'p [&'p [u8]];

/// How long an osd may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// What an osd answers to a name that is too long (`ENAMETOOLONG`).
const NAME_TOO_LONG: i32 = -36;
/// Longer than the 100 bytes that the osd has to be set to.
const NAME: [u8; 120] = [b'n'; 120];
/// Who we are to everybody, with `auth none`.
const CLIENT: &str = "admin";

impl Osd {
    /// An osd by its figures in `ceph osd dump`.
    pub fn new(address: SocketAddr, nonce: u32, epoch: u32, pool: u64) -> Self {
        Self { address, nonce, epoch, pool }
    }

    /// Which version is spoken at the address: the server says so first.
    ///
    /// # Errors
    /// As the system reports them; a server that is no Ceph daemon.
    pub fn version(&self) -> io::Result<Version> {
        let mut banner = [0; 8];
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read_exact(&mut banner)?;
        match banner {
            v2::handshake::BANNER => Ok(Version::V2),
            _ if v1::handshake::BANNER.starts_with(&banner) => Ok(Version::V1),
            _ => Err(io::Error::other(format!("{} is not an osd", self.address))),
        }
    }

    /// Connects and shakes hands.
    ///
    /// # Errors
    /// As the system and the handshake report them.
    pub fn connect<'p>(&self, version: Version) -> io::Result<Box<dyn Client<'p> + 'p>> {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        let socket = SocketRef::new(Arc::new(stream));
        socket.set_nodelay(true)?;
        // An osd does not do again what it has seen of a client before, so we are another one each time.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let who = (now >> 10) & (u64::MAX >> 1);
        match version {
            Version::V1 => {
                let authorizer = Authorizer::none(CLIENT, who);
                let mut ours = v1::handshake::ClientOptions::new(OSD_PROTOCOL, authorizer);
                ours.peer = Some(EntityAddr::new(self.address, self.nonce));
                let (session, receiver) = shake_hands(&socket, v1::handshake::Client::new(ours), |turn| {
                    (turn.send, turn.refused.map(|refusal| refusal.to_string()), turn.done)
                })?;
                let options = v1::Options::new().features(session.features);
                let framer = v1::Framer::new(&options);
                let deframer = v1::Deframer::new(&options).paired(&framer);
                Ok(Box::new(Connected::new(*self, who, socket, framer, receiver, deframer)?))
            }
            Version::V2 => {
                let target = EntityAddr::msgr2(self.address, self.nonce);
                let ours = v2::handshake::ClientOptions::to_osd(target, CLIENT, who);
                let (session, receiver) = shake_hands(&socket, v2::handshake::Client::new(ours), |turn| {
                    (turn.send, turn.refused.map(|refusal| refusal.to_string()), turn.done)
                })?;
                let options = session.options();
                let framer = v2::Framer::new(&options);
                let deframer = v2::Deframer::new(&options).paired(&framer);
                Ok(Box::new(Connected::new(*self, who, socket, framer, receiver, deframer)?))
            }
        }
    }
}

/// How often a client may be refused and try again.
const TRIES: usize = 4;

fn shake_hands<D, T, S>(
    socket: &Socket,
    client: D,
    parts: impl Fn(T) -> (Vec<u8>, Option<String>, Option<S>),
) -> io::Result<(S, Receiver<Socket, D>)>
where
    D: for<'h> Deframer<Frame<'h> = T, Error: std::error::Error + Send + Sync + 'static>,
{
    // A turn of the receiver is one call: it is only called when something is there.
    let options = RecvOptions::new().turn_bytes(1);
    let mut receiver = Receiver::with_options(socket.clone(), client, options, SlabPool::default());
    let mut sender = StreamSender::new(socket.clone());
    let deadline = Some(Instant::now() + PATIENCE);
    let mut refusals = Vec::new();
    while refusals.len() < TRIES {
        let turn = receiver.next(&mut (), deadline, |turn| turn).map_err(io::Error::other)?;
        // What an osd does to a client that means another one (measured against ceph-osd 16.2.15).
        let turn =
            turn.ok_or_else(|| io::Error::other("the osd has closed the connection: is --nonce right?"))?;
        let (send, refused, done) = parts(turn);
        let mut out = ChainBuilder::new();
        out.put(&send);
        sender.send_blocking(&mut Outgoing::new(out.finish()?), deadline)?;
        if let Some(session) = done {
            return Ok((session, receiver));
        }
        refusals.extend(refused);
    }
    Err(io::Error::other(format!("the osd refuses: {}", refusals.join(", "))))
}

/// What comes in, of either version.
trait Inbound {
    fn message(self) -> Option<Incoming>;
}

impl Inbound for v1::Frame {
    fn message(self) -> Option<Incoming> {
        if let v1::Frame::Message(message) = self { Some(message) } else { None }
    }
}

impl Inbound for v2::Frame {
    fn message(self) -> Option<Incoming> {
        if let v2::Frame::Message(message) = self { Some(message) } else { None }
    }
}

struct Connected<'p, F, D> {
    osd: Osd,
    who: u64,
    next_tid: u64,
    framer: F,
    sender: StreamSender<Socket>,
    receiver: Receiver<Socket, D>,
    /// What has not left.
    batch: Vec<Outgoing<'p>>,
    /// Memory of what has.
    spare: Vec<SegmentChain<'p>>,
}

impl<F, D> Connected<'_, F, D> {
    fn new<H>(
        osd: Osd,
        who: u64,
        socket: Socket,
        framer: F,
        receiver: Receiver<Socket, H>,
        deframer: D,
    ) -> io::Result<Self> {
        let receiver = receiver.replace(deframer).map_err(|_| io::ErrorKind::InvalidData)?;
        let (batch, spare) = (Vec::new(), Vec::new());
        Ok(Self {
            osd,
            who,
            next_tid: who,
            framer,
            sender: StreamSender::new(socket),
            receiver,
            batch,
            spare,
        })
    }
}

impl<'p, F, D, R> Connected<'p, F, D>
where
    F: Framer<Message<Pages<'p>>, Error: Into<io::Error>>,
    D: for<'h> Deframer<Frame<'h> = R, Error: std::error::Error + Send + Sync + 'static>,
    R: Inbound,
{
    /// Frames one request and puts it behind those that have not left.
    fn begin(&mut self, data: Pages<'p>) -> io::Result<()> {
        let len = data.iter().map(|page| page.len()).sum::<usize>() as u32;
        let request = Request::new(self.osd.pool, NAME, self.osd.epoch, Op::write(0, len));
        let message = request.message(EntityName::client(self.who), self.next_tid, data)?;
        self.next_tid += 1;
        let mut out = self.spare.pop().map(SegmentChain::recycle).unwrap_or_default();
        self.framer.frame(message, &mut out).map_err(Into::into)?;
        self.batch.push(Outgoing::new(out.finish()?));
        Ok(())
    }

    /// Sends what the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let left = match self.sender.send_batch(&mut self.batch)? {
            Progress::Done => 0,
            _ => self.batch.iter().filter(|message| !message.is_complete()).count(),
        };
        let complete = self.batch.len() - left;
        self.spare.extend(self.batch.drain(..complete).filter_map(Outgoing::into_chain));
        Ok(())
    }

    /// Waits until the socket has something or takes something, and takes what is there. How many replies that was.
    fn receive(&mut self, in_flight: u64) -> io::Result<u64> {
        let interest = if self.batch.is_empty() { Interest::Readable } else { Interest::Either };
        let ready = self.receiver.transport().wait(interest, Some(PATIENCE))?;
        if !ready {
            let why =
                format!("no reply for {PATIENCE:?}; is --pool wrong, or --epoch newer than the osd's map?");
            return Err(io::Error::other(why));
        }
        let (mut answered, mut wrong) = (0, None);
        let received = self.receiver.receive(&mut (), |frame| {
            let Some(message) = frame.message() else { return ControlFlow::Continue(()) };
            if message.header.kind != osd::OP_REPLY {
                return ControlFlow::Continue(());
            }
            answered += 1;
            match osd::Reply::decode(&message.front) {
                Ok(reply) if reply.result == NAME_TOO_LONG => {}
                Ok(reply) => wrong = Some(refusal(reply.result)),
                Err(error) => wrong = Some(error.to_string()),
            }
            if answered == in_flight { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match (received.map_err(io::Error::other)?, wrong) {
            (_, Some(wrong)) => Err(io::Error::other(wrong)),
            (Received::Eof, _) => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answered),
        }
    }
}

fn refusal(result: i32) -> String {
    match result {
        0.. => "the osd takes a name of 120 bytes: set osd_max_object_name_len = 100".into(),
        errno => io::Error::from_raw_os_error(errno.wrapping_neg()).to_string(),
    }
}

impl<'p, F, D, R> Client<'p> for Connected<'p, F, D>
where
    F: Framer<Message<Pages<'p>>, Error: Into<io::Error>>,
    D: for<'h> Deframer<Frame<'h> = R, Error: std::error::Error + Send + Sync + 'static>,
    R: Inbound,
{
    fn run(&mut self, messages: &'p [pages::Message<'p>], depth: u64, lasting: Duration) -> io::Result<Ran> {
        let (sent, received) = (self.sender.stats(), self.receiver.stats());
        let (began, cpu) = (Instant::now(), thread_cpu());
        let mut next = messages.iter().cycle();
        let (mut started, mut answered, mut over) = (0, 0, false);
        loop {
            while !over && started - answered < depth {
                let Some(message) = next.next() else { break };
                self.begin(&message.segments)?;
                started += 1;
            }
            if started == answered {
                break;
            }
            self.flush()?;
            answered += self.receive(started - answered)?;
            over = over || began.elapsed() >= lasting;
        }
        let (wall, cpu) = (began.elapsed(), thread_cpu().saturating_sub(cpu));
        let (sent_by, received_by) = (self.sender.stats(), self.receiver.stats());
        let mut counts = crate::ours::counts(sent, sent_by);
        counts.calls += received_by.calls - received.calls;
        Ok(Ran { requests: answered, wall, cpu, counts })
    }
}
