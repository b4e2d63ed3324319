//! The headers of calls and replies (RFC 5531 sections 8 and 9), with AUTH_NONE and AUTH_SYS (appendix A).
//!
//! A header is the start of a record: arguments or results follow it. Which reply belongs to which call is decided in
//! [`Pending`](crate::Pending), before any of this is decoded.

use std::fmt;

use crate::xdr::{Reader, Writer};
use crate::{Direction, Error};

/// The version of the RPC protocol.
pub const RPC_VERSION: u32 = 2;
/// The most bytes of a credential or verifier (RFC 5531 section 8.2).
pub const MAX_AUTH: u32 = 400;

const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// Limits of AUTH_SYS (RFC 5531 appendix A).
const MAX_MACHINE_NAME: u32 = 255;
const MAX_GIDS: u32 = 16;

/// What a call begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallHeader {
    /// The transaction id: the reply has the same.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: Auth,
    /// The proof of it.
    pub verifier: Auth,
}

/// What a reply begins with. Results follow if it is [`Reply::Accepted`] with [`AcceptStatus::Success`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplyHeader {
    /// The transaction id of the call.
    pub xid: u32,
    /// What became of the call.
    pub reply: Reply,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The caller was let in.
    Accepted {
        /// The server's own proof.
        verifier: Auth,
        /// How it went.
        status: AcceptStatus,
    },
    /// It was not.
    Denied(RejectStatus),
}

/// How an accepted call went (`accept_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcceptStatus {
    /// Results follow.
    Success,
    /// The server does not have the program.
    ProgUnavail,
    /// It does not have this version of the program.
    ProgMismatch {
        /// The lowest version it has.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// The program does not have the procedure.
    ProcUnavail,
    /// The server could not decode the arguments.
    GarbageArgs,
    /// Something else, such as a lack of memory.
    SystemErr,
}

/// Why a call was denied (`reject_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectStatus {
    /// The server does not speak version 2 of RPC.
    RpcMismatch {
        /// The lowest version it speaks.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// It does not believe the caller.
    AuthError(AuthStatus),
}

/// Why a caller is not believed (`auth_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuthStatus {
    /// 0, in a reply that denies nevertheless. (This value means success in RFC 5531.)
    Ok,
    /// 1: a bad credential.
    BadCred,
    /// 2: the client must begin a new session.
    RejectedCred,
    /// 3: a bad verifier.
    BadVerf,
    /// 4: an expired or repeated verifier.
    RejectedVerf,
    /// 5: not secure enough.
    TooWeak,
    /// 6: a bad verifier of the server.
    InvalidResp,
    /// 7: unknown.
    Failed,
    /// 8: Kerberos, generic.
    KerbGeneric,
    /// 9: the time of a credential is up.
    TimeExpire,
    /// 10: trouble with a ticket file.
    TktFile,
    /// 11: the authenticator cannot be decoded.
    Decode,
    /// 12: a wrong net address in a ticket.
    NetAddr,
    /// 13: no credentials for the user.
    RpcSecGssCredProblem,
    /// 14: trouble with a context.
    RpcSecGssCtxProblem,
    /// A value that RFC 5531 does not name.
    Other(u32),
}

/// A credential or a verifier (`opaque_auth`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Auth {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS: believed, not proven.
    Sys(AuthSys),
    /// Another flavor, and its body.
    Other {
        /// The flavor.
        flavor: u32,
        /// At most [`MAX_AUTH`] bytes.
        body: Vec<u8>,
    },
}

/// An AUTH_SYS credential (RFC 5531 appendix A).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthSys {
    /// Anything.
    pub stamp: u32,
    /// The caller's machine, at most 255 bytes.
    pub machine_name: Vec<u8>,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// More groups, at most 16.
    pub gids: Vec<u32>,
}

impl CallHeader {
    /// A call without authentication.
    pub fn new(xid: u32, program: u32, version: u32, procedure: u32) -> Self {
        Self { xid, program, version, procedure, credential: Auth::None, verifier: Auth::None }
    }

    /// The same, with a credential.
    #[must_use]
    pub fn with_credential(mut self, credential: Auth) -> Self {
        self.credential = credential;
        self
    }

    /// Writes it. A credential over its limits makes [`Writer::finish`] fail.
    pub fn encode(&self, out: &mut Writer) {
        out.u32(self.xid).u32(Direction::Call.word()).u32(RPC_VERSION);
        out.u32(self.program).u32(self.version).u32(self.procedure);
        self.credential.encode(out);
        self.verifier.encode(out);
    }

    /// Reads it; the arguments are what is left.
    ///
    /// # Errors
    /// XDR that is cut, too long, or has values that a call cannot have.
    pub fn decode(bytes: &mut Reader<'_>) -> Result<Self, Error> {
        let xid = bytes.u32("xid")?;
        word(bytes, "message type", "0 (call)", Direction::Call.word())?;
        word(bytes, "rpc version", "2", RPC_VERSION)?;
        Ok(Self {
            xid,
            program: bytes.u32("program")?,
            version: bytes.u32("version")?,
            procedure: bytes.u32("procedure")?,
            credential: Auth::credential(bytes)?,
            verifier: Auth::verifier(bytes)?,
        })
    }
}

