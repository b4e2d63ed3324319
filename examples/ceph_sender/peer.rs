//! The embedded peer: an osd with room for one object, on a thread of its own.
//!
//! It is made of the same crate's receiving half and answers WRITEFULL and READ. The data that it is sent lands in slabs,
//! goes through a SHA-256, and is kept until the next one comes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use segchain_ceph::osd::{self, Reply, Request};
use segchain_ceph::{Data, EntityName, Incoming, Message};
use sha2::{Digest, Sha256};

use crate::Failure;
use crate::accept::{OSD, Server};
use crate::client::NAME_TOO_LONG;
use crate::messenger::{Frame, Outbound, Protocol};

/// The nonce of its address.
pub(crate) const NONCE: u32 = 0x5e9c;

const NO_SUCH_OBJECT: i32 = -2;
const NOT_SUPPORTED: i32 = -95;
/// As `osd_max_object_name_len`.
const LONGEST_NAME: usize = 100;

/// A running peer, for one connection.
pub(crate) struct Peer {
    address: SocketAddr,
    thread: JoinHandle<Result<[u8; 32], String>>,
}

impl Peer {
    /// Listens on a free port of the loopback interface.
    pub(crate) fn start(protocol: Protocol) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let server =
            Server { protocol, entity_type: OSD, address, nonce: NONCE, revision_1: true, next_global_id: 1 };
        let serve = move || serve(&listener, &server).map_err(|failure| failure.to_string());
        let thread = thread::Builder::new().name("peer".into()).spawn(serve)?;
        Ok(Self { address, thread })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the connection is closed; the [`Tally`] of all objects that came.
    pub(crate) fn finish(self) -> Result<[u8; 32], Failure> {
        let digest = self.thread.join().map_err(|_| "the embedded peer panicked")?;
        Ok(digest.map_err(|failure| format!("the embedded peer: {failure}"))?)
    }
}

fn serve(listener: &TcpListener, server: &Server) -> Result<[u8; 32], Failure> {
    let (stream, client) = listener.accept()?;
    let mut connection = server.accept(stream, client)?;
    let mut osd = Osd { tally: Tally::default(), object: (Bytes::new(), vec![]) };
    while let Some(frame) = connection.next()? {
        match frame {
            Frame::Message(message) => connection.send(Outbound::Message(osd.answer(message)?))?,
            Frame::Keepalive(stamp) => connection.send(Outbound::<()>::KeepaliveAck(stamp))?,
            Frame::Close => break,
            _ => {}
        }
    }
    Ok(osd.tally.finish())
}

/// What an object's bytes were, of one object after the other.
#[derive(Default)]
pub(crate) struct Tally(Sha256);

impl Tally {
    /// Takes the next object's SHA-256.
    pub(crate) fn add(&mut self, digest: &[u8]) {
        self.0.update(digest);
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

struct Osd {
    tally: Tally,
    /// The name and the bytes of the last object written.
    object: (Bytes, Vec<Bytes>),
}

impl Osd {
    fn answer(&mut self, message: Incoming) -> Result<Message<Vec<Bytes>>, Failure> {
        let request = Request::decode(&message.front)?;
        let mut output = Vec::new();
        let result = match request.ops.as_slice() {
            _ if request.object.len() > LONGEST_NAME => NAME_TOO_LONG,
            [op] if op.code == osd::WRITEFULL => {
                let parts = match message.data {
                    Data::Slabs(slabs) => slabs.into_parts(),
                    _ => Vec::new(),
                };
                self.tally.add(&digest(&parts));
                self.object = (request.object.clone(), parts);
                0
            }
            [op] if op.code == osd::READ && request.object == self.object.0 => {
                output = range(&self.object.1, op.offset, op.length);
                0
            }
            [op] if op.code == osd::READ => NO_SUCH_OBJECT,
            _ => NOT_SUPPORTED,
        };
        let read = output.iter().map(|part| part.len() as u32).sum();
        let reply = Reply::to(&request, result, |_| read);
        Ok(reply.message(EntityName::osd(0), message.header.tid, output)?)
    }
}

/// The SHA-256 of an object in parts.
pub(crate) fn digest(parts: &[Bytes]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part);
    }
    digest.finalize().into()
}

/// A range of an object, as far as the object goes.
fn range(parts: &[Bytes], offset: u64, length: u64) -> Vec<Bytes> {
    let (mut skip, mut left) = (offset, length);
    let cut = parts.iter().map(|part| {
        let start = skip.min(part.len() as u64);
        let len = left.min(part.len() as u64 - start);
        (skip, left) = (skip - start, left - len);
        part.slice(start as usize..(start + len) as usize)
    });
    cut.collect()
}
