//! Real servers: nfs-ganesha, rpcbind, and a libtirpc server made for large replies.
//!
//! Skipped, saying so, on machines without them; `SEGCHAIN_REQUIRE_PEERS` makes that a failure.

mod support;

use std::collections::HashSet;
use std::fs;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use segchain::chain::{ChainBuilder, Outgoing, Payload};
use segchain::framer::{Framer, Targets};
use segchain::recv::Receiver;
use segchain::send::{DatagramSender, Progress, StreamSender};
use segchain::transport::SocketRef;
use segchain_oncrpc::rpc::{Auth, AuthSys, CallHeader, ReplyHeader};
use segchain_oncrpc::xdr::{Reader, Writer};
use segchain_oncrpc::{Layout, Message, Pending, Record, RecordDeframer, RecordFramer};
use segchain_testkit::peers::{Nfs, TirpcEcho, TirpcEchoOptions, require};
use support::{Seen, Table, pattern, read_data};

const NFS: (u32, u32) = (100_003, 3);
const MOUNT: (u32, u32) = (100_005, 3);
const RPCBIND: (u32, u32) = (100_000, 3);
const ECHO: (u32, u32) = (TirpcEcho::PROGRAM, TirpcEcho::VERSION);

type Socket = SocketRef<Arc<OwnedFd>>;

/// A connection to one program, with everything a test wants to see of it.
struct Rpc {
    program: (u32, u32),
    xid: u32,
    framer: RecordFramer,
    sender: StreamSender<Socket>,
    receiver: Receiver<Socket, RecordDeframer>,
}

impl Rpc {
    fn tcp(address: SocketAddr, program: (u32, u32)) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self::new(stream.into(), program)
    }

    fn unix(path: &Path, program: (u32, u32)) -> Self {
        Self::new(UnixStream::connect(path).unwrap().into(), program)
    }

    fn new(socket: OwnedFd, program: (u32, u32)) -> Self {
        let socket = SocketRef::new(Arc::new(socket));
        let (framer, pending) = (RecordFramer::new(), Pending::new());
        let sender = StreamSender::new(socket.clone());
        let receiver = Receiver::new(socket, RecordDeframer::new(pending));
        Self { program, xid: 1000, framer, sender, receiver }
    }

    fn message(&mut self, procedure: u32, args: &[u8]) -> (u32, Message<'static>) {
        self.xid += 1;
        let mut head = Writer::new();
        let (program, version) = self.program;
        CallHeader::new(self.xid, program, version, procedure)
            .with_credential(Auth::Sys(AuthSys::new("segchain", 0, 0)))
            .encode(&mut head);
        head.raw(args);
        (self.xid, Message::new(head.finish().unwrap()))
    }

    fn send<P: Payload>(&mut self, message: Message<'_, P>) {
        let mut out = ChainBuilder::new();
        self.framer.frame(message, &mut out).unwrap();
        self.sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(soon())).unwrap();
    }

    fn expect(&self, xid: u32, layout: Layout) {
        self.receiver.deframer().pending().expect(xid, layout).unwrap();
    }

    fn start(&mut self, procedure: u32, args: &[u8]) -> u32 {
        let (xid, message) = self.message(procedure, args);
        self.expect(xid, Layout::Whole);
        self.send(message);
        xid
    }

    /// The next reply, which has to be a success; its results are left of its bytes.
    fn reply(&mut self, targets: &mut dyn Targets) -> Seen {
        let seen =
            self.receiver.next(targets, Some(soon()), |record| Seen::from(record)).unwrap().expect("a reply");
        results(&seen.bytes);
        seen
    }

    fn call(&mut self, procedure: u32, args: &[u8]) -> Vec<u8> {
        self.start(procedure, args);
        let seen = self.reply(&mut ());
        results(&seen.bytes).rest().to_vec()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn results(reply: &[u8]) -> Reader<'_> {
    let mut reader = Reader::new(reply);
    let header = ReplyHeader::decode(&mut reader).unwrap();
    assert!(header.is_success(), "{}", header.reply);
    reader
}

fn args(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::new();
    write(&mut out);
    out.finish().unwrap()
}

fn root(nfs: &Nfs) -> Vec<u8> {
    let path = args(|args| {
        args.opaque("dirpath", nfs.export_path().as_bytes());
    });
    let results = Rpc::tcp(nfs.mount_addr(), MOUNT).call(1, &path);
    let mut results = Reader::new(&results);
    assert_eq!(results.u32("status"), Ok(0));
    results.opaque("handle", 64).unwrap().to_vec()
}

const SIZES: [usize; 6] = [0, 1, 4095, 4096, 65_536, (4 << 20) + 3];

