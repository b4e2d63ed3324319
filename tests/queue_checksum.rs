//! A checksum of the user's own in a queue: its code runs while no lock is held, and may panic.

use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use segchain::chain::{Abort, ChainBuilder, ChainError};
use segchain::checksum::Checksum;
use segchain::framer::Framer;
use segchain::queue::{Flushed, QueueOptions, Queued, Revocation, SendQueue, Ticket};
use segchain::send::{Blocked, SendErrorKind};
use segchain::transport::{SendFlags, VectoredSend};

type Hook = Arc<Mutex<Option<Box<dyn Fn() + Send>>>>;

/// The sum of all bytes; runs the hook whenever it digests. Not linear as far as anybody knows.
#[derive(Clone)]
struct Watched(u8, Hook);

impl Checksum for Watched {
    fn update(&mut self, bytes: &[u8]) {
        if let Some(hook) = &*self.1.lock().expect("a hook that does not panic") {
            hook();
        }
        self.0 = bytes.iter().fold(self.0, |sum, byte| sum.wrapping_add(*byte));
    }
    fn width(&self) -> usize {
        1
    }
    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(&[self.0]);
    }
}

struct Message(Bytes);

impl Queued for Message {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

/// A body, its sum, and whether it counts.
struct Sums(Hook);

impl Framer<Message> for Sums {
    type Error = ChainError;
    fn overhead(&self, _: u64) -> u64 {
        2
    }
    fn frame<'m>(&mut self, message: Message, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
    where
        Message: 'm,
    {
        let body = out.push(message.0);
        let trailer = out.put(b"\0C");
        out.slot(body..trailer, Watched(0, self.0.clone()), trailer.at(0, 1));
        out.on_abort(Abort::Patch { at: trailer.at(1, 1), bytes: b"A" });
        out.check()
    }
}

/// Takes so many bytes in all.
struct Full(AtomicUsize, Mutex<Vec<u8>>);

impl VectoredSend for Full {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], _: SendFlags) -> io::Result<usize> {
        let mut room = self.0.load(Ordering::SeqCst);
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut wire = self.1.lock().expect("no panic");
        let before = wire.len();
        for buf in bufs {
            let n = buf.len().min(room);
            wire.extend_from_slice(&buf[..n]);
            room -= n;
        }
        self.0.store(room, Ordering::SeqCst);
        Ok(wire.len() - before)
    }
}

type Queue = SendQueue<Message, Sums, Full>;

/// Two messages of three bytes, the first of which is half-sent.
fn half_sent(hook: &Hook) -> (Queue, [Ticket<Message>; 2]) {
    let options = QueueOptions::new().pushers_flush(false);
    let transport = Full(AtomicUsize::new(1), Mutex::default());
    let queue = Queue::with_options(Sums(hook.clone()), transport, options);
    let tickets = [b"\x01\x02\x03", b"\x04\x05\x06"]
        .map(|body| queue.try_push(Message(Bytes::from_static(body))).expect("room"));
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    (queue, tickets)
}

#[test]
fn a_checksum_may_look_at_the_queue_while_its_message_is_revoked() {
    let hook = Hook::default();
    let (queue, [first, second]) = half_sent(&hook);
    let looks = Arc::new(AtomicUsize::new(0));
    *hook.lock().expect("no panic") = Some(Box::new({
        let (queue, looks) = (queue.clone(), looks.clone());
        move || {
            // From another thread, for a lock that this one holds would be told as a panic by some.
            let queue = queue.clone();
            let (done, looked) = std::sync::mpsc::channel();
            thread::spawn(move || done.send((queue.len(), queue.live_tickets())));
            let seen = looked.recv_timeout(Duration::from_secs(20)).expect("the queue is not locked");
            assert_eq!(seen, (2, 2));
            looks.fetch_add(1, Ordering::SeqCst);
        }
    }));
    assert!(matches!(first.revoke(), Revocation::Aborted));
    assert!(looks.load(Ordering::SeqCst) > 0);
    *hook.lock().expect("no panic") = None;
    queue.transport().0.store(100, Ordering::SeqCst);
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert_eq!(second.result(), Some(Ok(())));
    assert_eq!(*queue.transport().1.lock().expect("no panic"), b"\x01\0\0\x01A\x04\x05\x06\x0fC");
}

#[test]
fn a_checksum_that_panics_in_a_revoke_ends_the_stream_and_everybody_is_told() {
    let hook = Hook::default();
    let (queue, [first, second]) = half_sent(&hook);
    let panics = Arc::new(AtomicUsize::new(0));
    // The hook's own lock is not to be poisoned.
    let boom = hook.lock().expect("no panic").replace(Box::new({
        let panics = panics.clone();
        move || {
            panics.fetch_add(1, Ordering::SeqCst);
            panic!("a checksum that panics")
        }
    }));
    assert!(boom.is_none());
    assert!(catch_unwind(AssertUnwindSafe(|| first.revoke())).is_err());
    assert_eq!(panics.load(Ordering::SeqCst), 1);
    let death = second.result().expect("an answer").expect_err("a dead stream");
    assert_eq!((death.kind(), death.sent()), (SendErrorKind::ShutDown, 0));
    assert!(queue.flush().is_err() && queue.is_empty());
    drop(second);
    assert_eq!(queue.live_tickets(), 0);
}
