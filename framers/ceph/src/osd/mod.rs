//! Operations on the objects of an osd: MOSDOp version 8 and its reply, as the fronts of messages.
//!
//! ```text
//!  Request ──front, message──▶ MOSDOp (type 42): which object, which ops; what is written is the message's data
//!  Reply   ◀──decode── MOSDOpReply (type 43): the result, ops with theirs; what was read is the message's data
//! ```
//!
//! Both directions are here, so that a test can be the osd. Two facts to mind (measured against ceph-osd 16.2.15): a
//! malformed front aborts a real osd; and an operation whose global id and tid it has seen before is answered with
//! success and not done. The layout is that of Ceph `src/messages/MOSDOp.h` and `MOSDOpReply.h`.

mod error;
mod hash;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

pub use self::error::Error;
pub use self::hash::rjenkins;
use crate::wire::{Reader, Short};
use crate::{EntityName, Header, Message, features};

/// Message type of a request.
pub const OP: u16 = 42;
/// Message type of its reply.
pub const OP_REPLY: u16 = 43;
/// Message type of an osd map. An osd pushes one to whom it believes to be behind.
pub const MAP: u16 = 41;

/// [`Op::code`]: reads a range.
pub const READ: u16 = 0x1201;
/// [`Op::code`]: writes a range.
pub const WRITE: u16 = 0x2201;
/// [`Op::code`]: writes the object as a whole and cuts off what was longer.
pub const WRITEFULL: u16 = 0x2202;

/// Flags of a request: it has one answer, when all is safe, and its client knows of redirects.
const FLAGS: u32 = 0x0040_0004;
const FLAG_READ: u32 = 0x10;
const FLAG_WRITE: u32 = 0x20;
/// The mode bits of an op code.
const MODE: u16 = 0xf000;
const MODE_READ: u16 = 0x1000;
const MODE_WRITE: u16 = 0x2000;
/// The object as it is now, no snapshot.
const NO_SNAPSHOT: u64 = u64::MAX - 1;

/// One operation on an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Op {
    /// What: [`READ`], [`WRITE`], [`WRITEFULL`], or another one's code.
    pub code: u16,
    /// `CEPH_OSD_OP_FLAG_*`.
    pub flags: u32,
    /// Where in the object, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// How many bytes of the message's data are this operation's.
    pub payload_len: u32,
}

impl Op {
    /// Bytes on the wire (`ceph_osd_op`).
    const LEN: usize = 38;

    /// Reads `length` bytes from `offset` on, or fewer if the object ends before.
    pub fn read(offset: u64, length: u64) -> Self {
        Self { code: READ, offset, length, ..Self::default() }
    }

    /// Writes `len` bytes at `offset`.
    pub fn write(offset: u64, len: u32) -> Self {
        Self { code: WRITE, offset, length: len.into(), payload_len: len, ..Self::default() }
    }

    /// Makes `len` bytes the whole object.
    pub fn write_full(len: u32) -> Self {
        Self { code: WRITEFULL, length: len.into(), payload_len: len, ..Self::default() }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.code.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.length.to_le_bytes());
        out.extend([0; 12]); // truncate_size, truncate_seq
        out.extend(self.payload_len.to_le_bytes());
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, Short> {
        let op = Self {
            code: reader.u16("op")?,
            flags: reader.u32("op flags")?,
            offset: reader.u64("op offset")?,
            length: reader.u64("op length")?,
            payload_len: 0,
        };
        reader.bytes("op truncate", 12)?;
        Ok(Self { payload_len: reader.u32("op payload length")?, ..op })
    }
}

/// A request to an osd: some operations on one object.
///
/// ```
/// use segchain_ceph::osd::{Op, Request};
/// use segchain_ceph::EntityName;
///
/// let pages: [&[u8]; 2] = [&[1; 4096], &[2; 4096]];
/// let request = Request::new(1, b"name", 9, Op::write_full(8192));
/// let message = request.message(EntityName::client(4199), 1, &pages[..])?;
/// assert_eq!(Request::decode(&message.front)?, request);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The pool's number.
    pub pool: u64,
    /// Which placement group of the pool; 0 in a pool of one.
    pub seed: u32,
    /// The object's name.
    pub object: Bytes,
    /// The epoch of the osd map that the client has. If it is too old the osd pushes a map and drops the request; if it is
    /// too new the osd waits for it.
    pub epoch: u32,
    /// Flags beyond those that the operations imply (`CEPH_OSD_FLAG_*`).
    pub flags: u32,
    /// The object's time of modification, since 1970.
    pub mtime: Duration,
    /// What is to be done.
    pub ops: Vec<Op>,
    /// The features that this encoding was made for.
    pub features: u64,
}

impl Request {
    /// One operation on an object of a pool with one placement group, now.
    pub fn new(pool: u64, object: impl AsRef<[u8]>, epoch: u32, op: Op) -> Self {
        Self {
            pool,
            seed: 0,
            object: Bytes::copy_from_slice(object.as_ref()),
            epoch,
            flags: 0,
            mtime: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            ops: vec![op],
            features: features::OFFERED,
        }
    }

