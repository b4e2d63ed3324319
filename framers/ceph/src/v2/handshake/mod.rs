//! What both sides say before the first message. Both begin with a banner; all the rest are frames.
//!
//! ```text
//!  both    banner: "ceph v2\n", length u16, supported u64, required u64
//!  both    HELLO: what I am, and what your address looks like from here
//!  client  AUTH_REQUEST                   server  AUTH_DONE, or AUTH_BAD_METHOD and the client may try again
//!  both    AUTH_SIGNATURE                 of what was said so far; zeros with auth none
//!  client  CLIENT_IDENT                   server  SERVER_IDENT, or IDENT_MISSING_FEATURES, or WAIT
//! ```
//!
//! [`Client`] and [`Server`] are [`Deframer`](segchain::framer::Deframer)s, so that a [`Receiver`](segchain::recv::Receiver) drives them and keeps what
//! it has read ahead when [`v2::Deframer`](super::Deframer) takes over. Each frame is a [`Turn`]: bytes to send, and the
//! [`Session`] when all is said. There is no authentication but `auth none` and no connection mode but crc: what AUTH_DONE
//! settles is the [`Codec`] of what follows (Ceph `src/msg/async/ProtocolV2.cc`; checked against ceph-osd and ceph-mon
//! 16.2.15).

mod error;
mod wire;

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use bytes::Bytes;
use segchain::framer::{self, Filled, Step, Targets};

pub use self::error::{Error, Refusal};

use self::wire::{Read, Wire};
use super::{Codec, Control, Ident, Options};
use crate::wire::u16_at;
use crate::{AddrKind, EntityAddr, auth, features};

/// What each side begins with.
pub const BANNER: [u8; 8] = *b"ceph v2\n";
/// Feature of a banner: frames of revision 1.
pub const REVISION_1: u64 = 1;
/// The method `auth none` (`CEPH_AUTH_NONE`).
pub const AUTH_NONE: u32 = 1;
/// The connection mode crc (`CEPH_CON_MODE_CRC`).
pub const MODE_CRC: u32 = 1;

/// The fields of a banner; a longer one is of a newer version, and the rest is passed over.
const BANNER_FIELDS: usize = 16;
const MAX_BANNER_FIELDS: usize = 1024;
const LOSSY: u64 = 1;
const NO_SIGNATURE: [u8; 32] = [0; 32];
/// `EOPNOTSUPP` and `EACCES` of Linux.
const NOT_SUPPORTED: i32 = -95;
const NOT_PERMITTED: i32 = -13;

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
    /// What protects the frames that follow.
    pub codec: Codec,
    /// The features that both have.
    pub features: u64,
    /// What the peer is: 1 monitor, 4 OSD, 8 client.
    pub entity_type: u8,
    /// What the peer says of itself. Its `required` are met.
    pub peer: Ident,
    /// Our address; a client has it from the server.
    pub own: Vec<EntityAddr>,
    /// The client's number: what it claims, or what a monitor gives.
    pub global_id: u64,
    /// The name that the client claims, for a server.
    pub name: Bytes,
    /// Whether the session ends with the connection, with no acks and no replay. All of an osd's clients are lossy.
    pub lossy: bool,
}

impl Session {
    /// Options for the frames that follow.
    pub fn options(&self) -> Options {
        Options::new().codec(self.codec)
    }
}

/// The client's half.
///
/// ```no_run
/// use segchain::recv::Receiver;
/// use segchain::transport::SocketRef;
/// use segchain_ceph::EntityAddr;
/// use segchain_ceph::v2::{self, handshake::{Client, ClientOptions}};
/// use std::io::{Error, ErrorKind, Write};
///
/// let address: std::net::SocketAddr = "127.0.0.1:6800".parse().map_err(Error::other)?;
/// let nonce = 6333; // as `ceph osd dump` says
/// let mut socket = std::net::TcpStream::connect(address)?;
/// let client = Client::new(ClientOptions::to_osd(EntityAddr::msgr2(address, nonce), "admin", 4199));
/// let mut receiver = Receiver::new(SocketRef::new(socket.try_clone()?), client);
/// let session = loop {
///     let turn = receiver.next(&mut (), None, |turn| turn)?.ok_or(ErrorKind::UnexpectedEof)?;
///     socket.write_all(&turn.send)?;
///     if let Some(session) = turn.done {
///         break session;
///     }
/// };
/// let deframer = v2::Deframer::new(&session.options());
/// let receiver = receiver.replace(deframer).map_err(|_| Error::other("in the middle of a frame"))?;
/// # let _ = receiver;
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    state: ClientState,
    wire: Wire,
}

