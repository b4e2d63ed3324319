//! The text of login and text PDUs: `key=value`, each ended by a NUL (RFC 7143 section 6.1).
//!
//! What is read is borrowed from the text; a key or value over its limit is an error before anything is kept of it.

use std::{error, fmt, str};

use segchain::framer::find_delimiter;

/// The longest key, in bytes (RFC 7143 section 6.1).
pub const MAX_KEY: usize = 63;
/// The longest value, in bytes. Text has at most 255 (RFC 7143 section 6.1); the rest is for lists of many addresses.
pub const MAX_VALUE: usize = 8192;
/// The longest name of an initiator or a target, in bytes (RFC 7143 section 6.1).
pub const MAX_NAME: usize = 223;

/// A key and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pair<'t> {
    /// Before the `=`.
    pub key: &'t str,
    /// Behind it; it may be empty.
    pub value: &'t str,
    /// Where in the text the value is.
    pub offset: usize,
}

/// The pairs of a text, in order. After an error nothing more comes.
///
/// ```
/// use segchain_iscsi::text::pairs;
///
/// let text = b"TargetAlias=disk\0TargetPortalGroupTag=1\0";
/// let pairs: Result<Vec<_>, _> = pairs(text).collect();
/// assert_eq!(pairs.unwrap()[1].value, "1");
/// ```
pub fn pairs(text: &[u8]) -> impl Iterator<Item = Result<Pair<'_>, Error>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let start = std::mem::replace(&mut at, text.len());
        Some(pair(rest, start).inspect(|(_, used)| at = start + used).map(|(pair, _)| pair))
    })
}

/// Appends a pair.
///
/// # Errors
/// One that would not be read as this key and this value, or is over a limit; nothing is appended then.
pub fn put(text: &mut Vec<u8>, key: &str, value: impl fmt::Display) -> Result<(), Error> {
    let (line, start) = (format!("{key}={value}\0"), text.len());
    if let Some(at) = line.find('\0').filter(|at| at + 1 < line.len()) {
        return Err(Error::Nul { offset: start + at });
    }
    let (pair, _) = pair(line.as_bytes(), start)?;
    if pair.key != key {
        return Err(Error::Key { offset: start, len: key.len() });
    }
    text.extend_from_slice(line.as_bytes());
    Ok(())
}

/// The first pair of `rest`, which begins at `start`, and its length.
fn pair(rest: &[u8], start: usize) -> Result<(Pair<'_>, usize), Error> {
    let longest = MAX_KEY + 1 + MAX_VALUE;
    let end = match find_delimiter(rest, b"\0", longest) {
        Ok(Some(end)) => end,
        Ok(None) => return Err(Error::Unterminated { offset: start }),
        Err(_) => return Err(Error::TooLong { offset: start, limit: longest }),
    };
    let text = str::from_utf8(&rest[..end])
        .map_err(|error| Error::NotText { offset: start + error.valid_up_to() })?;
    let (key, value) = text.split_once('=').ok_or(Error::NoEquals { offset: start })?;
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(Error::Key { offset: start, len: key.len() });
    }
    let offset = start + key.len() + 1;
    let limit = if matches!(key, "InitiatorName" | "TargetName") { MAX_NAME } else { MAX_VALUE };
    if value.len() > limit {
        return Err(Error::Value { offset, len: value.len(), limit });
    }
    Ok((Pair { key, value, offset }, end + 1))
}

/// A text that is none. Offsets are bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A pair without NUL at its end.
    Unterminated {
        /// Where it begins.
        offset: usize,
    },
    /// A pair without `=`.
    NoEquals {
        /// Where it begins.
        offset: usize,
    },
    /// A pair longer than its limit.
    TooLong {
        /// Where it begins.
        offset: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A key of no bytes, of more than [`MAX_KEY`], or with a `=` in it.
    Key {
        /// Where it begins.
        offset: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// A value longer than its limit.
    Value {
        /// Where it begins.
        offset: usize,
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes: [`MAX_NAME`] or [`MAX_VALUE`].
        limit: usize,
    },
    /// A NUL inside of a key or value to send.
    Nul {
        /// Where it would be.
        offset: usize,
    },
    /// Bytes that are not UTF-8.
    NotText {
        /// Where they are.
        offset: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Unterminated { offset } => write!(f, "the pair at {offset} of the text does not end"),
            Error::NoEquals { offset } => write!(f, "the pair at {offset} of the text has no ="),
            Error::TooLong { offset, limit } => {
                write!(f, "the pair at {offset} of the text is longer than {limit} bytes")
            }
            Error::Key { offset, len } => {
                write!(
                    f,
                    "a key of {len} bytes at {offset} of the text: expected 1 to {MAX_KEY}, none of them ="
                )
            }
            Error::Value { offset, len, limit } => {
                write!(f, "a value of {len} bytes at {offset} of the text, the limit is {limit}")
            }
            Error::Nul { offset } => write!(f, "the byte at {offset} of the text is a NUL inside of a pair"),
            Error::NotText { offset } => write!(f, "the byte at {offset} of the text is not UTF-8"),
        }
    }
}

impl error::Error for Error {}
