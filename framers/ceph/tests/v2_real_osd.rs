//! Version 2 against a real ceph-osd and ceph-mon: what we write is read back by us and by `rados get`, what we give up is
//! dropped, and what is wrong makes it close.

mod common;

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use common::v2::CODECS;
use segchain::chain::{ChainBuilder, Outgoing, Payload, Revoked};
use segchain::framer::{self, Framer as _};
use segchain::recv::{Receiver, RecvOptions};
use segchain::send::{Progress, SendErrorKind, StreamSender};
use segchain::slab::SlabPool;
use segchain::transport::{Interest, SendFlags, SocketRef, VectoredSend, Wait};
use segchain_ceph::osd::{OP_REPLY, Op, Reply, Request};
use segchain_ceph::v2::handshake::{Client, ClientOptions, Refusal, Session};
use segchain_ceph::v2::{Codec, Control, Deframer, Error, Frame, Framer, Stamp};
use segchain_ceph::{EntityAddr, EntityName, Header, Incoming, Message, features};
use segchain_testkit::conformance::TargetTable;
use segchain_testkit::naive::{Random, seed};
use segchain_testkit::peers::{Ceph, CephOptions, require};

const GLOBAL_ID: u64 = 4199;
const SIZES: [usize; 6] = [0, 1, 4095, 4096, 65536, (4 << 20) + 3];

/// One osd for all tests of this file; it ends with the process.
fn ceph() -> Option<&'static Ceph> {
    static CEPH: OnceLock<Option<Ceph>> = OnceLock::new();
    CEPH.get_or_init(|| require(Ceph::start(CephOptions::default()))).as_ref()
}

type Socket = SocketRef<Arc<TcpStream>>;

/// A socket that takes so many bytes and is blocked then.
#[derive(Debug)]
struct Cut {
    socket: Socket,
    left: Cell<u64>,
}

impl Cut {
    fn take_only(&self, bytes: u64) {
        self.left.set(bytes);
    }
}

impl VectoredSend for Cut {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let mut left = self.left.get() as usize;
        let mut taken = Vec::new();
        for buf in bufs {
            let n = left.min(buf.len());
            left -= n;
            if n > 0 {
                taken.push(IoSlice::new(&buf[..n]));
            }
        }
        if taken.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let sent = self.socket.send_vectored(&taken, flags)?;
        self.left.set(self.left.get() - sent as u64);
        Ok(sent)
    }
}

impl Wait for Cut {
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool> {
        self.socket.wait(interest, timeout)
    }
}

struct Connection {
    sender: StreamSender<Cut>,
    receiver: Receiver<Socket, Deframer>,
    framer: Framer,
    session: Session,
    tid: u64,
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn osd(ceph: &Ceph) -> ClientOptions {
    ClientOptions::to_osd(EntityAddr::msgr2(ceph.osd_v2(), ceph.nonce()), "admin", GLOBAL_ID)
}

fn shake_hands(
    address: SocketAddr,
    options: ClientOptions,
) -> io::Result<(StreamSender<Cut>, Receiver<Socket, Client>, Session)> {
    let socket = SocketRef::new(Arc::new(TcpStream::connect(address)?));
    socket.set_nodelay(true)?;
    let mut sender = StreamSender::new(Cut { socket: socket.clone(), left: Cell::new(u64::MAX) });
    let limits = RecvOptions::new().contiguous(1 << 20);
    let mut receiver = Receiver::with_options(socket, Client::new(options), limits, SlabPool::default());
    loop {
        let turn = receiver.next(&mut (), Some(deadline()), |turn| turn)?;
        let turn = turn.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut out = ChainBuilder::new();
        out.put(&turn.send);
        sender.send_blocking(&mut Outgoing::new(out.finish()?), Some(deadline()))?;
        if let Some(session) = turn.done {
            return Ok((sender, receiver, session));
        }
    }
}

impl Connection {
    fn new(address: SocketAddr, options: ClientOptions) -> Self {
        let (sender, receiver, session) = shake_hands(address, options).unwrap();
        let options = session.options();
        let receiver = receiver.replace(Deframer::new(&options)).unwrap();
        let tid = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        Self { sender, receiver, framer: Framer::new(&options), session, tid }
    }

