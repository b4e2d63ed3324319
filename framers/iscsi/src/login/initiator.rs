//! The initiator's half of a login.

use std::hash::{BuildHasher, RandomState};

use segchain::framer::{Deframer, Filled, Step, Targets};

use super::exchange::{Exchange, expect};
use super::parameters::Negotiation;
use super::{Error, FULL_FEATURE, OPERATIONAL, Parameters, SECURITY, Session, Status, Turn};
use crate::text::{pairs, put};
use crate::{Header, Incoming, LoginRequest, LoginResponse};

/// The initiator's half.
///
/// ```no_run
/// use segchain::recv::Receiver;
/// use segchain::transport::SocketRef;
/// use segchain_iscsi::PduDeframer;
/// use segchain_iscsi::login::{Initiator, InitiatorOptions};
/// use std::io::{Error, ErrorKind, Write};
///
/// let mut socket = std::net::TcpStream::connect("127.0.0.1:3260")?;
/// let login = Initiator::new(InitiatorOptions::new("iqn.2026-11.example:me", "iqn.2026-11.example:disk"));
/// let mut receiver = Receiver::new(SocketRef::new(socket.try_clone()?), login);
/// let session = loop {
///     let turn = receiver.next(&mut (), None, |turn| turn)?.ok_or(ErrorKind::UnexpectedEof)?;
///     socket.write_all(&turn.send)?;
///     if let Some(session) = turn.done {
///         break session;
///     }
/// };
/// let deframer = PduDeframer::new(&session.options());
/// let receiver = receiver.replace(deframer).map_err(|_| Error::other("in the middle of a PDU"))?;
/// # let _ = receiver;
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Initiator {
    options: InitiatorOptions,
    negotiation: Negotiation,
    exchange: Exchange,
    stage: Stage,
    /// The number that the next status has, once one has come.
    stat_sn: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Start,
    /// In this stage of the RFC.
    In(u8),
    Done,
}

/// What an initiator says of itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InitiatorOptions {
    /// Our name: `iqn.`, a month, a reversed domain, and whatever its owner likes.
    pub name: String,
    /// The target's name.
    pub target: String,
    /// What we wish.
    pub parameters: Parameters,
    /// Our part of the session's name; random unless set. A session with the same parts takes the place of another one
    /// (RFC 7143 section 6.3.5).
    pub isid: [u8; 6],
    /// The number of the first command; 1 unless set.
    pub cmd_sn: u32,
}

impl InitiatorOptions {
    /// A new session with one target.
    pub fn new(name: impl Into<String>, target: impl Into<String>) -> Self {
        let mut isid = [0; 6];
        isid.copy_from_slice(&RandomState::new().hash_one(1).to_be_bytes()[..6]);
        isid[0] = 0x80; // it is random (RFC 7143 section 11.12.5)
        Self { name: name.into(), target: target.into(), parameters: Parameters::new(), isid, cmd_sn: 1 }
    }
}

impl Initiator {
    /// At the start of a connection.
    pub fn new(options: InitiatorOptions) -> Self {
        let negotiation = Negotiation::new(options.parameters.clone());
        Self { options, negotiation, exchange: Exchange::new(), stage: Stage::Start, stat_sn: None }
    }

    fn start(&mut self) -> Result<Turn, Error> {
        let mut text = Vec::new();
        put(&mut text, "InitiatorName", &self.options.name)?;
        put(&mut text, "SessionType", "Normal")?;
        put(&mut text, "TargetName", &self.options.target)?;
        put(&mut text, "AuthMethod", "None")?;
        self.exchange.say(&text);
        self.request(SECURITY)
    }

    /// The next request: more of our text, or none, and ready for the next stage once all of it is said.
    fn request(&mut self, csg: u8) -> Result<Turn, Error> {
        let request = LoginRequest {
            csg,
            isid: self.options.isid,
            itt: ITT,
            cmd_sn: self.options.cmd_sn,
            exp_stat_sn: self.stat_sn.unwrap_or(0),
            ..LoginRequest::default()
        };
        let nsg = next_stage(csg);
        let send = self.exchange.pdu(|more| {
            let nsg = if more { 0 } else { nsg };
            LoginRequest { more, transit: !more, nsg, ..request }.into()
        })?;
        self.stage = Stage::In(csg);
        Ok(Turn { send, ..Turn::default() })
    }

