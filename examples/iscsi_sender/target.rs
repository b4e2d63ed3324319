//! A target inside of this process: it answers pings, and has a disk of 16 MiB in memory.
//!
//! The crate's own other side, over TCP on the loopback interface. Data of writes lands in the disk itself, data of reads
//! leaves from there. One session, one connection, no error recovery.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Outgoing, Payload};
use segchain::framer::{Framer as _, LentSlices, Targets};
use segchain::recv::Receiver;
use segchain::send::StreamSender;
use segchain::transport::SocketRef;
use segchain_iscsi::login::{self, Session, TargetOptions};
use segchain_iscsi::{
    Bhs, Data, DataIn, DataOut, Header, Incoming, LogoutRequest, LogoutResponse, NO_TAG, NopIn, NopOut, Pdu,
    PduDeframer, PduFramer, R2t, Reject, ScsiCommand, ScsiResponse, scsi,
};

use crate::{MAX_RECV, Result};

/// The target's name.
pub const NAME: &str = "iqn.2026-01.invalid.segchain:embedded";
const BLOCK: usize = 512;
const DISK: usize = 16 << 20;
/// How many commands may be unanswered.
const WINDOW: u32 = 128;

/// A target that serves one connection.
pub struct Embedded {
    portal: String,
    thread: JoinHandle<std::result::Result<(), String>>,
}

impl Embedded {
    /// Listens on the loopback interface.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let portal = listener.local_addr()?.to_string();
        let thread = thread::spawn(move || {
            // An error that is no more than its text may cross threads.
            let (stream, _) = listener.accept().map_err(|error| error.to_string())?;
            serve(&stream).map_err(|error| error.to_string())
        });
        Ok(Self { portal, thread })
    }

    /// Where it listens.
    pub fn portal(&self) -> String {
        self.portal.clone()
    }

    /// Waits for the end of the session.
    pub fn end(self) -> Result<()> {
        let served = self.thread.join().map_err(|_| "the embedded target panicked")?;
        served.map_err(|error| format!("the embedded target: {error}").into())
    }
}

fn serve(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut options = TargetOptions::new(NAME.to_owned());
    options.parameters = options.parameters.max_recv(MAX_RECV);
    options.window = WINDOW;
    let mut sender = StreamSender::new(SocketRef::new(stream));
    let mut receiver = Receiver::new(SocketRef::new(stream), login::Target::new(options));
    let session = loop {
        let turn = receiver.next(&mut (), None, |turn| turn)?.ok_or("nobody logs in")?;
        let mut out = ChainBuilder::new();
        out.put(&turn.send);
        sender.send_blocking(&mut Outgoing::new(out.finish()?), None)?;
        match turn {
            login::Turn { refused: Some(status), .. } => return Err(status.to_string().into()),
            login::Turn { done: Some(session), .. } => break session,
            _ => {}
        }
    };
    let deframer = PduDeframer::new(&session.options());
    let mut receiver = receiver.replace(deframer).map_err(|_| "the login ends inside a PDU")?;
    let mut disk = Disk { bytes: vec![0; DISK], writes: HashMap::new() };
    let mut target = Target::new(&session, sender);
    while let Some(pdu) = receiver.next(&mut disk, None, |pdu| pdu)? {
        if !target.answer(pdu, &mut disk)? {
            break;
        }
    }
    Ok(())
}

/// The disk, and the writes whose data is to come.
struct Disk {
    bytes: Vec<u8>,
    writes: HashMap<u32, Write>,
}

/// A write: where in the disk, and how far it is.
struct Write {
    lun: u64,
    place: Range<usize>,
    received: usize,
    r2t_sn: u32,
}

impl Targets for Disk {
    fn expect(&mut self, key: u64) -> Option<u64> {
        self.writes.get(&(key as u32)).map(|write| write.place.len() as u64)
    }

    fn lend<'a>(&'a mut self, key: u64, at: u64, _: usize, out: &mut LentSlices<'a>) -> bool {
        let Some(write) = self.writes.get(&(key as u32)) else { return false };
        out.push(&mut self.bytes[write.place.clone()][at as usize..]);
        true
    }
}

/// The session's numbers, and the way out.
struct Target<'s> {
    session: &'s Session,
    sender: StreamSender<SocketRef<&'s TcpStream>>,
    framer: PduFramer,
    stat_sn: u32,
    exp_cmd_sn: u32,
}

