//! A checked cursor over little-endian fields. A field that is not there is an error that names it.

/// A field reaches beyond the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    pub(crate) field: &'static str,
    pub(crate) offset: usize,
    pub(crate) expected: u64,
    pub(crate) got: u64,
}

/// A structure that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// It ends too soon.
    Short(Short),
    /// A value that is not known here.
    Value { field: &'static str, offset: usize, got: u64 },
}

impl From<Short> for Malformed {
    fn from(short: Short) -> Self {
        Malformed::Short(short)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, offset: 0 }
    }

    /// Whether all bytes are used.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Bytes used so far.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], Short> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else {
            let (expected, got) = (len as u64, self.rest.len() as u64);
            return Err(Short { field, offset: self.offset, expected, got });
        };
        self.rest = rest;
        self.offset += len;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Short> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(field, N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, Short> {
        self.array(field).map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, Short> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, Short> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, Short> {
        self.array(field).map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, Short> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Bytes behind their length, a u32.
    pub(crate) fn string(&mut self, field: &'static str) -> Result<&'a [u8], Short> {
        let len = self.u32(field)?;
        self.bytes(field, len as usize)
    }

    /// A reader of the same bytes.
    pub(crate) fn string_reader(&mut self, field: &'static str) -> Result<Self, Short> {
        let len = self.u32(field)?;
        let offset = self.offset;
        Ok(Reader { rest: self.bytes(field, len as usize)?, offset })
    }

    /// Numbers behind their count. Nothing is allocated for a count that is only claimed.
    pub(crate) fn u32s(&mut self, field: &'static str) -> Result<Vec<u32>, Short> {
        (0..self.u32(field)?).map(|_| self.u32(field)).collect()
    }

    /// One byte that can only be this.
    pub(crate) fn expect(&mut self, field: &'static str, expected: u8) -> Result<(), Malformed> {
        let offset = self.offset;
        match self.u8(field)? {
            got if got == expected => Ok(()),
            got => Err(Malformed::Value { field, offset, got: got.into() }),
        }
    }

    /// The body of a structure that announces its version, the oldest compatible one, and its length. What a newer
    /// version has added at the end is passed over with it.
    pub(crate) fn versioned(&mut self, field: &'static str) -> Result<Reader<'a>, Short> {
        let _version_and_compat = self.array::<2>(field)?;
        let len = self.u32(field)?;
        let offset = self.offset;
        Ok(Reader { rest: self.bytes(field, len as usize)?, offset })
    }
}

pub(crate) fn u16_at(wire: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([wire[at], wire[at + 1]])
}

pub(crate) fn u32_at(wire: &[u8], at: usize) -> u32 {
    u32::from(u16_at(wire, at)) | u32::from(u16_at(wire, at + 2)) << 16
}

pub(crate) fn u64_at(wire: &[u8], at: usize) -> u64 {
    u64::from(u32_at(wire, at)) | u64::from(u32_at(wire, at + 4)) << 32
}

/// Fields side by side, as many bytes as the structure has.
pub(crate) fn fields<const N: usize>(fields: &[&[u8]]) -> [u8; N] {
    let mut wire = [0; N];
    let mut at = 0;
    for field in fields {
        wire[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    }
    debug_assert_eq!(at, N);
    wire
}
