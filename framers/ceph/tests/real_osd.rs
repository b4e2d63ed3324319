//! Against a real ceph-osd: what we write is read back by us and by `rados get`, and what is wrong makes it close.

use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use segchain::chain::{ChainBuilder, Outgoing, Payload};
use segchain::framer::Framer as _;
use segchain::queue::{Flushed, QueueOptions, Revocation, SendQueue};
use segchain::recv::Receiver;
use segchain::send::{SendErrorKind, StreamSender};
use segchain::transport::{Interest, SocketRef, Wait};
use segchain_ceph::osd::{OP_REPLY, Op, Reply, Request};
use segchain_ceph::v1::handshake::{
    Authorizer, Client, ClientOptions, MON_PROTOCOL, OSD_PROTOCOL, Refusal, Session,
};
use segchain_ceph::v1::{Control, Deframer, Frame, Framer, Options, Outbound, Stamp};
use segchain_ceph::{EntityAddr, EntityName, Incoming};
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

struct Connection {
    sender: StreamSender<Socket>,
    receiver: Receiver<Socket, Deframer>,
    framer: Framer,
    tid: u64,
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn shake_hands(
    address: std::net::SocketAddr,
    options: ClientOptions,
) -> std::io::Result<(StreamSender<Socket>, Receiver<Socket, Client>, Session)> {
    let socket = SocketRef::new(Arc::new(TcpStream::connect(address)?));
    let mut sender = StreamSender::new(socket.clone());
    let mut receiver = Receiver::new(socket, Client::new(options));
    loop {
        let turn = receiver.next(&mut (), Some(deadline()), |turn| turn)?.expect("the peer closed");
        let mut out = ChainBuilder::new();
        out.put(&turn.send);
        sender.send_blocking(&mut Outgoing::new(out.finish()?), Some(deadline()))?;
        if let Some(session) = turn.done {
            return Ok((sender, receiver, session));
        }
    }
}

impl Connection {
    fn new(ceph: &Ceph, options: Options) -> Self {
        let mut ours = ClientOptions::new(OSD_PROTOCOL, Authorizer::none("admin", GLOBAL_ID));
        ours.peer = Some(EntityAddr::new(ceph.osd_v1(), ceph.nonce()));
        let (sender, receiver, session) = shake_hands(ceph.osd_v1(), ours).unwrap();
        let options = options.features(session.features);
        let receiver = receiver.replace(Deframer::new(&options)).unwrap();
        let tid = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        Self { sender, receiver, framer: Framer::new(&options), tid }
    }

    fn send(&mut self, request: &Request, data: impl Payload) {
        self.tid += 1;
        let message = request.message(EntityName::client(GLOBAL_ID), self.tid, data).unwrap();
        let mut out = ChainBuilder::new();
        self.framer.frame(message, &mut out).unwrap();
        self.sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(deadline())).unwrap();
    }