/// What a client says of itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Our address. It is blank unless set, and then the server's view of it is used with this nonce, which is random
    /// unless set: no two clients of a host may have the same.
    pub own: EntityAddr,
    /// Whom we mean to reach. A daemon that is not it, nonce included, closes without a word (measured against ceph-osd
    /// 16.2.15).
    pub target: EntityAddr,
    /// Our kind of entity; 8, a client, unless set.
    pub entity_type: u8,
    /// The authentication method; [`AUTH_NONE`] unless set.
    pub method: u32,
    /// The connection modes we would have, best first; [`MODE_CRC`] unless set, and no other is spoken here.
    pub modes: Vec<u32>,
    /// Who we are, in the method's own terms.
    pub claim: Bytes,
    /// Our number; -1 if a monitor has to give us one.
    pub gid: i64,
    /// Offered features; [`features::OFFERED`] unless set. An osd requires [`features::REQUIRED_BY_OSD`].
    pub features: u64,
    /// Features that the server must have; none unless set.
    pub required: u64,
    /// Counts our connections to whomever; 1 unless set.
    pub global_seq: u64,
    /// Whether the session ends with the connection; yes unless set.
    pub lossy: bool,
    /// Our number of the session; 0 on a lossy one.
    pub cookie: u64,
    /// Whether to offer frames of revision 1; yes unless set.
    pub revision_1: bool,
}

impl ClientOptions {
    /// A new lossy session with an osd, `auth none`.
    ///
    /// An osd knows an operation by global id and tid. One that it has seen before is answered with success and not done
    /// (measured against ceph-osd 16.2.15), so a client that makes up its global id begins its tids with the time.
    pub fn to_osd(target: EntityAddr, name: &str, global_id: u64) -> Self {
        Self::new(target, auth::claim(auth::TO_SERVICE, name, global_id), global_id.cast_signed())
    }

    /// A new lossy session with a monitor, `auth none`. It gives us our [`global_id`](Session::global_id).
    pub fn to_monitor(target: EntityAddr, name: &str) -> Self {
        Self::new(target, auth::claim(auth::TO_MONITOR, name, 0), -1)
    }