    /// The message of this request, with `data` for the operations that write: as many bytes as their
    /// [`payload_len`](Op::payload_len) say together.
    ///
    /// # Errors
    /// As [`front`](Self::front).
    pub fn message<D>(&self, src: EntityName, tid: u64, data: D) -> Result<Message<D>, Error> {
        let mut header = Header::new(OP);
        (header.tid, header.src) = (tid, src);
        (header.priority, header.version, header.compat_version) = (63, 8, 3);
        // So that a page of the object is a page in the osd's memory; it counts modulo the page.
        header.data_off = self.ops.first().map_or(0, |op| op.offset as u16);
        Ok(Message::new(header, self.front()?, data))
    }

    /// Encodes the front, version 8.
    ///
    /// # Errors
    /// [`Error::TooLong`] for a name of 4 GiB or more than 65535 operations.
    pub fn front(&self) -> Result<Bytes, Error> {
        let mut out = Vec::with_capacity(171 + self.object.len() + self.ops.len() * Op::LEN);
        out.extend([1, 1]);
        out.extend(18u32.to_le_bytes());
        put_pg(&mut out, self.pool, self.seed);
        out.push(0xff); // no shard
        out.extend(rjenkins(&self.object).to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend((self.flags | self.implied_flags()).to_le_bytes());
        out.extend([2, 2]);
        out.extend(21u32.to_le_bytes());
        out.extend([0; 21]); // reqid: the osd takes it from the connection and the tid
        out.extend([0; 24]); // trace
        out.extend(0u32.to_le_bytes()); // client_inc
        out.extend((self.mtime.as_secs() as u32).to_le_bytes());
        out.extend(self.mtime.subsec_nanos().to_le_bytes());
        out.extend([6, 3]);
        out.extend(28u32.to_le_bytes());
        out.extend(self.pool.to_le_bytes());
        out.extend((-1i32).to_le_bytes());
        out.extend([0; 8]); // neither key nor namespace
        out.extend((-1i64).to_le_bytes());
        put_name(&mut out, &self.object)?;
        let count = self.ops.len();
        let limit = u64::from(u16::MAX);
        let count =
            u16::try_from(count).map_err(|_| Error::TooLong { field: "ops", len: count as u64, limit })?;
        out.extend(count.to_le_bytes());
        for op in &self.ops {
            op.put(&mut out);
        }
        out.extend(NO_SNAPSHOT.to_le_bytes());
        out.extend([0; 16]); // snap_seq, no snaps, the first attempt
        out.extend(self.features.to_le_bytes());
        Ok(out.into())
    }

    /// Decodes a front, as an osd does. What a newer version has added at the end is passed over.
    ///
    /// # Errors
    /// A front that is too short, or asks for something that is not in this crate: a snapshot, a locator of its own.
    pub fn decode(front: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(front);
        let (pool, seed) = get_pg(&mut reader.versioned("pg")?)?;
        reader.u32("hash")?;
        let epoch = reader.u32("epoch")?;
        let flags = reader.u32("flags")?;
        reader.versioned("reqid")?;
        reader.bytes("trace", 24)?;
        reader.u32("client_inc")?;
        let mtime = (reader.u32("mtime")?, reader.u32("mtime")?);
        let mut locator = reader.versioned("locator")?;
        let offset = locator.offset();
        let got = locator.u64("locator pool")?;
        if got != pool {
            return Err(Error::Value { field: "locator pool", offset, expected: pool, got });
        }
        let object = Bytes::copy_from_slice(reader.string("object name")?);
        let count = reader.u16("op count")?;
        let ops = (0..count).map(|_| Op::get(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        let offset = reader.offset();
        let got = reader.u64("snapshot")?;
        if got != NO_SNAPSHOT {
            return Err(Error::Value { field: "snapshot", offset, expected: NO_SNAPSHOT, got });
        }
        reader.u64("snap seq")?;
        for _ in 0..reader.u32("snap count")? {
            reader.u64("snap")?;
        }
        reader.i32("retry attempt")?;
        let features = reader.u64("features")?;
        let mtime = Duration::new(mtime.0.into(), mtime.1.min(999_999_999));
        let mut request = Self { pool, seed, object, epoch, flags: 0, mtime, ops, features };
        request.flags = flags & !request.implied_flags();
        Ok(request)
    }

    fn implied_flags(&self) -> u32 {
        self.ops.iter().fold(FLAGS, |flags, op| match op.code & MODE {
            MODE_READ => flags | FLAG_READ,
            MODE_WRITE => flags | FLAG_WRITE,
            _ => flags,
        })
    }
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// The object's name.
    pub object: Bytes,
    /// The pool's number.
    pub pool: u64,
    /// The placement group.
    pub seed: u32,
    /// The request's flags, and those of the answer.
    pub flags: u64,
    /// 0 or more if all went well, a negative errno of Linux if not.
    pub result: i32,
    /// The object's version in its placement group, after the request.
    pub version: Version,
    /// The osd's map.
    pub epoch: u32,
    /// The operations, each with its own result. Their [`payload_len`](Op::payload_len) is the output: the message's data is all
    /// of these, in order.
    pub ops: Vec<OpReply>,
    /// The version that librados tells its user.
    pub user_version: u64,
    /// Whether the request has to go to another place, which is not decoded.
    pub redirected: bool,
}

/// A version of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Version {
    /// Counts changes in the placement group.
    pub version: u64,
    /// The map's epoch at the change.
    pub epoch: u32,
}

/// What became of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpReply {
    /// The operation.
    pub op: Op,
    /// Its own result, as [`Reply::result`].
    pub result: i32,
}

impl Reply {
    /// The answer of an osd at the request's own epoch. `output` is how many bytes each operation has read.
    pub fn to(request: &Request, result: i32, output: impl Fn(&Op) -> u32) -> Self {
        let reply = |op: &Op| OpReply { op: Op { payload_len: output(op), ..*op }, result };
        Self {
            object: request.object.clone(),
            pool: request.pool,
            seed: request.seed,
            flags: (request.flags | request.implied_flags()).into(),
            result,
            version: Version { version: 0, epoch: request.epoch },
            epoch: request.epoch,
            ops: request.ops.iter().map(reply).collect(),
            user_version: 0,
            redirected: false,
        }
    }