    /// The reply to the last request.
    fn reply(&mut self, targets: &mut TargetTable) -> (Reply, Incoming) {
        loop {
            let frame = self.receiver.next(targets, Some(deadline()), |frame| frame).unwrap();
            match frame.expect("the osd closed") {
                Frame::Message(message) if message.header.kind == OP_REPLY => {
                    assert_eq!(message.header.tid, self.tid);
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
}

fn pages(len: usize) -> Vec<u8> {
    Random::new(seed("pages")).bytes(len)
}

#[test]
fn objects_of_all_sizes_are_written_and_read_back_by_us_and_by_rados() {
    let Some(ceph) = ceph() else { return };
    for options in [Options::new(), Options::new().crc_data(false)] {
        let mut connection = Connection::new(ceph, options);
        for size in SIZES {
            let bytes = pages(size);
            let name = format!("size-{size}");
            let request = |op| Request::new(ceph.pool_id(), &name, ceph.epoch(), op);
            let scattered: Vec<&[u8]> = bytes.chunks(4096).collect();
            connection.write(&request(Op::write_full(size as u32)), &scattered[..]);
            assert!(
                connection.read(&request(Op::read(0, size as u64)), size) == bytes,
                "{size} bytes, by us"
            );
            assert!(ceph.rados_get(&name).unwrap() == bytes, "{size} bytes, by rados");
        }
    }
}

#[test]
fn a_range_is_written_where_it_belongs() {
    let Some(ceph) = ceph() else { return };
    let mut connection = Connection::new(ceph, Options::new());
    let request = |op| Request::new(ceph.pool_id(), "range", ceph.epoch(), op);
    let mut bytes = pages(20_000);
    connection.write(&request(Op::write_full(20_000)), &bytes[..]);
    connection.write(&request(Op::write(5001, 3)), &b"abc"[..]);
    bytes[5001..5004].copy_from_slice(b"abc");
    assert!(ceph.rados_get("range").unwrap() == bytes);
    assert!(connection.read(&request(Op::read(5000, 100)), 100) == bytes[5000..5100]);
}

#[test]
fn an_object_written_by_rados_is_read() {
    let Some(ceph) = ceph() else { return };
    let bytes = pages(100_000);
    ceph.rados_put("theirs", &bytes).unwrap();
    let mut connection = Connection::new(ceph, Options::new());
    let read = Request::new(ceph.pool_id(), "theirs", ceph.epoch(), Op::read(0, 100_000));
    assert!(connection.read(&read, 100_000) == bytes);
    connection.send(&Request::new(ceph.pool_id(), "no such object", ceph.epoch(), Op::read(0, 1)), ());
    assert_eq!(connection.reply(&mut TargetTable::default()).0.result, -2);
}

#[test]
fn a_keepalive_comes_back_with_its_stamp() {
    let Some(ceph) = ceph() else { return };
    let mut connection = Connection::new(ceph, Options::new());
    let stamp = Stamp::new(0x0102_0304, 0x0506_0708);
    let mut out = ChainBuilder::new();
    connection.framer.frame(Control::Keepalive2(stamp), &mut out).unwrap();
    connection.sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(deadline())).unwrap();
    let answer = loop {
        let frame = connection.receiver.next(&mut (), Some(deadline()), |frame| frame).unwrap();
        if let Frame::Control(control) = frame.expect("the osd closed") {
            break control;
        }
    };
    assert_eq!(answer, Control::Keepalive2Ack(stamp));
}

#[test]
fn a_wrong_checksum_makes_the_osd_close_and_our_side_says_so() {
    let Some(ceph) = ceph() else { return };
    let bytes = pages(65536);
    let request = Request::new(ceph.pool_id(), "wrong", ceph.epoch(), Op::write_full(65536));
    // A byte of the data; one of the front that changes nothing but its checksum; the flag COMPLETE.
    for damaged in [1000, 54 + 60, 54 + 214 + 65536 + 20] {
        let mut connection = Connection::new(ceph, Options::new());
        let message = request.message(EntityName::client(GLOBAL_ID), connection.tid, &bytes[..]).unwrap();
        assert_eq!(message.front.len(), 214);
        let mut out = ChainBuilder::new();
        connection.framer.frame(message, &mut out).unwrap();
        let mut wire = out.finish().unwrap().seal_all().to_vec();
        wire[damaged] ^= 1;
        let mut out = ChainBuilder::new();
        out.push_borrowed(&wire);
        connection.sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(deadline())).unwrap();

        // The receiver sees the end of the stream, between frames (or a reset), the sender an error that ends it.
        if let Ok(frame) = connection.receiver.next(&mut (), Some(deadline()), |frame| frame) {
            assert!(frame.is_none(), "byte {damaged}: {frame:?}");
        }
        let closed = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            let mut out = ChainBuilder::new();
            connection.framer.frame(Control::Keepalive, &mut out).unwrap();
            let mut keepalive = Outgoing::new(out.finish().unwrap());
            connection.sender.send_blocking(&mut keepalive, Some(deadline())).err()
        });
        let closed = closed.expect("the osd has closed, and we can still send");
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
        assert!(matches!(closed.kind(), SendErrorKind::Io(BrokenPipe | ConnectionReset)), "{closed}");
        assert!(connection.sender.death().is_some());
    }
    assert!(ceph.rados_get("wrong").is_err(), "nothing of it was written");
}

