//! The embedded peer: an osd with room for one object, on a thread of its own.
//!
//! It is made of the same crate's receiving half and answers WRITEFULL and READ. The data that it is sent lands in slabs,
//! goes through a SHA-256, and is kept until the next one comes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Outgoing};
use segchain::framer::Framer;
use segchain::recv::Receiver;
use segchain::send::StreamSender;
use segchain::transport::SocketRef;
use segchain_ceph::osd::{self, Reply, Request};
use segchain_ceph::v1::handshake::{self, ServerOptions};
use segchain_ceph::v1::{self, Frame};
use segchain_ceph::{Data, EntityAddr, EntityName, Incoming};
use sha2::{Digest, Sha256};

use crate::Failure;
use crate::client::{NAME_TOO_LONG, Socket, shake_hands};

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
    pub(crate) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let serve = move || serve(&listener).map_err(|failure| failure.to_string());
        let thread = thread::Builder::new().name("peer".into()).spawn(serve)?;
        Ok(Self { address, thread })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the connection is closed; the SHA-256 of all data that came.
    pub(crate) fn finish(self) -> Result<[u8; 32], Failure> {
        let digest = self.thread.join().map_err(|_| "the embedded peer panicked")?;
        Ok(digest.map_err(|failure| format!("the embedded peer: {failure}"))?)
    }
}

fn serve(listener: &TcpListener) -> Result<[u8; 32], Failure> {
    let (stream, client) = listener.accept()?;
    let mut options =
        ServerOptions::new(EntityAddr::new(listener.local_addr()?, NONCE), client, handshake::OSD_PROTOCOL);
    options.claim_required = true;
    let socket = SocketRef::new(Arc::new(stream));
    socket.set_nodelay(true)?;
    let mut sender = StreamSender::new(socket.clone());
    let receiver = Receiver::new(socket, handshake::Server::new(options));
    let (session, receiver) = shake_hands(&mut sender, receiver)?;

    let options = session.options();
    let mut receiver =
        receiver.replace(v1::Deframer::new(&options)).map_err(|_| "in the middle of a frame")?;
    let mut osd = Osd {
        sender,
        framer: v1::Framer::new(&options),
        digest: Sha256::new(),
        object: (Bytes::new(), vec![]),
    };
    while let Some(frame) = receiver.next(&mut (), None, |frame| frame)? {
        if let Frame::Message(message) = frame {
            osd.answer(message)?;
        }
    }
    Ok(osd.digest.finalize().into())
}

struct Osd {
    sender: StreamSender<Socket>,
    framer: v1::Framer,
    digest: Sha256,
    /// The name and the bytes of the last object written.
    object: (Bytes, Vec<Bytes>),
}

impl Osd {
    fn answer(&mut self, message: Incoming) -> Result<(), Failure> {
        let request = Request::decode(&message.front)?;
        let mut output = Vec::new();
        let result = match request.ops.as_slice() {
            _ if request.object.len() > LONGEST_NAME => NAME_TOO_LONG,
            [op] if op.code == osd::WRITEFULL => {
                let parts = match message.data {
                    Data::Slabs(slabs) => slabs.into_parts(),
                    _ => Vec::new(),
                };
                for part in &parts {
                    self.digest.update(part);
                }
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
        let mut out = ChainBuilder::new();
        self.framer.frame(reply.message(EntityName::osd(0), message.header.tid, output)?, &mut out)?;
        Ok(self.sender.send_blocking(&mut Outgoing::new(out.finish()?), None)?)
    }
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