    fn to_osd(ceph: &Ceph, codec: Codec) -> Self {
        let mut options = osd(ceph);
        options.revision_1 = codec == Codec::CrcRev1;
        let connection = Self::new(ceph.osd_v2(), options);
        assert_eq!(connection.session.codec, codec);
        connection
    }

    fn frame<'m, M>(&mut self, message: M) -> Outgoing<'m>
    where
        M: 'm,
        Framer: framer::Framer<M, Error = Error>,
    {
        let mut out = ChainBuilder::new();
        self.framer.frame(message, &mut out).unwrap();
        Outgoing::new(out.finish().unwrap())
    }

    fn put(&mut self, mut message: Outgoing<'_>) {
        self.sender.send_blocking(&mut message, Some(deadline())).unwrap();
    }

    fn send(&mut self, request: &Request, data: impl Payload) {
        self.tid += 1;
        let message = request.message(EntityName::client(GLOBAL_ID), self.tid, data).unwrap();
        let message = self.frame(message);
        self.put(message);
    }

    /// The reply to the last request.
    fn reply(&mut self, targets: &mut TargetTable) -> (Reply, Incoming) {
        loop {
            let frame = self.receiver.next(targets, Some(deadline()), |frame| frame).unwrap();
            match frame.expect("the osd closed") {
                Frame::Message(message) if message.header.kind == OP_REPLY => {
                    assert_eq!(message.header.tid, self.tid);
                    self.framer.received(message.seq);
                    self.framer.check_ack(message.acked).unwrap();
                    return (Reply::decode(&message.front).unwrap(), message);
                }
                _ => {}
            }
        }
    }

    fn write(&mut self, request: &Request, data: impl Payload) {
        self.send(request, data);
        let (reply, _) = self.reply(&mut TargetTable::default());
        assert_eq!(reply.result, 0, "{reply:?}");
    }

    /// Into our own pages.
    fn read(&mut self, request: &Request, len: usize) -> Vec<u8> {
        let mut targets = TargetTable::new(&[(self.tid + 1, len)]).scattered(4096);
        self.send(request, ());
        let (reply, message) = self.reply(&mut targets);
        assert_eq!((reply.result, message.data.len()), (0, len as u64));
        targets.take(self.tid).unwrap()
    }

    fn control(&mut self) -> Control {
        loop {
            let frame = self.receiver.next(&mut (), Some(deadline()), |frame| frame).unwrap();
            if let Frame::Control(control) = frame.expect("the osd closed") {
                return control;
            }
        }
    }

    /// The receiver sees the end of the stream, between frames (or a reset), the sender an error that ends it.
    fn assert_closed(&mut self, why: &str) {
        while let Ok(Some(frame)) = self.receiver.next(&mut (), Some(deadline()), |frame| frame) {
            assert!(!matches!(frame, Frame::Message(_)), "{why}: {frame:?}");
        }
        let closed = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            let mut keepalive = self.frame(Control::Keepalive2(Stamp::default()));
            self.sender.send_blocking(&mut keepalive, Some(deadline())).err()
        });
        let closed = closed.unwrap_or_else(|| panic!("{why}: the osd has closed, and we can still send"));
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        assert!(matches!(closed.kind(), SendErrorKind::Io(BrokenPipe | ConnectionReset)), "{why}: {closed}");
        assert!(self.sender.death().is_some());
    }
}

fn pages(len: usize) -> Vec<u8> {
    Random::new(seed("pages")).bytes(len)
}

fn request(ceph: &Ceph, name: &str, op: Op) -> Request {
    Request::new(ceph.pool_id(), name, ceph.epoch(), op)
}

