//! The client's half.

use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use segchain::framer::{self, Filled, Step, Targets};

use super::wire::{Read, Wire, check_signature, need_banner};
use super::{AUTH_NONE, Error, LOSSY, MODE_CRC, NO_SIGNATURE, Refusal, Turn};
use crate::v2::{Control, Ident};
use crate::{AddrKind, EntityAddr, auth, features};

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

    /// A new lossy session with a monitor, `auth none`. It gives us our [`global_id`](super::Session::global_id).
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
