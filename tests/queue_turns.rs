//! Whoever flushes has a turn, and is relieved after it: no thread serves everybody for ever, and nothing is left lying.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use bytes::Bytes;
use segchain::chain::{ChainBuilder, ChainError};
use segchain::checksum::Crc32c;
use segchain::framer::Framer;
use segchain::queue::{Flushed, QueueOptions, Queued, SendQueue};
use segchain::send::SendErrorKind;
use segchain::transport::{Interest, SendFlags, VectoredSend, Wait};

struct Plain(Bytes);

impl Queued for Plain {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

struct AsItIs;

impl Framer<Plain> for AsItIs {
    type Error = ChainError;

    fn overhead(&self, _: u64) -> u64 {
        0
    }

    fn frame<'m>(&mut self, message: Plain, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
    where
        Plain: 'm,
    {
        out.push(message.0);
        out.check()
    }
}

/// Takes one byte a call, slowly, and remembers who called.
#[derive(Clone, Default)]
struct Slow(Arc<Mutex<(Vec<u8>, HashSet<ThreadId>)>>);

impl VectoredSend for Slow {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], _: SendFlags) -> io::Result<usize> {
        thread::sleep(Duration::from_micros(200));
        let mut wire = self.0.lock().unwrap();
        wire.0.push(bufs[0][0]);
        wire.1.insert(thread::current().id());
        Ok(1)
    }
}

impl Wait for Slow {
    fn wait(&self, _: Interest, _: Option<Duration>) -> io::Result<bool> {
        Ok(true)
    }
}

#[test]
fn a_flusher_that_has_had_its_turn_is_relieved_by_whoever_pushes() {
    let wire = Slow::default();
    let queue = SendQueue::with_options(AsItIs, wire.clone(), QueueOptions::new().turn_bytes(10));
    // Some seconds' worth: the first pusher would be here until the end.
    let long = queue.clone();
    let first = thread::spawn(move || {
        drop(long.push(Plain(vec![1; 20_000].into())).expect("room"));
        Instant::now()
    });
    while wire.0.lock().unwrap().0.len() < 20 {
        thread::sleep(Duration::from_millis(1));
    }
    let ticket = queue.push(Plain(vec![2; 5].into())).expect("room");
    let second_done = Instant::now();
    let first_done = first.join().expect("no panic");
    assert!(first_done < second_done, "the second took over, and the first came back");
    assert_eq!(queue.wait(&ticket, Some(Instant::now() + Duration::from_secs(60))), Some(Ok(())));
    let wire = wire.0.lock().unwrap();
    assert_eq!(wire.1.len(), 2);
    assert!(wire.0[..20_000].iter().all(|byte| *byte == 1) && wire.0[20_000..] == [2; 5]);
}

#[test]
fn an_event_loop_gets_its_thread_back_after_a_turn() {
    let wire = Slow::default();
    let options = QueueOptions::new().turn_bytes(10).pushers_flush(false);
    let queue = SendQueue::with_options(AsItIs, wire.clone(), options);
    let ticket = queue.try_push(Plain(vec![1; 25].into())).expect("room");
    assert_eq!(queue.flush(), Ok(Flushed::Budget));
    assert_eq!(wire.0.lock().unwrap().0.len(), 10);
    assert_eq!(queue.flush(), Ok(Flushed::Budget));
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert_eq!(ticket.result(), Some(Ok(())));
}

#[test]
fn a_ticket_of_another_queue_is_not_answered_for() {
    let options = QueueOptions::new().pushers_flush(false);
    let [one, other] = [(), ()].map(|()| SendQueue::with_options(AsItIs, Slow::default(), options.clone()));
    let sent = one.try_push(Plain(vec![1; 3].into())).expect("room");
    let unsent = other.try_push(Plain(vec![2; 3].into())).expect("room");
    assert_eq!(one.flush(), Ok(Flushed::Idle));
    assert_eq!(one.wait(&unsent, Some(Instant::now() + Duration::from_millis(20))), None);
    assert_eq!((sent.result(), unsent.result()), (Some(Ok(())), None));
}

/// Spends a number, and builds a chain that cannot be finished: two slots, each in the other's cover.
struct Numbered {
    accepts_gap: bool,
}

impl Framer<Plain> for Numbered {
    type Error = ChainError;

    fn overhead(&self, _: u64) -> u64 {
        8
    }

    fn accepts_gap(&self) -> bool {
        self.accepts_gap
    }

    fn frame<'m>(&mut self, message: Plain, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
    where
        Plain: 'm,
    {
        if message.0.is_empty() {
            let (first, second) = (out.put_u32_le(0), out.put_u32_le(0));
            out.slot(second..out.here(), Crc32c::new(), first);
            out.slot(first..second, Crc32c::new(), second);
        }
        out.push(message.0);
        out.check()
    }
}

#[test]
fn a_number_that_is_spent_in_vain_ends_the_stream_where_the_peer_would_miss_it() {
    for accepts_gap in [true, false] {
        let queue = SendQueue::new(Numbered { accepts_gap }, Slow::default());
        let bad = queue.try_push(Plain(Bytes::new())).expect("room");
        let error = bad.result().expect("known").expect_err("not framed");
        assert_eq!(error.kind(), SendErrorKind::NotFramed);
        let next = queue.try_push(Plain(vec![1].into()));
        if accepts_gap {
            assert_eq!(next.expect("a healthy queue").result(), Some(Ok(())));
        } else {
            assert!(next.is_err() && queue.death().is_some());
        }
    }
}