impl ReplyHeader {
    /// A successful reply; results follow.
    pub fn success(xid: u32) -> Self {
        Self::accepted(xid, AcceptStatus::Success)
    }

    /// A reply to a caller who was let in.
    pub fn accepted(xid: u32, status: AcceptStatus) -> Self {
        Self { xid, reply: Reply::Accepted { verifier: Auth::None, status } }
    }

    /// A reply to a caller who was not.
    pub fn denied(xid: u32, status: RejectStatus) -> Self {
        Self { xid, reply: Reply::Denied(status) }
    }

    /// Whether results follow.
    pub fn is_success(&self) -> bool {
        matches!(self.reply, Reply::Accepted { status: AcceptStatus::Success, .. })
    }

    /// Writes it.
    pub fn encode(&self, out: &mut Writer) {
        out.u32(self.xid).u32(Direction::Reply.word());
        match &self.reply {
            Reply::Accepted { verifier, status } => {
                out.u32(0);
                verifier.encode(out);
                out.u32(status.word());
                if let AcceptStatus::ProgMismatch { low, high } = status {
                    out.u32(*low).u32(*high);
                }
            }
            Reply::Denied(RejectStatus::RpcMismatch { low, high }) => {
                out.u32(1).u32(0).u32(*low).u32(*high);
            }
            Reply::Denied(RejectStatus::AuthError(status)) => {
                out.u32(1).u32(1).u32(status.word());
            }
        }
    }

    /// Reads it; the results, if there are any, are what is left.
    ///
    /// # Errors
    /// XDR that is cut, too long, or has values that a reply cannot have.
    pub fn decode(bytes: &mut Reader<'_>) -> Result<Self, Error> {
        let xid = bytes.u32("xid")?;
        word(bytes, "message type", "1 (reply)", Direction::Reply.word())?;
        let offset = bytes.offset();
        let reply = match bytes.u32("reply_stat")? {
            0 => Reply::Accepted { verifier: Auth::verifier(bytes)?, status: AcceptStatus::decode(bytes)? },
            1 => Reply::Denied(RejectStatus::decode(bytes)?),
            got => return Err(Error::Value { field: "reply_stat", offset, expected: "0 or 1", got }),
        };
        Ok(Self { xid, reply })
    }
}

impl AcceptStatus {
    fn word(self) -> u32 {
        match self {
            Self::Success => 0,
            Self::ProgUnavail => 1,
            Self::ProgMismatch { .. } => 2,
            Self::ProcUnavail => 3,
            Self::GarbageArgs => 4,
            Self::SystemErr => 5,
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Error> {
        let offset = bytes.offset();
        Ok(match bytes.u32("accept_stat")? {
            0 => Self::Success,
            1 => Self::ProgUnavail,
            2 => {
                Self::ProgMismatch { low: bytes.u32("lowest version")?, high: bytes.u32("highest version")? }
            }
            3 => Self::ProcUnavail,
            4 => Self::GarbageArgs,
            5 => Self::SystemErr,
            got => return Err(Error::Value { field: "accept_stat", offset, expected: "0 to 5", got }),
        })
    }
}

impl RejectStatus {
    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Error> {
        let offset = bytes.offset();
        Ok(match bytes.u32("reject_stat")? {
            0 => Self::RpcMismatch { low: bytes.u32("lowest version")?, high: bytes.u32("highest version")? },
            1 => Self::AuthError(AuthStatus::from_word(bytes.u32("auth_stat")?)),
            got => return Err(Error::Value { field: "reject_stat", offset, expected: "0 or 1", got }),
        })
    }
}

/// Their names in RFC 5531, in the order of their values.
const AUTH_STATUS: [(AuthStatus, &str); 15] = [
    (AuthStatus::Ok, "AUTH_OK"),
    (AuthStatus::BadCred, "AUTH_BADCRED"),
    (AuthStatus::RejectedCred, "AUTH_REJECTEDCRED"),
    (AuthStatus::BadVerf, "AUTH_BADVERF"),
    (AuthStatus::RejectedVerf, "AUTH_REJECTEDVERF"),
    (AuthStatus::TooWeak, "AUTH_TOOWEAK"),
    (AuthStatus::InvalidResp, "AUTH_INVALIDRESP"),
    (AuthStatus::Failed, "AUTH_FAILED"),
    (AuthStatus::KerbGeneric, "AUTH_KERB_GENERIC"),
    (AuthStatus::TimeExpire, "AUTH_TIMEEXPIRE"),
    (AuthStatus::TktFile, "AUTH_TKT_FILE"),
    (AuthStatus::Decode, "AUTH_DECODE"),
    (AuthStatus::NetAddr, "AUTH_NET_ADDR"),
    (AuthStatus::RpcSecGssCredProblem, "RPCSEC_GSS_CREDPROBLEM"),
    (AuthStatus::RpcSecGssCtxProblem, "RPCSEC_GSS_CTXPROBLEM"),
];

impl AuthStatus {
    /// The value on the wire.
    pub fn word(self) -> u32 {
        match self {
            Self::Other(word) => word,
            named => AUTH_STATUS
                .iter()
                .zip(0..)
                .find(|((status, _), _)| *status == named)
                .map_or(0, |(_, word)| word),
        }
    }

    /// The status with this value.
    pub fn from_word(word: u32) -> Self {
        AUTH_STATUS.get(word as usize).map_or(Self::Other(word), |(status, _)| *status)
    }
}

impl Auth {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::None => {
                out.u32(AUTH_NONE).u32(0);
            }
            Self::Sys(sys) => {
                let (name, gids) = (sys.machine_name.len() as u64, sys.gids.len() as u64);
                out.u32(AUTH_SYS).u32((20 + name + crate::xdr::pad(name) + 4 * gids) as u32);
                out.u32(sys.stamp).opaque_within("machine name", MAX_MACHINE_NAME.into(), &sys.machine_name);
                out.u32(sys.uid).u32(sys.gid);
                let (offset, count) = (out.len(), u32::try_from(sys.gids.len()).unwrap_or(u32::MAX));
                if count > MAX_GIDS {
                    out.fail(Error::Value { field: "gids", offset, expected: "at most 16", got: count });
                }
                out.u32(count);
                for gid in &sys.gids {
                    out.u32(*gid);
                }
            }
            Self::Other { flavor, body } => {
                out.u32(*flavor).opaque_within("authentication", MAX_AUTH.into(), body);
            }
        }
    }

