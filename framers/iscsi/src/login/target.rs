//! The target's half of a login.

use segchain::framer::{Deframer, Filled, Step, Targets};

use super::exchange::{Exchange, expect};
use super::parameters::Negotiation;
use super::{Error, FULL_FEATURE, OPERATIONAL, Parameters, SECURITY, Session, Status, Turn};
use crate::text::{self, pairs, put};
use crate::{Header, Incoming, LoginRequest, LoginResponse};

/// The target's half: one connection a session, no authentication, no discovery.
///
/// An initiator that is refused is told why, and the caller, who sees [`Turn::refused`], closes when that is sent. What is
/// wrong with a request is in [`Turn::error`]; only what is no login request at all ends without a response.
///
/// ```no_run
/// use segchain::recv::Receiver;
/// use segchain::transport::SocketRef;
/// use segchain_iscsi::login::{Target, TargetOptions};
/// use std::io::{ErrorKind, Write};
///
/// let (mut socket, _) = std::net::TcpListener::bind("127.0.0.1:3260")?.accept()?;
/// let login = Target::new(TargetOptions::new("iqn.2026-11.example:disk".to_owned()));
/// let mut receiver = Receiver::new(SocketRef::new(socket.try_clone()?), login);
/// let session = loop {
///     let turn = receiver.next(&mut (), None, |turn| turn)?.ok_or(ErrorKind::UnexpectedEof)?;
///     socket.write_all(&turn.send)?;
///     if let Some(status) = turn.refused {
///         return Err(std::io::Error::other(status.to_string()));
///     }
///     if let Some(session) = turn.done {
///         break session;
///     }
/// };
/// println!("{} has logged in", session.initiator);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Target {
    options: TargetOptions,
    negotiation: Negotiation,
    exchange: Exchange,
    /// What the first request has said, which the others have to repeat.
    first: Option<LoginRequest>,
    csg: u8,
    stat_sn: u32,
    names: Names,
    /// Whether the first answer is given.
    greeted: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Talking,
    /// Our text is longer than one PDU: the initiator asks for the rest with requests without text.
    Answering,
    Done,
}

/// Why a request is refused.
enum Refusal {
    Status(Status),
    /// The same, and what was wrong.
    Error(Status, Error),
}

#[derive(Debug, Default)]
struct Names {
    initiator: Option<String>,
    target: Option<String>,
}

/// What a target says of itself and asks of initiators.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TargetOptions {
    /// Our name; any will do if it is not set.
    pub name: Option<String>,
    /// Our alias, for people; none unless set.
    pub alias: Option<String>,
    /// What we wish.
    pub parameters: Parameters,
    /// Our part of the session's name, not 0; 1 unless set.
    pub tsih: u16,
    /// How many commands an initiator may have unanswered, at least 1; 128 unless set.
    pub window: u32,
    /// The number of the first status; 1 unless set.
    pub stat_sn: u32,
}

impl TargetOptions {
    /// A target that takes anybody.
    pub fn new(name: impl Into<Option<String>>) -> Self {
        let parameters = Parameters::new();
        Self { name: name.into(), alias: None, parameters, tsih: 1, window: 128, stat_sn: 1 }
    }
}

impl Target {
    /// At the start of a connection.
    pub fn new(options: TargetOptions) -> Self {
        let (negotiation, stat_sn) = (Negotiation::new(options.parameters.clone()), options.stat_sn);
        let (exchange, names) = (Exchange::new(), Names::default());
        Self {
            options,
            negotiation,
            exchange,
            first: None,
            csg: SECURITY,
            stat_sn,
            names,
            greeted: false,
            state: State::Talking,
        }
    }

    fn request(&mut self, pdu: &Incoming) -> Result<Turn, Error> {
        let Header::LoginRequest(request) = pdu.header() else {
            return Err(Error::Unexpected { pdu: pdu.bhs.name(), opcode: pdu.bhs.opcode() });
        };
        match self.answer(&request, pdu) {
            Ok(turn) => Ok(turn),
            Err(Refusal::Status(status)) => self.refuse(&request, status),
            Err(Refusal::Error(status, error)) => {
                Ok(Turn { error: Some(error), ..self.refuse(&request, status)? })
            }
        }
    }

    fn answer(&mut self, request: &LoginRequest, pdu: &Incoming) -> Result<Turn, Refusal> {
        self.check(request)?;
        let answering = self.state == State::Answering;
        let text = self.exchange.take(pdu, request.more && !answering)?;
        let Some(text) = text.filter(|_| !answering) else { return self.respond(request) };
        let mut answers = Vec::new();
        for pair in pairs(&text) {
            let pair = pair.map_err(Error::Text)?;
            match pair.key {
                "InitiatorName" => self.names.initiator = Some(pair.value.to_owned()),
                "TargetName" => self.names.target = Some(pair.value.to_owned()),
                "SessionType" if pair.value == "Normal" => {}
                "SessionType" => return Err(Status::SESSION_TYPE.into()),
                "AuthMethod" if pair.value.split(',').any(|method| method == "None") => {
                    put(&mut answers, "AuthMethod", "None")?;
                }
                "AuthMethod" => return Err(Status::AUTHENTICATION_FAILURE.into()),
                _ => self.negotiation.take(pair, &mut answers)?,
            }
        }
        let Names { initiator: Some(_), target: Some(name) } = &self.names else {
            return Err(Status::MISSING_PARAMETER.into());
        };
        let ours = self.options.name.as_ref();
        if ours.is_some_and(|ours| ours != name) {
            return Err(Status::NOT_FOUND.into());
        }
        if !std::mem::replace(&mut self.greeted, true) {
            put(&mut answers, "TargetPortalGroupTag", 1)?;
            if let Some(alias) = &self.options.alias {
                put(&mut answers, "TargetAlias", alias)?;
            }
        }
        if self.csg == OPERATIONAL {
            self.negotiation.declare(&mut answers)?;
        }
        self.exchange.say(&answers);
        self.respond(request)
    }

