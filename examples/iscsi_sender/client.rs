//! One connection to a target: requests in flight, PDUs in batches, data of reads into memory of our own.
//!
//! ```text
//!  ping, run ─▶ session::Initiator ─next_pdu─▶ PduFramer ─▶ StreamSender ─▶ ┐
//!                     ▲                                                     socket
//!  next ◀─ events ────┴─receive─ PduDeframer ◀─ Receiver ◀───────────────── ┘
//! ```
//!
//! One thread does it all and never blocks in a call: while the socket takes no more it receives, so that two sides that
//! both have much to say do not wait for each other.

use std::collections::{HashMap, VecDeque};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Outgoing, SegmentChain};
use segchain::framer::{Framer as _, LentSlices, Targets};
use segchain::recv::{Received, Receiver, RecvStats};
use segchain::send::{Blocked, Progress, SendStats, StreamSender};
use segchain::transport::{Interest, SocketRef, Wait as _};
use segchain_iscsi::login::{self, InitiatorOptions, Parameters};
use segchain_iscsi::scsi::{Capacity, Command, Failure};
use segchain_iscsi::session::{Event, Initiator, Outcome};
use segchain_iscsi::{PduDeframer, PduFramer};

use crate::{Done, Result, bar};

/// What we call ourselves.
const NAME: &str = "iqn.2026-01.invalid.segchain:iscsi-sender";
/// How long a peer may take, for a connection and for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a command is sent that meets a unit attention.
const TRIES: u32 = 3;
/// PDUs that are sent together: so many, or about so many bytes.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 1 << 20;

type Socket = SocketRef<Arc<TcpStream>>;

/// A session of one connection.
pub struct Client {
    peer: String,
    sender: StreamSender<Socket>,
    receiver: Receiver<Socket, PduDeframer>,
    framer: PduFramer,
    initiator: Initiator,
    batch: Vec<Outgoing<'static>>,
    /// Memory of chains that have left.
    spare: Vec<SegmentChain<'static>>,
    events: VecDeque<Event>,
    reads: Reads,
}

impl Client {
    /// Connects and logs in.
    pub fn connect(portal: &str, target: &str, parameters: Parameters) -> Result<Self> {
        let stream = connect(portal).map_err(|error| format!("cannot reach {portal}: {error}"))?;
        stream.set_nodelay(true)?;
        let socket = SocketRef::new(Arc::new(stream));
        let mut options = InitiatorOptions::new(NAME, target);
        options.parameters = parameters;
        let mut receiver = Receiver::new(socket.clone(), login::Initiator::new(options));
        let mut sender = StreamSender::new(socket.clone());
        let deadline = Some(Instant::now() + PATIENCE);
        let failed = |error: &dyn std::fmt::Display| format!("{portal}: login: {error}");
        let session = loop {
            let turn = receiver.next(&mut (), deadline, |turn| turn).map_err(|error| failed(&error))?;
            let turn = turn.ok_or_else(|| failed(&"the peer closed the connection"))?;
            let mut out = ChainBuilder::new();
            out.put(&turn.send);
            sender
                .send_blocking(&mut Outgoing::new(out.finish()?), deadline)
                .map_err(|error| failed(&error))?;
            if let Some(session) = turn.done {
                break session;
            }
        };
        // Digests begin here; what was read ahead stays.
        let deframer = PduDeframer::new(&session.options());
        let receiver = receiver.replace(deframer).map_err(|_| failed(&"it ends inside a PDU"))?;
        Ok(Self {
            peer: portal.into(),
            sender: StreamSender::new(socket), // counts from here
            receiver,
            framer: PduFramer::new(&session.options()),
            initiator: Initiator::new(&session),
            batch: Vec::new(),
            spare: Vec::new(),
            events: VecDeque::new(),
            reads: Reads::default(),
        })
    }

    /// Sends a ping with these pages as soon as that is possible; returns its task tag.
    pub fn ping(&mut self, pages: Vec<Bytes>) -> Result<u32> {
        self.initiator.ping(pages).map_err(|error| format!("{}: a ping's {error}", self.peer).into())
    }

