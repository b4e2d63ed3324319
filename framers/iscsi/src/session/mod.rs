//! An initiator's session in the full feature phase: numbers, tasks, and the sequences of data that a write takes.
//!
//! ```text
//!  ping, command, logout ─▶ Initiator ──next_pdu──▶ PDUs in the order in which they have to leave
//!                            tasks, CmdSN, StatSN
//!  Event ◀──────────────────┴──receive──◀ PDUs of the target
//! ```
//!
//! It knows no socket and keeps no data: a write's pages leave from where they are, as many PDUs over one payload, and the
//! data of a read lands where the receiver's [`Targets`](segchain::framer::Targets) say. Numbers are given in
//! [`next_pdu`](Initiator::next_pdu), so what that returns has to leave in that order, and what is dropped instead ends the
//! session: there may be no gap. Error recovery level 0, one connection.

mod error;
mod numbers;
mod task;

use std::collections::{HashMap, VecDeque};

pub use self::error::Violation;

use self::numbers::Numbers;
use self::task::{Burst, Task, at_most, range};
use crate::login::{Negotiated, Session};
use crate::scsi::{Command, Failure, Moved, Transfer};
use crate::{
    AsyncMessage, Bhs, Data, Error, Extent, Field, Header, Incoming, LogoutRequest, NO_TAG, NopIn, NopOut,
    Pdu, R2t, Reject, ScsiCommand,
};
use segchain::chain::Payload as _;

/// How many pings of the target may be unanswered: it sends more only if it does not take what we send.
const MAX_UNANSWERED: u32 = 1024;

/// The initiator's side of a session.
///
/// ```
/// use segchain::chain::ChainBuilder;
/// use segchain::framer::Framer;
/// use segchain_iscsi::scsi::{Command, lun};
/// use segchain_iscsi::{Error, PduFramer, login, session};
///
/// /// Reads 8 blocks of 512 bytes: the task's tag, and what has to be sent.
/// fn read(session: &login::Session) -> Result<(u32, Vec<u8>), Error> {
///     let mut initiator = session::Initiator::new(session);
///     let mut framer = PduFramer::new(&session.options());
///     let task = initiator.command(Command::read10(lun(1), 0, 8, 512))?;
///     let mut wire = Vec::new();
///     while let Some(pdu) = initiator.next_pdu() {
///         let mut out = ChainBuilder::new();
///         framer.frame(pdu, &mut out)?;
///         wire.extend(out.finish()?.seal_all().to_vec());
///     }
///     Ok((task, wire))
/// }
/// ```
#[derive(Debug)]
pub struct Initiator {
    negotiated: Negotiated,
    numbers: Numbers,
    next_itt: u32,
    tasks: HashMap<u32, Task>,
    /// Answers to pings.
    answers: VecDeque<NopOut>,
    /// Data that has to go out now.
    bursts: VecDeque<Burst>,
    /// Requests that have no number yet.
    waiting: VecDeque<Request>,
    /// Whether the last request was asked for: the logout.
    closing: bool,
    /// What the target has done that it may not.
    violation: Option<Violation>,
}

#[derive(Debug)]
enum Request {
    Ping { itt: u32, data: Extent },
    Command { itt: u32, command: Command },
    Logout { itt: u32 },
}

/// Something of the target's that concerns the caller.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A ping came back.
    Pong {
        /// Its task tag.
        itt: u32,
        /// What came back: the ping's data, or as much of it as we take.
        data: Data,
    },
    /// Data of a read that did not land in a target: in slabs, discarded, or in a target that was taken back.
    Data {
        /// The read's task tag.
        itt: u32,
        /// Where in the read's data it belongs, in bytes.
        offset: u32,
        /// The data.
        data: Data,
        /// The end of the command, if it came along.
        done: Option<Outcome>,
    },
    /// A command has ended.
    Done {
        /// Its task tag.
        itt: u32,
        /// How.
        outcome: Outcome,
    },
    /// The answer to a logout; 0 is success.
    LoggedOut {
        /// What the target makes of it (RFC 7143 section 11.15.1).
        response: u8,
    },
    /// The target does not take a PDU of ours. If it was a request, its task has ended.
    Rejected {
        /// Why (RFC 7143 section 11.17.1): 2 data digest, 4 protocol error, 5 not supported, 9 invalid field, and others.
        reason: u8,
        /// The header of that PDU, if the target shows it.
        header: Option<Bhs>,
    },
    /// The target has something to say (RFC 7143 section 11.9).
    Async(AsyncMessage),
}