#[test]
fn objects_of_all_sizes_are_written_and_read_back_by_us_and_by_rados() {
    let Some(ceph) = ceph() else { return };
    for codec in CODECS {
        let mut connection = Connection::to_osd(ceph, codec);
        for size in SIZES {
            let bytes = pages(size);
            let name = format!("{codec:?}-{size}");
            let scattered: Vec<&[u8]> = bytes.chunks(4096).collect();
            connection.write(&request(ceph, &name, Op::write_full(size as u32)), &scattered[..]);
            let read = connection.read(&request(ceph, &name, Op::read(0, size as u64)), size);
            assert!(read == bytes, "{codec:?}: {size} bytes, by us");
            assert!(ceph.rados_get(&name).unwrap() == bytes, "{codec:?}: {size} bytes, by rados");
        }
    }
}

/// Linux's messenger_v2.c revokes so; here every frame is cut somewhere else. The numbers of the aborted ones are missing in
/// the end, and the osd takes that.
#[test]
fn an_aborted_frame_in_the_middle_of_good_ones_leaves_the_connection_alive() {
    let Some(ceph) = ceph() else { return };
    for codec in CODECS {
        let mut connection = Connection::to_osd(ceph, codec);
        let (good, other) = (pages(100_000), vec![0xee; 100_000]);
        let name = format!("aborted-{codec:?}");
        let write = request(ceph, &name, Op::write_full(100_000));
        connection.write(&write, &good[..]);
        let len = {
            let mut out = ChainBuilder::new();
            let message = write.message(EntityName::client(GLOBAL_ID), 1, &other[..]).unwrap();
            Framer::new(&common::v2::options(codec)).frame(message, &mut out).unwrap();
            out.finish().unwrap().len()
        };
        let status = len - if codec == Codec::CrcRev1 { 13 } else { 17 };
        for cut in [1, 31, 40, 75, 80, 300, 5000, 99_999, status - 1, status] {
            connection.tid += 1;
            let message = write.message(EntityName::client(GLOBAL_ID), connection.tid, &other[..]).unwrap();
            let mut half = connection.frame(message);
            connection.sender.transport().take_only(cut);
            assert!(matches!(connection.sender.send(&mut half), Ok(Progress::Blocked(_))));
            assert_eq!(half.sent(), cut);
            connection.sender.transport().take_only(u64::MAX);
            let Revoked::AbortedOnWire(rest) = half.revoke() else { panic!("cut at {cut}") };
            connection.put(rest);
            let read = request(ceph, &name, Op::read(0, 100_000));
            assert!(connection.read(&read, 100_000) == good, "{codec:?}: cut at {cut}");
        }
        // Framed, and nothing of it sent: dropped, a number is missing.
        connection.tid += 1;
        let message = write.message(EntityName::client(GLOBAL_ID), connection.tid, &other[..]).unwrap();
        let unsent = connection.frame(message);
        let Revoked::NotStarted(_) = unsent.revoke() else { panic!() };
        assert!(connection.read(&request(ceph, &name, Op::read(0, 100_000)), 100_000) == good);
        assert!(ceph.rados_get(&name).unwrap() == good);

        // Behind the late status it is too late: the message is sent to its end, and done.
        connection.tid += 1;
        let message = write.message(EntityName::client(GLOBAL_ID), connection.tid, &other[..]).unwrap();
        let mut half = connection.frame(message);
        connection.sender.transport().take_only(status + 1);
        assert!(matches!(connection.sender.send(&mut half), Ok(Progress::Blocked(_))));
        connection.sender.transport().take_only(u64::MAX);
        let Revoked::Finishing(rest) = half.revoke() else { panic!() };
        connection.put(rest);
        assert_eq!(connection.reply(&mut TargetTable::default()).0.result, 0);
        assert!(ceph.rados_get(&name).unwrap() == other);
    }
}