impl<'s> Target<'s> {
    fn new(session: &'s Session, sender: StreamSender<SocketRef<&'s TcpStream>>) -> Self {
        let framer = PduFramer::new(&session.options());
        Self { session, sender, framer, stat_sn: session.stat_sn, exp_cmd_sn: session.cmd_sn }
    }

    /// Answers a PDU; `false` after a logout.
    fn answer(&mut self, pdu: Incoming, disk: &mut Disk) -> Result<bool> {
        let Incoming { bhs, data, .. } = pdu;
        let header = Header::from(&bhs);
        // Every request takes a number but those for immediate delivery, and data takes none.
        if !matches!(header, Header::DataOut(_)) && !bhs.is_immediate() {
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        }
        match header {
            Header::NopOut(NopOut { itt: NO_TAG, .. }) => {}
            Header::NopOut(NopOut { itt, .. }) => {
                let status = self.status();
                let pong = NopIn {
                    itt,
                    stat_sn: status.stat_sn,
                    exp_cmd_sn: status.exp_cmd_sn,
                    max_cmd_sn: status.max_cmd_sn,
                    ..NopIn::default()
                };
                self.send(Pdu::new(pong, data.into_parts()))?;
            }
            Header::ScsiCommand(command) => self.command(&command, &data, disk)?,
            Header::DataOut(header) => self.data_out(&header, &data, disk)?,
            Header::LogoutRequest(LogoutRequest { itt, .. }) => {
                let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.status();
                let bye =
                    LogoutResponse { itt, stat_sn, exp_cmd_sn, max_cmd_sn, ..LogoutResponse::default() };
                self.send(Pdu::new(bye, ()))?;
                return Ok(false);
            }
            _ => self.reject(&bhs)?,
        }
        Ok(true)
    }

    fn command(&mut self, command: &ScsiCommand, data: &Data, disk: &mut Disk) -> Result<()> {
        let ScsiCommand { cdb, lun, itt, .. } = *command;
        let lba = u32::from_be_bytes([cdb[2], cdb[3], cdb[4], cdb[5]]) as usize;
        let blocks = usize::from(u16::from_be_bytes([cdb[7], cdb[8]]));
        let place = lba * BLOCK..(lba + blocks) * BLOCK;
        let fits = place.end <= disk.bytes.len();
        let mut inquiry = *b"\0\0\x05\x02\x1f\0\0\0segchainmemory disk     0001";
        inquiry[4] = inquiry.len() as u8 - 5;
        match cdb[0] {
            _ if lun != scsi::lun(1) => self.sense(itt, 5, 0x25),
            0x00 => self.good(itt),
            0x12 if cdb[1] == 0 => self.data_in(command, &inquiry),
            0x25 => {
                let last = (disk.bytes.len() / BLOCK - 1) as u32;
                let capacity = [last.to_be_bytes(), (BLOCK as u32).to_be_bytes()].concat();
                self.data_in(command, &capacity)
            }
            0x28 | 0x2a if !fits => self.sense(itt, 5, 0x21),
            0x28 => self.data_in(command, &disk.bytes[place]),
            0x2a if place.len() == command.expected_len as usize && data.len() <= place.len() as u64 => {
                let mut received = place.start;
                for part in data.parts() {
                    disk.bytes[received..received + part.len()].copy_from_slice(part);
                    received += part.len();
                }
                let received = received - place.start;
                disk.writes.insert(itt, Write { lun, place, received, r2t_sn: 0 });
                if command.last { self.go_on(itt, disk) } else { Ok(()) }
            }
            0x2a => self.sense(itt, 5, 0x24),
            _ => self.sense(itt, 5, 0x20),
        }
    }

    /// Data of a write, which is in the disk already.
    fn data_out(&mut self, header: &DataOut, data: &Data, disk: &mut Disk) -> Result<()> {
        match (disk.writes.get_mut(&header.itt), data) {
            // DataPDUInOrder and DataSequenceInOrder are Yes: what is behind that is counted once.
            (Some(Write { received, .. }), _) if header.offset as usize != *received => {
                let got = header.offset;
                return Err(
                    format!("SCSI Data-Out: buffer offset at 40: expected {received}, got {got}").into()
                );
            }
            (Some(write), Data::Target { len, whole: true }) => write.received += *len as usize,
            (Some(_), _) => return Err("data of a write goes past its end".into()),
            // The command was refused before its data came.
            (None, _) => return Ok(()),
        }
        if header.last { self.go_on(header.itt, disk) } else { Ok(()) }
    }

