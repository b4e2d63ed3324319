//! Why receiving ended, and where in the stream.

use std::{error, fmt, io};

/// A failed receive: what happened, and at which offset of the stream.
#[derive(Debug)]
pub struct RecvError<E> {
    kind: RecvErrorKind<E>,
    offset: u64,
}

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecvErrorKind<E> {
    /// The protocol's own: bytes that it does not allow.
    Frame(E),
    /// What the transport reported.
    Io(io::Error),
    /// The stream ended inside a frame.
    UnexpectedEof {
        /// The protocol's name of what was to come.
        field: &'static str,
        /// Bytes that it needs.
        expected: u64,
        /// Bytes of it that were there.
        got: u64,
    },
    /// A header longer than the read-ahead.
    HeadTooLong {
        /// Its length.
        len: u64,
        /// The length of the read-ahead.
        limit: u64,
    },
    /// A contiguous body longer than its limit.
    BodyTooLong {
        /// Its length, as far as is known.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// The deadline passed. Receiving can go on.
    Deadline,
    /// The deframer contradicts itself: it uses bytes that are not there, needs those that are, or goes on without any.
    Stuck,
    /// The stream ended before.
    Dead,
}

impl<E> RecvError<E> {
    pub(super) fn new(kind: RecvErrorKind<E>, offset: u64) -> Self {
        Self { kind, offset }
    }

    /// What happened.
    pub fn kind(&self) -> &RecvErrorKind<E> {
        &self.kind
    }

    /// What happened, to keep.
    pub fn into_kind(self) -> RecvErrorKind<E> {
        self.kind
    }

    /// Bytes of the stream that were used before, those that were put in front included.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl<E: fmt::Display> fmt::Display for RecvError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            RecvErrorKind::Frame(error) => write!(f, "{error}")?,
            RecvErrorKind::Io(error) => write!(f, "{error}")?,
            RecvErrorKind::UnexpectedEof { field, expected, got } => {
                write!(f, "the peer closed inside {field}: expected {expected} bytes, got {got}")?;
            }
            RecvErrorKind::HeadTooLong { len, limit } => {
                write!(f, "a header of {len} bytes, the read-ahead takes {limit}")?;
            }
            RecvErrorKind::BodyTooLong { len, limit } => {
                write!(f, "a contiguous body of {len} bytes, the limit is {limit}")?;
            }
            RecvErrorKind::Deadline => f.write_str("the deadline passed")?,
            RecvErrorKind::Stuck => f.write_str("the deframer contradicts itself")?,
            RecvErrorKind::Dead => f.write_str("the stream ended before")?,
        }
        write!(f, " (at offset {} of the stream)", self.offset)
    }
}

impl<E: error::Error + 'static> error::Error for RecvError<E> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match &self.kind {
            RecvErrorKind::Frame(error) => Some(error),
            RecvErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl<E: error::Error + Send + Sync + 'static> From<RecvError<E>> for io::Error {
    fn from(error: RecvError<E>) -> Self {
        let kind = match &error.kind {
            RecvErrorKind::Io(error) => error.kind(),
            RecvErrorKind::UnexpectedEof { .. } => io::ErrorKind::UnexpectedEof,
            RecvErrorKind::Deadline => io::ErrorKind::TimedOut,
            RecvErrorKind::Dead => io::ErrorKind::BrokenPipe,
            RecvErrorKind::Frame(_)
            | RecvErrorKind::HeadTooLong { .. }
            | RecvErrorKind::BodyTooLong { .. } => io::ErrorKind::InvalidData,
            RecvErrorKind::Stuck => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
