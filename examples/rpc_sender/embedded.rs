//! A peer inside of this process: it takes records, digests their payload, and answers with the digest.
//!
//! The crate's own receive side, over TCP on the loopback interface. What it serves is one procedure of a program that
//! does not exist elsewhere: an opaque in, its length and digest out.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Outgoing, SegmentChain};
use segchain::checksum::{Checksum, Crc32c};
use segchain::framer::Framer;
use segchain::recv::{Received, Receiver};
use segchain::send::StreamSender;
use segchain::transport::SocketRef;
use segchain::window::Window;
use segchain_oncrpc::rpc::{AcceptStatus, CallHeader, ReplyHeader};
use segchain_oncrpc::xdr::{Reader, Writer};
use segchain_oncrpc::{Message, Pending, Record, RecordDeframer, RecordFramer};

use crate::client::{Client, PAGE};
use crate::report::Report;
use crate::{Result, bar};

/// A program number for own use (RFC 5531 section 8.3: 0x20000000 to 0x3fffffff).
const PROGRAM: u32 = 0x2000_5e9c;
const VERSION: u32 = 1;
const DIGEST: u32 = 1;

/// `count` calls with `chunk` bytes of scattered pages, every digest checked.
pub fn run(count: u64, chunk: u32, window: Window) -> Result<Report> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?.to_string();
    let peer = thread::spawn(move || {
        // An error that is no more than its text may cross threads.
        let (stream, _) = listener.accept().map_err(|error| error.to_string())?;
        serve(&stream, chunk).map_err(|error| error.to_string())
    });
    let mut client = Client::tcp(&address, PROGRAM, VERSION, window)?;

    let memory = Scattered::new(chunk as usize);
    let mut expected = HashMap::new();
    let mut same = true;
    let bar = bar(count, "calls");
    let began = Instant::now();
    let mut started = 0;
    while started < count || !expected.is_empty() {
        while started < count && expected.len() < client.in_flight() {
            // Every call has other bytes, so that no digest fits two.
            let pages = memory.pages(started);
            let digest = digest(pages.iter().map(|page| &page[..]));
            expected.insert(client.start_with(DIGEST, |_| {}, pages)?, digest);
            started += 1;
        }
        let answer = client.next()?;
        let results = answer.results?;
        let mut results = Reader::new(&results);
        let got = (results.u32("length")?, results.u32("digest")?);
        same &= expected.remove(&answer.xid).is_some_and(|digest| got == (chunk, digest));
        bar.inc(1);
    }
    let mut report = client.report(began.elapsed());
    bar.finish_and_clear();
    drop(client);
    let served = peer.join().map_err(|_| "the embedded peer panicked")??;
    report.peer = "embedded".into();
    report.payload_bytes = count * u64::from(chunk);
    report.checksum_ok = same && served == count;
    Ok(report)
}

/// Answers calls until the client closes; returns how many.
fn serve(stream: &TcpStream, chunk: u32) -> Result<u64> {
    stream.set_nodelay(true)?;
    let deframer = RecordDeframer::new(Pending::new()).max_record(u64::from(chunk) + 4096);
    let mut sender = StreamSender::new(SocketRef::new(stream));
    let mut receiver = Receiver::new(SocketRef::new(stream), deframer);
    let mut served = 0;
    let mut failed = None;
    let received = receiver.receive_blocking(&mut (), None, |record| {
        match answer(&record).and_then(|reply| Ok(sender.send_blocking(&mut Outgoing::new(reply), None)?)) {
            Ok(()) => {
                served += 1;
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    let _: Received = received?;
    failed.map_or(Ok(served), Err)
}

/// The reply to one call.
fn answer(record: &Record<'_>) -> Result<SegmentChain<'static>> {
    let mut args = Reader::new(record.head());
    let call = CallHeader::decode(&mut args)?;
    let mut reply = Writer::new();
    if (call.program, call.version, call.procedure) == (PROGRAM, VERSION, DIGEST) {
        let len = args.u32("payload")?;
        let digest = digest(payload(record, args.offset() as usize, len as usize));
        ReplyHeader::success(call.xid).encode(&mut reply);
        reply.u32(len).u32(digest);
    } else {
        ReplyHeader::accepted(call.xid, AcceptStatus::ProcUnavail).encode(&mut reply);
    }
    let mut out = ChainBuilder::new();
    RecordFramer::new().frame(Message::new(reply.finish()?), &mut out)?;
    Ok(out.finish()?)
}

/// `len` bytes of a record after the first `skip`, piece by piece.
fn payload<'r>(record: &'r Record<'_>, mut skip: usize, mut len: usize) -> impl Iterator<Item = &'r [u8]> {
    record.parts().map(move |part| {
        let part = &part[skip.min(part.len())..];
        let part = &part[..len.min(part.len())];
        (skip, len) = (0, len - part.len());
        part
    })
}

/// CRC-32C of bytes in pieces.
fn digest<'p>(pieces: impl Iterator<Item = &'p [u8]>) -> u32 {
    let mut crc = Crc32c::new();
    pieces.for_each(|piece| crc.update(piece));
    crc.value()
}

/// Memory as it is in a page cache, for payloads whose pages do not lie side by side.
struct Scattered {
    memory: Bytes,
    len: usize,
}

impl Scattered {
    /// Memory for payloads of `len` bytes: twice as many pages as one takes, and at least 4096.
    fn new(len: usize) -> Self {
        let count = (2 * len.div_ceil(PAGE)).max(4096);
        let mut memory = vec![0; count * PAGE];
        for (number, page) in memory.chunks_mut(PAGE).enumerate() {
            let mark = (number as u64 ^ 0x5eed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            page.iter_mut().zip(mark.iter().cycle()).for_each(|(byte, mark)| *byte = *mark);
        }
        Self { memory: memory.into(), len }
    }

    /// The pages of a call, every other one from another start each time.
    fn pages(&self, call: u64) -> Vec<Bytes> {
        let count = self.memory.len() / PAGE;
        let page = |(index, at): (usize, usize)| {
            let start = (call as usize + 2 * index) % count * PAGE;
            self.memory.slice(start..start + PAGE.min(self.len - at))
        };
        (0..self.len).step_by(PAGE).enumerate().map(page).collect()
    }
}
