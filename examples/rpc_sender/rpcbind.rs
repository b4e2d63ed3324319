//! rpcbind (RFC 1833): DUMP over a stream, GETADDR over UDP.
//!
//! A reply that is larger than rpcbind's buffer comes in several fragments (measured against rpcbind 1.2.6: 8996 bytes
//! each); the deframer joins them. Over UDP there is no record marking, and a call that is not answered is sent again.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use segchain::chain::{ChainBuilder, SegmentChain};
use segchain::framer::Framer;
use segchain::send::{DatagramSender, Progress};
use segchain::transport::SocketRef;
use segchain::window::Window;
use segchain_oncrpc::rpc::{CallHeader, ReplyHeader};
use segchain_oncrpc::xdr::{Reader, Writer};
use segchain_oncrpc::{Message, Record, RecordFramer};

use crate::Result;
use crate::client::Client;
use crate::report::Report;

const PROGRAM: u32 = 100_000;
const VERSION: u32 = 3;
const GETADDR: u32 = 3;
const DUMP: u32 = 4;

/// How long the first call waits for its answer; each further one twice as long.
const FIRST_TIMEOUT: Duration = Duration::from_millis(500);
const TRIES: u32 = 4;
/// No datagram is longer.
const DATAGRAM: usize = 64 << 10;

/// `count` calls to rpcbind at `HOST:PORT`, `udp:HOST:PORT` or the path of a socket.
pub fn run(peer: &str, count: u64, window: Window) -> Result<Report> {
    match peer.strip_prefix("udp:") {
        Some(address) => getaddr(address, count),
        None if peer.contains('/') => dump(Client::unix(peer, PROGRAM, VERSION, window)?, count),
        None => dump(Client::tcp(peer, PROGRAM, VERSION, window)?, count),
    }
}

/// Asks for all registrations.
fn dump(mut client: Client, count: u64) -> Result<Report> {
    let began = Instant::now();
    let mut in_flight = HashSet::new();
    let (mut started, mut bytes) = (0, 0);
    let mut entries = None;
    let mut same = true;
    while started < count || !in_flight.is_empty() {
        while started < count && in_flight.len() < client.in_flight() {
            in_flight.insert(client.start(DUMP, |_| {})?);
            started += 1;
        }
        let answer = client.next()?;
        same &= in_flight.remove(&answer.xid);
        let results = answer.results?;
        bytes += results.len() as u64;
        let registered = registrations(&results)?;
        same &= *entries.get_or_insert(registered) == registered;
    }
    let mut report = client.report(began.elapsed());
    (report.payload_bytes, report.checksum_ok) = (bytes, same);
    Ok(report)
}

/// How many `rpcb` the list of a DUMP has (RFC 1833 section 2.1).
fn registrations(results: &[u8]) -> Result<u64> {
    let mut results = Reader::new(results);
    let mut count = 0;
    while results.bool("rpcblist")? {
        results.u32("r_prog")?;
        results.u32("r_vers")?;
        for field in ["r_netid", "r_addr", "r_owner"] {
            results.opaque(field, 1024)?;
        }
        count += 1;
    }
    if results.rest().is_empty() { Ok(count) } else { Err("bytes behind the end of the list".into()) }
}

/// Asks over UDP where rpcbind itself is.
fn getaddr(peer: &str, count: u64) -> Result<Report> {
    let unreachable = |error| format!("cannot reach {peer}: {error}");
    let address = peer.to_socket_addrs().map_err(unreachable)?.next().ok_or("the name has no address")?;
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).map_err(unreachable)?;
    socket.connect(address).map_err(unreachable)?;
    let mut sender = DatagramSender::new(SocketRef::new(&socket));
    let mut report =
        Report { peer: peer.into(), protocol: "oncrpc-udp", checksum_ok: true, ..Report::default() };
    let began = Instant::now();
    for xid in (std::process::id() << 16..).take(count as usize) {
        let mut chain = getaddr_call(xid)?;
        let results = exchange(&socket, &mut sender, &mut chain, xid, &mut report)
            .map_err(|error| format!("{peer}: {error}"))?;
        report.replies_ok += 1;
        report.payload_bytes += results.len() as u64;
        // An empty string would say that it is not registered.
        report.checksum_ok &= !Reader::new(&results).opaque("universal address", 1024)?.is_empty();
    }
    report.elapsed = began.elapsed();
    report.send = sender.stats();
    Ok(report)
}

fn getaddr_call(xid: u32) -> Result<SegmentChain<'static>> {
    let mut head = Writer::new();
    CallHeader::new(xid, PROGRAM, VERSION, GETADDR).encode(&mut head);
    head.u32(PROGRAM).u32(VERSION);
    head.opaque("r_netid", b"udp").opaque("r_addr", b"").opaque("r_owner", b"");
    let mut out = ChainBuilder::new();
    RecordFramer::datagram().frame(Message::new(head.finish()?), &mut out)?;
    Ok(out.finish()?)
}

/// Sends a call until it is answered; returns the results.
fn exchange(
    socket: &UdpSocket,
    sender: &mut DatagramSender<SocketRef<&UdpSocket>>,
    chain: &mut SegmentChain<'_>,
    xid: u32,
    report: &mut Report,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; DATAGRAM];
    let mut timeout = FIRST_TIMEOUT;
    for _ in 0..TRIES {
        // A datagram that the socket has no room for now is as good as lost.
        let _: Progress = sender.send(chain, None)?;
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            report.recv_calls += 1;
            let len = match socket.recv(&mut bytes) {
                Ok(len) => len,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let record = Record::from_datagram(&bytes[..len])?;
            if record.xid() != xid {
                continue; // the second answer to a call that was sent twice
            }
            let mut results = Reader::new(record.head());
            let header = ReplyHeader::decode(&mut results)?;
            if !header.is_success() {
                return Err(format!("the call was answered with {}", header.reply).into());
            }
            return Ok(results.rest().to_vec());
        }
        timeout *= 2;
    }
    Err(format!("no answer to {TRIES} calls").into())
}