/// How a command ended.
pub type Outcome = Result<Moved, Failure>;

impl Initiator {
    /// At the start of the full feature phase.
    pub fn new(session: &Session) -> Self {
        Self {
            negotiated: session.negotiated.clone(),
            numbers: Numbers::new(session),
            next_itt: 1,
            tasks: HashMap::new(),
            answers: VecDeque::new(),
            bursts: VecDeque::new(),
            waiting: VecDeque::new(),
            closing: false,
            violation: None,
        }
    }

    /// How many requests are not answered.
    pub fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    /// Sends data and wants it back ([`Event::Pong`]); returns the task tag.
    ///
    /// # Errors
    /// [`Error::TooLong`] if it is more than the target takes in one PDU, [`Error::Closing`] after a logout or a violation.
    pub fn ping(&mut self, data: impl Into<Extent>) -> Result<u32, Error> {
        self.check_open()?;
        let data = data.into();
        let (len, limit) = (data.len(), self.negotiated.max_send.into());
        if len > limit {
            return Err(Error::TooLong { field: Field::Data, offset: 5, len, limit });
        }
        let itt = self.new_task();
        self.waiting.push_back(Request::Ping { itt, data });
        Ok(itt)
    }

    /// Has a command carried out ([`Event::Done`]); returns the task tag.
    ///
    /// # Errors
    /// [`Error::TooLong`] if it writes 4 GiB or more, [`Error::Closing`] after a logout or a violation.
    pub fn command(&mut self, command: Command) -> Result<u32, Error> {
        self.check_open()?;
        if let Transfer::Write(pages) = &command.transfer {
            let (len, limit) = (pages.len(), u32::MAX.into());
            if len > limit {
                return Err(Error::TooLong { field: Field::Data, offset: 20, len, limit });
            }
        }
        let itt = self.new_task();
        self.waiting.push_back(Request::Command { itt, command });
        Ok(itt)
    }

    /// Ends the session ([`Event::LoggedOut`]). From now on there are no more requests; the logout itself leaves when all that
    /// were asked for before are answered, as it would end them (RFC 7143 section 11.14).
    pub fn logout(&mut self) {
        if !std::mem::replace(&mut self.closing, true) {
            let itt = self.new_task();
            self.waiting.push_back(Request::Logout { itt });
        }
    }

