//! As much of NFS version 3 (RFC 1813) as it takes to write a file and to read it.
//!
//! WRITE sends pages that are not copied; READ receives into pages: [`read_data`] tells where the data of a reply begins,
//! before it has arrived.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use segchain_oncrpc::xdr::{Reader, Writer};
use segchain_oncrpc::{DataAt, Layout};

use crate::client::{Client, PAGE, pages};
use crate::{Result, bar};

/// The program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// Its version.
pub const VERSION: u32 = 3;
/// The most bytes of a file handle.
pub const MAX_HANDLE: u32 = 64;

const SETATTR: u32 = 2;
const LOOKUP: u32 = 3;
const READ: u32 = 6;
const WRITE: u32 = 7;
const CREATE: u32 = 8;
const FSINFO: u32 = 19;
const COMMIT: u32 = 21;

const NOENT: u32 = 2;
/// `fattr3`.
const ATTRIBUTES: usize = 84;
const UNSTABLE: u32 = 0;

/// A file handle: opaque.
#[derive(Clone, Debug)]
pub struct Handle(pub Vec<u8>);

/// An export of a server.
pub struct Server {
    client: Client,
    root: Handle,
    read_size: u32,
    write_size: u32,
}

/// A stretch of a file.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    offset: u64,
    len: u32,
}

impl Server {
    /// Asks for the server's limits. Calls carry `chunk` bytes, or fewer if it says so.
    pub fn new(mut client: Client, root: Handle, chunk: u32) -> Result<Self> {
        let results = client.call(FSINFO, |args| root.encode(args))?;
        let mut results = succeeded(&client, "FSINFO", &results)?;
        attributes(&mut results)?;
        let [read_size, _, _, write_size] =
            ["rtmax", "rtpref", "rtmult", "wtmax"].map(|field| results.u32(field));
        let (read_size, write_size) = (chunk.min(read_size?).max(1), chunk.min(write_size?).max(1));
        Ok(Self { client, root, read_size, write_size })
    }

    /// The connection.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Writes all of `file` to `name`, which is created or truncated; returns how many bytes that is.
    pub fn write(&mut self, file: &File, name: &str) -> Result<u64> {
        let len = file.metadata()?.len();
        let handle = self.empty_file(name)?;
        let bar = bar(len, "bytes");
        let mut todo = stretches(len, self.write_size);
        let mut in_flight = HashMap::new();
        let mut verifier = None;
        while !todo.is_empty() || !in_flight.is_empty() {
            while in_flight.len() < self.client.in_flight()
                && let Some(next) = todo.pop_front()
            {
                let data = fill(file, next)?;
                let args = |args: &mut Writer| {
                    handle.encode(args);
                    args.u64(next.offset).u32(next.len).u32(UNSTABLE);
                };
                in_flight.insert(self.client.start_with(WRITE, args, data)?, next);
            }
            let answer = self.client.next()?;
            let results = answer.results?;
            let mut results = succeeded(&self.client, "WRITE", &results)?;
            change(&mut results)?;
            let count = results.u32("count")?;
            results.u32("committed")?;
            same_server(&mut verifier, results.fixed("verf", 8)?)?;
            let Some(sent) = in_flight.remove(&answer.xid) else { continue };
            todo.extend(sent.after(count)?);
            bar.inc(count.into());
        }
        let results = self.client.call(COMMIT, |args| {
            handle.encode(args);
            args.u64(0).u32(0);
        })?;
        let mut results = succeeded(&self.client, "COMMIT", &results)?;
        change(&mut results)?;
        same_server(&mut verifier, results.fixed("verf", 8)?)?;
        bar.finish_and_clear();
        Ok(len)
    }

