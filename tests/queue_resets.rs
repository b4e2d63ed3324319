//! A thousand connections that are reset in the middle of a message. Alone in its process, so that descriptors can be counted.

use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use segchain::chain::{ChainBuilder, ChainError};
use segchain::framer::{BodyReq, Framer, Place};
use segchain::queue::{QueueOptions, Queued, SendQueue};
use segchain::recv::{Receiver, RecvOptions};
use segchain::slab::SlabPool;
use segchain::straight::Straight;
use segchain::transport::SocketRef;
use segchain::window::Window;
use segchain_testkit::naive::{Random, seed};

const RESETS: u64 = 1000;
const PRODUCERS: u64 = 3;
/// What the kernel is asked to hold for a socket, each way. It may hold twice that (socket(7)).
const KERNEL: usize = 16 << 10;
/// A record that those buffers and the receiver's cannot hold.
const LARGE: usize = 400_000;
const LONG: Duration = Duration::from_secs(120);

/// A length, and that many bytes.
struct Record(Bytes);

impl Queued for Record {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

struct Lengths;

impl Framer<Record> for Lengths {
    type Error = ChainError;
    fn overhead(&self, _: u64) -> u64 {
        4
    }
    fn frame<'m>(&mut self, record: Record, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
    where
        Record: 'm,
    {
        out.put_u32_be(record.0.len() as u32);
        out.push(record.0);
        out.check()
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Takes some records into slabs, waits for the start of another, then resets the connection: unread bytes are there, and it
/// does not linger (RFC 1122 section 4.2.2.13).
fn take_and_reset(peer: &TcpStream, records: usize, pool: &SlabPool) {
    let deframer = Straight::new(|mut wire| async move {
        let len = u32::from_be_bytes(wire.array().await);
        Ok::<_, std::io::Error>(Some(
            wire.body(BodyReq::new(len.into(), Place::Slabs { offset: 0 })).await.landed,
        ))
    });
    let options = RecvOptions::default();
    let mut receiver = Receiver::with_options(SocketRef::new(peer), deframer, options, pool.clone());
    for _ in 0..records {
        assert!(matches!(receiver.next(&mut (), None, drop), Ok(Some(()))), "the producers go on");
    }
    assert!(matches!(peer.peek(&mut [0]), Ok(1)), "the producers go on");
    socket2::SockRef::from(peer).set_linger(Some(Duration::ZERO)).expect("a socket");
}

/// Pushes until the stream ends; how many left whole, and how many did not.
fn produce(
    queue: &SendQueue<Record, Lengths, SocketRef<TcpStream>>,
    window: &Window,
    mut length: impl FnMut() -> usize,
) -> (u64, u64) {
    let (mut sent, mut failed) = (0, 0);
    loop {
        let body = Bytes::from(vec![7; length()]);
        let permit = window.acquire(body.len() as u64);
        let result = match queue.push(Record(body)) {
            Ok(ticket) => queue.wait(&ticket, Some(Instant::now() + LONG)).expect("no silence").is_ok(),
            Err(refused) => {
                assert!(refused.error().is_some(), "not only full");
                return (sent, failed);
            }
        };
        drop(permit);
        if result { sent += 1 } else { failed += 1 }
    }
}

#[test]
fn after_a_thousand_resets_no_ticket_permit_slab_or_descriptor_is_left() {
    let seed = seed("a_thousand_real_resets");
    let (done, ended) = channel();
    let run = thread::spawn(move || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let pool = SlabPool::new(16);
        let window = Window::new(300_000, 8);
        socket2::SockRef::from(&listener).set_recv_buffer_size(KERNEL).expect("a socket");
        let before = descriptors();
        let (mut sent, mut failed, mut taken, mut in_mid_message) = (0, 0, 0, 0);
        for case in 0..RESETS {
            let mut random = Random::new(seed + case);
            let socket = TcpStream::connect(address).expect("loopback");
            let (peer, _) = listener.accept().expect("connected");
            socket2::SockRef::from(&socket).set_send_buffer_size(KERNEL).expect("a socket");
            // In every other case no record but a half-sent one can be on the wire when the reset comes.
            let large = case % 2 == 0;
            let options = QueueOptions::new().bounds(100_000, 4);
            let queue = SendQueue::with_options(Lengths, SocketRef::new(socket), options);
            thread::scope(|scope| {
                let producers: Vec<_> = (0..PRODUCERS)
                    .map(|producer| {
                        let mut random = Random::new(seed + RESETS * (producer + 1) + case);
                        let length = move || if large { LARGE } else { 1 + random.below(60_000) };
                        let (queue, window) = (&queue, &window);
                        scope.spawn(move || produce(queue, window, length))
                    })
                    .collect();
                let records = random.below(if large { 4 } else { 20 });
                take_and_reset(&peer, records, &pool);
                taken += records as u64;
                drop(peer);
                for producer in producers {
                    let (more, fewer) = producer.join().expect("no panic");
                    (sent, failed) = (sent + more, failed + fewer);
                }
            });
            let half_sent = queue.death().is_some_and(|death| death.sent() > 0);
            assert!(half_sent || !large, "seed {}: {queue:?}", seed + case);
            in_mid_message += u64::from(half_sent);
            assert!(queue.is_empty() && queue.live_tickets() == 0, "seed {}: {queue:?}", seed + case);
        }
        println!("{sent} records sent, {failed} failed, {in_mid_message} resets in the middle of a record");
        // Each reset fails the message that it struck.
        assert!(sent >= taken && failed >= RESETS);
        assert_eq!((window.bytes_in_flight(), window.requests_in_flight()), (0, 0));
        assert_eq!((pool.live(), descriptors()), (0, before));
        done.send(()).expect("a test");
    });
    // What panics ends the channel as well.
    let hangs = ended.recv_timeout(LONG) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    assert!(!hangs, "it hangs");
    run.join().expect("no panic");
}