    fn response(&mut self, pdu: &Incoming, csg: u8) -> Result<Turn, Error> {
        let Header::LoginResponse(response) = pdu.header() else {
            return Err(Error::Unexpected { pdu: pdu.bhs.name(), opcode: pdu.bhs.opcode() });
        };
        let status = Status { class: response.status_class, detail: response.status_detail };
        // A refusal may leave the other fields alone, and its text is of no interest but for the address.
        match status.class {
            0 => self.check(&response, csg)?,
            1 => return Err(Error::Redirected { status, address: address(pdu) }),
            _ => return Err(Error::Refused(status)),
        }
        let said = self.exchange.take(pdu, response.more)?;
        let mut answers = Vec::new();
        if let Some(text) = said {
            for pair in pairs(&text) {
                let pair = pair?;
                match pair.key {
                    "AuthMethod" if pair.value == "None" => {}
                    "AuthMethod" => {
                        let (key, got) = (pair.key.to_owned(), pair.value.chars().take(64).collect());
                        return Err(Error::Value { key, offset: pair.offset, expected: "None".into(), got });
                    }
                    _ => self.negotiation.take(pair, &mut answers)?,
                }
            }
        }
        self.exchange.say(&answers);
        if !response.transit || response.more {
            return self.request(csg);
        }
        expect("next stage", 1, next_stage(csg), response.nsg)?;
        if response.nsg == FULL_FEATURE {
            self.stage = Stage::Done;
            let done = Some(self.session(&response)?);
            return Ok(Turn { done, ..Turn::default() });
        }
        let mut text = Vec::new();
        self.negotiation.offer(&mut text)?;
        self.exchange.say(&text);
        self.request(OPERATIONAL)
    }

    fn check(&mut self, response: &LoginResponse, csg: u8) -> Result<(), Error> {
        expect("initiator task tag", 16, ITT, response.itt)?;
        expect("active version", 3, 0u8, response.version_active)?;
        expect("current stage", 1, csg, response.csg)?;
        expect("status number", 24, self.stat_sn.unwrap_or(response.stat_sn), response.stat_sn)?;
        self.stat_sn = Some(response.stat_sn.wrapping_add(1));
        // Before all of it is said there is no next stage.
        expect("transit bit", 1, false, response.transit && (response.more || self.exchange.has_more()))
    }

    fn session(&self, response: &LoginResponse) -> Result<Session, Error> {
        Ok(Session {
            negotiated: self.negotiation.settled()?,
            initiator: self.options.name.clone(),
            target: self.options.target.clone(),
            isid: self.options.isid,
            tsih: response.tsih,
            cid: 0,
            cmd_sn: self.options.cmd_sn,
            max_cmd_sn: response.max_cmd_sn,
            stat_sn: response.stat_sn.wrapping_add(1),
        })
    }
}

/// Where a target sends us; empty if it does not say so in a way that can be read.
fn address(pdu: &Incoming) -> String {
    let text = pdu.data.parts().collect::<Vec<_>>().concat();
    let address = pairs(&text).flatten().find(|pair| pair.key == "TargetAddress");
    address.map_or_else(String::new, |pair| pair.value.to_owned())
}

fn next_stage(csg: u8) -> u8 {
    if csg == SECURITY { OPERATIONAL } else { FULL_FEATURE }
}

/// The one tag of a login.
const ITT: u32 = 0;

impl Deframer for Initiator {
    type Frame<'h> = Turn;
    type Error = Error;

    fn decode(&mut self, head: &[u8], _: &mut dyn Targets) -> Result<Step<Turn>, Error> {
        let csg = match self.stage {
            Stage::Start => return Ok(Step::Frame { frame: self.start()?, head: 0 }),
            Stage::Done => return Ok(Step::Need(head.len() + 1)),
            Stage::In(csg) => csg,
        };
        self.exchange.decode(head)?.try_map(|pdu| self.response(&pdu, csg))
    }

    fn body(&mut self, piece: Filled) -> Result<(), Error> {
        Ok(self.exchange.body(piece)?)
    }

    fn awaiting(&self) -> &'static str {
        match self.stage {
            Stage::Done => "the first PDU",
            _ => "a login response",
        }
    }
}