    /// Reads all of `name` into the file at `path`, which is made or emptied if there is a `name`; returns how many bytes
    /// that is.
    pub fn read(&mut self, name: &str, path: &Path) -> Result<u64> {
        let peer = self.client.peer().to_owned();
        let (handle, len) = self.lookup(name)?.ok_or_else(|| format!("{peer}: there is no {name}"))?;
        let file =
            &File::create(path).map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        let bar = bar(len, "bytes");
        let mut todo = stretches(len, self.read_size);
        let mut in_flight = HashMap::new();
        let mut idle = Vec::new();
        while !todo.is_empty() || !in_flight.is_empty() {
            while in_flight.len() < self.client.in_flight()
                && let Some(next) = todo.pop_front()
            {
                let args = |args: &mut Writer| {
                    handle.encode(args);
                    args.u64(next.offset).u32(next.len);
                };
                let memory = idle.pop().unwrap_or_else(|| pages(self.read_size as usize));
                let xid = self.client.start_into(READ, args, Layout::Data(read_data), memory)?;
                in_flight.insert(xid, next);
            }
            let answer = self.client.next()?;
            let results = answer.results?;
            let mut results = succeeded(&self.client, "READ", &results)?;
            attributes(&mut results)?;
            let (count, eof, placed) = (results.u32("count")?, results.bool("eof")?, results.u32("data")?);
            if placed != count {
                return Err(format!("{peer}: READ has count {count} and {placed} bytes of data").into());
            }
            let (Some(asked), Some(memory)) = (in_flight.remove(&answer.xid), answer.pages) else { continue };
            drain(&memory, file, asked.offset, count.min(asked.len))?;
            idle.push(memory);
            let rest = asked.after(count)?;
            if eof && rest.is_some() {
                return Err(format!("{peer}: {name} has become shorter").into());
            }
            todo.extend(rest);
            bar.inc(count.into());
        }
        bar.finish_and_clear();
        Ok(len)
    }

    /// The handle of `name` once it is a file without bytes.
    fn empty_file(&mut self, name: &str) -> Result<Handle> {
        if let Some((handle, _)) = self.lookup(name)? {
            let results = self.client.call(SETATTR, |args| {
                handle.encode(args);
                size_only(args, 0);
                args.bool(false); // no guard
            })?;
            succeeded(&self.client, "SETATTR", &results)?;
            return Ok(handle);
        }
        let results = self.client.call(CREATE, |args| {
            self.root.encode(args);
            args.opaque_within("name", 255, name.as_bytes());
            args.u32(0); // UNCHECKED: somebody may have been faster
            size_only(args, 0);
        })?;
        let mut results = succeeded(&self.client, "CREATE", &results)?;
        if results.bool("handle follows")? {
            return Handle::decode(&mut results);
        }
        let found = self.lookup(name)?;
        Ok(found.map(|(handle, _)| handle).ok_or("the created file is not there")?)
    }

    /// The handle and the size of `name`, if it is there.
    fn lookup(&mut self, name: &str) -> Result<Option<(Handle, u64)>> {
        let results = self.client.call(LOOKUP, |args| {
            self.root.encode(args);
            args.opaque_within("name", 255, name.as_bytes());
        })?;
        if Reader::new(&results).u32("nfsstat3")? == NOENT {
            return Ok(None);
        }
        let mut results = succeeded(&self.client, "LOOKUP", &results)?;
        let handle = Handle::decode(&mut results)?;
        let size = attributes(&mut results)?.ok_or("the server does not tell the file's size")?;
        Ok(Some((handle, size)))
    }
}

/// Where the data of a READ begins (RFC 1813 section 3.3.6): behind status, attributes, count, eof and its own length.
pub fn read_data(results: &[u8]) -> DataAt {
    let word = |at: usize| results.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word));
    let (Some(status), Some(follow)) = (word(0), word(4)) else { return DataAt::Need(8) };
    if status != 0 {
        return DataAt::Nowhere;
    }
    let offset = 8 + if follow == 0 { 0 } else { ATTRIBUTES } + 12;
    word(offset - 4).map_or(DataAt::Need(offset), |len| DataAt::At { offset, len: len.into() })
}

impl Handle {
    fn encode(&self, args: &mut Writer) {
        args.opaque_within("nfs_fh3", MAX_HANDLE.into(), &self.0);
    }

    fn decode(results: &mut Reader<'_>) -> Result<Self> {
        Ok(Self(results.opaque("nfs_fh3", MAX_HANDLE)?.to_vec()))
    }
}