    /// Whether a request fits the ones before.
    fn check(&mut self, request: &LoginRequest) -> Result<(), Refusal> {
        if request.version_min > 0 {
            return Err(Status::UNSUPPORTED_VERSION.into());
        }
        if request.tsih != 0 {
            return Err(Status::NO_SUCH_SESSION.into());
        }
        match &self.first {
            Some(first) => {
                expect("initiator task tag", 16, first.itt, request.itt)?;
                expect("connection number", 20, first.cid, request.cid)?;
                expect("current stage", 1, self.csg, request.csg)?;
            }
            None if request.csg > OPERATIONAL => return Err(Status::INITIATOR_ERROR.into()),
            None => {
                self.csg = request.csg;
                self.first = Some(*request);
            }
        }
        let ready = !request.transit || (!request.more && matches!(request.nsg, OPERATIONAL | FULL_FEATURE));
        if !ready || request.transit && request.nsg <= request.csg {
            return Err(Status::INITIATOR_ERROR.into());
        }
        Ok(())
    }

    /// As much of our text as a PDU takes; the stage ends with the last of it.
    fn respond(&mut self, request: &LoginRequest) -> Result<Turn, Refusal> {
        if request.transit && request.nsg == FULL_FEATURE {
            self.negotiation.settled()?; // or there is nothing to say but that
        }
        let response = self.response(request);
        let send = self.exchange.pdu(|more| {
            let transit = request.transit && !more;
            let nsg = if transit { request.nsg } else { 0 };
            let tsih = if nsg == FULL_FEATURE { self.options.tsih } else { 0 };
            LoginResponse { transit, more, nsg, tsih, ..response }.into()
        })?;
        let mut turn = Turn { send, ..Turn::default() };
        self.state = if self.exchange.has_more() { State::Answering } else { State::Talking };
        if self.state == State::Talking && request.transit {
            self.csg = request.nsg;
            if self.csg == FULL_FEATURE {
                self.state = State::Done;
                turn.done = Some(self.session(request)?);
            }
        }
        Ok(turn)
    }

    fn refuse(&mut self, request: &LoginRequest, status: Status) -> Result<Turn, Error> {
        let response = LoginResponse {
            status_class: status.class,
            status_detail: status.detail,
            ..self.response(request)
        };
        self.state = State::Done;
        let send = Exchange::new().pdu(|_| response.into())?;
        Ok(Turn { send, refused: Some(status), ..Turn::default() })
    }

    /// A response to a request, which takes a number.
    fn response(&mut self, request: &LoginRequest) -> LoginResponse {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        LoginResponse {
            csg: request.csg,
            isid: request.isid,
            itt: request.itt,
            stat_sn,
            exp_cmd_sn: request.cmd_sn,
            max_cmd_sn: self.max_cmd_sn(request),
            ..LoginResponse::default()
        }
    }

    fn max_cmd_sn(&self, request: &LoginRequest) -> u32 {
        request.cmd_sn.wrapping_add(self.options.window.max(1) - 1)
    }

    fn session(&self, request: &LoginRequest) -> Result<Session, Error> {
        Ok(Session {
            negotiated: self.negotiation.settled()?,
            initiator: self.names.initiator.clone().unwrap_or_default(),
            target: self.names.target.clone().unwrap_or_default(),
            isid: request.isid,
            tsih: self.options.tsih,
            cid: request.cid,
            cmd_sn: request.cmd_sn,
            max_cmd_sn: self.max_cmd_sn(request),
            stat_sn: self.stat_sn,
        })
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Refusal::Status(status)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Missing { .. } => Status::MISSING_PARAMETER,
            _ => Status::INITIATOR_ERROR,
        };
        Refusal::Error(status, error)
    }
}

/// Of what we would say, which is no fault of the initiator.
impl From<text::Error> for Refusal {
    fn from(error: text::Error) -> Self {
        Refusal::Error(Status::TARGET_ERROR, error.into())
    }
}

impl Deframer for Target {
    type Frame<'h> = Turn;
    type Error = Error;

    fn decode(&mut self, head: &[u8], _: &mut dyn Targets) -> Result<Step<Turn>, Error> {
        match self.state {
            State::Done => Ok(Step::Need(head.len() + 1)),
            _ => self.exchange.decode(head)?.try_map(|pdu| self.request(&pdu)),
        }
    }

    fn body(&mut self, piece: Filled) -> Result<(), Error> {
        Ok(self.exchange.body(piece)?)
    }

    fn awaiting(&self) -> &'static str {
        match self.state {
            State::Done => "the first PDU",
            _ => "a login request",
        }
    }
}
