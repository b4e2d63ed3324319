//! The client's half.

use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use segchain::framer::{Deframer, Filled, Step, Targets};

use super::wire::{Reply, address, authorizer_len, banner_and, need_banner_and};
use super::{
    ADDR, Authorizer, BANNER, Error, LOSSY, REPLY, Refusal, Session, TAG_BADAUTHORIZER, TAG_BADPROTOVER,
    TAG_CHALLENGE_AUTHORIZER, TAG_FEATURES, TAG_READY, TAG_RESETSESSION, TAG_RETRY_GLOBAL, TAG_RETRY_SESSION,
    TAG_SEQ, TAG_WAIT, Turn,
};
use crate::wire::Reader;
use crate::{EntityAddr, features};

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