impl Stretch {
    /// What is left of it after `count` bytes.
    fn after(self, count: u32) -> Result<Option<Self>> {
        match self.len.checked_sub(count) {
            Some(0) => Ok(None),
            Some(_) if count == 0 => Err("the server moves no bytes".into()),
            Some(len) => Ok(Some(Self { offset: self.offset + u64::from(count), len })),
            None => Err("the server moved more bytes than it was asked to".into()),
        }
    }
}

fn stretches(len: u64, size: u32) -> VecDeque<Stretch> {
    let offsets = (0..len.div_ceil(size.into())).map(|i| i * u64::from(size));
    offsets.map(|offset| Stretch { offset, len: (len - offset).min(size.into()) as u32 }).collect()
}

/// Reads a stretch of a file into pages of their own, as a cache would have them.
fn fill(file: &File, stretch: Stretch) -> Result<Vec<Bytes>> {
    let len = stretch.len as usize;
    let page = |at: usize| {
        let mut page = vec![0; PAGE.min(len - at)];
        file.read_exact_at(&mut page, stretch.offset + at as u64)?;
        Ok(Bytes::from(page))
    };
    let pages: std::io::Result<Vec<Bytes>> = (0..len).step_by(PAGE).map(page).collect();
    Ok(pages.map_err(|error| format!("reading the file: {error}"))?)
}

/// Writes what is in pages to a file.
fn drain(pages: &[Vec<u8>], file: &File, mut offset: u64, len: u32) -> Result<()> {
    let mut left = len as usize;
    for page in pages {
        let len = left.min(page.len());
        file.write_all_at(&page[..len], offset).map_err(|error| format!("writing the file: {error}"))?;
        (offset, left) = (offset + len as u64, left - len);
    }
    Ok(())
}

/// `nfsstat3`, which every result begins with.
fn succeeded<'r>(client: &Client, what: &str, results: &'r [u8]) -> Result<Reader<'r>> {
    let mut reader = Reader::new(results);
    match reader.u32("nfsstat3")? {
        0 => Ok(reader),
        status => Err(format!("{}: {what} failed: {}", client.peer(), status_name(status)).into()),
    }
}

/// The verifier of WRITE and COMMIT changes when a server has lost what it had not committed (RFC 1813 section 3.3.7).
fn same_server(verifier: &mut Option<[u8; 8]>, now: &[u8]) -> Result<()> {
    let now = now.try_into()?;
    if *verifier.get_or_insert(now) == now {
        Ok(())
    } else {
        Err("the server has restarted: write again".into())
    }
}

/// `post_op_attr`: the size, if attributes follow.
fn attributes(results: &mut Reader<'_>) -> Result<Option<u64>> {
    if !results.bool("attributes follow")? {
        return Ok(None);
    }
    let mut attributes = Reader::new(results.fixed("fattr3", ATTRIBUTES)?);
    attributes.fixed("type, mode, nlink, uid, gid", 20)?;
    Ok(Some(attributes.u64("size")?))
}

/// `wcc_data`.
fn change(results: &mut Reader<'_>) -> Result<()> {
    if results.bool("pre_op_attr")? {
        results.fixed("wcc_attr", 24)?;
    }
    attributes(results).map(|_| ())
}

/// A `sattr3` that sets the size alone.
fn size_only(args: &mut Writer, size: u64) {
    args.bool(false).bool(false).bool(false); // mode, uid, gid
    args.bool(true).u64(size);
    args.u32(0).u32(0); // atime and mtime: DONT_CHANGE
}

/// `nfsstat3` (RFC 1813 section 2.6); `mountstat3` has the same numbers.
pub fn status_name(status: u32) -> String {
    let name = match status {
        1 => "PERM",
        2 => "NOENT",
        5 => "IO",
        13 => "ACCES",
        17 => "EXIST",
        20 => "NOTDIR",
        21 => "ISDIR",
        22 => "INVAL",
        27 => "FBIG",
        28 => "NOSPC",
        30 => "ROFS",
        63 => "NAMETOOLONG",
        70 => "STALE",
        10_001 => "BADHANDLE",
        10_004 => "NOTSUPP",
        10_006 => "SERVERFAULT",
        10_008 => "JUKEBOX",
        _ => return format!("status {status}"),
    };
    name.into()
}