    fn new(target: EntityAddr, claim: Bytes, gid: i64) -> Self {
        let nonce = RandomState::new().hash_one(gid) as u32;
        Self {
            own: EntityAddr::new(None, nonce).with_kind(AddrKind::Any),
            target,
            entity_type: 8,
            method: AUTH_NONE,
            modes: vec![MODE_CRC],
            claim,
            gid,
            features: features::OFFERED,
            required: 0,
            global_seq: 1,
            lossy: true,
            cookie: 0,
            revision_1: true,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum ClientState {
    Start,
    Banner,
    Hello,
    Auth,
    Signature,
    Ident,
    Done,
}

impl Client {
    /// At the start of a connection.
    pub fn new(options: ClientOptions) -> Self {
        let wire = Wire::new(options.revision_1);
        Self { options, state: ClientState::Start, wire }
    }

    fn control(&mut self, control: Control) -> Result<Turn, Error> {
        let refused = |refusal| Err(Error::Refused(refusal));
        match (self.state, control) {
            (ClientState::Hello, Control::Hello { entity_type, peer }) => {
                self.wire.peer_type = entity_type;
                let own = &mut self.options.own;
                own.socket = own.socket.or(peer.without_port().socket);
                self.state = ClientState::Auth;
                let ClientOptions { method, modes, claim, .. } = &self.options;
                let (modes, payload) = (modes.clone(), claim.clone());
                self.wire.say(Control::AuthRequest { method: *method, modes, payload })
            }
            (ClientState::Auth, Control::AuthDone { global_id, mode, .. }) => {
                if mode != MODE_CRC {
                    return Err(Error::Mode { got: mode });
                }
                self.wire.global_id = global_id;
                self.state = ClientState::Signature;
                self.wire.say(Control::AuthSignature(NO_SIGNATURE))
            }
            (ClientState::Auth, Control::AuthBadMethod { method, result, methods, modes }) => {
                refused(Refusal::BadMethod { method, result, methods, modes })
            }
            (ClientState::Signature, Control::AuthSignature(signature)) => {
                check_signature(signature)?;
                let options = &self.options;
                let ident = Ident {
                    addrs: vec![options.own],
                    gid: options.gid,
                    global_seq: options.global_seq,
                    features: options.features,
                    required: options.required,
                    flags: if options.lossy { LOSSY } else { 0 },
                    cookie: options.cookie,
                };
                self.state = ClientState::Ident;
                self.wire.say(Control::ClientIdent { ident, target: options.target })
            }
            (ClientState::Ident, Control::ServerIdent(ident)) => {
                let ClientOptions { target, features, required, own, .. } = &self.options;
                let missing = (required & !ident.features) | (ident.required & !features);
                if missing != 0 {
                    return refused(Refusal::Features { missing });
                }
                if !ident.addrs.iter().any(|addr| target.means(addr)) {
                    let got = ident.addrs.first().copied().unwrap_or_default();
                    return Err(Error::WrongPeer { expected: *target, got });
                }
                self.state = ClientState::Done;
                let done = self.wire.session(ident, *features, vec![*own], Bytes::new(), None);
                Ok(Turn { done: Some(done), ..Turn::default() })
            }
            (ClientState::Ident, Control::IdentMissingFeatures(missing)) => {
                refused(Refusal::Features { missing })
            }
            (ClientState::Ident, Control::Wait) => refused(Refusal::Wait),
            (ClientState::Ident, Control::SessionReset { .. }) => refused(Refusal::ResetSession),
            (ClientState::Ident, Control::SessionRetryGlobal(global_seq)) => {
                refused(Refusal::RetryGlobal { global_seq })
            }
            (_, other) => Err(Error::Unexpected { awaiting: self.awaited(), tag: other.tag() }),
        }
    }

    fn awaited(&self) -> &'static str {
        match self.state {
            ClientState::Start | ClientState::Banner => "the server's banner",
            ClientState::Hello => "HELLO",
            ClientState::Auth => "AUTH_DONE",
            ClientState::Signature => "AUTH_SIGNATURE",
            ClientState::Ident => "SERVER_IDENT",
            ClientState::Done => "the first frame",
        }
    }
}

impl framer::Deframer for Client {
    type Frame<'h> = Turn;
    type Error = Error;

    fn decode(&mut self, head: &[u8], targets: &mut dyn Targets) -> Result<Step<Turn>, Error> {
        match self.state {
            ClientState::Start => {
                self.state = ClientState::Banner;
                Ok(self.wire.banner())
            }
            ClientState::Banner => {
                let Some(used) = self.wire.read_banner(head)? else { return Ok(need_banner(head)) };
                self.state = ClientState::Hello;
                let ClientOptions { entity_type, target, .. } = self.options;
                let frame = self.wire.say(Control::Hello { entity_type, peer: target })?;
                Ok(Step::Frame { frame, head: used })
            }
            ClientState::Done => Ok(Step::Need(head.len() + 1)),
            _ => match self.wire.read(head, self.awaited(), targets)? {
                Read::Control(control, head) => Ok(Step::Frame { frame: self.control(control)?, head }),
                Read::Dropped(head) => Ok(Step::Used(head)),
                Read::Need(len) => Ok(Step::Need(len)),
            },
        }
    }

    fn body(&mut self, _: Filled) -> Result<(), Error> {
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        self.awaited()
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
    wire: Wire,
    name: Bytes,
}

/// What a server says of itself and asks of clients.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Our addresses. A client has to mean one of them, nonce included.
    pub own: Vec<EntityAddr>,
    /// The client's address as the socket tells it.
    pub client: SocketAddr,
    /// What we are: 1 monitor, 4 OSD.
    pub entity_type: u8,
    /// Our number among our kind.
    pub gid: i64,
    /// What a client becomes that has no number yet, as a monitor gives it.
    pub next_global_id: u64,
    /// Offered features; [`features::OFFERED`] unless set.
    pub features: u64,
    /// Features that the client must have; none unless set.
    pub required: u64,
    /// Counts our connections; 1 unless set.
    pub global_seq: u64,
    /// Whether sessions end with the connection, whatever the client asks for; yes unless set.
    pub lossy: bool,
    /// Our number of the session; 0 on a lossy one.
    pub cookie: u64,
    /// Whether to offer frames of revision 1; yes unless set.
    pub revision_1: bool,
}

impl ServerOptions {
    /// A server that takes anybody.
    pub fn new(own: Vec<EntityAddr>, client: SocketAddr, entity_type: u8) -> Self {
        Self {
            own,
            client,
            entity_type,
            gid: 0,
            next_global_id: 1,
            features: features::OFFERED,
            required: 0,
            global_seq: 1,
            lossy: true,
            cookie: 0,
            revision_1: true,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum ServerState {
    Start,
    Banner,
    Hello,
    Auth,
    Signature,
    Ident,
    Done,
}

impl Server {
    /// At the start of a connection.
    pub fn new(options: ServerOptions) -> Self {
        let wire = Wire::new(options.revision_1);
        Self { options, state: ServerState::Start, wire, name: Bytes::new() }
    }

    /// `None` if there is nothing to say to it.
    fn control(&mut self, control: Control) -> Result<Option<Turn>, Error> {
        match (self.state, control) {
            (ServerState::Hello, Control::Hello { entity_type, .. }) => {
                self.wire.peer_type = entity_type;
                self.state = ServerState::Auth;
                Ok(None)
            }
            (ServerState::Auth, Control::AuthRequest { method, modes, payload }) => {
                self.auth(method, &modes, &payload).map(Some)
            }
            (ServerState::Signature, Control::AuthSignature(signature)) => {
                check_signature(signature)?;
                self.state = ServerState::Ident;
                Ok(None)
            }
            (ServerState::Ident, Control::ClientIdent { ident, target }) => {
                self.ident(ident, target).map(Some)
            }
            // We keep no sessions.
            (ServerState::Ident, Control::SessionReconnect { .. }) => {
                let turn = self.wire.say(Control::SessionReset { full: true })?;
                Ok(Some(Turn { refused: Some(Refusal::ResetSession), ..turn }))
            }
            (_, other) => Err(Error::Unexpected { awaiting: self.awaited(), tag: other.tag() }),
        }
    }

    fn auth(&mut self, method: u32, modes: &[u32], payload: &[u8]) -> Result<Turn, Error> {
        let known = |claim: &auth::Claim| [auth::TO_SERVICE, auth::TO_MONITOR].contains(&claim.mode);
        let claim = auth::read_claim(payload).filter(known);
        let result = match &claim {
            _ if method != AUTH_NONE || !modes.contains(&MODE_CRC) => Err(NOT_SUPPORTED),
            None => Err(NOT_PERMITTED),
            Some(claim) => Ok(claim),
        };
        let claim = match result {
            Ok(claim) => claim,
            Err(result) => {
                let (methods, modes) = (vec![AUTH_NONE], vec![MODE_CRC]);
                let refused =
                    Refusal::BadMethod { method, result, methods: methods.clone(), modes: modes.clone() };
                let turn = self.wire.say(Control::AuthBadMethod { method, result, methods, modes })?;
                return Ok(Turn { refused: Some(refused), ..turn });
            }
        };
        let global_id = if claim.global_id == 0 { self.options.next_global_id } else { claim.global_id };
        (self.wire.global_id, self.name) = (global_id, claim.name.clone());
        self.state = ServerState::Signature;
        let mut turn =
            self.wire.say(Control::AuthDone { global_id, mode: MODE_CRC, payload: Bytes::new() })?;
        turn.send.extend(self.wire.say(Control::AuthSignature(NO_SIGNATURE))?.send);
        Ok(turn)
    }

    fn ident(&mut self, ident: Ident, target: EntityAddr) -> Result<Turn, Error> {
        let options = &self.options;
        if !options.own.iter().any(|own| target.means(own)) {
            let expected = options.own.first().copied().unwrap_or_default();
            return Err(Error::WrongPeer { expected, got: target });
        }
        let missing = options.required & !ident.features;
        if missing != 0 {
            let turn = self.wire.say(Control::IdentMissingFeatures(missing))?;
            return Ok(Turn { refused: Some(Refusal::Features { missing }), ..turn });
        }
        let lossy = options.lossy || ident.flags & LOSSY != 0;
        let turn = self.wire.say(Control::ServerIdent(Ident {
            addrs: options.own.clone(),
            gid: options.gid,
            global_seq: options.global_seq,
            features: options.features,
            required: options.required,
            flags: if lossy { LOSSY } else { 0 },
            cookie: options.cookie,
        }))?;
        self.state = ServerState::Done;
        let (own, name) = (options.own.clone(), self.name.clone());
        let done = Some(self.wire.session(ident, options.features, own, name, Some(lossy)));
        Ok(Turn { done, ..turn })
    }

    fn awaited(&self) -> &'static str {
        match self.state {
            ServerState::Start | ServerState::Banner => "the client's banner",
            ServerState::Hello => "HELLO",
            ServerState::Auth => "AUTH_REQUEST",
            ServerState::Signature => "AUTH_SIGNATURE",
            ServerState::Ident => "CLIENT_IDENT",
            ServerState::Done => "the first frame",
        }
    }
}

impl framer::Deframer for Server {
    type Frame<'h> = Turn;
    type Error = Error;

    fn decode(&mut self, head: &[u8], targets: &mut dyn Targets) -> Result<Step<Turn>, Error> {
        match self.state {
            ServerState::Start => {
                self.state = ServerState::Banner;
                Ok(self.wire.banner())
            }
            ServerState::Banner => {
                let Some(used) = self.wire.read_banner(head)? else { return Ok(need_banner(head)) };
                self.state = ServerState::Hello;
                let peer = EntityAddr::msgr2(self.options.client, 0);
                let frame = self.wire.say(Control::Hello { entity_type: self.options.entity_type, peer })?;
                Ok(Step::Frame { frame, head: used })
            }
            ServerState::Done => Ok(Step::Need(head.len() + 1)),
            _ => match self.wire.read(head, self.awaited(), targets)? {
                Read::Control(control, head) => Ok(match self.control(control)? {
                    Some(frame) => Step::Frame { frame, head },
                    None => Step::Used(head),
                }),
                Read::Dropped(head) => Ok(Step::Used(head)),
                Read::Need(len) => Ok(Step::Need(len)),
            },
        }
    }

    fn body(&mut self, _: Filled) -> Result<(), Error> {
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        self.awaited()
    }
}

fn need_banner(head: &[u8]) -> Step<Turn> {
    let start = BANNER.len() + 2;
    Step::Need(match head.get(..start) {
        None if head.len() < BANNER.len() => BANNER.len(),
        None => start,
        Some(wire) => start + usize::from(u16_at(wire, BANNER.len())),
    })
}

/// Without a key there is nothing to sign with.
fn check_signature(got: [u8; 32]) -> Result<(), Error> {
    if got == NO_SIGNATURE { Ok(()) } else { Err(Error::Signature) }
}