#[test]
fn nfs_write_and_read_of_every_size_are_identical_on_the_servers_disk() {
    let Some(nfs) = require(Nfs::start()) else { return };
    let root = root(&nfs);
    for framer in [RecordFramer::new(), RecordFramer::fragments_of(65_532)] {
        let mut rpc = Rpc::tcp(nfs.nfs_addr(), NFS);
        rpc.framer = framer;
        for size in SIZES {
            let data = pattern(size);
            let pages: Vec<&[u8]> = data.chunks(4096).collect();
            let name = format!("file-{size}");
            let results = rpc.call(
                8,
                &args(|args| {
                    args.opaque("dir", &root).opaque("name", name.as_bytes()).u32(0);
                    args.bool(false).bool(false).bool(false).bool(true).u64(0).u32(0).u32(0);
                }),
            );
            let mut results = Reader::new(&results);
            assert_eq!((results.u32("status"), results.bool("handle follows")), (Ok(0), Ok(true)));
            let handle = results.opaque("handle", 64).unwrap().to_vec();

            // WRITE, FILE_SYNC: the pages leave as they are.
            let before = rpc.sender.stats();
            let write = args(|args| {
                args.opaque("file", &handle).u64(0).u32(size as u32).u32(2);
            });
            let (xid, message) = rpc.message(7, &write);
            rpc.expect(xid, Layout::Whole);
            rpc.send(message.opaque(pages.as_slice()));
            let status = self::results(&rpc.reply(&mut ()).bytes).u32("status");
            assert_eq!(status, Ok(0));
            let copied = rpc.sender.stats().copied - before.copied;
            assert_eq!(copied, if size < ChainBuilder::COPY_BELOW { size as u64 } else { 0 });
            let path = nfs.export_dir().join(&name);
            assert!(fs::read(&path).unwrap() == data, "{name} on the server's disk");

            // READ of what somebody else has put there: it lands in the target.
            let data: Vec<u8> = data.iter().map(|byte| !byte).collect();
            fs::write(&path, &data).unwrap();
            let read = args(|args| {
                args.opaque("file", &handle).u64(0).u32(size as u32);
            });
            let (xid, message) = rpc.message(6, &read);
            rpc.expect(xid, Layout::Data(read_data));
            rpc.send(message);
            let mut table = Table::with(xid.into(), size);
            let seen = rpc.reply(&mut table);
            assert_eq!(seen.placed.map(|placed| (placed.len, placed.whole)), Some((size as u64, true)));
            assert!(table.0[&xid.into()] == data, "{name} as it was read");
        }
    }
}

