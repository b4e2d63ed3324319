//! How often a queue allocates. A binary of its own: its allocator counts, each thread by itself.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use allocation_counter::measure;
use bytes::Bytes;
use segchain::chain::{ChainBuilder, ChainError};
use segchain::checksum::Crc32c;
use segchain::framer::Framer;
use segchain::queue::{Flushed, QueueOptions, Queued, SendQueue, Ticket};
use segchain::send::Blocked;
use segchain::transport::{SendFlags, VectoredSend};
use segchain::window::{InFlight, Window};

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
        8
    }
    fn frame<'m>(&mut self, record: Record, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
    where
        Record: 'm,
    {
        out.put_u32_be(record.0.len() as u32);
        let body = out.push(record.0);
        let crc = out.put_u32_le(0);
        out.slot(body..crc, Crc32c::raw(0), crc);
        out.check()
    }
}

/// Takes everything, or nothing.
#[derive(Default)]
struct Nothing {
    full: AtomicBool,
}

impl VectoredSend for Nothing {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], _: SendFlags) -> io::Result<usize> {
        if self.full.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(11));
        }
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }
}

type Queue = SendQueue<Record, Lengths, Nothing>;

fn quiet() -> Queue {
    SendQueue::with_options(Lengths, Nothing::default(), QueueOptions::new().pushers_flush(false))
}

/// What a round allocates once everything has grown to its size.
fn steady(rounds: u32, mut round: impl FnMut()) -> u64 {
    for _ in 0..3 {
        round();
    }
    measure(|| {
        for _ in 0..rounds {
            round();
        }
    })
    .count_total
}

#[test]
fn a_push_that_flushes_allocates_nothing() {
    for len in [10, 1000, 4096, 60_000] {
        let body = Bytes::from(vec![1; len]);
        let queue = SendQueue::new(Lengths, Nothing::default());
        let allocated = steady(1000, || {
            let ticket = queue.try_push(Record(body.clone())).expect("room");
            assert_eq!(ticket.result(), Some(Ok(())));
        });
        assert_eq!(allocated, 0, "{len} bytes");
    }
}

#[test]
fn messages_that_leave_many_a_call_allocate_nothing_with_tickets_or_without() {
    let body = Bytes::from(vec![1; 100]);
    for count in [1, 4, 5, 64, 1000] {
        for keep in [false, true] {
            let queue = quiet();
            let mut tickets: Vec<Ticket<Record>> = Vec::with_capacity(count);
            let allocated = steady(20, || {
                for _ in 0..count {
                    let ticket = queue.try_push(Record(body.clone())).expect("room");
                    if keep {
                        tickets.push(ticket);
                    }
                }
                assert_eq!(queue.flush(), Ok(Flushed::Idle));
                assert!(tickets.drain(..).all(|ticket| ticket.result() == Some(Ok(()))));
            });
            assert_eq!(allocated, 0, "{count} messages a flush, tickets kept: {keep}");
        }
    }
}

#[test]
fn a_blocked_stream_that_goes_on_allocates_nothing() {
    let body = Bytes::from(vec![1; 3000]);
    let queue = quiet();
    let allocated = steady(100, || {
        queue.transport().full.store(true, Ordering::Relaxed);
        let first = queue.try_push(Record(body.clone())).expect("room");
        assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
        let second = queue.push_control(Record(body.clone())).expect("room");
        queue.transport().full.store(false, Ordering::Relaxed);
        assert_eq!(queue.flush(), Ok(Flushed::Idle));
        assert_eq!((first.result(), second.result()), (Some(Ok(())), Some(Ok(()))));
    });
    assert_eq!(allocated, 0);
}

struct Silent;

impl Wake for Silent {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_ticket_that_is_awaited_and_a_task_that_flushes_allocate_nothing() {
    let body = Bytes::from(vec![1; 100]);
    let queue = quiet();
    let waker = Waker::from(Arc::new(Silent));
    let mut context = Context::from_waker(&waker);
    let allocated = steady(100, || {
        assert!(queue.poll_work(&mut context).is_pending());
        let mut tickets: [Ticket<Record>; 8] =
            std::array::from_fn(|_| queue.try_push(Record(body.clone())).expect("room"));
        for ticket in &mut tickets {
            assert!(pin!(ticket).poll(&mut context).is_pending());
        }
        assert!(queue.poll_work(&mut context).is_ready());
        assert_eq!(queue.flush(), Ok(Flushed::Idle));
        for ticket in &mut tickets {
            assert_eq!(pin!(ticket).poll(&mut context), Poll::Ready(Ok(())));
        }
    });
    assert_eq!(allocated, 0);
}

#[test]
fn a_push_future_with_room_allocates_nothing() {
    let body = Bytes::from(vec![1; 100]);
    let queue = SendQueue::new(Lengths, Nothing::default());
    let waker = Waker::from(Arc::new(Silent));
    let mut context = Context::from_waker(&waker);
    let allocated = steady(100, || {
        let mut push = pin!(queue.push_async(Record(body.clone())));
        assert!(matches!(push.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    });
    assert_eq!(allocated, 0);
}

#[test]
fn permits_and_requests_allocate_nothing() {
    let window = Window::new(1000, 8);
    let requests: InFlight<u64, u64, ()> = InFlight::new(window.clone());
    let waker = Waker::from(Arc::new(Silent));
    let mut context = Context::from_waker(&waker);
    let allocated = steady(100, || {
        let permits: [_; 8] = std::array::from_fn(|_| window.acquire(100));
        let mut waiting = pin!(window.acquire_async(900));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(permits);
        let Poll::Ready(permit) = waiting.as_mut().poll(&mut context) else { panic!("not granted") };
        requests.start_with(permit, 7).complete(Ok(8));
        assert_eq!(requests.wait_one(None), Some((7, Ok(8))));
    });
    // Whoever is woken costs a list of them.
    assert!(allocated <= 100, "{allocated}");
}
