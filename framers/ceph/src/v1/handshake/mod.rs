//! What both sides say before the first message. The server speaks first.
//!
//! ```text
//!  server  banner 9, own address 136, client's address as seen 136
//!  client  banner 9, own address 136, connect 33, authorizer
//!  server  tag READY or SEQ, reply 25, authorizer; after SEQ: 8, the number of the last message received
//!  client                                          after SEQ: 8, the same
//! ```
//!
//! [`Client`] and [`Server`] are [`Deframer`]s, so that a [`Receiver`](segchain::recv::Receiver) drives them and keeps what
//! it has read ahead when [`v1::Deframer`](super::Deframer) takes over. Each frame is a [`Turn`]: bytes to send, and the
//! [`Session`] when all is said. There is no authentication but `auth none` (Ceph `src/msg/async/ProtocolV1.cc`).

mod error;

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use bytes::Bytes;
use segchain::framer::{Deframer, Filled, Step, Targets};

pub use self::error::{Error, Refusal};

use super::Options;
use crate::wire::{Reader, Short};
use crate::{EntityAddr, auth, features};

/// What each side begins with.
pub const BANNER: [u8; 9] = *b"ceph v027";
/// The protocol version of a client towards a monitor (Ceph `src/include/msgr.h`).
pub const MON_PROTOCOL: u32 = 15;
/// The protocol version of a client towards an osd.
pub const OSD_PROTOCOL: u32 = 24;
/// The longest authorizer that is received, in bytes: it has to fit into the read-ahead. A cephx ticket has a few hundred.
pub const MAX_AUTHORIZER: u32 = 16 << 10;

const ADDR: usize = EntityAddr::LEGACY_LEN;
const CONNECT: usize = 33;
const REPLY: usize = 26;
const LOSSY: u8 = 1;

const TAG_READY: u8 = 1;
const TAG_RESETSESSION: u8 = 2;
const TAG_WAIT: u8 = 3;
const TAG_RETRY_SESSION: u8 = 4;
const TAG_RETRY_GLOBAL: u8 = 5;
const TAG_BADPROTOVER: u8 = 10;
const TAG_BADAUTHORIZER: u8 = 11;
const TAG_FEATURES: u8 = 12;
const TAG_SEQ: u8 = 13;
const TAG_CHALLENGE_AUTHORIZER: u8 = 16;

/// One step of a handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turn {
    /// Bytes for the peer.
    pub send: Vec<u8>,
    /// Why the client was refused; a server goes on to listen, a client gets [`Error::Refused`] instead.
    pub refused: Option<Refusal>,
    /// The result, in the last step.
    pub done: Option<Session>,
}

/// What both sides know of each other after the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Session {
    /// The features that both have.
    pub features: u64,
    /// The peer's address, as it says.
    pub peer: EntityAddr,
    /// Our address: for a client, as the server sees it.
    pub own: EntityAddr,
    /// The peer's kind of entity, for a server: 8 is a client.
    pub host_type: u32,
    /// How many connections the other side has made.
    pub global_seq: u32,
    /// How often the session was connected.
    pub connect_seq: u32,
    /// Whether the session ends with the connection, with no acks and no replay. All of an osd's clients are lossy.
    pub lossy: bool,
    /// The last message that the peer has received of ours; 0 on a lossy session.
    pub received: u64,
    /// What the other side proves itself with.
    pub authorizer: Authorizer,
}

impl Session {
    /// Options for the frames that follow.
    pub fn options(&self) -> Options {
        Options::new().features(self.features)
    }
}

/// Who a client claims to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Authorizer {
    /// 0 nothing, 1 `auth none`, 2 cephx.
    pub protocol: u32,
    /// The claim.
    pub bytes: Bytes,
}

impl Authorizer {
    /// No claim: for a monitor, which asks later.
    pub fn absent() -> Self {
        Self::default()
    }

    /// The claim of `auth none`: a name such as `admin`, and the global id that the monitor has given.
    ///
    /// An osd knows an operation by global id and tid. One that it has seen before is answered with success and not done
    /// (measured against ceph-osd 16.2.15), so a client that makes up its global id begins its tids with the time.
    pub fn none(name: &str, global_id: u64) -> Self {
        Self { protocol: 1, bytes: auth::claim(auth::TO_SERVICE, name, global_id) }
    }