    /// What is next of interest. It waits, and sends meanwhile.
    pub fn next(&mut self) -> Result<Event> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let received = self.receive()?;
            let blocked = self.send()?;
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if received == Received::Eof {
                return Err(self.failed(&"the peer closed the connection before it answered"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.failed(&format!("no answer in {} s", PATIENCE.as_secs())));
            }
            if received == Received::Blocked {
                let interest = if blocked { Interest::Either } else { Interest::Readable };
                self.receiver.transport().wait(interest, Some(left))?;
            }
        }
    }

    /// Carries out commands, so many at a time. Each comes with the memory that its data lands in; `done` gets that back,
    /// with the command's place in the order and the bytes that it has moved, which may be fewer than asked for.
    /// After one that fails no more are begun.
    pub fn run(
        &mut self,
        commands: impl Iterator<Item = Result<(Command, Vec<u8>)>>,
        in_flight: usize,
        bytes: u64,
        mut done: impl FnMut((usize, Vec<u8>), u64) -> Result<()>,
    ) -> Result<Done> {
        let bar = bar(bytes, "bytes");
        let mut commands = commands.enumerate().fuse();
        let mut running = HashMap::new();
        let mut result = Done { same: true, ..Done::default() };
        loop {
            while result.failed == 0
                && running.len() < in_flight
                && let Some((index, command)) = commands.next()
            {
                let (command, memory) = command?;
                let itt = self.start(command.clone(), memory)?;
                running.insert(itt, (index, command, 1));
            }
            if running.is_empty() {
                bar.finish_and_clear();
                return Ok(result);
            }
            let (itt, outcome) = self.outcome()?;
            let Some((index, command, tries)) = running.remove(&itt) else { continue };
            let memory = self.reads.0.remove(&itt.into()).unwrap_or_default();
            match outcome {
                Ok(moved) => {
                    let len = moved.received + moved.sent; // a command moves data one way
                    bar.inc(len);
                    result.ok += 1;
                    done((index, memory), len)?;
                }
                Err(Failure::CheckCondition(sense)) if sense.is_unit_attention() && tries < TRIES => {
                    let itt = self.start(command.clone(), memory)?;
                    running.insert(itt, (index, command, tries + 1));
                }
                Err(failure) => result.fail(failure.to_string()),
            }
        }
    }

    /// The size of a disk.
    pub fn capacity(&mut self, lun: u64) -> Result<Capacity> {
        let mut capacity = None;
        let commands = [Command::test_unit_ready(lun), Command::read_capacity(lun)];
        let commands = commands.into_iter().map(|command| Ok((command, vec![0; Capacity::LEN as usize])));
        let done = self.run(commands, 1, 0, |(index, memory), moved| {
            let whole = index == 1 && moved == u64::from(Capacity::LEN);
            capacity = Capacity::decode(&memory).filter(|capacity| whole && capacity.block_len > 0);
            Ok(())
        })?;
        let why = done.failure.unwrap_or_else(|| "it does not say how large it is".into());
        capacity.ok_or_else(|| self.failed(&format!("the logical unit: {why}")))
    }

    /// Ends the session.
    pub fn log_out(mut self) -> Result<()> {
        self.initiator.logout();
        match self.next()? {
            Event::LoggedOut { response: 0 } => Ok(()),
            Event::LoggedOut { response } => Err(self.failed(&format!("logout: response {response}"))),
            other => Err(self.failed(&format!("unexpected: {other:?}"))),
        }
    }

    /// The sender's counts since the login.
    pub fn send_stats(&self) -> SendStats {
        self.sender.stats()
    }

    /// The receiver's counts, those of the login included.
    pub fn recv_stats(&self) -> RecvStats {
        self.receiver.stats()
    }

    fn start(&mut self, command: Command, memory: Vec<u8>) -> Result<u32> {
        let itt = self.initiator.command(command)?;
        self.reads.0.insert(itt.into(), memory);
        Ok(itt)
    }

    /// How the next command ends.
    fn outcome(&mut self) -> Result<(u32, Outcome)> {
        match self.next()? {
            Event::Done { itt, outcome } => Ok((itt, outcome)),
            Event::Rejected { reason, header: Some(header) } => {
                Err(self.failed(&format!("the target rejects a {}, reason {reason:#x}", header.name())))
            }
            other => Err(self.failed(&format!("unexpected: {other:?}"))),
        }
    }

    /// Sends what there is; `true` if the socket takes no more for now, and the caller, who knows the deadline, waits.
    fn send(&mut self) -> Result<bool> {
        loop {
            if self.batch.iter().all(Outgoing::is_complete) {
                self.spare.extend(self.batch.drain(..).filter_map(Outgoing::into_chain));
                self.fill()?;
            }
            if self.batch.is_empty() {
                return Ok(false);
            }
            let progress = self.sender.send_batch(&mut self.batch).map_err(|error| self.failed(&error))?;
            if let Progress::Blocked(why) = progress {
                // A socket may be writable while the kernel has no memory: waiting for that alone would spin.
                if why == Blocked::Memory {
                    thread::sleep(Duration::from_millis(1));
                }
                return Ok(true);
            }
        }
    }

    /// Frames the PDUs of the next batch. They get their numbers here, and leave in this order.
    fn fill(&mut self) -> Result<()> {
        let mut bytes = 0;
        while self.batch.len() < BATCH
            && bytes < BATCH_BYTES
            && let Some(pdu) = self.initiator.next_pdu()
        {
            let mut out: ChainBuilder<'static> =
                self.spare.pop().map_or_else(ChainBuilder::new, SegmentChain::recycle);
            self.framer.frame(pdu, &mut out)?;
            let message = Outgoing::new(out.finish()?);
            bytes += message.len();
            self.batch.push(message);
        }
        Ok(())
    }

    /// Takes what has come.
    fn receive(&mut self) -> Result<Received> {
        let Self { receiver, initiator, events, reads, .. } = self;
        let mut violation = None;
        let received = receiver.receive(reads, |pdu| match initiator.receive(pdu) {
            Ok(event) => {
                events.extend(event);
                ControlFlow::Continue(())
            }
            Err(error) => {
                violation = Some(error);
                ControlFlow::Break(())
            }
        });
        match (violation, received) {
            (Some(error), _) => Err(self.failed(&error)),
            (None, received) => received.map_err(|error| self.failed(&error)),
        }
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Box<dyn std::error::Error> {
        format!("{}: {why}", self.peer).into()
    }
}

/// Memory that data of reads lands in, by task.
#[derive(Debug, Default)]
struct Reads(HashMap<u64, Vec<u8>>);

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

fn connect(peer: &str) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in peer.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
