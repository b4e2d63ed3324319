//! The primitives of XDR (RFC 4506) that headers are made of: big-endian words, and opaques padded to a multiple of four.
//!
//! A [`Writer`] keeps its first mistake and [`finish`](Writer::finish) tells it; a [`Reader`] names the field that it could
//! not read. Payload does not pass through here: it stays where it is, see [`Message::opaque`](crate::Message::opaque).

use crate::Error;

/// Zero bytes that follow an opaque of `len` bytes (RFC 4506 section 4.10).
///
/// ```
/// assert_eq!([0, 1, 2, 3, 4].map(segchain_oncrpc::xdr::pad), [0, 3, 2, 1, 0]);
/// ```
pub fn pad(len: u64) -> u64 {
    len.wrapping_neg() % 4
}

/// Writes XDR.
///
/// ```
/// use segchain_oncrpc::xdr::Writer;
///
/// let mut out = Writer::new();
/// out.u32(1).opaque("name", b"hello");
/// assert_eq!(out.finish()?, b"\0\0\0\x01\0\0\0\x05hello\0\0\0");
/// # Ok::<(), segchain_oncrpc::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    error: Option<Error>,
}

impl Writer {
    /// Nothing written yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An unsigned int, an enum.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    /// An unsigned hyper.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    /// A bool, or whether an optional follows.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u32(value.into())
    }

    /// An opaque of fixed length: bytes and pad.
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.raw(bytes).raw(&[0; 3][..pad(bytes.len() as u64) as usize])
    }

    /// An opaque of variable length, or a string: length, bytes and pad. `field` is for the error.
    pub fn opaque(&mut self, field: &'static str, bytes: &[u8]) -> &mut Self {
        self.opaque_within(field, u64::from(u32::MAX), bytes)
    }

    /// The same, at most `limit` bytes long. One that is longer makes [`finish`](Self::finish) fail.
    pub fn opaque_within(&mut self, field: &'static str, limit: u64, bytes: &[u8]) -> &mut Self {
        match u32::try_from(bytes.len()) {
            Ok(len) if u64::from(len) <= limit => self.u32(len).fixed(bytes),
            _ => {
                let (offset, got) = (self.len(), bytes.len() as u64);
                self.fail(Error::FieldTooLong { field, offset, expected: limit, got })
            }
        }
    }

    /// Bytes that are XDR already.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What was written.
    ///
    /// # Errors
    /// The first [`Error::FieldTooLong`].
    pub fn finish(self) -> Result<Vec<u8>, Error> {
        self.error.map_or(Ok(self.bytes), Err)
    }

    /// Keeps a mistake for [`finish`](Self::finish).
    pub(crate) fn fail(&mut self, error: Error) -> &mut Self {
        self.error.get_or_insert(error);
        self
    }
}

/// Reads XDR from bytes in one piece. Every read names its field, for the error.
///
/// ```
/// use segchain_oncrpc::{Error, xdr::Reader};
///
/// let mut bytes = Reader::new(b"\0\0\0\x05hello\0\0\0\0\0");
/// assert_eq!(bytes.opaque("name", 255)?, b"hello");
/// assert_eq!(bytes.u32("size"), Err(Error::Cut { field: "size", offset: 12, expected: 4, got: 2 }));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// At the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes that were read.
    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Bytes that were not.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// An unsigned int, an enum.
    ///
    /// # Errors
    /// [`Error::Cut`].
    pub fn u32(&mut self, field: &'static str) -> Result<u32, Error> {
        self.array(field).map(u32::from_be_bytes)
    }

    /// An unsigned hyper.
    ///
    /// # Errors
    /// [`Error::Cut`].
    pub fn u64(&mut self, field: &'static str) -> Result<u64, Error> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// A bool, or whether an optional follows.
    ///
    /// # Errors
    /// [`Error::Cut`], and [`Error::Value`] if it is neither 0 nor 1.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, Error> {
        let offset = self.offset();
        match self.u32(field)? {
            0 => Ok(false),
            1 => Ok(true),
            got => Err(Error::Value { field, offset, expected: "0 or 1", got }),
        }
    }

    /// An opaque of fixed length, without its pad.
    ///
    /// # Errors
    /// [`Error::Cut`].
    pub fn fixed(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], Error> {
        let padded = (len as u64).saturating_add(pad(len as u64));
        let rest = self.rest();
        if padded > rest.len() as u64 {
            let (offset, got) = (self.offset(), rest.len() as u64);
            return Err(Error::Cut { field, offset, expected: padded, got });
        }
        self.at += padded as usize;
        Ok(&rest[..len])
    }

    /// An opaque of variable length, or a string, of at most `limit` bytes.
    ///
    /// # Errors
    /// [`Error::Cut`], and [`Error::FieldTooLong`].
    pub fn opaque(&mut self, field: &'static str, limit: u32) -> Result<&'a [u8], Error> {
        let offset = self.offset();
        let len = self.u32(field)?;
        if len > limit {
            return Err(Error::FieldTooLong { field, offset, expected: limit.into(), got: len.into() });
        }
        self.fixed(field, len as usize)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Error> {
        let Some(array) = self.rest().first_chunk() else {
            let (offset, got) = (self.offset(), self.rest().len() as u64);
            return Err(Error::Cut { field, offset, expected: N as u64, got });
        };
        self.at += N;
        Ok(*array)
    }
}