    /// The global id in a claim of `auth none`; `None` if it is no such claim.
    pub fn global_id(&self) -> Option<u64> {
        let claim = auth::read_claim(&self.bytes).filter(|_| self.protocol == 1)?;
        (claim.mode == auth::TO_SERVICE).then_some(claim.global_id)
    }
}

/// The client's half.
///
/// ```no_run
/// use segchain::recv::Receiver;
/// use segchain::transport::SocketRef;
/// use segchain_ceph::v1::{self, handshake::{Authorizer, Client, ClientOptions, OSD_PROTOCOL}};
/// use std::io::{Error, ErrorKind, Write};
///
/// let mut socket = std::net::TcpStream::connect("127.0.0.1:6801")?;
/// let client = Client::new(ClientOptions::new(OSD_PROTOCOL, Authorizer::none("admin", 4199)));
/// let mut receiver = Receiver::new(SocketRef::new(socket.try_clone()?), client);
/// let session = loop {
///     let turn = receiver.next(&mut (), None, |turn| turn)?.ok_or(ErrorKind::UnexpectedEof)?;
///     socket.write_all(&turn.send)?;
///     if let Some(session) = turn.done {
///         break session;
///     }
/// };
/// let deframer = v1::Deframer::new(&session.options());
/// let receiver = receiver.replace(deframer).map_err(|_| Error::other("in the middle of a frame"))?;
/// # let _ = receiver;
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    state: ClientState,
}

/// What a client says of itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Our address. It is blank unless set, and then the server's view of it is used with this nonce, which is random
    /// unless set: a new connection takes the place of another one with the same address (measured against ceph-osd
    /// 16.2.15), so no two clients of a host may have the same.
    pub own: EntityAddr,
    /// Whom we mean to reach. If set, another nonce, port or IP is [`Error::WrongPeer`]; a blank IP is no other.
    pub peer: Option<EntityAddr>,
    /// Offered features; [`features::OFFERED`] unless set.
    pub features: u64,
    /// Features that the server must have.
    pub required: u64,
    /// Our kind of entity; 8, a client, unless set.
    pub host_type: u32,
    /// Counts our connections to whomever; 1 unless set. [`Refusal::RetryGlobal`] asks for a larger one.
    pub global_seq: u32,
    /// Counts the connections of the session; 0 is a new one.
    pub connect_seq: u32,
    /// Differs with what the server is.
    pub protocol_version: u32,
    /// Who we are.
    pub authorizer: Authorizer,
    /// Whether the session ends with the connection; yes unless set.
    pub lossy: bool,
    /// The last message that we have received in the session; 0 in a new one.
    pub last_seq: u64,
}

impl ClientOptions {
    /// A new lossy session of a client.
    pub fn new(protocol_version: u32, authorizer: Authorizer) -> Self {
        Self {
            own: EntityAddr::new(None, RandomState::new().hash_one(protocol_version) as u32),
            peer: None,
            features: features::OFFERED,
            required: 0,
            host_type: 8,
            global_seq: 1,
            connect_seq: 0,
            protocol_version,
            authorizer,
            lossy: true,
            last_seq: 0,
        }
    }
}

#[derive(Debug)]
enum ClientState {
    Hello,
    Reply { peer: EntityAddr, own: EntityAddr },
    Done,
}

impl Client {
    /// At the start of a connection.
    pub fn new(options: ClientOptions) -> Self {
        Self { options, state: ClientState::Hello }
    }

    fn hello(&mut self, head: &[u8]) -> Result<Step<Turn>, Error> {
        let Some(hello) = banner_and(head, 2 * ADDR)? else { return Ok(need_banner_and(head, 2 * ADDR)) };
        let peer = address(hello, 9)?;
        let seen = address(hello, 9 + ADDR)?;
        if let Some(expected) = self.options.peer.filter(|expected| !expected.means(&peer)) {
            return Err(Error::WrongPeer { expected, got: peer });
        }
        let ClientOptions { own, authorizer, .. } = &self.options;
        let own = EntityAddr::new(own.socket.or(seen.without_port().socket), own.nonce);

        let mut send = BANNER.to_vec();
        send.extend(own.to_legacy());
        send.extend(self.options.features.to_le_bytes());
        send.extend(self.options.host_type.to_le_bytes());
        send.extend(self.options.global_seq.to_le_bytes());
        send.extend(self.options.connect_seq.to_le_bytes());
        send.extend(self.options.protocol_version.to_le_bytes());
        send.extend(authorizer.protocol.to_le_bytes());
        send.extend((authorizer.bytes.len() as u32).to_le_bytes());
        send.push(if self.options.lossy { LOSSY } else { 0 });
        send.extend_from_slice(&authorizer.bytes);
        self.state = ClientState::Reply { peer, own };
        Ok(Step::Frame { frame: Turn { send, ..Turn::default() }, head: hello.len() })
    }

