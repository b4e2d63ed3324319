//! Why a send failed, and how much of the message had left by then.

use std::sync::Arc;
use std::{error, fmt, io};

/// A failed send. It can be cloned to everybody whom it concerns.
///
/// One pointer: a result that holds it, of every call, stays in registers.
#[derive(Clone, PartialEq, Eq)]
pub struct SendError(Arc<Failure>);

#[derive(Clone, PartialEq, Eq)]
struct Failure {
    kind: SendErrorKind,
    errno: Option<i32>,
    sent: u64,
    detail: Option<Box<str>>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// The transport reported an error that is final.
    Io(io::ErrorKind),
    /// The transport took nothing of what it was offered, and called that success.
    WriteZero,
    /// The transport claims more bytes than it was offered.
    Overrun,
    /// The deadline passed.
    Deadline,
    /// Another message is half-sent on this stream; it has to be finished first.
    AnotherOpen,
    /// The message is half-sent on another stream.
    HalfSentElsewhere,
    /// The stream ended before: see [`StreamSender::death`](super::StreamSender::death).
    Dead,
    /// A datagram of more slices than a call takes ([`MAX_SLICES`](crate::transport::MAX_SLICES)); push fewer or
    /// larger pieces, or raise the copy threshold.
    TooManySlices,
    /// A datagram longer than the socket takes (EMSGSIZE).
    TooLong,
    /// A datagram of which the transport sent only a part.
    Truncated,
    /// A message was revoked that had left in part, and its protocol cannot abort one on the wire.
    Revoked,
    /// The framer refused the message: see [`SendError::detail`].
    NotFramed,
    /// The queue was shut down, or nobody is left who could send.
    ShutDown,
}

impl SendError {
    pub(crate) fn new(kind: SendErrorKind, errno: Option<i32>, sent: u64) -> Self {
        Self(Arc::new(Failure { kind, errno, sent, detail: None }))
    }

    /// The framer's own words for a message that it refused.
    pub(crate) fn not_framed(error: &impl fmt::Display) -> Self {
        let detail = Some(error.to_string().into());
        Self(Arc::new(Failure { kind: SendErrorKind::NotFramed, errno: None, sent: 0, detail }))
    }

    /// The same error for another message of the stream, of which `sent` bytes had left.
    pub(crate) fn for_message(&self, sent: u64) -> Self {
        let mut error = self.clone();
        if error.0.sent != sent {
            Arc::make_mut(&mut error.0).sent = sent;
        }
        error
    }

    /// What happened.
    pub fn kind(&self) -> SendErrorKind {
        self.0.kind
    }

    /// The system's error number, if the transport gave one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.errno
    }

    /// How many bytes of the message that the error struck had left. They cannot be taken back.
    pub fn sent(&self) -> u64 {
        self.0.sent
    }

    /// What the framer said, if it refused the message.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    fn io_kind(&self) -> io::ErrorKind {
        match self.0.kind {
            SendErrorKind::Io(kind) => kind,
            SendErrorKind::WriteZero => io::ErrorKind::WriteZero,
            SendErrorKind::Deadline => io::ErrorKind::TimedOut,
            SendErrorKind::Dead | SendErrorKind::ShutDown | SendErrorKind::Revoked => {
                io::ErrorKind::BrokenPipe
            }
            SendErrorKind::Overrun | SendErrorKind::Truncated => io::ErrorKind::Other,
            SendErrorKind::AnotherOpen | SendErrorKind::HalfSentElsewhere => io::ErrorKind::ResourceBusy,
            SendErrorKind::TooManySlices | SendErrorKind::TooLong | SendErrorKind::NotFramed => {
                io::ErrorKind::InvalidInput
            }
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.kind, self.0.errno) {
            (SendErrorKind::Io(_), Some(errno)) => write!(f, "{}", io::Error::from_raw_os_error(errno))?,
            (SendErrorKind::Io(kind), None) => write!(f, "{kind}")?,
            (SendErrorKind::WriteZero, _) => {
                f.write_str("the transport took none of the bytes it was offered")?;
            }
            (SendErrorKind::Overrun, _) => {
                f.write_str("the transport claims more bytes than it was offered")?;
            }
            (SendErrorKind::Deadline, _) => f.write_str("the deadline passed")?,
            (SendErrorKind::AnotherOpen, _) => {
                f.write_str("another message is half-sent on this stream and has to be finished first")?;
            }
            (SendErrorKind::HalfSentElsewhere, _) => {
                f.write_str("the message is half-sent on another stream")?;
            }
            (SendErrorKind::Dead, _) => f.write_str("the stream ended before")?,
            (SendErrorKind::TooManySlices, _) => {
                f.write_str("a datagram of more slices than one call takes")?;
            }
            (SendErrorKind::TooLong, _) => f.write_str("a datagram longer than the socket takes")?,
            (SendErrorKind::Revoked, _) => f.write_str("a message that had left in part was revoked")?,
            (SendErrorKind::NotFramed, _) => {
                f.write_str(self.detail().unwrap_or("the message was not framed"))?;
            }
            (SendErrorKind::ShutDown, _) => f.write_str("the queue was shut down")?,
            (SendErrorKind::Truncated, _) => f.write_str("the transport cut the datagram short")?,
        }
        write!(f, " ({} bytes of the message had left)", self.0.sent)
    }
}

impl fmt::Debug for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError")
            .field("kind", &self.0.kind)
            .field("errno", &self.0.errno)
            .field("sent", &self.0.sent)
            .field("detail", &self.0.detail)
            .finish()
    }
}

impl error::Error for SendError {}

impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        io::Error::new(error.io_kind(), error)
    }
}