    fn credential(bytes: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(match Self::decode(bytes, "credential")? {
            Self::Other { flavor: AUTH_SYS, body } => Self::Sys(AuthSys::decode(&mut Reader::new(&body))?),
            auth => auth,
        })
    }

    /// AUTH_SYS has no verifiers of its own (RFC 5531 appendix A): what calls itself one is not looked into.
    fn verifier(bytes: &mut Reader<'_>) -> Result<Self, Error> {
        Self::decode(bytes, "verifier")
    }

    fn decode(bytes: &mut Reader<'_>, field: &'static str) -> Result<Self, Error> {
        let flavor = bytes.u32(field)?;
        let body = bytes.opaque(field, MAX_AUTH)?;
        Ok(match flavor {
            AUTH_NONE if body.is_empty() => Self::None,
            _ => Self::Other { flavor, body: body.to_vec() },
        })
    }
}

impl AuthSys {
    /// A user and a group on a machine.
    pub fn new(machine_name: &str, uid: u32, gid: u32) -> Self {
        Self { stamp: 0, machine_name: machine_name.into(), uid, gid, gids: Vec::new() }
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Error> {
        let stamp = bytes.u32("stamp")?;
        let machine_name = bytes.opaque("machine name", MAX_MACHINE_NAME)?.to_vec();
        let (uid, gid) = (bytes.u32("uid")?, bytes.u32("gid")?);
        let offset = bytes.offset();
        let count = bytes.u32("gids")?;
        if count > MAX_GIDS {
            return Err(Error::Value { field: "gids", offset, expected: "at most 16", got: count });
        }
        let gids = (0..count).map(|_| bytes.u32("gid")).collect::<Result<_, _>>()?;
        Ok(Self { stamp, machine_name, uid, gid, gids })
    }
}

/// A word that can have one value only.
fn word(
    bytes: &mut Reader<'_>,
    field: &'static str,
    expected: &'static str,
    value: u32,
) -> Result<(), Error> {
    let offset = bytes.offset();
    match bytes.u32(field)? {
        got if got == value => Ok(()),
        got => Err(Error::Value { field, offset, expected, got }),
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted { status, .. } => write!(f, "{status}"),
            Self::Denied(status) => write!(f, "denied: {status}"),
        }
    }
}

impl fmt::Display for AcceptStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("SUCCESS"),
            Self::ProgUnavail => f.write_str("PROG_UNAVAIL"),
            Self::ProgMismatch { low, high } => write!(f, "PROG_MISMATCH (versions {low} to {high})"),
            Self::ProcUnavail => f.write_str("PROC_UNAVAIL"),
            Self::GarbageArgs => f.write_str("GARBAGE_ARGS"),
            Self::SystemErr => f.write_str("SYSTEM_ERR"),
        }
    }
}

impl fmt::Display for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RpcMismatch { low, high } => write!(f, "RPC_MISMATCH (versions {low} to {high})"),
            Self::AuthError(status) => write!(f, "AUTH_ERROR ({status})"),
        }
    }
}

impl fmt::Display for AuthStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(word) => write!(f, "auth_stat {word}"),
            named => f.write_str(AUTH_STATUS[named.word() as usize].1),
        }
    }
}