    /// What has to leave next: answers to pings, then data of writes, then requests while the target takes some. After a
    /// violation nothing leaves.
    pub fn next_pdu(&mut self) -> Option<Pdu<Extent>> {
        if self.violation.is_some() {
            return None;
        }
        if let Some(answer) = self.answers.pop_front() {
            let (cmd_sn, exp_stat_sn) = (self.numbers.cmd_sn, self.numbers.exp_stat_sn);
            return Some(Pdu::new(NopOut { cmd_sn, exp_stat_sn, ..answer }, Extent::default()));
        }
        if let Some(burst) = self.bursts.front_mut() {
            let (pdu, last) = burst.next(self.negotiated.max_send, self.numbers.exp_stat_sn);
            let Burst { itt, ttt, .. } = *burst;
            if let Some(task) = self.tasks.get_mut(&itt) {
                task.data_out(pdu.data.len(), last && ttt != NO_TAG);
            }
            if last {
                self.bursts.pop_front();
            }
            return Some(pdu);
        }
        let held = matches!(self.waiting.front(), Some(Request::Logout { .. })) && self.tasks.len() > 1;
        if held || !self.numbers.is_open() {
            return None;
        }
        let request = self.waiting.pop_front()?;
        let (cmd_sn, exp_stat_sn) = (self.numbers.take(), self.numbers.exp_stat_sn);
        Some(match request {
            Request::Ping { itt, data } => {
                self.tasks.insert(itt, Task::Ping);
                Pdu::new(NopOut { itt, cmd_sn, exp_stat_sn, ..NopOut::default() }, data)
            }
            Request::Logout { itt } => {
                self.tasks.insert(itt, Task::Logout);
                let logout = LogoutRequest { itt, cmd_sn, exp_stat_sn, ..LogoutRequest::default() };
                Pdu::new(logout, Extent::default())
            }
            Request::Command { itt, command } => {
                self.tasks.insert(itt, Task::new(&command));
                let Command { lun, cdb, attribute, transfer } = command;
                let header =
                    ScsiCommand { attribute, lun, itt, cmd_sn, exp_stat_sn, cdb, ..ScsiCommand::default() };
                match transfer {
                    Transfer::None => Pdu::new(ScsiCommand { last: true, ..header }, Extent::default()),
                    Transfer::Read(len) => {
                        let header = ScsiCommand { last: true, read: true, expected_len: len, ..header };
                        Pdu::new(header, Extent::default())
                    }
                    Transfer::Write(pages) => {
                        let (data, unsolicited) = Burst::unsolicited(&self.negotiated, lun, itt, &pages);
                        let (last, len) = (unsolicited.is_none(), pages.len() as u32);
                        self.bursts.extend(unsolicited);
                        if let Some(task) = self.tasks.get_mut(&itt) {
                            task.data_out(data.len(), false);
                        }
                        Pdu::new(ScsiCommand { last, write: true, expected_len: len, ..header }, data)
                    }
                }
            }
        })
    }

    /// Takes a PDU of the target.
    ///
    /// # Errors
    /// One that does not fit the session: the connection has to close. Whatever comes after that gives the same error again.
    pub fn receive(&mut self, pdu: Incoming) -> Result<Option<Event>, Violation> {
        match self.violation {
            Some(violation) => Err(violation),
            None => self.take(pdu).inspect_err(|violation| self.violation = Some(*violation)),
        }
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.closing || self.violation.is_some() { Err(Error::Closing) } else { Ok(()) }
    }

    fn take(&mut self, pdu: Incoming) -> Result<Option<Event>, Violation> {
        let Incoming { bhs, data, data_offset, .. } = pdu;
        let name = bhs.name();
        let header = Header::from(&bhs);
        self.see(&bhs, &header)?;
        match header {
            Header::NopIn(NopIn { itt, ttt, lun, .. }) => {
                if ttt != NO_TAG {
                    at_most(MAX_UNANSWERED, "unanswered pings", self.answers.len() as u32 + 1)?;
                    self.answers.push_back(NopOut { immediate: true, lun, ttt, ..NopOut::default() });
                }
                if itt == NO_TAG {
                    return Ok(None);
                }
                self.end(itt, name, |task| matches!(task, Task::Ping))?;
                Ok(Some(Event::Pong { itt, data }))
            }
            Header::DataIn(header) => {
                let task = self.tasks.get_mut(&header.itt);
                let task = task.ok_or(Violation::UnknownTask { pdu: name, itt: header.itt, offset: 16 })?;
                task.data_in(&header, data.len())?;
                let done = header.has_status.then(|| task.outcome_of_data_in(&header)).transpose()?;
                if done.is_some() {
                    self.forget(header.itt);
                }
                let (itt, offset) = (header.itt, header.offset);
                Ok(match (data, done) {
                    (Data::None | Data::Target { whole: true, .. }, done) => {
                        done.map(|outcome| Event::Done { itt, outcome })
                    }
                    (data, done) => Some(Event::Data { itt, offset, data, done }),
                })
            }
            Header::ScsiResponse(response) => {
                let task = self.end(response.itt, name, Task::is_command)?;
                Ok(Some(Event::Done {
                    itt: response.itt,
                    outcome: task.outcome(&response, &data, data_offset)?,
                }))
            }
            Header::R2t(r2t) => self.r2t(&r2t).map(|()| None),
            Header::LogoutResponse(response) => {
                self.end(response.itt, name, |task| matches!(task, Task::Logout))?;
                Ok(Some(Event::LoggedOut { response: response.response }))
            }
            Header::Reject(reject) => Ok(Some(self.rejected(&reject, &data))),
            Header::AsyncMessage(message) => Ok(Some(Event::Async(message))),
            _ => Err(Violation::Unexpected { pdu: name, opcode: bhs.opcode() }),
        }
    }