    fn reply(&mut self, head: &[u8], peer: EntityAddr, own: EntityAddr) -> Result<Step<Turn>, Error> {
        let mut reader = Reader::new(head);
        let Ok(wire) = reader.bytes("reply", REPLY) else { return Ok(Step::Need(REPLY)) };
        let reply = Reply::read(wire)?;
        let authorizer = authorizer_len(reply.authorizer_len, 21)?;
        let acked = if reply.tag == TAG_SEQ { 8 } else { 0 };
        let len = REPLY + authorizer + acked;
        let Ok(bytes) = reader.bytes("authorizer", authorizer) else { return Ok(Step::Need(len)) };

        let ours = self.options.features;
        let missing = self.options.required & !reply.features;
        let refusal = match reply.tag {
            TAG_READY | TAG_SEQ if missing == 0 => None,
            TAG_READY | TAG_SEQ => Some(Refusal::Features { missing }),
            TAG_RESETSESSION => Some(Refusal::ResetSession),
            TAG_WAIT => Some(Refusal::Wait),
            TAG_RETRY_SESSION => Some(Refusal::RetrySession { connect_seq: reply.connect_seq }),
            TAG_RETRY_GLOBAL => Some(Refusal::RetryGlobal { global_seq: reply.global_seq }),
            TAG_BADPROTOVER => {
                let (ours, theirs) = (self.options.protocol_version, reply.protocol_version);
                Some(Refusal::BadProtocolVersion { ours, theirs })
            }
            TAG_BADAUTHORIZER => Some(Refusal::BadAuthorizer),
            TAG_CHALLENGE_AUTHORIZER => Some(Refusal::Challenge),
            TAG_FEATURES => Some(Refusal::Features { missing: reply.features & !ours }),
            got => return Err(Error::Tag { got }),
        };
        if let Some(refusal) = refusal {
            return Err(Error::Refused(refusal));
        }
        let mut session = Session {
            features: ours & reply.features,
            peer,
            own,
            host_type: 0,
            global_seq: reply.global_seq,
            connect_seq: reply.connect_seq,
            lossy: reply.flags & LOSSY != 0,
            received: 0,
            authorizer: Authorizer {
                protocol: self.options.authorizer.protocol,
                bytes: Bytes::copy_from_slice(bytes),
            },
        };
        let mut send = Vec::new();
        if reply.tag == TAG_SEQ {
            let Ok(received) = reader.u64("last sequence number") else { return Ok(Step::Need(len)) };
            session.received = received;
            send.extend(self.options.last_seq.to_le_bytes());
        }
        self.state = ClientState::Done;
        Ok(Step::Frame { frame: Turn { send, refused: None, done: Some(session) }, head: len })
    }
}

impl Deframer for Client {
    type Frame<'h> = Turn;
    type Error = Error;

    fn decode(&mut self, head: &[u8], _: &mut dyn Targets) -> Result<Step<Turn>, Error> {
        match self.state {
            ClientState::Hello => self.hello(head),
            ClientState::Reply { peer, own } => self.reply(head, peer, own),
            ClientState::Done => Ok(Step::Need(head.len() + 1)),
        }
    }

    fn body(&mut self, _: Filled) -> Result<(), Error> {
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        match self.state {
            ClientState::Hello => "the server's banner and addresses",
            ClientState::Reply { .. } => "the reply to connect",
            ClientState::Done => "the first frame",
        }
    }
}

/// The server's half.
///
/// Its first [`Turn`] comes before anything was received. A client that is refused is told why and may try again; how
/// often and how long is for the caller to decide, who sees [`Turn::refused`].
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    state: ServerState,
}

