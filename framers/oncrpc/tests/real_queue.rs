//! Many threads, one connection, a real NFS server: what made NFS calls tear elsewhere (ntirpc 294, Linux `xprtsock.c`'s
//! check for aborted transmits) was progress kept with the request, and two threads in the stream.
//!
//! Skipped, saying so, on machines without the server; `SEGCHAIN_REQUIRE_PEERS` makes that a failure.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use segchain::queue::SendQueue;
use segchain::recv::{Received, Receiver};
use segchain::transport::{Interest, SocketRef, Wait};
use segchain::window::{InFlight, Request, Window};
use segchain_oncrpc::rpc::{CallHeader, ReplyHeader};
use segchain_oncrpc::xdr::{Reader, Writer};
use segchain_oncrpc::{Layout, Message, Pending, RecordDeframer, RecordFramer};
use segchain_testkit::peers::{Nfs, require};

const THREADS: u32 = 8;
const CALLS: u32 = 20_000;

type Calls = InFlight<u32, (), String>;
type Waiting = Arc<Mutex<HashMap<u32, Request<u32, (), String>>>>;

#[test]
fn eight_threads_share_a_connection_to_a_real_server_and_every_call_is_answered() {
    let Some(nfs) = require(Nfs::start()) else { return };
    let stream = Arc::new(TcpStream::connect(nfs.nfs_addr()).expect("a server"));
    stream.set_nodelay(true).expect("a TCP socket");
    let socket = SocketRef::new(stream.clone());
    let pending = Pending::new();
    let receiver = Receiver::new(socket.clone(), RecordDeframer::new(pending.clone()));
    let queue: SendQueue<Message<'static, Vec<Bytes>>, _, _> = SendQueue::new(RecordFramer::new(), socket);
    let calls: Calls = InFlight::new(Window::new(64 << 20, 256));
    let waiting = Waiting::default();
    let memory = Bytes::from(vec![0x5a; 1 << 20]);
    let next = AtomicU32::new(0);

    thread::scope(|scope| {
        scope.spawn(|| queue.run());
        scope.spawn(|| receive(receiver, &waiting));
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
        queue.close();
        stream.shutdown(Shutdown::Both).expect("an open socket");
    });
    let stats = queue.stats();
    assert_eq!(stats.messages, u64::from(CALLS));
}

fn receive(mut receiver: Receiver<SocketRef<Arc<TcpStream>>, RecordDeframer>, waiting: &Waiting) {
    loop {
        let received = receiver.receive(&mut (), |record| {
            let bytes = record.to_bytes();
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
            Ok(Received::Eof) | Err(_) => return,
            Ok(_) => {}
        }
    }
}
