//! ONC RPC over byte streams: record marking (RFC 5531 section 11) for segchain, and the call and reply headers.
//!
//! ```text
//!  Message { head, payload, tail } ──RecordFramer──▶ marker│head│length│pages│pad│tail ──▶ wire
//!  wire ──▶ RecordDeframer ──xid, direction: Pending──▶ Record, its data in the caller's pages │ Dropped
//! ```
//!
//! No sockets, no threads: [`segchain::send`] and [`segchain::recv`] move the bytes. Procedures, and the XDR of their
//! arguments beyond the primitives in [`xdr`], belong to the protocol that is built on this.
//!
//! A call with its payload, from one end to the other:
//!
//! ```
//! use std::os::unix::net::UnixStream;
//! use segchain::chain::{ChainBuilder, Outgoing};
//! use segchain::framer::Framer;
//! use segchain::recv::Receiver;
//! use segchain::send::StreamSender;
//! use segchain::transport::SocketRef;
//! use segchain_oncrpc::rpc::CallHeader;
//! use segchain_oncrpc::xdr::{Reader, Writer};
//! use segchain_oncrpc::{Direction, Message, Pending, RecordDeframer, RecordFramer};
//!
//! let (client, server) = UnixStream::pair()?;
//! let pages = [[1u8; 4096], [2; 4096]];
//! let pages: Vec<&[u8]> = pages.iter().map(|page| &page[..]).collect();
//!
//! let mut head = Writer::new();
//! CallHeader::new(7, 0x2000_0000, 1, 3).encode(&mut head);
//! let mut out = ChainBuilder::new();
//! RecordFramer::new().frame(Message::new(head.finish()?).opaque(pages.as_slice()), &mut out)?;
//! let mut sender = StreamSender::new(SocketRef::new(client));
//! sender.send_blocking(&mut Outgoing::new(out.finish()?), None)?;
//! assert_eq!((sender.stats().calls, sender.stats().copied), (1, 0));
//!
//! let mut receiver = Receiver::new(SocketRef::new(server), RecordDeframer::new(Pending::new()));
//! let record = receiver.next(&mut (), None, |record| record.into_owned())?.unwrap();
//! assert_eq!((record.xid(), record.direction(), record.len()), (7, Direction::Call, 40 + 4 + 8192));
//! let call = CallHeader::decode(&mut Reader::new(record.head()))?;
//! assert_eq!(call.procedure, 3);
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod deframer;
mod error;
mod framer;
mod pending;
mod record;
pub mod rpc;
pub mod xdr;

pub use deframer::RecordDeframer;
pub use error::Error;
pub use framer::{Message, RecordFramer};
pub use pending::{DataAt, FindData, Layout, Pending};
pub use record::{Direction, DropReason, Dropped, Placed, Record};

/// The most bytes of one fragment: the marker has 31 bits for them (RFC 5531 section 11).
pub const MAX_FRAGMENT: u32 = 0x7fff_ffff;
/// The fewest bytes of a record: a transaction id and a direction. rpcbind 1.2.6 and nfs-ganesha 4.3 close the
/// connection on a record of 4 bytes, and on an empty one.
pub const MIN_RECORD: u64 = 8;
/// How many bytes at the start of a record are always contiguous, however it was cut: see [`Record::head`]. Whatever
/// has to be known before data is placed lies within them.
pub const CONTIGUOUS: usize = 4096;
