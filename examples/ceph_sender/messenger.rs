//! Either version of the messenger behind one framer and one deframer: whoever sends and receives messages does not ask
//! which is spoken. Only the handshakes do: `connect.rs` has the client's, `accept.rs` the server's.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use segchain::chain::{ChainBuilder, Outgoing, Payload};
use segchain::framer::{self, Filled, Framer as _, Step, Targets};
use segchain::queue::Queued;
use segchain::recv::Receiver;
use segchain::send::StreamSender;
use segchain::transport::SocketRef;
use segchain_ceph::v1::Stamp;
use segchain_ceph::{Incoming, Message, v1, v2};

use crate::Failure;

/// Both directions of one connection share it.
pub(crate) type Socket = SocketRef<Arc<TcpStream>>;

/// How long a peer may think.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The version of the messenger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    /// Banner `ceph v027`
    V1,
    /// Banner `ceph v2`, crc mode
    V2,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::V1 => "v1",
            Protocol::V2 => "v2",
        })
    }
}

/// A connection after its handshake.
pub(crate) struct Connection {
    pub(crate) sender: StreamSender<Socket>,
    pub(crate) framer: Framer,
    pub(crate) receiver: Receiver<Socket, Deframer>,
    /// The client's number, if it has one.
    pub(crate) global_id: Option<u64>,
}

impl Connection {
    /// Goes on behind a handshake, with what follows on it.
    pub(crate) fn new<D>(
        sender: StreamSender<Socket>,
        receiver: Receiver<Socket, D>,
        (framer, deframer): (Framer, Deframer),
        global_id: Option<u64>,
    ) -> Result<Self, Failure> {
        let receiver = receiver.replace(deframer).map_err(|_| "in the middle of a frame")?;
        Ok(Self { sender, framer, receiver, global_id })
    }

    /// Sends one message, however long that takes within [`PATIENCE`].
    pub(crate) fn send(&mut self, message: Outbound<impl Payload>) -> Result<(), Failure> {
        let mut out = ChainBuilder::new();
        self.framer.frame(message, &mut out)?;
        Ok(self.sender.send_blocking(&mut Outgoing::new(out.finish()?), Some(Instant::now() + PATIENCE))?)
    }

    /// What comes next; `None` if the peer has closed.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Failure> {
        Ok(self.receiver.next(&mut (), Some(Instant::now() + PATIENCE), |frame| frame)?)
    }
}

/// What is sent.
pub(crate) enum Outbound<D> {
    Message(Message<D>),
    /// A keepalive's stamp goes back.
    KeepaliveAck(Stamp),
}

impl<D: Payload + Send + 'static> Queued for Outbound<D> {
    fn bytes(&self) -> u64 {
        match self {
            Outbound::Message(message) => message.bytes(),
            Outbound::KeepaliveAck(_) => 64,
        }
    }
}

/// What is received.
pub(crate) enum Frame {
    Message(Incoming),
    /// The peer asks for this stamp.
    Keepalive(Stamp),
    /// The peer has given a message up: the reply to this request of ours, if it was one.
    Aborted(Option<u64>),
    /// The peer is about to close.
    Close,
    /// Acknowledgements, which are checked already, and what is not said in an open connection.
    Other,
}

/// Frames messages of either version.
pub(crate) enum Framer {
    V1(v1::Framer),
    V2(v2::Framer),
}

/// Takes frames of either version apart.
pub(crate) enum Deframer {
    V1(v1::Deframer),
    V2(v2::Deframer),
}

/// The two halves of a connection of version 1, each knowing the other's numbers.
pub(crate) fn halves_of_v1(options: &v1::Options) -> (Framer, Deframer) {
    let framer = v1::Framer::new(options);
    let deframer = v1::Deframer::new(options).paired(&framer);
    (Framer::V1(framer), Deframer::V1(deframer))
}

/// The same for version 2.
pub(crate) fn halves_of_v2(options: &v2::Options) -> (Framer, Deframer) {
    let framer = v2::Framer::new(options);
    let deframer = v2::Deframer::new(options).paired(&framer);
    (Framer::V2(framer), Deframer::V2(deframer))
}

impl<D: Payload> framer::Framer<Outbound<D>> for Framer {
    type Error = io::Error;

    fn overhead(&self, len: u64) -> u64 {
        match self {
            Framer::V1(framer) => framer::Framer::<Message<D>>::overhead(framer, len),
            Framer::V2(framer) => framer::Framer::<Message<D>>::overhead(framer, len),
        }
    }

