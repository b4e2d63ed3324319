//! The server's half.

use std::net::SocketAddr;

use bytes::Bytes;
use segchain::framer::{self, Filled, Step, Targets};

use super::wire::{Read, Wire, check_signature, need_banner};
use super::{AUTH_NONE, Error, LOSSY, MODE_CRC, NO_SIGNATURE, NOT_PERMITTED, NOT_SUPPORTED, Refusal, Turn};
use crate::v2::{Control, Ident};
use crate::{EntityAddr, auth, features};

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