    fn new_task(&mut self) -> u32 {
        loop {
            let itt = self.next_itt;
            self.next_itt = itt.wrapping_add(1);
            if itt != NO_TAG && !self.tasks.contains_key(&itt) {
                self.tasks.insert(itt, Task::Waiting);
                return itt;
            }
        }
    }

    /// What every PDU of a target says: which commands it takes, and the number of its status if it carries one.
    fn see(&mut self, bhs: &Bhs, header: &Header) -> Result<(), Violation> {
        let carries_status = match header {
            // A ping has the number that the next status will have.
            Header::NopIn(ping) => ping.itt != NO_TAG,
            Header::DataIn(data) => data.has_status,
            Header::R2t(_) => false,
            Header::ScsiResponse(_)
            | Header::LogoutResponse(_)
            | Header::TaskResponse(_)
            | Header::TextResponse(_)
            | Header::AsyncMessage(_)
            | Header::Reject(_) => true,
            _ => return Err(Violation::Unexpected { pdu: bhs.name(), opcode: bhs.opcode() }),
        };
        if carries_status {
            let (expected, got) = (self.numbers.exp_stat_sn, bhs.u32_at(24));
            range(bhs.name(), "status number", 24, expected..=expected, got)?;
            self.numbers.exp_stat_sn = got.wrapping_add(1);
        }
        self.numbers.see(bhs.u32_at(28), bhs.u32_at(32));
        Ok(())
    }

    /// The task that a PDU ends.
    fn end(&mut self, itt: u32, pdu: &'static str, fits: impl Fn(&Task) -> bool) -> Result<Task, Violation> {
        match self.tasks.get(&itt) {
            Some(task) if fits(task) => {
                self.forget(itt).ok_or(Violation::UnknownTask { pdu, itt, offset: 16 })
            }
            _ => Err(Violation::UnknownTask { pdu, itt, offset: 16 }),
        }
    }

    /// Nothing more is sent for a task.
    fn forget(&mut self, itt: u32) -> Option<Task> {
        self.bursts.retain(|burst| burst.itt != itt);
        self.tasks.remove(&itt)
    }

    fn r2t(&mut self, r2t: &R2t) -> Result<(), Violation> {
        let task = self.tasks.get_mut(&r2t.itt);
        let unknown = Violation::UnknownTask { pdu: "R2T", itt: r2t.itt, offset: 16 };
        let burst = task.ok_or(unknown)?.r2t(r2t, &self.negotiated)?;
        self.bursts.push_back(burst);
        Ok(())
    }

    fn rejected(&mut self, reject: &Reject, data: &Data) -> Event {
        let header = data.parts().next().and_then(|part| part.first_chunk()).copied().map(Bhs::from);
        if let Some(bhs) = header
            && matches!(
                Header::from(&bhs),
                Header::NopOut(_) | Header::ScsiCommand(_) | Header::LogoutRequest(_)
            )
            && !matches!(self.tasks.get(&bhs.itt()), Some(Task::Waiting))
        {
            self.forget(bhs.itt());
        }
        Event::Rejected { reason: reject.reason, header }
    }
}
