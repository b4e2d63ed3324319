//! The server's half.

use std::net::SocketAddr;

use bytes::Bytes;
use segchain::framer::{Deframer, Filled, Step, Targets};

use super::wire::{ConnectMessage, Reply, address, authorizer_len, banner_and, need_banner_and};
use super::{
    ADDR, Authorizer, BANNER, CONNECT, Error, LOSSY, Refusal, Session, TAG_BADAUTHORIZER, TAG_BADPROTOVER,
    TAG_FEATURES, TAG_READY, TAG_SEQ, Turn,
};
use crate::wire::Reader;
use crate::{EntityAddr, features};

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