/// What a server says of itself and asks of clients.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Our address.
    pub own: EntityAddr,
    /// The client's address as the socket tells it.
    pub client: SocketAddr,
    /// Offered features; [`features::OFFERED`] unless set.
    pub features: u64,
    /// Features that the client must have.
    pub required: u64,
    /// What the client must have.
    pub protocol_version: u32,
    /// Counts our connections; 1 unless set.
    pub global_seq: u32,
    /// Whether a client must bring an `auth none` claim, as to an osd; no unless set, as to a monitor.
    pub claim_required: bool,
    /// The last message that we have received in the session; 0 in a new one.
    pub last_seq: u64,
}

impl ServerOptions {
    /// A server that takes anybody.
    pub fn new(own: EntityAddr, client: SocketAddr, protocol_version: u32) -> Self {
        Self {
            own,
            client,
            features: features::OFFERED,
            required: 0,
            protocol_version,
            global_seq: 1,
            claim_required: false,
            last_seq: 0,
        }
    }
}

#[derive(Debug)]
enum ServerState {
    Start,
    Hello,
    Connect { peer: EntityAddr },
    Seq { session: Session },
    Done,
}

impl Server {
    /// At the start of a connection.
    pub fn new(options: ServerOptions) -> Self {
        Self { options, state: ServerState::Start }
    }

    fn connect(&mut self, head: &[u8], peer: EntityAddr) -> Result<Step<Turn>, Error> {
        let mut reader = Reader::new(head);
        let Ok(wire) = reader.bytes("connect", CONNECT) else { return Ok(Step::Need(CONNECT)) };
        let connect = ConnectMessage::read(wire)?;
        let authorizer = authorizer_len(connect.authorizer_len, 28)?;
        let head = CONNECT + authorizer;
        let Ok(bytes) = reader.bytes("authorizer", authorizer) else { return Ok(Step::Need(head)) };
        let authorizer =
            Authorizer { protocol: connect.authorizer_protocol, bytes: Bytes::copy_from_slice(bytes) };

        let ServerOptions { required, protocol_version, .. } = self.options;
        // What is required is offered, or the two sides would disagree about the footer.
        let features = self.options.features | required;
        let missing = required & !connect.features;
        let seq = connect.features & features & features::RECONNECT_SEQ != 0;
        let (tag, refused) = if connect.protocol_version != protocol_version {
            let (ours, theirs) = (protocol_version, connect.protocol_version);
            (TAG_BADPROTOVER, Some(Refusal::BadProtocolVersion { ours, theirs }))
        } else if missing != 0 {
            (TAG_FEATURES, Some(Refusal::Features { missing }))
        } else if self.options.claim_required && authorizer.global_id().is_none() {
            (TAG_BADAUTHORIZER, Some(Refusal::BadAuthorizer))
        } else {
            (if seq { TAG_SEQ } else { TAG_READY }, None)
        };
        let reply = Reply {
            tag,
            features: connect.features & features | required, // names what is missing, too
            global_seq: self.options.global_seq,
            connect_seq: connect.connect_seq.wrapping_add(1),
            protocol_version,
            authorizer_len: 0,
            flags: connect.flags & LOSSY,
        };
        let mut send = reply.to_wire();
        if tag == TAG_SEQ {
            send.extend(self.options.last_seq.to_le_bytes());
        }
        let mut turn = Turn { send, refused, done: None };
        if refused.is_none() {
            let session = Session {
                features: connect.features & features,
                peer,
                own: self.options.own,
                host_type: connect.host_type,
                global_seq: connect.global_seq,
                connect_seq: reply.connect_seq,
                lossy: connect.flags & LOSSY != 0,
                received: 0,
                authorizer,
            };
            if tag == TAG_SEQ {
                self.state = ServerState::Seq { session };
            } else {
                self.state = ServerState::Done;
                turn.done = Some(session);
            }
        }
        Ok(Step::Frame { frame: turn, head })
    }
}

impl Deframer for Server {
    type Frame<'h> = Turn;
    type Error = Error;