    /// The message of this answer to the request `tid`, with what was read.
    ///
    /// # Errors
    /// As [`front`](Self::front).
    pub fn message<D>(&self, src: EntityName, tid: u64, data: D) -> Result<Message<D>, Error> {
        let mut header = Header::new(OP_REPLY);
        (header.tid, header.src) = (tid, src);
        (header.priority, header.version, header.compat_version) = (127, 8, 2);
        Ok(Message::new(header, self.front()?, data))
    }

    /// Encodes the front, version 8.
    ///
    /// # Errors
    /// [`Error::TooLong`] for lengths past a u32.
    pub fn front(&self) -> Result<Bytes, Error> {
        let mut out = Vec::with_capacity(106 + self.object.len() + self.ops.len() * (Op::LEN + 4));
        put_name(&mut out, &self.object)?;
        put_pg(&mut out, self.pool, self.seed);
        out.extend(self.flags.to_le_bytes());
        out.extend(self.result.to_le_bytes());
        self.version.put(&mut out);
        out.extend(self.epoch.to_le_bytes());
        out.extend(len32("ops", self.ops.len())?.to_le_bytes());
        for OpReply { op, .. } in &self.ops {
            op.put(&mut out);
        }
        out.extend(0i32.to_le_bytes()); // the first attempt
        for OpReply { result, .. } in &self.ops {
            out.extend(result.to_le_bytes());
        }
        self.version.put(&mut out);
        out.extend(self.user_version.to_le_bytes());
        out.push(0); // no redirect
        out.extend([0; 24]); // trace
        Ok(out.into())
    }

    /// Decodes a front.
    ///
    /// # Errors
    /// A front that is too short.
    pub fn decode(front: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(front);
        let object = Bytes::copy_from_slice(reader.string("object name")?);
        let (pool, seed) = get_pg(&mut reader)?;
        let flags = reader.u64("flags")?;
        let result = reader.i32("result")?;
        Version::get(&mut reader)?; // the one before, in old answers
        let epoch = reader.u32("epoch")?;
        let count = reader.u32("op count")?;
        // No room is made ahead of the bytes: the count is the peer's claim.
        let mut ops = Vec::new();
        for _ in 0..count {
            ops.push(OpReply { op: Op::get(&mut reader)?, result: 0 });
        }
        reader.i32("retry attempt")?;
        for op in &mut ops {
            op.result = reader.i32("op result")?;
        }
        let version = Version::get(&mut reader)?;
        let user_version = reader.u64("user version")?;
        let redirected = reader.u8("redirect")? != 0;
        Ok(Self { object, pool, seed, flags, result, version, epoch, ops, user_version, redirected })
    }
}

impl Version {
    fn put(self, out: &mut Vec<u8>) {
        out.extend(self.version.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self, Short> {
        Ok(Self { version: reader.u64("version")?, epoch: reader.u32("version epoch")? })
    }
}

fn put_pg(out: &mut Vec<u8>, pool: u64, seed: u32) {
    out.push(1);
    out.extend(pool.to_le_bytes());
    out.extend(seed.to_le_bytes());
    out.extend((-1i32).to_le_bytes());
}

fn get_pg(reader: &mut Reader<'_>) -> Result<(u64, u32), Error> {
    let offset = reader.offset();
    let version = reader.u8("pg version")?;
    if version != 1 {
        return Err(Error::Value { field: "pg version", offset, expected: 1, got: version.into() });
    }
    let pg = (reader.u64("pool")?, reader.u32("pg seed")?);
    reader.i32("pg preferred")?;
    Ok(pg)
}

fn put_name(out: &mut Vec<u8>, name: &[u8]) -> Result<(), Error> {
    out.extend(len32("object name", name.len())?.to_le_bytes());
    out.extend(name);
    Ok(())
}

fn len32(field: &'static str, len: usize) -> Result<u32, Error> {
    u32::try_from(len).map_err(|_| Error::TooLong { field, len: len as u64, limit: u32::MAX.into() })
}
