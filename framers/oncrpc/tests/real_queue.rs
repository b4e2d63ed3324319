//! Many threads, one connection, a real NFS server: what made NFS calls tear elsewhere (ntirpc 294, Linux `xprtsock.c`'s
//! check for aborted transmits) was progress kept with the request, and two threads in the stream.
//!
//! Skipped, saying so, on machines without the server; `SEGCHAIN_REQUIRE_PEERS` makes that a failure.

use std::collections::HashMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Outgoing};
use segchain::framer::Framer;
use segchain::queue::SendQueue;
use segchain::recv::{Received, Receiver};
use segchain::send::StreamSender;
use segchain::transport::{Interest, SocketRef, Wait};
use segchain::window::{InFlight, Request, Window};
use segchain_oncrpc::rpc::{CallHeader, ReplyHeader};
use segchain_oncrpc::xdr::{Reader, Writer};
use segchain_oncrpc::{Direction, Layout, Message, Pending, Record, RecordDeframer, RecordFramer};
use segchain_testkit::peers::{Nfs, require};

const THREADS: u32 = 8;
const CALLS: u32 = 20_000;

type Queue = SendQueue<Message<'static, Vec<Bytes>>, RecordFramer, SocketRef<Arc<TcpStream>>>;
type Calls = InFlight<u32, (), String>;
type Waiting = Arc<Mutex<HashMap<u32, Request<u32, (), String>>>>;

#[test]
fn eight_threads_share_a_connection_to_a_real_server_and_every_call_is_answered() {
    let Some(nfs) = require(Nfs::start()) else { return };
    assert_eq!(eight_threads(TcpStream::connect(nfs.nfs_addr()).expect("a server")), 0);
}

/// As an NFSv4.1 server calls back (RFC 8881 section 2.10.3.1), with transaction ids of its own that are the same as the
/// client's: a relay in front of the real server puts its calls between the replies.
#[test]
fn calls_of_the_server_on_the_same_stream_are_answered_between_those_of_eight_threads() {
    let Some(nfs) = require(Nfs::start()) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (near, _) = listener.accept().expect("connected");
    let far = TcpStream::connect(nfs.nfs_addr()).expect("a server");
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("a TCP socket");
    }
    // Of the client's calls and of the relay's.
    let (replies, answers) = (Pending::new(), Pending::new());
    thread::scope(|scope| {
        let towards_client = scope.spawn(|| towards_client(&far, &near, &replies, &answers));
        let towards_server = scope.spawn(|| towards_server(&near, &far, &replies, &answers));
        let called = eight_threads(client);
        let calls = towards_client.join().expect("no panic");
        let answers = towards_server.join().expect("no panic");
        assert_eq!(calls.len() as u32, CALLS / BETWEEN);
        assert_eq!((called, answers), (calls.len(), calls));
    });
}

/// Replies between two calls of the relay.
const BETWEEN: u32 = 20;
/// The program of NFSv4 callbacks (RFC 8881 section 20).
const CALLBACK: u32 = 0x4000_0000;

/// Replies on their way, and now and then a call with the same transaction id in front of one. Returns those ids.
fn towards_client(far: &TcpStream, near: &TcpStream, replies: &Pending, answers: &Pending) -> Vec<u32> {
    let mut receiver = Receiver::new(SocketRef::new(far), RecordDeframer::new(replies.clone()));
    let mut sender = StreamSender::new(SocketRef::new(near));
    let mut calls = Vec::new();
    let mut seen = 0;
    while let Ok(Some((xid, reply))) =
        receiver.next(&mut (), None, |record| (record.xid(), record.to_bytes().into_owned()))
    {
        seen += 1;
        if seen % BETWEEN == 0 {
            let mut head = Writer::new();
            CallHeader::new(xid, CALLBACK, 1, 0).encode(&mut head);
            answers.expect(xid, Layout::Whole).expect("a new xid");
            relay(&mut sender, &head.finish().expect("a short head"));
            calls.push(xid);
        }
        relay(&mut sender, &reply);
    }
    near.shutdown(Shutdown::Write).expect("an open socket");
    calls
}

/// Calls on their way; answers to the relay's own stop here. Returns their ids.
fn towards_server(near: &TcpStream, far: &TcpStream, replies: &Pending, expected: &Pending) -> Vec<u32> {
    let deframer = RecordDeframer::new(expected.clone()).max_record(2 << 20);
    let mut receiver = Receiver::new(SocketRef::new(near), deframer);
    let mut sender = StreamSender::new(SocketRef::new(far));
    let mut answers = Vec::new();
    let mut take = |record: Record<'_>| (record.direction(), record.xid(), record.to_bytes().into_owned());
    while let Ok(Some((direction, xid, bytes))) = receiver.next(&mut (), None, &mut take) {
        if direction == Direction::Call {
            replies.expect(xid, Layout::Whole).expect("a new xid");
            relay(&mut sender, &bytes);
        } else {
            assert!(ReplyHeader::decode(&mut Reader::new(&bytes)).expect("a reply").is_success());
            answers.push(xid);
        }
    }
    far.shutdown(Shutdown::Both).expect("an open socket");
    answers
}