    fn decode(&mut self, head: &[u8], _: &mut dyn Targets) -> Result<Step<Turn>, Error> {
        match &mut self.state {
            ServerState::Start => {
                let mut send = BANNER.to_vec();
                send.extend(self.options.own.to_legacy());
                send.extend(EntityAddr::new(self.options.client, 0).to_legacy());
                self.state = ServerState::Hello;
                Ok(Step::Frame { frame: Turn { send, ..Turn::default() }, head: 0 })
            }
            ServerState::Hello => {
                let Some(hello) = banner_and(head, ADDR)? else { return Ok(need_banner_and(head, ADDR)) };
                self.state = ServerState::Connect { peer: address(hello, 9)? };
                Ok(Step::Used(hello.len()))
            }
            ServerState::Connect { peer } => {
                let peer = *peer;
                self.connect(head, peer)
            }
            ServerState::Seq { session } => {
                let Some(received) = head.first_chunk() else { return Ok(Step::Need(8)) };
                session.received = u64::from_le_bytes(*received);
                let done = Some(session.clone());
                self.state = ServerState::Done;
                Ok(Step::Frame { frame: Turn { done, ..Turn::default() }, head: 8 })
            }
            ServerState::Done => Ok(Step::Need(head.len() + 1)),
        }
    }

    fn body(&mut self, _: Filled) -> Result<(), Error> {
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        match self.state {
            ServerState::Start | ServerState::Hello => "the client's banner and address",
            ServerState::Connect { .. } => "connect",
            ServerState::Seq { .. } => "the client's last sequence number",
            ServerState::Done => "the first frame",
        }
    }
}

/// The banner and `len` bytes behind it, once they are there. A wrong banner is found as soon as it is.
fn banner_and(head: &[u8], len: usize) -> Result<Option<&[u8]>, Error> {
    match head.first_chunk() {
        Some(banner) if *banner != BANNER => Err(Error::Banner { got: *banner }),
        _ => Ok(head.get(..BANNER.len() + len)),
    }
}

fn need_banner_and(head: &[u8], len: usize) -> Step<Turn> {
    Step::Need(if head.len() < BANNER.len() { BANNER.len() } else { BANNER.len() + len })
}

fn address(wire: &[u8], offset: usize) -> Result<EntityAddr, Error> {
    let bytes = wire[offset..].first_chunk().and_then(EntityAddr::from_legacy);
    bytes.ok_or(Error::Address { offset: offset as u64 })
}

fn authorizer_len(len: u32, offset: u64) -> Result<usize, Error> {
    match len {
        0..=MAX_AUTHORIZER => Ok(len as usize),
        _ => Err(Error::AuthorizerTooLong { offset, len, limit: MAX_AUTHORIZER }),
    }
}

/// `ceph_msg_connect`.
struct ConnectMessage {
    features: u64,
    host_type: u32,
    global_seq: u32,
    connect_seq: u32,
    protocol_version: u32,
    authorizer_protocol: u32,
    authorizer_len: u32,
    flags: u8,
}

impl ConnectMessage {
    fn read(wire: &[u8]) -> Result<Self, Short> {
        let mut reader = Reader::new(wire);
        Ok(Self {
            features: reader.u64("features")?,
            host_type: reader.u32("host type")?,
            global_seq: reader.u32("global seq")?,
            connect_seq: reader.u32("connect seq")?,
            protocol_version: reader.u32("protocol version")?,
            authorizer_protocol: reader.u32("authorizer protocol")?,
            authorizer_len: reader.u32("authorizer length")?,
            flags: reader.u8("flags")?,
        })
    }
}

/// `ceph_msg_connect_reply`, and the tag that is its first byte.
struct Reply {
    tag: u8,
    features: u64,
    global_seq: u32,
    connect_seq: u32,
    protocol_version: u32,
    authorizer_len: u32,
    flags: u8,
}

impl Reply {
    fn read(wire: &[u8]) -> Result<Self, Short> {
        let mut reader = Reader::new(wire);
        Ok(Self {
            tag: reader.u8("tag")?,
            features: reader.u64("features")?,
            global_seq: reader.u32("global seq")?,
            connect_seq: reader.u32("connect seq")?,
            protocol_version: reader.u32("protocol version")?,
            authorizer_len: reader.u32("authorizer length")?,
            flags: reader.u8("flags")?,
        })
    }

    fn to_wire(&self) -> Vec<u8> {
        let mut wire = vec![self.tag];
        wire.extend(self.features.to_le_bytes());
        wire.extend(self.global_seq.to_le_bytes());
        wire.extend(self.connect_seq.to_le_bytes());
        wire.extend(self.protocol_version.to_le_bytes());
        wire.extend(self.authorizer_len.to_le_bytes());
        wire.push(self.flags);
        wire
    }
}