    fn accepts_gap(&self) -> bool {
        match self {
            Framer::V1(framer) => framer::Framer::<Message<D>>::accepts_gap(framer),
            Framer::V2(framer) => framer::Framer::<Message<D>>::accepts_gap(framer),
        }
    }

    fn frame<'m>(&mut self, message: Outbound<D>, out: &mut ChainBuilder<'m>) -> io::Result<()>
    where
        Outbound<D>: 'm,
    {
        match (self, message) {
            (Framer::V1(framer), Outbound::Message(message)) => framer.frame(message, out)?,
            (Framer::V1(framer), Outbound::KeepaliveAck(stamp)) => {
                framer.frame(v1::Control::Keepalive2Ack(stamp), out)?;
            }
            (Framer::V2(framer), Outbound::Message(message)) => framer.frame(message, out)?,
            (Framer::V2(framer), Outbound::KeepaliveAck(stamp)) => {
                framer.frame(v2::Control::Keepalive2Ack(stamp), out)?;
            }
        }
        Ok(())
    }
}

impl framer::Deframer for Deframer {
    type Frame<'h> = Frame;
    type Error = io::Error;

    fn decode(&mut self, head: &[u8], targets: &mut dyn Targets) -> io::Result<Step<Frame>> {
        Ok(match self {
            Deframer::V1(deframer) => deframer.decode(head, targets)?.map(Frame::from),
            Deframer::V2(deframer) => deframer.decode(head, targets)?.map(Frame::from),
        })
    }

    fn body(&mut self, piece: Filled) -> io::Result<()> {
        match self {
            Deframer::V1(deframer) => deframer.body(piece)?,
            Deframer::V2(deframer) => deframer.body(piece)?,
        }
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        match self {
            Deframer::V1(deframer) => deframer.awaiting(),
            Deframer::V2(deframer) => deframer.awaiting(),
        }
    }
}

impl From<v1::Frame> for Frame {
    fn from(frame: v1::Frame) -> Self {
        match frame {
            v1::Frame::Message(message) => Frame::Message(message),
            v1::Frame::Control(v1::Control::Keepalive2(stamp)) => Frame::Keepalive(stamp),
            v1::Frame::Control(v1::Control::Close) => Frame::Close,
            _ => Frame::Other,
        }
    }
}

impl From<v2::Frame> for Frame {
    fn from(frame: v2::Frame) -> Self {
        match frame {
            v2::Frame::Message(message) => Frame::Message(message),
            v2::Frame::Control(v2::Control::Keepalive2(stamp)) => Frame::Keepalive(stamp),
            v2::Frame::Aborted { tid, .. } => Frame::Aborted(tid),
            _ => Frame::Other,
        }
    }
}

/// One step of a handshake of either version and role.
pub(crate) trait Turn {
    type Session;
    /// Bytes for the peer, why it was refused, and the result.
    fn into_parts(self) -> (Vec<u8>, Option<String>, Option<Self::Session>);
}

impl Turn for v1::handshake::Turn {
    type Session = v1::handshake::Session;
    fn into_parts(self) -> (Vec<u8>, Option<String>, Option<Self::Session>) {
        (self.send, self.refused.map(|refusal| refusal.to_string()), self.done)
    }
}

impl Turn for v2::handshake::Turn {
    type Session = v2::handshake::Session;
    fn into_parts(self) -> (Vec<u8>, Option<String>, Option<Self::Session>) {
        (self.send, self.refused.map(|refusal| refusal.to_string()), self.done)
    }
}

/// How often a client may be refused and try again.
const TRIES: u32 = 4;

/// Speaks one side of a handshake; the receiver comes back at the first byte behind it.
pub(crate) fn shake_hands<D, T: Turn>(
    sender: &mut StreamSender<Socket>,
    mut receiver: Receiver<Socket, D>,
) -> Result<(T::Session, Receiver<Socket, D>), Failure>
where
    D: for<'h> framer::Deframer<Frame<'h> = T, Error: std::error::Error + Send + Sync + 'static>,
{
    let deadline = Some(Instant::now() + PATIENCE);
    let mut refusals = 0;
    loop {
        let turn = receiver.next(&mut (), deadline, |turn| turn)?.ok_or("the peer closed the connection")?;
        let (send, refused, done) = turn.into_parts();
        let mut out = ChainBuilder::new();
        out.put(&send);
        sender.send_blocking(&mut Outgoing::new(out.finish()?), deadline)?;
        if let Some(session) = done {
            return Ok((session, receiver));
        }
        if let Some(refusal) = refused {
            refusals += 1;
            if refusals == TRIES {
                return Err(refusal.into());
            }
        }
    }
}
