//! A peer inside of this process: it takes records, digests their payload, and answers with the digest.
//!
//! The crate's own receive side, over TCP on the loopback interface. What it serves is one procedure of a program that
//! does not exist elsewhere: an opaque in, its length and digest out.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::thread;
use std::time::Instant;

use segchain::chain::{ChainBuilder, Outgoing};
use segchain::framer::Framer;
use segchain::recv::Receiver;
use segchain::send::StreamSender;
use segchain::transport::SocketRef;
use segchain_oncrpc::rpc::{AcceptStatus, CallHeader, ReplyHeader};
use segchain_oncrpc::xdr::{Reader, Writer};
use segchain_oncrpc::{Message, Pending, Record, RecordDeframer, RecordFramer};

use crate::client::{Client, WINDOW, pages};
use crate::report::Report;
use crate::{Result, bar};

/// A program number for own use (RFC 5531 section 8.3: 0x20000000 to 0x3fffffff).
const PROGRAM: u32 = 0x2000_5e9c;
const VERSION: u32 = 1;
const DIGEST: u32 = 1;

/// `count` calls with `chunk` bytes of scattered pages, every digest checked.
pub fn run(count: u64, chunk: u32) -> Result<Report> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?.to_string();
    let peer = thread::spawn(move || serve(&listener.accept()?.0).map_err(|error| error.to_string().into()));
    let mut client = Client::tcp(&address, PROGRAM, VERSION)?;

    let mut memory = pages(chunk as usize);
    let mut expected = HashMap::new();
    let mut same = true;
    let bar = bar(count, "calls");
    let began = Instant::now();
    let mut started = 0;
    while started < count || !expected.is_empty() {
        if started < count && expected.len() < WINDOW {
            // Every call has other bytes, so that no digest fits two.
            stamp(&mut memory, started);
            let digest = digest(memory.iter().map(Vec::as_slice));
            expected.insert(client.start_with(DIGEST, |_| {}, memory.as_slice())?, digest);
            started += 1;
            continue;
        }
        let answer = client.next()?;
        let mut results = Reader::new(&answer.results);
        let got = (results.u32("length")?, results.u64("digest")?);
        same &= expected.remove(&answer.xid).is_some_and(|digest| got == (chunk, digest));
        bar.inc(1);
    }
    let mut report = client.report(began.elapsed());
    bar.finish_and_clear();
    drop(client);
    let served: Result<u64> = peer.join().map_err(|_| "the embedded peer panicked")?;
    report.peer = "embedded".into();
    report.payload_bytes = count * u64::from(chunk);
    report.checksum_ok = same && served? == count;
    Ok(report)
}
