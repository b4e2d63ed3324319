//! What the tests of this crate share: PDUs as bytes, logins in memory, and an initiator over a socket.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use segchain::chain::{ChainBuilder, Outgoing, Payload};
use segchain::framer::{Deframer, Framer, LentSlices, Targets};
use segchain::recv::{Received, Receiver, RecvError, RecvErrorKind, RecvOptions};
use segchain::send::StreamSender;
use segchain::slab::SlabPool;
use segchain::transport::SocketRef;
use segchain_iscsi::login::{self, InitiatorOptions, Parameters, Session, TargetOptions, Turn};
use segchain_iscsi::session::{Event, Initiator, Outcome};
use segchain_iscsi::{Data, Error, Extent, Incoming, Options, Pdu, PduDeframer, PduFramer, scsi::Command};
use segchain_testkit::scripted::{RecvStep, ScriptedRecv};

pub(crate) const INITIATOR: &str = "iqn.2026-01.invalid.segchain:initiator";

/// A PDU with its data as bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) bhs: segchain_iscsi::Bhs,
    pub(crate) ahs: Vec<u8>,
    pub(crate) data: SeenData,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SeenData {
    Bytes(Vec<u8>),
    Target { len: u64, whole: bool },
    Discarded { len: u64 },
}

pub(crate) fn seen(pdu: Incoming) -> Seen {
    let Incoming { bhs, ahs, data, .. } = pdu;
    Seen { bhs, ahs: ahs.to_vec(), data: seen_data(&data) }
}

pub(crate) fn seen_data(data: &Data) -> SeenData {
    match *data {
        Data::Target { len, whole } => SeenData::Target { len, whole },
        Data::Discarded { len } => SeenData::Discarded { len },
        _ => SeenData::Bytes(data.parts().collect::<Vec<_>>().concat()),
    }
}

pub(crate) fn bytes(data: &[u8]) -> SeenData {
    SeenData::Bytes(data.to_vec())
}

/// Every setting of the digests.
pub(crate) const DIGESTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

/// Options without a limit of their own.
pub(crate) fn open(header: bool, data: bool) -> Options {
    Options::new().digests(header, data).max_send(u32::MAX).max_recv(u32::MAX)
}

pub(crate) fn outgoing<'p, D: Payload + 'p>(options: &Options, pdu: Pdu<D>) -> Outgoing<'p> {
    let mut out = ChainBuilder::new();
    PduFramer::new(options).frame(pdu, &mut out).unwrap();
    Outgoing::new(out.finish().unwrap())
}

/// The bytes of a framed PDU.
pub(crate) fn wire<D: Payload>(options: &Options, pdu: Pdu<D>) -> Vec<u8> {
    let mut out = ChainBuilder::new();
    PduFramer::new(options).frame(pdu, &mut out).unwrap();
    out.finish().unwrap().seal_all().to_vec()
}

/// Everything in `bytes`, to the end of the stream.
pub(crate) fn receive(options: &Options, bytes: &[u8]) -> Result<Vec<Seen>, RecvError<Error>> {
    receive_into(options, bytes, &mut ())
}

pub(crate) fn receive_into(
    options: &Options,
    bytes: &[u8],
    targets: &mut dyn Targets,
) -> Result<Vec<Seen>, RecvError<Error>> {
    let script = ScriptedRecv::new(bytes, []);
    let limits = RecvOptions::new().contiguous(1 << 24);
    let mut receiver =
        Receiver::with_options(&script, PduDeframer::new(options), limits, SlabPool::default());
    let mut frames = Vec::new();
    let received = receiver.receive(targets, |pdu| {
        frames.push(seen(pdu));
        ControlFlow::Continue(())
    })?;
    assert_eq!(received, Received::Eof);
    Ok(frames)
}

/// One PDU as a receiver hands it out.
pub(crate) fn incoming(bytes: &[u8]) -> Incoming {
    let script = ScriptedRecv::new(bytes, []);
    let mut receiver = Receiver::new(&script, PduDeframer::new(&open(false, false)));
    receiver.next(&mut (), None, |pdu| pdu).unwrap().unwrap()
}

/// One side of a login in memory.
pub(crate) struct Side<'s, D> {
    script: &'s ScriptedRecv,
    receiver: Receiver<&'s ScriptedRecv, D>,
}

impl<'s, D: for<'h> Deframer<Frame<'h> = Turn, Error = login::Error>> Side<'s, D> {
    pub(crate) fn new(script: &'s ScriptedRecv, deframer: D) -> Self {
        Self { script, receiver: Receiver::new(script, deframer) }
    }

    /// All turns that these bytes lead to.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Result<Vec<Turn>, RecvError<login::Error>> {
        self.script.feed(bytes);
        let mut turns = Vec::new();
        let received = self.receiver.receive(&mut (), |turn| {
            turns.push(turn);
            ControlFlow::Continue(())
        })?;
        assert_eq!(received, Received::Blocked);
        Ok(turns)
    }
}