#[test]
fn a_client_without_an_authorizer_and_one_for_a_monitor_are_refused_by_name() {
    let Some(ceph) = ceph() else { return };
    let refused = |options| shake_hands(ceph.osd_v1(), options).unwrap_err().to_string();
    let nobody = refused(ClientOptions::new(OSD_PROTOCOL, Authorizer::absent()));
    assert!(nobody.contains(&Refusal::BadAuthorizer.to_string()), "{nobody}");
    let wrong = refused(ClientOptions::new(MON_PROTOCOL, Authorizer::none("admin", GLOBAL_ID)));
    assert!(wrong.contains("protocol version 24, ours is 15"), "{wrong}");
    let mut options = ClientOptions::new(OSD_PROTOCOL, Authorizer::none("admin", GLOBAL_ID));
    options.features = 0;
    let bare = refused(options);
    assert!(bare.contains("(FEATURES)"), "{bare}");
    // A monitor asks for no claim here.
    assert!(shake_hands(ceph.mon_v1(), ClientOptions::new(MON_PROTOCOL, Authorizer::absent())).is_ok());
}

/// Revoking a call that waits costs a healthy stream nothing: the others of its batch arrive, with a gap in the numbers or
/// without.
#[test]
fn a_tenth_of_a_thousand_writes_is_revoked_before_it_starts_and_the_others_read_back() {
    let Some(ceph) = ceph() else { return };
    let mut random = Random::new(seed("a_tenth_of_a_thousand_writes_is_revoked"));
    let Connection { sender, mut receiver, framer, mut tid } = Connection::new(ceph, Options::new());
    let options = QueueOptions::new().pushers_flush(false);
    let queue = SendQueue::with_options(framer, sender.into_transport(), options);
    let write = |number: usize, len: usize| {
        Request::new(ceph.pool_id(), format!("revoked-{number}"), ceph.epoch(), Op::write_full(len as u32))
    };
    let mut objects = Vec::new();
    while objects.len() < 1000 {
        // A window of 16: pushed, some of them taken back, the rest sent at once.
        let mut expected = std::collections::HashSet::new();
        for _ in 0..16.min(1000 - objects.len()) {
            let len = 1 + random.below(20_000);
            let data = random.bytes(len);
            let pages = data.chunks(4096).map(bytes::Bytes::copy_from_slice).collect::<Vec<_>>();
            tid += 1;
            let request = write(objects.len(), data.len());
            let message = request.message(EntityName::client(GLOBAL_ID), tid, pages).unwrap();
            let ticket = queue.push(Outbound::Message(message)).expect("an open queue");
            let revoked = random.below(10) == 0;
            if revoked {
                assert!(matches!(ticket.revoke(), Revocation::Waiting(_)));
            } else {
                expected.insert(tid);
            }
            objects.push((!revoked).then_some(data));
        }
        while queue.flush().expect("a healthy stream") != Flushed::Idle {
            queue.transport().wait(Interest::Writable, Some(Duration::from_secs(20))).unwrap();
        }
        while !expected.is_empty() {
            let frame = receiver.next(&mut (), Some(deadline()), |frame| frame).unwrap();
            let Some(Frame::Message(message)) = frame else { panic!("the osd closed") };
            if message.header.kind == OP_REPLY {
                assert!(expected.remove(&message.header.tid));
                assert_eq!(Reply::decode(&message.front).unwrap().result, 0);
            }
        }
    }
    assert!(objects.iter().filter(|object| object.is_none()).count() > 50);
    assert!(queue.is_empty() && queue.live_tickets() == 0);

    let mut reader = Connection::new(ceph, Options::new());
    for (number, object) in objects.iter().enumerate() {
        let len = object.as_ref().map_or(10, Vec::len);
        let name = format!("revoked-{number}");
        let request = Request::new(ceph.pool_id(), name, ceph.epoch(), Op::read(0, len as u64));
        if let Some(data) = object {
            assert!(reader.read(&request, len) == *data, "{number}");
        } else {
            reader.send(&request, ());
            let (reply, _) = reader.reply(&mut TargetTable::default());
            assert_eq!(reply.result, -2, "object {number} was revoked"); // ENOENT
        }
    }
}