    /// Asks for the next burst of a write, or says that it is done.
    fn go_on(&mut self, itt: u32, disk: &mut Disk) -> Result<()> {
        let Some(write) = disk.writes.get_mut(&itt) else { return Ok(()) };
        let left = write.place.len().checked_sub(write.received).ok_or("more data than the write has")?;
        if left == 0 {
            disk.writes.remove(&itt);
            return self.good(itt);
        }
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers();
        let r2t = R2t {
            lun: write.lun,
            itt,
            ttt: itt,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            r2t_sn: write.r2t_sn,
            offset: write.received as u32,
            desired_len: (left as u32).min(self.session.negotiated.max_burst),
        };
        write.r2t_sn += 1;
        self.send(Pdu::new(r2t, ()))
    }

    /// Data of a read, and its status with the last PDU.
    fn data_in(&mut self, command: &ScsiCommand, data: &[u8]) -> Result<()> {
        let expected = command.expected_len as usize;
        let (short, long) = (expected.saturating_sub(data.len()), data.len().saturating_sub(expected));
        let data = &data[..data.len().min(expected)];
        let (max, burst) =
            (self.session.negotiated.max_send as usize, self.session.negotiated.max_burst as usize);
        let mut batch = Vec::new();
        let mut at = 0;
        let mut data_sn = 0;
        while at < data.len() {
            let in_burst = burst - at % burst;
            let len = max.min(in_burst).min(data.len() - at);
            let has_status = at + len == data.len();
            let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } =
                if has_status { self.status() } else { self.numbers() };
            let header = DataIn {
                last: has_status || len == in_burst,
                has_status,
                underflow: has_status && short > 0,
                overflow: has_status && long > 0,
                residual: if has_status { (short + long) as u32 } else { 0 },
                itt: command.itt,
                stat_sn: if has_status { stat_sn } else { 0 },
                exp_cmd_sn,
                max_cmd_sn,
                data_sn,
                offset: at as u32,
                ..DataIn::default()
            };
            let mut out = ChainBuilder::new();
            self.framer.frame(Pdu::new(header, &data[at..at + len]), &mut out)?;
            batch.push(Outgoing::new(out.finish()?));
            (at, data_sn) = (at + len, data_sn + 1);
        }
        if batch.is_empty() {
            return self.good(command.itt);
        }
        Ok(self.sender.send_batch_blocking(&mut batch, None)?)
    }

    fn good(&mut self, itt: u32) -> Result<()> {
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.status();
        let response = ScsiResponse { itt, stat_sn, exp_cmd_sn, max_cmd_sn, ..ScsiResponse::default() };
        self.send(Pdu::new(response, ()))
    }

    /// CHECK CONDITION with sense data of the fixed format (SPC-4 section 4.5.3).
    fn sense(&mut self, itt: u32, key: u8, code: u8) -> Result<()> {
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.status();
        let response =
            ScsiResponse { status: 2, itt, stat_sn, exp_cmd_sn, max_cmd_sn, ..ScsiResponse::default() };
        let mut sense = [0; 20];
        (sense[1], sense[2], sense[4], sense[9], sense[14]) = (18, 0x70, key, 10, code);
        self.send(Pdu::new(response, Bytes::copy_from_slice(&sense)))
    }

    /// Not supported: here is its header.
    fn reject(&mut self, bhs: &Bhs) -> Result<()> {
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.status();
        let reject = Reject { reason: 5, stat_sn, exp_cmd_sn, max_cmd_sn, ..Reject::default() };
        self.send(Pdu::new(reject, Bytes::copy_from_slice(bhs.as_bytes())))
    }

    fn send<D: Payload>(&mut self, pdu: Pdu<D>) -> Result<()> {
        let mut out = ChainBuilder::new();
        self.framer.frame(pdu, &mut out)?;
        Ok(self.sender.send_blocking(&mut Outgoing::new(out.finish()?), None)?)
    }

    /// The numbers of a PDU that carries a status.
    fn status(&mut self) -> Numbers {
        let numbers = self.numbers();
        self.stat_sn = self.stat_sn.wrapping_add(1);
        numbers
    }

    fn numbers(&self) -> Numbers {
        let (stat_sn, exp_cmd_sn) = (self.stat_sn, self.exp_cmd_sn);
        Numbers { stat_sn, exp_cmd_sn, max_cmd_sn: exp_cmd_sn.wrapping_add(WINDOW - 1) }
    }
}

#[allow(clippy::struct_field_names, reason = "the RFC's names")]
struct Numbers {
    stat_sn: u32,
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
}