fn relay(sender: &mut StreamSender<SocketRef<&TcpStream>>, record: &[u8]) {
    let mut out = ChainBuilder::new();
    RecordFramer::new().frame(Message::new(record), &mut out).expect("a record");
    sender
        .send_blocking(&mut Outgoing::new(out.finish().expect("a good chain")), None)
        .expect("an open socket");
}

/// Calls from eight threads through one queue, all answered; how many calls of the server were answered meanwhile.
fn eight_threads(stream: TcpStream) -> usize {
    let stream = Arc::new(stream);
    stream.set_nodelay(true).expect("a TCP socket");
    let socket = SocketRef::new(stream.clone());
    let pending = Pending::new();
    let receiver = Receiver::new(socket.clone(), RecordDeframer::new(pending.clone()));
    let queue = Queue::new(RecordFramer::new(), socket);
    let calls: Calls = InFlight::new(Window::new(64 << 20, 256));
    let waiting = Waiting::default();
    let memory = Bytes::from(vec![0x5a; 1 << 20]);
    let next = AtomicU32::new(0);

    thread::scope(|scope| {
        // Nobody waits for those who failed.
        let end = End(&stream, &queue);
        scope.spawn(|| queue.run());
        let receiver = scope.spawn(|| receive(receiver, &waiting, &queue));
        let callers: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= CALLS {
                            return;
                        }
                        let xid = 0x1000_0000 | number;
                        // Arguments that NULL does not look at: none, a few bytes, pages, and now and then many of them.
                        let len = [0, 12, 200, 4096, 9000, 65_536][number as usize % 6];
                        let len = if number.is_multiple_of(500) { 1 << 20 } else { len };
                        let pages = (0..len).step_by(4096).map(|at| memory.slice(at..len.min(at + 4096)));
                        let mut head = Writer::new();
                        CallHeader::new(xid, 100_003, 3, 0).encode(&mut head);
                        let call = Message::new(head.finish().expect("a short head")).raw(pages.collect());
                        pending.expect(xid, Layout::Whole).expect("a new xid");
                        let request = calls.start(len as u64, xid);
                        waiting.lock().unwrap().insert(xid, request);
                        drop(queue.push(call).expect("an open queue"));
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.join().expect("no panic");
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut answered = 0;
        while let Some((xid, result)) = calls.wait_one(Some(deadline)) {
            assert_eq!(result, Ok(()), "{xid:#x}");
            answered += 1;
        }
        assert_eq!((answered, calls.in_flight()), (CALLS, 0));
        // Everything that is in the queue leaves before the end does.
        queue.close();
        queue.run().expect("an open socket");
        drop(end);
        let called = receiver.join().expect("no panic");
        assert_eq!(queue.stats().messages, u64::from(CALLS) + called as u64);
        called
    })
}

/// The end of the connection, however it comes.
struct End<'a>(&'a TcpStream, &'a Queue);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.1.close();
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Replies, each to whoever waits for it; and the server's own calls, answered at once. Returns how many those were.
fn receive(
    mut receiver: Receiver<SocketRef<Arc<TcpStream>>, RecordDeframer>,
    waiting: &Waiting,
    queue: &Queue,
) -> usize {
    let mut called = 0;
    loop {
        let received = receiver.receive(&mut (), |record| {
            let bytes = record.to_bytes();
            if record.direction() == Direction::Call {
                let call = CallHeader::decode(&mut Reader::new(&bytes)).expect("a call");
                assert_eq!((call.program, call.xid), (CALLBACK, record.xid()));
                let mut head = Writer::new();
                ReplyHeader::success(call.xid).encode(&mut head);
                let reply = Message::new(head.finish().expect("a short head")).raw(Vec::new());
                drop(queue.push_control(reply).expect("room"));
                called += 1;
                return ControlFlow::Continue(());
            }
            let mut reply = Reader::new(&bytes);
            let result = match ReplyHeader::decode(&mut reply) {
                Ok(header) if header.is_success() => Ok(()),
                Ok(header) => Err(header.reply.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Some(request) = waiting.lock().unwrap().remove(&record.xid()) {
                request.complete(result);
            }
            ControlFlow::Continue(())
        });
        match received {
            Ok(Received::Blocked) => {
                receiver.transport().wait(Interest::Readable, None).expect("a socket");
            }
            Ok(Received::Eof) | Err(_) => return called,
            Ok(_) => {}
        }
    }
}