/// Both sides' sessions, and how many PDUs went each way.
pub(crate) fn login(ours: Parameters, theirs: Parameters) -> (Session, Session, usize) {
    let mut options = InitiatorOptions::new(INITIATOR, "iqn.target");
    options.parameters = ours;
    let mut target_options = TargetOptions::new("iqn.target".to_owned());
    target_options.parameters = theirs;
    let scripts = [(); 2].map(|()| ScriptedRecv::new(&[], []).end(RecvStep::Again));
    let mut initiator = Side::new(&scripts[0], login::Initiator::new(options));
    let mut target = Side::new(&scripts[1], login::Target::new(target_options));
    let (mut wire, mut session, mut pdus) = (Vec::new(), None, 0);
    loop {
        let turns = initiator.hear(&wire).unwrap();
        for turn in turns {
            if let Some(done) = turn.done {
                return (done, session.expect("the target was done before"), pdus);
            }
            wire = turn.send;
        }
        pdus += 1;
        for turn in target.hear(&wire).unwrap() {
            assert_eq!(turn.refused, None);
            wire = turn.send;
            session = turn.done.or(session);
        }
    }
}

/// Memory that data of reads lands in, by task.
#[derive(Debug, Default)]
pub(crate) struct Reads(pub(crate) HashMap<u64, Vec<u8>>);

impl Targets for Reads {
    fn expect(&mut self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|memory| memory.len() as u64)
    }

    fn lend<'a>(&'a mut self, key: u64, at: u64, _: usize, out: &mut LentSlices<'a>) -> bool {
        let Some(memory) = self.0.get_mut(&key) else { return false };
        out.push(&mut memory[at as usize..]);
        true
    }
}

type Socket = SocketRef<Arc<TcpStream>>;

/// An initiator over a socket, one request at a time.
pub(crate) struct Client {
    pub(crate) session: Session,
    pub(crate) initiator: Initiator,
    pub(crate) sender: StreamSender<Socket>,
    pub(crate) receiver: Receiver<Socket, PduDeframer>,
    pub(crate) framer: PduFramer,
    pub(crate) reads: Reads,
}

pub(crate) fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

type LoggedIn = (Session, StreamSender<Socket>, Receiver<Socket, login::Initiator>);

/// Logs in at a portal.
fn log_in(
    portal: SocketAddr,
    target: &str,
    parameters: Parameters,
) -> Result<LoggedIn, RecvError<login::Error>> {
    let stream = TcpStream::connect(portal).unwrap();
    stream.set_nodelay(true).unwrap();
    let socket = SocketRef::new(Arc::new(stream));
    let mut sender = StreamSender::new(socket.clone());
    let mut options = InitiatorOptions::new(INITIATOR, target);
    options.parameters = parameters;
    let mut receiver = Receiver::new(socket, login::Initiator::new(options));
    loop {
        let turn = receiver.next(&mut (), Some(deadline()), |turn| turn)?.unwrap();
        let mut out = ChainBuilder::new();
        out.put(&turn.send);
        let mut message = Outgoing::new(out.finish().unwrap());
        sender.send_blocking(&mut message, Some(deadline())).unwrap();
        if let Some(session) = turn.done {
            return Ok((session, StreamSender::new(sender.into_transport()), receiver));
        }
    }
}

/// Why a login fails.
pub(crate) fn login_error(portal: SocketAddr, target: &str) -> login::Error {
    match log_in(portal, target, Parameters::new()).err().unwrap().into_kind() {
        RecvErrorKind::Frame(error) => error,
        other => panic!("{other:?}"),
    }
}

impl Client {
    pub(crate) fn connect(portal: SocketAddr, target: &str, parameters: Parameters) -> Self {
        let (session, sender, receiver) = log_in(portal, target, parameters).unwrap();
        let receiver = receiver.replace(PduDeframer::new(&session.options())).unwrap();
        let initiator = Initiator::new(&session);
        let framer = PduFramer::new(&session.options());
        Self { session, initiator, sender, receiver, framer, reads: Reads::default() }
    }

    /// The next thing that concerns the caller; what has to be sent meanwhile is sent.
    pub(crate) fn event(&mut self) -> Event {
        loop {
            while let Some(pdu) = self.initiator.next_pdu() {
                self.send(pdu);
            }
            let pdu = self.receiver.next(&mut self.reads, Some(deadline()), |pdu| pdu).unwrap().unwrap();
            if let Some(event) = self.initiator.receive(pdu).unwrap() {
                return event;
            }
        }
    }

    pub(crate) fn send(&mut self, pdu: Pdu<Extent>) {
        let mut out = ChainBuilder::new();
        self.framer.frame(pdu, &mut out).unwrap();
        let mut message = Outgoing::new(out.finish().unwrap());
        self.sender.send_blocking(&mut message, Some(deadline())).unwrap();
    }

    /// What comes back of a ping.
    pub(crate) fn echo(&mut self, data: Extent) -> Vec<u8> {
        let itt = self.initiator.ping(data).unwrap();
        match self.event() {
            Event::Pong { itt: got, data } if got == itt => data.parts().collect::<Vec<_>>().concat(),
            other => panic!("{other:?}"),
        }
    }

    /// Carries out one command; the data of a read lands in memory of its own.
    pub(crate) fn run(&mut self, command: Command, room: usize) -> (Outcome, Vec<u8>) {
        let itt = self.initiator.command(command).unwrap();
        self.reads.0.insert(itt.into(), vec![0; room]);
        match self.event() {
            Event::Done { itt: got, outcome } if got == itt => {
                (outcome, self.reads.0.remove(&itt.into()).unwrap())
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Bytes that are nowhere the same.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 21) as u8).collect()
}