#[test]
fn nfs_answers_2000_pipelined_calls_out_of_order_and_each_is_found() {
    let Some(nfs) = require(Nfs::start()) else { return };
    let root = root(&nfs);
    let mut rpc = Rpc::tcp(nfs.nfs_addr(), NFS);
    // Every tenth is a GETATTR, which takes the server longer than a NULL.
    let getattr = args(|args| {
        args.opaque("file", &root);
    });
    let xids: Vec<u32> =
        (0..2000).map(|i| if i % 10 == 0 { rpc.start(1, &getattr) } else { rpc.start(0, &[]) }).collect();
    let mut order = Vec::new();
    let _ = rpc
        .receiver
        .receive_blocking(&mut (), Some(soon()), |record| {
            assert!(ReplyHeader::decode(&mut Reader::new(record.head())).unwrap().is_success());
            order.push(record.xid());
            if order.len() == xids.len() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    println!("{} of 2000 answers were overtaken", order.windows(2).filter(|two| two[0] > two[1]).count());
    assert!(rpc.receiver.deframer().pending().is_empty() && rpc.receiver.deframer().dropped() == 0);
    assert_eq!(order.iter().collect::<HashSet<_>>(), xids.iter().collect());
    assert_ne!(order, xids, "nfs-ganesha answers out of order");
}

/// rpcbind 1.2.6 sends 8996 bytes a fragment.
#[test]
fn rpcbind_dumps_many_entries_in_several_fragments_over_tcp_and_af_local() {
    let Some(nfs) = require(Nfs::start()) else { return };
    if !nfs.owns_rpcbind() {
        return println!("skipped: the rpcbind of this machine is not ours to fill");
    }
    let entry = |number: u32| {
        args(|args| {
            args.u32(0x2000_0000 + number).u32(1);
            args.opaque("netid", b"tcp").opaque("addr", b"127.0.0.1.100.100").opaque("owner", b"superuser");
        })
    };
    let mut local = Rpc::unix(nfs.rpcbind_unix(), RPCBIND);
    for number in 0..420 {
        assert_eq!(local.call(1, &entry(number)), [0, 0, 0, 1], "SET over AF_LOCAL, as root");
    }
    for mut rpc in [local, Rpc::tcp(nfs.rpcbind_tcp(), RPCBIND)] {
        rpc.start(4, &[]);
        let seen = rpc.reply(&mut ());
        println!("{} bytes in {} fragments", seen.bytes.len(), seen.fragments);
        assert!(seen.fragments >= 3 && seen.bytes.len() > 2 * 8996);
        let mut results = results(&seen.bytes);
        let mut found = HashSet::new();
        while results.bool("more").unwrap() {
            found.insert(results.u32("program").unwrap());
            results.u32("version").unwrap();
            for field in ["netid", "addr", "owner"] {
                results.opaque(field, 255).unwrap();
            }
        }
        assert!(results.rest().is_empty());
        assert!((0..420).all(|number| found.contains(&(0x2000_0000 + number))));
    }
}

#[test]
fn rpcbind_answers_getaddr_over_udp_without_a_marker() {
    let Some(nfs) = require(Nfs::start()) else { return };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let call = args(|args| {
        CallHeader::new(77, RPCBIND.0, RPCBIND.1, 3).encode(args);
        args.u32(RPCBIND.0).u32(RPCBIND.1).opaque("netid", b"udp").opaque("addr", b"").opaque("owner", b"");
    });
    let mut out = ChainBuilder::new();
    RecordFramer::datagram().frame(Message::new(call), &mut out).unwrap();
    let mut sender = DatagramSender::new(SocketRef::new(&socket));
    let sent = sender.send(&mut out.finish().unwrap(), Some(nfs.rpcbind_udp())).unwrap();
    assert_eq!(sent, Progress::Done);
    let mut reply = [0; 2048];
    let len = socket.recv(&mut reply).unwrap();
    let record = Record::from_datagram(&reply[..len]).unwrap();
    assert_eq!(record.xid(), 77);
    let address = results(record.head()).opaque("address", 255).unwrap().to_vec();
    assert!(address.ends_with(b".0.111"), "{}", String::from_utf8_lossy(&address));
}

/// RFC 5531 section 11 as libtirpc does it: a large reply in fragments of its send buffer.
#[test]
fn a_libtirpc_reply_of_1_mib_in_many_fragments_arrives_whole() {
    const LEN: usize = 1 << 20;
    let expected: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    for (options, fragments) in [
        (TirpcEchoOptions::default(), [17, 117]),
        (TirpcEchoOptions::default().send_buffer(4000), [263, 263]),
    ] {
        let Some(echo) = require(TirpcEcho::start_with(options)) else { return };
        let connections = [Rpc::tcp(echo.tcp(), ECHO), Rpc::unix(echo.unix(), ECHO)];
        for (mut rpc, fragments) in connections.into_iter().zip(fragments) {
            // Whole, in slabs.
            rpc.start(TirpcEcho::SOURCE, &(LEN as u32).to_be_bytes());
            let seen = rpc.reply(&mut ());
            println!("{} fragments", seen.fragments);
            assert!(seen.fragments.abs_diff(fragments) <= 1, "{} fragments", seen.fragments);
            assert!(results(&seen.bytes).opaque("blob", u32::MAX).unwrap() == expected);

            // In the caller's memory.
            let (xid, message) = rpc.message(TirpcEcho::SOURCE, &(LEN as u32).to_be_bytes());
            rpc.expect(
                xid,
                Layout::Data(|results| match results.first_chunk() {
                    None => segchain_oncrpc::DataAt::Need(4),
                    Some(len) => {
                        segchain_oncrpc::DataAt::At { offset: 4, len: u32::from_be_bytes(*len).into() }
                    }
                }),
            );
            rpc.send(message);
            let mut table = Table::with(xid.into(), LEN);
            let seen = rpc.reply(&mut table);
            assert_eq!(seen.placed.map(|placed| placed.len), Some(LEN as u64));
            assert!(table.0[&xid.into()] == expected);

            // There and back, out of pages.
            let pages: Vec<&[u8]> = expected.chunks(4096).collect();
            let (xid, message) = rpc.message(TirpcEcho::GIVE_BACK, &[]);
            rpc.expect(xid, Layout::Whole);
            rpc.send(message.opaque(pages.as_slice()));
            let seen = rpc.reply(&mut ());
            assert!(results(&seen.bytes).opaque("blob", u32::MAX).unwrap() == expected);
        }
    }
}

/// nfs-ganesha 4.3 and rpcbind 1.2.6: what they do not serve, they say, and the connection goes on.
#[test]
fn calls_that_are_refused_come_back_with_their_status() {
    let Some(nfs) = require(Nfs::start()) else { return };
    let status = |address, program, procedure| {
        let mut rpc = Rpc::tcp(address, program);
        rpc.start(procedure, &[]);
        let seen = rpc.receiver.next(&mut (), Some(soon()), |record| Seen::from(record)).unwrap().unwrap();
        let text = ReplyHeader::decode(&mut Reader::new(&seen.bytes)).unwrap().reply.to_string();
        rpc.program = if program.0 == RPCBIND.0 { RPCBIND } else { NFS };
        assert!(rpc.call(0, &[]).is_empty());
        text
    };
    assert_eq!(status(nfs.nfs_addr(), (100_003, 9), 0), "PROG_MISMATCH (versions 3 to 4)");
    assert_eq!(status(nfs.nfs_addr(), (0x2fff_ffff, 1), 0), "PROG_UNAVAIL");
    assert_eq!(status(nfs.nfs_addr(), NFS, 99), "PROC_UNAVAIL");
    assert_eq!(status(nfs.rpcbind_tcp(), (100_000, 9), 0), "PROG_MISMATCH (versions 2 to 4)");
    assert_eq!(status(nfs.rpcbind_tcp(), RPCBIND, 99), "PROC_UNAVAIL");
}