#[test]
fn a_wrong_checksum_or_late_status_makes_the_osd_close_and_our_side_says_so() {
    let Some(ceph) = ceph() else { return };
    let bytes = pages(65536);
    let write = request(ceph, "wrong", Op::write_full(65536));
    for codec in CODECS {
        let data = 32 + 41 + if codec == Codec::CrcRev1 { 4 } else { 0 } + 214;
        // The preamble's reserved byte, the header, a byte of the front that changes nothing but its checksum, the data, the
        // checksum of the empty middle (ceph PR 31876: it is the seed); and all of it aborted, with wrong data.
        let middle = data + 65536 + if codec == Codec::CrcRev1 { 5 } else { 9 };
        let late = data + 65536;
        let cases = [(27, 1), (60, 1), (data - 150, 1), (data + 1000, 1), (middle, 1)];
        let cases = cases.map(|case| vec![case]).into_iter();
        let aborted = vec![(late, if codec == Codec::CrcRev1 { 0x0f } else { 1 }), (data + 1000, 1)];
        let status = (codec == Codec::CrcRev1).then(|| vec![(late, 0x02)]);
        for damage in cases.chain([aborted]).chain(status) {
            let mut connection = Connection::to_osd(ceph, codec);
            let message = write.message(EntityName::client(GLOBAL_ID), connection.tid, &bytes[..]).unwrap();
            assert_eq!(message.front.len(), 214);
            let mut out = ChainBuilder::new();
            connection.framer.frame(message, &mut out).unwrap();
            let mut wire = out.finish().unwrap().seal_all().to_vec();
            for (at, bits) in &damage {
                wire[*at] ^= bits;
            }
            let mut out = ChainBuilder::new();
            out.push_borrowed(&wire);
            connection.put(Outgoing::new(out.finish().unwrap()));
            connection.assert_closed(&format!("{codec:?}: {damage:?}"));
        }
    }
    assert!(ceph.rados_get("wrong").is_err(), "nothing of it was written");
}

#[test]
fn a_keepalive_comes_back_with_its_stamp() {
    let Some(ceph) = ceph() else { return };
    for codec in CODECS {
        let mut connection = Connection::to_osd(ceph, codec);
        let stamp = Stamp::new(0x0102_0304, 0x0506_0708);
        let keepalive = connection.frame(Control::Keepalive2(stamp));
        connection.put(keepalive);
        assert_eq!(connection.control(), Control::Keepalive2Ack(stamp));
    }
}

#[test]
fn what_an_osd_refuses_is_refused_by_name() {
    let Some(ceph) = ceph() else { return };
    let refused = |options| shake_hands(ceph.osd_v2(), options).unwrap_err();
    let mut cephx = osd(ceph);
    cephx.method = 2;
    let error = refused(cephx).to_string();
    assert!(error.contains("authentication method 2 gives -95, it takes methods [1]"), "{error}");
    let mut bare = osd(ceph);
    bare.features = 1;
    let missing = features::REQUIRED_BY_OSD & !1;
    let error = refused(bare).to_string();
    assert!(error.contains(&Refusal::Features { missing }.to_string()), "{error}");
    // Another daemon at the same address: closed without a word.
    let mut other = osd(ceph);
    other.target.nonce ^= 1;
    let error = refused(other);
    let closed = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
    assert!(closed.contains(&error.kind()), "{error}");
}

/// The monitor names us, pushes its map, and answers MMonGetMap (type 5, no front) with MMonMap (type 4).
#[test]
fn a_monitor_gives_us_a_number_and_its_map() {
    let Some(ceph) = ceph() else { return };
    for codec in CODECS {
        let mut options = ClientOptions::to_monitor(EntityAddr::msgr2(ceph.mon_v2(), 0), "admin");
        options.revision_1 = codec == Codec::CrcRev1;
        let mut connection = Connection::new(ceph.mon_v2(), options);
        let session = &connection.session;
        assert_eq!((session.codec, session.entity_type, session.lossy), (codec, 1, true));
        assert!(session.global_id > 0);
        let mut header = Header::new(5);
        (header.version, header.priority) = (1, 127);
        let get = connection.frame(Message::new(header, Bytes::new(), ()));
        connection.put(get);
        let mut maps = 0;
        while maps == 0 {
            let frame = connection.receiver.next(&mut (), Some(deadline()), |frame| frame).unwrap();
            match frame.expect("the monitor closed") {
                Frame::Message(message) if message.header.kind == 4 && message.acked == 1 => {
                    assert!(!message.front.is_empty());
                    maps += 1;
                }
                _ => {}
            }
        }
    }
}
