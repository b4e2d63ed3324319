//! The queue, case by case: what public reports say went wrong elsewhere, and every promise of its documentation.
//!
//! Nothing here waits without a limit: [`within`] fails a test that hangs.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, Read as _};
use std::net::{TcpListener, TcpStream};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use segchain::chain::{Abort, ChainBuilder};
use segchain::checksum::Crc32c;
use segchain::framer::Framer;
use segchain::queue::{Flushed, PushError, QueueOptions, Queued, Revocation, SendQueue, Ticket, Work};
use segchain::send::{Blocked, SendError, SendErrorKind, SendOptions};
use segchain::transport::{Interest, MAX_SLICES, SendFlags, SocketRef, VectoredSend, Wait};
use segchain_testkit::naive::{Random, crc, seed};

/// Nothing here takes so long.
const LONG: Duration = Duration::from_secs(30);
/// Long enough for another thread to come to where it waits.
const SHORT: Duration = Duration::from_millis(40);

/// Runs a test in a thread of its own, and fails it if it hangs.
fn within<R: Send + 'static>(test: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = channel();
    let thread = thread::spawn(move || {
        let _ = done.send(test());
    });
    match result.recv_timeout(LONG) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it sends before it ends"),
        },
    }
}

#[allow(clippy::unnecessary_wraps, reason = "what a wait takes")]
fn soon() -> Option<Instant> {
    Some(Instant::now() + LONG / 3)
}

// ---- messages

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Half-sent it goes on as zeros, with `A` in place of `C`.
    Abortable,
    /// The same with the mark in front of the payload.
    EarlyMark,
    /// Half-sent it ends the stream.
    Close,
    /// Half-sent it is finished.
    Finish,
    Refused,
    Panics,
}

#[derive(Debug)]
struct Message {
    body: Bytes,
    kind: Kind,
    /// Dropped with the message if the framer does not come to it.
    #[allow(dead_code, reason = "it is only dropped")]
    tag: Option<Tag>,
}

type Tag = Box<dyn fmt::Debug + Send>;

fn message(len: usize) -> Message {
    of_kind(Kind::Abortable, len)
}

fn of_kind(kind: Kind, len: usize) -> Message {
    Message { body: Bytes::from(vec![0x42; len]), kind, tag: None }
}

impl Queued for Message {
    fn bytes(&self) -> u64 {
        self.body.len() as u64
    }
}

/// Bytes of a frame besides the body.
const OVERHEAD: usize = 10;

#[derive(Default)]
struct Frames {
    gap: bool,
    number: u8,
}

impl Framer<Message> for Frames {
    type Error = String;
    fn overhead(&self, _: u64) -> u64 {
        OVERHEAD as u64
    }
    fn accepts_gap(&self) -> bool {
        self.gap
    }
    fn frame<'m>(&mut self, message: Message, out: &mut ChainBuilder<'m>) -> Result<(), String>
    where
        Message: 'm,
    {
        match message.kind {
            Kind::Refused => return Err(format!("{} bytes are too odd", message.body.len())),
            Kind::Panics => panic!("a framer that panics"),
            _ => {}
        }
        out.copy_below(0);
        let mark = if message.kind == Kind::EarlyMark { b'E' } else { b'-' };
        let early = out.put(&[self.number, mark]);
        out.put_u16_be(message.body.len() as u16);
        let body = out.push(message.body);
        let trailer = out.put(&[0, b'C', 0, 0, 0, 0]);
        out.slot(body..trailer, Crc32c::raw(0), trailer.at(2, 4));
        match message.kind {
            Kind::Abortable => out.on_abort(Abort::Patch { at: trailer.at(1, 1), bytes: b"A" }),
            Kind::EarlyMark => out.on_abort(Abort::Patch { at: early.at(1, 1), bytes: b"A" }),
            Kind::Finish => out.on_abort(Abort::Finish),
            Kind::Close | Kind::Refused | Kind::Panics => {}
        }
        out.check().map_err(|error| error.to_string())?;
        self.number = self.number.wrapping_add(1);
        Ok(())
    }
}

/// A frame as it was read back.
#[derive(Debug, PartialEq)]
struct Read {
    number: u8,
    aborted: bool,
    body: Vec<u8>,
}

/// Takes whole frames apart, and fails the test on anything that is torn.
fn frames(mut wire: &[u8]) -> Vec<Read> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = wire.split_first_chunk::<4>() {
        let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        assert!(rest.len() >= len + 6, "a torn frame at the end");
        let (body, rest) = rest.split_at(len);
        let (trailer, rest) = rest.split_at(6);
        assert_eq!(trailer[2..], crc(0x82f6_3b78, 0, body).to_le_bytes(), "the checksum of a frame");
        let aborted = trailer[1] == b'A' || head[1] == b'A';
        frames.push(Read { number: head[0], aborted, body: body.to_vec() });
        wire = rest;
    }
    assert!(wire.is_empty(), "a torn header");
    frames
}

// ---- the stream

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    All,
    Take(usize),
    Again,
    NoMemory,
    Reset,
    /// Stays in the call until the gate opens, then takes everything.
    Hold,
    /// The same, then takes so many bytes.
    HoldTake(usize),
    /// The same, then takes none.
    HoldAgain,
    Panics,
}

/// A stream that follows a script, and fails the test if two flushers are in it, or one comes after the end.
struct Pipe {
    state: Mutex<PipeState>,
    changed: Condvar,
}

#[allow(clippy::struct_excessive_bools, reason = "they are independent of each other")]
struct PipeState {
    steps: VecDeque<Step>,
    then: Step,
    wire: Vec<u8>,
    /// Bytes offered, slices, and whether MSG_MORE was set.
    calls: Vec<(usize, usize, bool)>,
    pushed_out: usize,
    in_call: bool,
    held: bool,
    open: bool,
    ended: bool,
    /// Whether the last call found it full.
    blocked: bool,
    waits: usize,
    /// Runs in every call, without the lock.
    during: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Pipe {
    fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self {
            state: Mutex::new(PipeState {
                steps: steps.into_iter().collect(),
                then: Step::All,
                wire: Vec::new(),
                calls: Vec::new(),
                pushed_out: 0,
                in_call: false,
                held: false,
                open: false,
                ended: false,
                blocked: false,
                waits: 0,
                during: None,
            }),
            changed: Condvar::new(),
        }
    }

    fn then(self, step: Step) -> Self {
        self.state().then = step;
        self
    }

    fn state(&self) -> MutexGuard<'_, PipeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on like this.
    fn go_on(&self, steps: &[Step], then: Step) {
        let mut state = self.state();
        state.steps = steps.iter().copied().collect();
        state.then = then;
        drop(state);
        self.changed.notify_all();
    }

    fn open_gate(&self) {
        self.state().open = true;
        self.changed.notify_all();
    }

    /// Until a call is held.
    fn until_held(&self) {
        let mut state = self.state();
        let until = Instant::now() + LONG;
        while !state.held {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no call came");
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Until somebody waits for it.
    fn until_waited_for(&self) {
        let until = Instant::now() + LONG;
        while self.state().waits == 0 {
            assert!(Instant::now() < until, "nobody waits");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn wire(&self) -> Vec<u8> {
        self.state().wire.clone()
    }

    fn frames(&self) -> Vec<Read> {
        frames(&self.wire())
    }

    fn calls(&self) -> Vec<(usize, usize, bool)> {
        self.state().calls.clone()
    }
}

impl VectoredSend for Pipe {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let offered: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut state = self.state();
        assert!(!state.in_call, "two flushers");
        assert!(!state.ended, "a call after the end of the stream");
        assert!(offered > 0 && bufs.len() <= MAX_SLICES);
        state.in_call = true;
        state.calls.push((offered, bufs.len(), flags.contains(SendFlags::MORE)));
        if let Some(during) = state.during.clone() {
            drop(state);
            during();
            state = self.state();
        }
        let then = state.then;
        let step = state.steps.pop_front().unwrap_or(then);
        if matches!(step, Step::Hold | Step::HoldTake(_) | Step::HoldAgain) {
            state.held = true;
            self.changed.notify_all();
            let until = Instant::now() + LONG;
            while !state.open {
                let left = until.saturating_duration_since(Instant::now());
                assert!(!left.is_zero(), "the gate stays shut");
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            (state.held, state.open) = (false, false);
        }
        state.in_call = false;
        state.blocked = matches!(step, Step::Again | Step::HoldAgain);
        let most = match step {
            Step::All | Step::Hold => usize::MAX,
            Step::Take(n) | Step::HoldTake(n) => n,
            Step::Again | Step::HoldAgain => return Err(io::ErrorKind::WouldBlock.into()),
            Step::NoMemory => return Err(io::Error::from_raw_os_error(libc_enobufs())),
            Step::Reset => {
                state.ended = true;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Step::Panics => {
                state.ended = true;
                drop(state);
                panic!("a transport that panics")
            }
        };
        let before = state.wire.len();
        for buf in bufs {
            let n = buf.len().min(most - (state.wire.len() - before));
            state.wire.extend_from_slice(&buf[..n]);
        }
        Ok(state.wire.len() - before)
    }

    fn push_out(&self) {
        self.state().pushed_out += 1;
    }
}

/// ENOBUFS of this system, without a dependency for one number.
fn libc_enobufs() -> i32 {
    if cfg!(target_os = "linux") { 105 } else { 55 }
}

impl Wait for Pipe {
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool> {
        assert_eq!(interest, Interest::Writable);
        let until = Instant::now() + timeout.unwrap_or(LONG);
        let mut state = self.state();
        state.waits += 1;
        loop {
            if state.steps.front().unwrap_or(&state.then) != &Step::Again {
                return Ok(true);
            }
            // A step of the script is one EAGAIN; the last one is for ever.
            if state.steps.pop_front().is_some() {
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                assert!(timeout.is_some(), "a wait without a limit on a stream that never moves");
                return Ok(false);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

type Queue = SendQueue<Message, Frames, Pipe>;

fn queue(steps: impl IntoIterator<Item = Step>) -> Queue {
    SendQueue::new(Frames::default(), Pipe::new(steps))
}

/// Nobody flushes but who is told to.
fn quiet(pipe: Pipe) -> Queue {
    with(pipe, QueueOptions::new().pushers_flush(false))
}

fn with(pipe: Pipe, options: QueueOptions) -> Queue {
    SendQueue::with_options(Frames::default(), pipe, options)
}

fn put(queue: &Queue, message: Message) -> Ticket<Message> {
    queue.try_push(message).expect("room")
}

/// Until somebody waits for a flusher to take a message back.
fn until_revoking<T: VectoredSend>(queue: &SendQueue<Message, Frames, T>) {
    let until = Instant::now() + LONG;
    while !format!("{queue:?}").contains("revoking: 1") {
        assert!(Instant::now() < until, "nobody revokes: {queue:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Everything that was counted is given back.
fn assert_quiescent(queue: &Queue) {
    assert_eq!((queue.len(), queue.live_tickets()), (0, 0), "{queue:?}");
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Woken {
    fn new() -> (Arc<Self>, Waker) {
        let woken = Arc::new(Self::default());
        (woken.clone(), woken.into())
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn failed(error: &SendError) -> (SendErrorKind, u64) {
    (error.kind(), error.sent())
}

const RESET: SendErrorKind = SendErrorKind::Io(io::ErrorKind::ConnectionReset);

// ---- pushing

#[test]
fn a_push_flushes_and_its_ticket_is_resolved_when_it_returns() {
    let queue = queue([]);
    let ticket = put(&queue, message(5));
    assert_eq!(ticket.result(), Some(Ok(())));
    assert_eq!(queue.transport().frames(), [Read { number: 0, aborted: false, body: vec![0x42; 5] }]);
    drop(ticket);
    assert_quiescent(&queue);
}

#[test]
fn try_push_gives_the_message_itself_back_when_bytes_or_messages_are_used_up() {
    let by_bytes = with(Pipe::new([]), QueueOptions::new().pushers_flush(false).bounds(100, 1000));
    let by_count = with(Pipe::new([]), QueueOptions::new().pushers_flush(false).bounds(1000, 2));
    for (queue, fits) in [(by_bytes, 60), (by_count, 20)] {
        let first = put(&queue, message(fits));
        let second = put(&queue, message(30));
        let third = message(20);
        let address = third.body.as_ptr();
        let refused = queue.try_push(third).expect_err("full");
        assert!(refused.is_full() && refused.error().is_none());
        assert_eq!(refused.to_string(), "the queue is full");
        let back = refused.into_message();
        assert_eq!(back.body.as_ptr(), address);
        assert_eq!(queue.flush(), Ok(Flushed::Idle));
        let third = put(&queue, back);
        assert_eq!(queue.flush(), Ok(Flushed::Idle));
        for ticket in [first, second, third] {
            assert_eq!(ticket.result(), Some(Ok(())));
        }
        assert_quiescent(&queue);
    }
}

#[test]
fn a_message_above_the_whole_bound_waits_until_the_queue_is_empty_and_then_is_sent() {
    within(|| {
        let queue = with(Pipe::new([]), QueueOptions::new().pushers_flush(false).bounds(100, 10));
        let small = put(&queue, message(1));
        assert!(queue.try_push(message(5000)).is_err_and(|refused| refused.is_full()));
        let large = queue.push(message(5000)).expect("an open queue");
        assert_eq!(queue.wait(&large, soon()), Some(Ok(())));
        assert_eq!(small.result(), Some(Ok(())));
    });
}

#[test]
fn push_waits_for_room_and_flushes_meanwhile_if_nobody_else_does() {
    within(|| {
        let options = QueueOptions::new().pushers_flush(false).bounds(100, 2);
        let queue = with(Pipe::new([Step::Take(3), Step::Again, Step::Take(20), Step::Again]), options);
        let tickets: Vec<_> = (0..20).map(|_| queue.push(message(40)).expect("an open queue")).collect();
        let last = tickets.last().expect("20 of them");
        assert_eq!(queue.wait(last, soon()), Some(Ok(())));
        assert!(tickets.iter().all(|ticket| ticket.result() == Some(Ok(()))));
        assert_eq!(queue.transport().frames().len(), 20);
    });
}

/// tokio 904, 2325: a cancelled waiter takes its permits with it; e2b-infra 3629: a cancel between look and wait.
#[test]
fn a_push_future_cancelled_at_any_poll_has_pushed_nothing_and_lost_nothing() {
    within(|| {
        let seed = seed("a_push_future_cancelled_at_any_poll");
        for case in 0..5000 {
            let mut random = Random::new(seed + case);
            let options = QueueOptions::new().pushers_flush(random.below(2) == 0).bounds(64, 3);
            let queue = with(Pipe::new([]).then(Step::Again), options);
            let mut pushes: Vec<Option<_>> =
                (0..8).map(|_| Some(Box::pin(queue.push_async(message(1 + random.below(80)))))).collect();
            let (_, waker) = Woken::new();
            let mut tickets = Vec::new();
            for _ in 0..40 {
                let index = random.below(pushes.len());
                match random.below(6) {
                    0 => pushes[index] = None,
                    1 => drop(tickets.pop()),
                    2 => {
                        queue.transport().go_on(&[Step::Take(1 + random.below(60))], Step::Again);
                        let _ = queue.flush();
                    }
                    _ => {
                        let Some(push) = &mut pushes[index] else { continue };
                        if let Poll::Ready(ticket) = push.as_mut().poll(&mut Context::from_waker(&waker)) {
                            tickets.push(ticket.expect("an open queue"));
                            pushes[index] = None;
                        }
                    }
                }
            }
            pushes.clear();
            queue.transport().go_on(&[], Step::All);
            assert_eq!(queue.flush(), Ok(Flushed::Idle), "seed {}", seed + case);
            // All room is there again.
            assert!(queue.is_empty(), "seed {}", seed + case);
            for _ in 0..3 {
                tickets.push(put(&queue, message(20)));
            }
            assert_eq!(queue.flush(), Ok(Flushed::Idle));
            let done = tickets.iter().all(|ticket| ticket.result() == Some(Ok(())));
            assert!(done, "seed {}", seed + case);
            drop(tickets);
            assert_eq!(queue.live_tickets(), 0, "seed {}", seed + case);
            frames(&queue.transport().wire());
        }
    });
}

#[test]
fn a_push_future_is_woken_when_room_appears_and_told_when_the_queue_ends() {
    let options = QueueOptions::new().pushers_flush(false).bounds(100, 1);
    let queue = with(Pipe::new([]), options);
    let first = put(&queue, message(10));
    let (woken, waker) = Woken::new();
    let mut context = Context::from_waker(&waker);
    let mut push = pin!(queue.push_async(message(10)));
    assert!(push.as_mut().poll(&mut context).is_pending());
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert_eq!((first.result(), woken.count()), (Some(Ok(())), 1));
    assert!(matches!(push.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    let mut late = pin!(queue.push_async(message(10)));
    assert!(late.as_mut().poll(&mut context).is_pending());
    queue.shut_down();
    assert_eq!(woken.count(), 2);
    let Poll::Ready(Err(refused)) = late.as_mut().poll(&mut context) else { panic!("not refused") };
    assert_eq!(refused.error().map(SendError::kind), Some(SendErrorKind::ShutDown));
}

#[test]
fn closing_tells_push_futures_that_wait_for_room_though_the_stream_never_moves_again() {
    let queue = with(Pipe::new([]).then(Step::Again), QueueOptions::new().bounds(100, 1));
    let first = put(&queue, message(10));
    let mut pushes: Vec<_> = (0..3).map(|_| Box::pin(queue.push_async(message(10)))).collect();
    let woken: Vec<_> = pushes
        .iter_mut()
        .map(|push| {
            let (woken, waker) = Woken::new();
            assert!(push.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            woken
        })
        .collect();
    queue.close();
    assert!(woken.iter().all(|woken| woken.count() == 1));
    for push in &mut pushes {
        let Poll::Ready(Err(refused)) = push.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("not refused")
        };
        assert_eq!(refused.into_message().body.len(), 10);
    }
    assert_eq!(first.result(), None, "what is in the queue is still to be sent");
}

/// ceph 44289: queued on while the socket was blocked. Here the bound holds, and a ticket's place is used again.
#[test]
fn ten_thousand_sends_on_a_blocked_stream_are_bounded_and_tickets_take_no_memory_of_their_own() {
    let queue = with(Pipe::new([]).then(Step::Again), QueueOptions::new().bounds(10_000, 50));
    let mut refused = 0;
    for _ in 0..10_000 {
        match queue.try_push(message(300)) {
            Ok(ticket) => drop(ticket),
            Err(error) => refused += usize::from(error.is_full()),
        }
    }
    assert_eq!((queue.len(), refused), (33, 9967));
    assert_eq!(queue.live_tickets(), 33);
    queue.transport().go_on(&[], Step::All);
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    for _ in 0..10_000 {
        drop(put(&queue, message(3)));
    }
    assert_quiescent(&queue);
}

// ---- control lane

#[test]
fn a_control_message_goes_between_two_bulk_messages_and_never_into_one() {
    let options = QueueOptions::new().pushers_flush(false).batch_bytes(1);
    let queue = with(Pipe::new([Step::Take(7), Step::Again]), options);
    let bulk: Vec<_> = (0..4).map(|_| put(&queue, message(100))).collect();
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    let control = queue.push_control(message(1)).expect("room");
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    let order: Vec<_> = queue.transport().frames().iter().map(|frame| frame.body.len()).collect();
    assert_eq!(order, [100, 1, 100, 100, 100]);
    assert!(bulk.iter().chain([&control]).all(|ticket| ticket.result() == Some(Ok(()))));
}

#[test]
fn the_control_lane_has_a_bound_of_its_own() {
    let options = QueueOptions::new().pushers_flush(false).control_messages(3).bounds(10, 1);
    let queue = with(Pipe::new([]), options);
    let _bulk = put(&queue, message(10));
    let control: Vec<_> = (0..3).map(|_| queue.push_control(message(1)).expect("room")).collect();
    let refused = queue.push_control(message(1)).expect_err("full");
    assert!(refused.is_full());
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert!(control.iter().all(|ticket| ticket.result() == Some(Ok(()))));
    assert!(queue.is_empty());
}

#[test]
fn control_messages_without_end_do_not_starve_bulk_whatever_the_size_of_a_batch() {
    within(|| {
        for batch_bytes in [1, 5, 50, 1 << 20] {
            let options = QueueOptions::new().pushers_flush(false).batch_bytes(batch_bytes);
            let queue = Arc::new(with(Pipe::new([]), options));
            // During every call another few control messages arrive, for 2000 calls.
            let calls = AtomicUsize::new(0);
            let weak = Arc::downgrade(&queue);
            queue.transport().state().during = Some(Arc::new(move || {
                let full = calls.fetch_add(1, Ordering::SeqCst) >= 2000;
                let Some(queue) = weak.upgrade().filter(|_| !full) else { return };
                while queue.push_control(message(1)).is_ok() {}
            }));
            let bulk: Vec<_> = (0..50).map(|_| put(&queue, message(60))).collect();
            let _ = queue.push_control(message(1));
            assert_eq!(queue.flush(), Ok(Flushed::Idle));
            assert!(bulk.iter().all(|ticket| ticket.result() == Some(Ok(()))));
            // Between two bulk messages are at most 8 of the other lane.
            let sizes: Vec<_> = queue.transport().frames().iter().map(|frame| frame.body.len()).collect();
            let last = sizes.iter().rposition(|len| *len == 60).expect("bulk");
            let longest = sizes[..last].split(|len| *len == 60).map(<[usize]>::len).max();
            assert!(longest <= Some(8), "{longest:?} control messages in a row, batches of {batch_bytes}");
            queue.transport().state().during = None;
        }
    });
}

#[test]
fn bulk_without_end_does_not_starve_control() {
    within(|| {
        let options = QueueOptions::new().pushers_flush(false).batch_bytes(100).bounds(1000, 1000);
        let queue = Arc::new(with(Pipe::new([]), options));
        let calls = AtomicUsize::new(0);
        let weak = Arc::downgrade(&queue);
        let control = Arc::new(Mutex::new(None));
        let slot = control.clone();
        queue.transport().state().during = Some(Arc::new(move || {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            let Some(queue) = weak.upgrade() else { return };
            if call < 500 {
                while queue.try_push(message(40)).is_ok() {}
            }
            if call == 100 {
                *slot.lock().expect("no panic") = Some(queue.push_control(message(1)).expect("room"));
            }
        }));
        let _first = put(&queue, message(40));
        assert_eq!(queue.flush(), Ok(Flushed::Idle));
        let sizes: Vec<_> = queue.transport().frames().iter().map(|frame| frame.body.len()).collect();
        let at = sizes.iter().position(|len| *len == 1).expect("the control message");
        let bytes: usize = sizes[..at].iter().map(|len| len + OVERHEAD).sum();
        let calls = queue.transport().calls();
        let by_then: usize = calls.iter().take(102).map(|(offered, ..)| offered).sum();
        assert!(bytes <= by_then, "it waits for the call that it came in, and no more");
        queue.transport().state().during = None;
    });
}

// ---- tickets

#[test]
fn a_ticket_is_resolved_by_the_last_byte_and_no_sooner() {
    let queue = quiet(Pipe::new([]).then(Step::Again));
    let first = put(&queue, message(20));
    let second = put(&queue, message(20));
    for left in 1..=2 * (20 + OVERHEAD) {
        queue.transport().go_on(&[Step::Take(1)], Step::Again);
        let flushed = queue.flush();
        assert_eq!(first.result().is_some(), left >= 20 + OVERHEAD, "{left} bytes");
        assert_eq!(second.result().is_some(), left == 2 * (20 + OVERHEAD), "{left} bytes");
        let done = left == 2 * (20 + OVERHEAD);
        assert_eq!(flushed, Ok(if done { Flushed::Idle } else { Flushed::Blocked(Blocked::Full) }));
    }
    queue.transport().frames();
}

/// ntirpc 179, 187, 241 (the writer stuck, or an item released twice, after an error), nfs-ganesha 583 (a reply on a
/// replaced transport is dropped and the client hangs).
#[test]
fn after_a_hard_error_every_message_fails_with_its_own_bytes_and_each_only_once() {
    let size = 30 + OVERHEAD;
    for at in 0..=5 * size {
        let options = QueueOptions::new().pushers_flush(false).batch_bytes(3 * size as u64 - 25);
        let steps = if at == 0 { vec![] } else { vec![Step::Take(at)] };
        let queue = with(Pipe::new(steps).then(Step::Reset), options);
        // Only the first call takes some: a call may offer less than that.
        let mut tickets: Vec<_> = (0..5).map(|_| put(&queue, message(30))).collect();
        let (woken, waker) = Woken::new();
        let mut context = Context::from_waker(&waker);
        for ticket in &mut tickets {
            assert!(pin!(ticket).poll(&mut context).is_pending());
        }
        let error = queue.flush().expect_err("a reset");
        let left = queue.transport().wire().len();
        assert_eq!(failed(&error), (RESET, (left % size) as u64));
        for (index, ticket) in tickets.iter().enumerate() {
            let own = left.saturating_sub(index * size).min(size);
            match ticket.result().expect("resolved") {
                Ok(()) => assert_eq!(own, size, "message {index} after {left}"),
                Err(error) => assert_eq!(failed(&error), (RESET, own as u64), "message {index} after {left}"),
            }
        }
        assert_eq!(woken.count(), 5, "each once");
        // The later ones are told at once, and get their message back.
        for refused in [queue.try_push(message(9)), queue.push_control(message(9)), queue.push(message(9))] {
            let refused = refused.expect_err("dead");
            assert_eq!(refused.error().map(failed), Some((RESET, 0)));
            assert_eq!(refused.into_message().body.len(), 9);
        }
        assert_eq!(queue.flush().map_err(|error| error.kind()), Err(RESET));
        assert_eq!(queue.death().map(|error| error.kind()), Some(RESET));
        drop(tickets);
        assert_quiescent(&queue);
    }
}

#[test]
fn a_dropped_ticket_changes_nothing_for_its_message() {
    let queue = quiet(Pipe::new([Step::Take(3), Step::Again]));
    for _ in 0..3 {
        drop(put(&queue, message(10)));
    }
    assert_eq!((queue.len(), queue.live_tickets()), (3, 3));
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert_eq!(queue.transport().frames().len(), 3);
    assert_quiescent(&queue);
}

#[test]
fn a_ticket_is_a_future_that_wakes_its_latest_waker() {
    let queue = quiet(Pipe::new([]));
    let mut ticket = put(&queue, message(10));
    let (old, old_waker) = Woken::new();
    let (new, new_waker) = Woken::new();
    assert!(pin!(&mut ticket).poll(&mut Context::from_waker(&old_waker)).is_pending());
    assert!(pin!(&mut ticket).poll(&mut Context::from_waker(&new_waker)).is_pending());
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert_eq!((old.count(), new.count()), (0, 1));
    for _ in 0..2 {
        let polled = pin!(&mut ticket).poll(&mut Context::from_waker(&old_waker));
        assert_eq!(polled, Poll::Ready(Ok(())));
    }
}

#[test]
fn waiting_for_a_ticket_ends_at_its_deadline_and_leaves_the_message_where_it_is() {
    within(|| {
        let queue = quiet(Pipe::new([]).then(Step::Again));
        let ticket = put(&queue, message(10));
        let deadline = || Some(Instant::now() + SHORT);
        assert_eq!(ticket.wait(deadline()), None);
        assert_eq!(queue.wait(&ticket, deadline()), None);
        queue.transport().go_on(&[], Step::All);
        assert_eq!(queue.wait(&ticket, soon()), Some(Ok(())));
    });
}

#[test]
fn what_a_woken_task_does_with_the_queue_does_not_deadlock_it() {
    /// Pushes and asks when it is woken, and again when it is dropped.
    struct Busy(Queue);
    impl Wake for Busy {
        fn wake(self: Arc<Self>) {
            drop(self.0.try_push(message(1)));
            assert!(self.0.death().is_none());
        }
    }
    impl Drop for Busy {
        fn drop(&mut self) {
            drop((self.0.stats(), self.0.try_push(message(2))));
        }
    }
    within(|| {
        let queue = quiet(Pipe::new([]));
        let busy = || Waker::from(Arc::new(Busy(queue.clone())));
        // An old waker is replaced, and dropped thereby; then one is woken.
        let mut ticket = put(&queue, message(3));
        for _ in 0..3 {
            assert!(pin!(&mut ticket).poll(&mut Context::from_waker(&busy())).is_pending());
        }
        assert_eq!(queue.flush(), Ok(Flushed::Idle));
        // The same for who flushes, and for who is dropped before.
        for _ in 0..3 {
            let _ = queue.poll_work(&mut Context::from_waker(&busy()));
            let _ = queue.flush();
        }
        let mut ticket = put(&queue, message(3));
        assert!(pin!(&mut ticket).poll(&mut Context::from_waker(&busy())).is_pending());
        drop(ticket);
        assert_eq!(queue.flush(), Ok(Flushed::Idle));
    });
}

// ---- more was to follow, and does not

/// Holds each call back, once its bytes are in the socket, until told to go on.
struct Held {
    socket: SocketRef<TcpStream>,
    calls: SyncSender<bool>,
    go_on: Mutex<Receiver<()>>,
}

impl VectoredSend for Held {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let sent = self.socket.send_vectored(bufs, flags);
        self.calls.send(flags.contains(SendFlags::MORE)).expect("a test");
        self.go_on.lock().expect("no panic").recv().expect("a test");
        sent
    }

    fn push_out(&self) {
        self.socket.push_out();
    }
}

#[test]
fn what_the_kernel_holds_back_for_a_message_that_is_revoked_leaves_at_once() {
    within(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        let (mut peer, _) = listener.accept().expect("connected");
        socket.set_nodelay(true).expect("TCP");
        let (calls, called) = sync_channel(1);
        let (go, go_on) = channel();
        let transport = Held { socket: SocketRef::new(socket), calls, go_on: Mutex::new(go_on) };
        // A call for each message.
        let options = QueueOptions::new()
            .pushers_flush(false)
            .send(SendOptions::new().max_bytes((OVERHEAD + 10) as u64));
        let queue = SendQueue::with_options(Frames { gap: true, number: 0 }, transport, options);
        let [first, second] = [10, 10].map(|len| queue.try_push(message(len)).expect("room"));
        let flusher = thread::spawn({
            let queue = queue.clone();
            move || queue.flush()
        });
        assert!(called.recv().expect("a call"), "more was to follow");
        let revoker = thread::spawn(move || second.revoke());
        until_revoking(&queue);
        go.send(()).expect("a flusher");
        assert_eq!(flusher.join().expect("no panic"), Ok(Flushed::Idle));
        assert!(matches!(revoker.join().expect("no panic"), Revocation::Dropped));
        assert_eq!(first.result(), Some(Ok(())));
        // On loopback what has left is there; what is held back comes 200 ms later.
        peer.set_nonblocking(true).expect("a socket");
        assert_eq!(peer.read(&mut [0; 100]).expect("pushed out"), OVERHEAD + 10);
    });
}

#[test]
fn a_stream_is_pushed_out_only_if_more_was_to_follow() {
    within(|| {
        let options = QueueOptions::new()
            .pushers_flush(false)
            .send(SendOptions::new().max_bytes((OVERHEAD + 10) as u64));
        for (revoked, pushed_out) in [(false, 0), (true, 1)] {
            let framer = Frames { gap: true, number: 0 };
            let queue = SendQueue::with_options(framer, Pipe::new([Step::Hold]), options.clone());
            let [first, second] = [10, 10].map(|len| put(&queue, message(len)));
            let flusher = thread::spawn({
                let queue = queue.clone();
                move || queue.flush()
            });
            queue.transport().until_held();
            let revoker = revoked.then(|| thread::spawn(move || second.revoke()));
            if revoked {
                until_revoking(&queue);
            }
            queue.transport().open_gate();
            assert_eq!(flusher.join().expect("no panic"), Ok(Flushed::Idle));
            drop(revoker.map(thread::JoinHandle::join));
            assert_eq!(first.result(), Some(Ok(())));
            let state = queue.transport().state();
            assert_eq!((state.pushed_out, state.calls.len()), (pushed_out, 2 - pushed_out));
        }
    });
}

#[test]
fn what_is_held_back_when_a_turn_ends_and_the_rest_is_revoked_is_work_for_the_next_flusher() {
    let options = QueueOptions::new()
        .pushers_flush(false)
        .turn_bytes(1)
        .send(SendOptions::new().max_bytes((OVERHEAD + 10) as u64));
    let queue = SendQueue::with_options(Frames { gap: true, number: 0 }, Pipe::new([]), options);
    let [first, second] = [10, 10].map(|len| put(&queue, message(len)));
    assert_eq!(queue.flush(), Ok(Flushed::Budget));
    assert_eq!(first.result(), Some(Ok(())));
    assert!(matches!(second.revoke(), Revocation::Dropped));
    let (_, waker) = Woken::new();
    let work = queue.poll_work(&mut Context::from_waker(&waker));
    assert_eq!(work, Poll::Ready(Work::Flush));
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    let state = queue.transport().state();
    assert_eq!((state.pushed_out, state.calls.len()), (1, 1));
}

#[test]
fn a_push_beside_a_flusher_wakes_nobody_for_the_flusher_finds_the_message() {
    within(|| {
        let queue = queue([Step::Hold]);
        let flusher = thread::spawn({
            let queue = queue.clone();
            move || drop(put(&queue, message(10)))
        });
        queue.transport().until_held();
        let (woken, waker) = Woken::new();
        assert!(queue.poll_work(&mut Context::from_waker(&waker)).is_pending());
        let tickets = [11, 12].map(|len| put(&queue, message(len)));
        assert_eq!(woken.count(), 0);
        queue.transport().open_gate();
        flusher.join().expect("no panic");
        assert!(tickets.iter().all(|ticket| ticket.result() == Some(Ok(()))));
        assert_eq!((woken.count(), queue.transport().calls().len()), (0, 2));
    });
}

/// Pushes when it is woken, in whatever thread that is.
struct Pushes(Mutex<Vec<(Queue, usize)>>);

impl Wake for Pushes {
    fn wake(self: Arc<Self>) {
        let pushes = std::mem::take(&mut *self.0.lock().expect("no panic"));
        for (queue, len) in pushes {
            drop(put(&queue, message(len)));
        }
    }
}

#[test]
fn a_flusher_whose_turn_is_over_does_not_wait_for_itself_to_be_relieved() {
    within(|| {
        let queue = with(Pipe::new([Step::Hold]), QueueOptions::new().turn_bytes(1).batch_bytes(1));
        let flusher = thread::spawn({
            let queue = queue.clone();
            move || drop(put(&queue, message(10)))
        });
        queue.transport().until_held();
        // When the second message has left, its turn is over, and it goes on with the third for want of another.
        let waker = Waker::from(Arc::new(Pushes(Mutex::new(vec![(queue.clone(), 20), (queue.clone(), 30)]))));
        let mut second = put(&queue, message(11));
        assert!(pin!(&mut second).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(put(&queue, message(12)));
        queue.transport().open_gate();
        flusher.join().expect("no panic");
        let lens: Vec<_> = queue.transport().frames().iter().map(|frame| frame.body.len()).collect();
        assert_eq!(lens, [10, 11, 12, 20, 30]);
        drop(second);
        assert_quiescent(&queue);
    });
}

// ---- the stream's limits

#[test]
fn a_stream_that_takes_nothing_for_too_long_is_given_up() {
    within(|| {
        let limit = Duration::from_millis(500);
        let queue = with(
            Pipe::new([Step::Take(3), Step::Again, Step::Take(1)]).then(Step::Again),
            QueueOptions::new().stall(limit),
        );
        let started = Instant::now();
        let ticket = put(&queue, message(30));
        let later = put(&queue, message(30));
        let error = queue.wait(&ticket, soon()).expect("in time").expect_err("stalled");
        assert_eq!(failed(&error), (SendErrorKind::Deadline, 4));
        assert!(started.elapsed() >= limit);
        assert_eq!(
            later.result().map(|result| result.map_err(|error| failed(&error))),
            Some(Err((SendErrorKind::Deadline, 0)))
        );
        assert_eq!(queue.death().map(|error| error.kind()), Some(SendErrorKind::Deadline));
    });
}

#[test]
fn an_event_loop_is_told_when_to_give_a_stream_up() {
    let limit = Duration::from_millis(20);
    let options = QueueOptions::new().stall(limit).pushers_flush(false);
    let queue = with(Pipe::new([]).then(Step::Again), options);
    assert_eq!(queue.stall_deadline(), None);
    let ticket = put(&queue, message(30));
    let began = Instant::now();
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    let deadline = queue.stall_deadline().expect("it has taken nothing");
    assert!(deadline >= began + limit && deadline <= Instant::now() + limit);
    thread::sleep(deadline.saturating_duration_since(Instant::now()));
    assert_eq!(queue.flush().map_err(|error| error.kind()), Err(SendErrorKind::Deadline));
    assert!(matches!(ticket.result(), Some(Err(error)) if error.kind() == SendErrorKind::Deadline));
}

#[test]
fn time_in_which_nothing_was_to_be_sent_is_not_a_stall() {
    let limit = Duration::from_millis(500);
    let options = QueueOptions::new().stall(limit).pushers_flush(false);
    let framer = Frames { gap: true, number: 0 };
    let queue = SendQueue::with_options(framer, Pipe::new([Step::Again]).then(Step::All), options);
    let ticket = put(&queue, message(30));
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    // Nothing is left to be sent, for longer than the limit.
    assert!(matches!(ticket.revoke(), Revocation::Dropped));
    let _ = queue.flush();
    thread::sleep(2 * limit);
    queue.transport().go_on(&[Step::Again], Step::All);
    let ticket = put(&queue, message(30));
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert_eq!(ticket.result(), Some(Ok(())));
}

#[test]
fn a_message_that_is_revoked_in_a_call_that_takes_nothing_leaves_no_stall_behind() {
    within(|| {
        let options = QueueOptions::new().pushers_flush(false).stall(LONG);
        let framer = Frames { gap: true, number: 0 };
        let queue = SendQueue::with_options(framer, Pipe::new([Step::HoldAgain]), options);
        let ticket = put(&queue, message(30));
        let flusher = thread::spawn({
            let queue = queue.clone();
            move || queue.flush()
        });
        queue.transport().until_held();
        let revoker = thread::spawn(move || ticket.revoke());
        until_revoking(&queue);
        queue.transport().open_gate();
        assert_eq!(flusher.join().expect("no panic"), Ok(Flushed::Blocked(Blocked::Full)));
        assert!(matches!(revoker.join().expect("no panic"), Revocation::Dropped));
        assert_eq!(queue.stall_deadline(), None);
    });
}

#[test]
fn a_system_short_of_memory_is_waited_for() {
    within(|| {
        let queue = queue([Step::Take(3), Step::NoMemory, Step::NoMemory]);
        let ticket = put(&queue, message(30));
        assert_eq!(ticket.result(), None);
        assert_eq!(queue.wait(&ticket, soon()), Some(Ok(())));
        assert_eq!(queue.transport().state().waits, 0, "the socket may well be writable");
    });
}

/// A page whose last owner waits to be told.
struct Watched(Sender<()>, Receiver<()>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &[0x42; 100]
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.send(()).expect("a test");
        self.1.recv().expect("a test");
    }
}

#[test]
fn two_who_revoke_at_once_leave_nothing_behind() {
    within(|| {
        let options = QueueOptions::new().pushers_flush(false);
        let framer = Frames { gap: true, number: 0 };
        let queue = SendQueue::with_options(framer, Pipe::new([Step::Again]), options);
        let (revoking, revoked) = channel();
        let (go, go_on) = channel();
        let body = Bytes::from_owner(Watched(revoking, go_on));
        let first = put(&queue, Message { body, kind: Kind::Abortable, tag: None });
        let second = put(&queue, message(100));
        assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
        let first = thread::spawn(move || first.revoke());
        revoked.recv().expect("the page is dropped");
        let second = thread::spawn(move || second.revoke());
        until_revoking(&queue);
        go.send(()).expect("it waits");
        for thread in [first, second] {
            assert!(matches!(thread.join().expect("no panic"), Revocation::Dropped));
        }
        assert_quiescent(&queue);
    });
}

// ---- the end

#[test]
fn a_closed_queue_takes_no_more_and_sends_what_it_has() {
    let queue = quiet(Pipe::new([Step::Take(3), Step::Again]));
    let ticket = put(&queue, message(10));
    queue.close();
    for refused in [queue.try_push(message(1)), queue.push_control(message(1)), queue.push(message(1))] {
        let refused = refused.expect_err("closed");
        assert_eq!((refused.is_full(), refused.to_string().as_str()), (false, "the queue is closed"));
    }
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert_eq!(ticket.result(), Some(Ok(())));
    assert!(queue.death().is_none());
}

#[test]
fn a_thread_that_runs_the_queue_ends_when_it_is_closed_and_empty() {
    within(|| {
        let queue = quiet(Pipe::new([Step::Take(3), Step::Again, Step::Take(9), Step::Again]));
        let runner = thread::spawn({
            let queue = queue.clone();
            move || queue.run()
        });
        let tickets: Vec<_> = (0..20).map(|_| put(&queue, message(50))).collect();
        for ticket in &tickets {
            assert_eq!(ticket.wait(soon()), Some(Ok(())));
        }
        thread::sleep(SHORT);
        queue.close();
        assert_eq!(runner.join().expect("no panic"), Ok(()));
    });
}

#[test]
fn closing_while_others_flush_an_empty_queue_does_not_leave_its_runner_behind() {
    within(|| {
        for _ in 0..2000 {
            let queue = quiet(Pipe::new([]));
            let stop = Arc::new(AtomicBool::new(false));
            let runner = thread::spawn({
                let queue = queue.clone();
                move || queue.run()
            });
            let flusher = thread::spawn({
                let (queue, stop) = (queue.clone(), stop.clone());
                move || {
                    for _ in 0..50 {
                        if !stop.load(Ordering::SeqCst) {
                            let _ = queue.flush();
                        }
                    }
                }
            });
            queue.close();
            flusher.join().expect("no panic");
            stop.store(true, Ordering::SeqCst);
            assert_eq!(runner.join().expect("no panic"), Ok(()));
        }
    });
}

#[test]
fn shutting_down_fails_what_has_not_left_and_ends_everybody_who_waits() {
    within(|| {
        let options = QueueOptions::new().bounds(100, 2);
        let queue = with(Pipe::new([Step::Take(3)]).then(Step::Again), options);
        let first = put(&queue, message(40));
        let second = put(&queue, message(40));
        let waiters: Vec<thread::JoinHandle<bool>> = vec![
            thread::spawn({
                let queue = queue.clone();
                move || queue.push(message(40)).is_err_and(|refused| !refused.is_full())
            }),
            thread::spawn({
                let queue = queue.clone();
                move || queue.run().is_err_and(|error| error.kind() == SendErrorKind::ShutDown)
            }),
            thread::spawn({
                let queue = queue.clone();
                move || matches!(queue.wait(&second, None), Some(Err(_)))
            }),
        ];
        queue.transport().until_waited_for();
        thread::sleep(SHORT);
        let began = Instant::now();
        queue.shut_down();
        let error = first.result().expect("resolved").expect_err("shut down");
        assert_eq!(failed(&error), (SendErrorKind::ShutDown, 3));
        for waiter in waiters {
            assert!(waiter.join().expect("no panic"));
        }
        // Not only when the stream moves again: it never does.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        drop(first);
        assert_quiescent(&queue);
    });
}

#[test]
fn when_the_last_handle_is_dropped_what_has_not_left_fails() {
    let queue = quiet(Pipe::new([Step::Take(3)]).then(Step::Again));
    let half = put(&queue, message(10));
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    let waiting = put(&queue, message(10));
    let clone = queue.clone();
    drop(queue);
    assert_eq!((half.result(), waiting.result()), (None, None));
    drop(clone);
    let kind = |ticket: &Ticket<Message>| ticket.result().expect("resolved").map_err(|error| failed(&error));
    assert_eq!(kind(&half), Err((SendErrorKind::ShutDown, 3)));
    assert_eq!(kind(&waiting), Err((SendErrorKind::ShutDown, 0)));
}

// ---- framers and transports that misbehave

#[test]
fn a_message_that_the_framer_refuses_fails_alone_and_says_why() {
    let queue = quiet(Pipe::new([]));
    let mut tickets = Vec::new();
    for kind in [Kind::Refused, Kind::Abortable, Kind::Refused, Kind::Abortable, Kind::Refused] {
        tickets.push(put(&queue, of_kind(kind, 7)));
    }
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    for (index, ticket) in tickets.iter().enumerate() {
        match ticket.result().expect("resolved") {
            Ok(()) => assert_eq!(index % 2, 1),
            Err(error) => {
                assert_eq!((index % 2, failed(&error)), (0, (SendErrorKind::NotFramed, 0)));
                assert_eq!(error.detail(), Some("7 bytes are too odd"));
                assert!(error.to_string().starts_with("7 bytes are too odd"), "{error}");
            }
        }
    }
    assert_eq!(queue.transport().frames().iter().map(|frame| frame.number).collect::<Vec<_>>(), [0, 1]);
    drop(tickets);
    assert_quiescent(&queue);
}

#[test]
fn when_a_framer_or_a_transport_panics_every_ticket_is_resolved() {
    /// A message's last act is to ask the queue something.
    struct Last(Queue);
    impl fmt::Debug for Last {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Last")
        }
    }
    impl Drop for Last {
        fn drop(&mut self) {
            let _ = self.0.death();
        }
    }
    within(|| {
        for (kind, step) in [(Kind::Panics, Step::All), (Kind::Abortable, Step::Panics)] {
            let queue = quiet(Pipe::new([Step::Take(12), Step::Again]).then(step));
            let half = put(&queue, message(30));
            let _ = queue.flush();
            let mut tickets = vec![half, put(&queue, message(5)), put(&queue, of_kind(kind, 5))];
            for _ in 0..3 {
                let mut message = message(6);
                message.tag = Some(Box::new(Last(queue.clone())));
                tickets.push(put(&queue, message));
            }
            let clone = queue.clone();
            assert!(thread::spawn(move || clone.flush()).join().is_err(), "it panics");
            for (index, ticket) in tickets.iter().enumerate() {
                let error = ticket.result().expect("resolved").expect_err("nobody sends any more");
                let sent = if index == 0 { 12 } else { 0 };
                assert_eq!(failed(&error), (SendErrorKind::ShutDown, sent), "message {index}, {kind:?}");
            }
            assert!(queue.try_push(message(1)).is_err());
            assert!(queue.flush().is_err());
            drop(tickets);
            assert_quiescent(&queue);
        }
    });
}

// ---- revoke

#[test]
fn a_waiting_message_that_is_revoked_comes_back_as_it_was() {
    let queue = quiet(Pipe::new([]));
    let first = put(&queue, message(10));
    let second = message(20);
    let address = second.body.as_ptr();
    let second = put(&queue, second);
    let Revocation::Waiting(back) = second.revoke() else { panic!("not waiting") };
    assert_eq!((back.body.as_ptr(), back.body.len()), (address, 20));
    assert_eq!(queue.len(), 1);
    let control = queue.push_control(message(1)).expect("room");
    assert!(matches!(control.revoke(), Revocation::Waiting(_)));
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert_eq!(first.result(), Some(Ok(())));
    assert_eq!(queue.transport().frames().len(), 1);
    drop(first);
    assert_quiescent(&queue);
}

#[test]
fn a_framed_message_of_which_nothing_left_is_dropped_where_gaps_are_accepted_and_makes_room_at_once() {
    let framer = Frames { gap: true, number: 0 };
    let options = QueueOptions::new().pushers_flush(false).bounds(100, 3);
    let queue = SendQueue::with_options(framer, Pipe::new([Step::Take(2), Step::Again]), options);
    let first = put(&queue, message(10));
    let second = put(&queue, of_kind(Kind::Close, 10));
    let third = put(&queue, message(10));
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    assert!(matches!(second.revoke(), Revocation::Dropped));
    assert_eq!(queue.len(), 2, "its room is free");
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    let numbers: Vec<_> = queue.transport().frames().iter().map(|f| (f.number, f.aborted)).collect();
    assert_eq!(numbers, [(0, false), (2, false)]);
    assert_eq!((first.result(), third.result()), (Some(Ok(())), Some(Ok(()))));
    drop((first, third));
    assert_quiescent(&queue);
}

#[test]
fn a_framed_message_of_which_nothing_left_is_aborted_or_finished_where_gaps_are_not_accepted() {
    for kind in [Kind::Abortable, Kind::EarlyMark, Kind::Finish] {
        let queue = quiet(Pipe::new([Step::Take(2), Step::Again]));
        let first = put(&queue, message(10));
        let second = put(&queue, of_kind(kind, 10));
        let third = put(&queue, message(10));
        assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
        let revoked = second.revoke();
        assert_eq!(matches!(revoked, Revocation::Finishing), kind == Kind::Finish, "{revoked:?}");
        assert_eq!(matches!(revoked, Revocation::Aborted), kind != Kind::Finish, "{revoked:?}");
        // Taking back what nothing had left of does not cost the stream.
        assert_eq!(queue.flush(), Ok(Flushed::Idle));
        let read: Vec<_> = queue.transport().frames();
        assert_eq!(read.iter().map(|f| f.number).collect::<Vec<_>>(), [0, 1, 2]);
        let gone = kind != Kind::Finish;
        assert_eq!((read[1].aborted, read[1].body[0] == 0), (gone, gone));
        assert_eq!((first.result(), third.result()), (Some(Ok(())), Some(Ok(()))));
        drop((first, third));
        assert_quiescent(&queue);
    }
}

/// Linux messenger_v2 revoke, at every byte, with another message behind.
#[test]
fn a_half_sent_message_is_aborted_at_every_byte_and_the_next_one_is_whole() {
    let len = 30 + OVERHEAD;
    for kind in [Kind::Abortable, Kind::EarlyMark, Kind::Finish] {
        for sent in 1..=len {
            let queue = quiet(Pipe::new([Step::Take(sent), Step::Again]));
            let first = put(&queue, of_kind(kind, 30));
            let second = put(&queue, message(10));
            assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
            let mark = match kind {
                Kind::Abortable => len - 5,
                Kind::EarlyMark => 1,
                _ => 0,
            };
            let context = format!("{kind:?}, {sent} bytes");
            let aborted = match first.revoke() {
                Revocation::Sent => {
                    assert_eq!(sent, len, "{context}");
                    false
                }
                Revocation::Aborted => {
                    assert!(sent <= mark, "{context}");
                    true
                }
                Revocation::Finishing => {
                    assert!(sent > mark && sent < len, "{context}");
                    false
                }
                other => panic!("{context}: {other:?}"),
            };
            assert_eq!(queue.flush(), Ok(Flushed::Idle), "{context}");
            let read = queue.transport().frames();
            assert_eq!(read[0].aborted, aborted, "{context}");
            let left = sent.saturating_sub(4).min(30);
            let body: Vec<u8> = (0..30).map(|i| if aborted && i >= left { 0 } else { 0x42 }).collect();
            assert_eq!(read[0].body, body, "{context}");
            assert_eq!((read.len(), read[1].number), (2, 1), "{context}");
            assert_eq!(second.result(), Some(Ok(())));
            drop(second);
            assert_quiescent(&queue);
        }
    }
}

/// Linux sunrpc xprtsock: a killed task whose record is half sent shuts the socket down.
#[test]
fn a_half_sent_message_that_cannot_be_aborted_ends_the_queue_and_nothing_follows_it() {
    let queue = quiet(Pipe::new([Step::Take(6), Step::Again]));
    let first = put(&queue, of_kind(Kind::Close, 30));
    let framed = put(&queue, message(10));
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    let waiting = put(&queue, message(10));
    let Revocation::Failed(error) = first.revoke() else { panic!("not failed") };
    assert_eq!(failed(&error), (SendErrorKind::Revoked, 6));
    for ticket in [&framed, &waiting] {
        let error = ticket.result().expect("resolved").expect_err("dead");
        assert_eq!(failed(&error), (SendErrorKind::Revoked, 0));
    }
    assert!(queue.flush().is_err() && queue.try_push(message(1)).is_err());
    assert_eq!(queue.transport().wire().len(), 6);
    drop((framed, waiting));
    assert_quiescent(&queue);
}

#[test]
fn revoking_what_had_left_or_failed_says_so() {
    let queue = queue([]);
    assert!(matches!(put(&queue, message(3)).revoke(), Revocation::Sent));
    let queue = quiet(Pipe::new([]).then(Step::Reset));
    let ticket = put(&queue, message(3));
    assert!(queue.flush().is_err());
    let Revocation::Failed(error) = ticket.revoke() else { panic!("not failed") };
    assert_eq!(error.kind(), RESET);
    assert_quiescent(&queue);
}

#[test]
fn a_revoke_while_another_thread_is_in_the_call_takes_effect_when_the_call_returns() {
    within(|| {
        // Of three messages: nothing of the second had left, or half of it, or all.
        let len = 30 + OVERHEAD;
        for (take, kind) in [
            (len, Kind::Abortable),
            (len + 9, Kind::Abortable),
            (len + 9, Kind::Close),
            (2 * len, Kind::Close),
        ] {
            let queue = quiet(Pipe::new([Step::HoldTake(take)]));
            let first = put(&queue, message(30));
            let second = put(&queue, of_kind(kind, 30));
            let third = put(&queue, message(30));
            let flusher = thread::spawn({
                let queue = queue.clone();
                move || queue.flush()
            });
            queue.transport().until_held();
            let returned = Arc::new(AtomicBool::new(false));
            let revoker = thread::spawn({
                let returned = returned.clone();
                move || {
                    let revoked = second.revoke();
                    returned.store(true, Ordering::SeqCst);
                    revoked
                }
            });
            thread::sleep(SHORT);
            assert!(!returned.load(Ordering::SeqCst), "the kernel may still read the pages");
            queue.transport().open_gate();
            let revoked = revoker.join().expect("no panic");
            let flushed = flusher.join().expect("no panic");
            let context = format!("{take} taken, {kind:?}: {revoked:?}");
            if kind == Kind::Close && take < 2 * len {
                assert!(matches!(revoked, Revocation::Failed(_)), "{context}");
                assert_eq!(flushed.map_err(|error| failed(&error)), Err((SendErrorKind::Revoked, 9)));
                assert_eq!(queue.transport().wire().len(), take);
                assert_eq!(first.result(), Some(Ok(())));
                assert!(third.result().is_some_and(|result| result.is_err()), "{context}");
            } else {
                let sent = take == 2 * len;
                assert!(matches!(revoked, Revocation::Sent) == sent, "{context}");
                assert!(matches!(revoked, Revocation::Aborted) != sent, "{context}");
                assert_eq!(flushed, Ok(Flushed::Idle), "{context}");
                let aborted: Vec<_> = queue.transport().frames().iter().map(|f| f.aborted).collect();
                assert_eq!(aborted, [false, !sent, false], "{context}");
                assert_eq!(third.result(), Some(Ok(())), "{context}");
            }
            drop((first, third));
            assert_quiescent(&queue);
        }
    });
}

#[test]
fn after_a_revoke_returns_and_after_a_ticket_is_resolved_nobody_holds_the_payload() {
    /// Counts live payloads; the last one to let go asks the queue something.
    struct Page(Vec<u8>, Arc<AtomicUsize>, Option<Queue>);
    impl AsRef<[u8]> for Page {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Page {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::SeqCst);
            if let Some(queue) = self.2.take() {
                assert!(queue.stats().calls < u64::MAX);
            }
        }
    }
    within(|| {
        for gap in [false, true] {
            for (kind, take) in [
                (Kind::Abortable, 0),
                (Kind::Abortable, 9),
                (Kind::EarlyMark, 9),
                (Kind::Finish, 9),
                (Kind::Close, 9),
                (Kind::Abortable, 35),
                (Kind::Abortable, 40),
            ] {
                let live = Arc::new(AtomicUsize::new(0));
                let queue = SendQueue::with_options(
                    Frames { gap, number: 0 },
                    Pipe::new(if take == 0 { None } else { Some(Step::Take(take)) }).then(Step::Again),
                    QueueOptions::new().pushers_flush(false),
                );
                let page = |kind| {
                    live.fetch_add(1, Ordering::SeqCst);
                    let page = Page(vec![0x42; 30], live.clone(), Some(queue.clone()));
                    Message { body: Bytes::from_owner(page), kind, tag: None }
                };
                let first = put(&queue, page(kind));
                let _second = put(&queue, page(kind));
                assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
                let before = live.load(Ordering::SeqCst);
                assert_eq!(before, if take == 40 { 1 } else { 2 }, "{kind:?} {take}");
                let revoked = first.revoke();
                let after = usize::from(!matches!(revoked, Revocation::Failed(_)));
                assert_eq!(live.load(Ordering::SeqCst), after, "{kind:?} {take} {gap}: {revoked:?}");
                queue.shut_down();
                assert_eq!(live.load(Ordering::SeqCst), 0, "{kind:?} {take} {gap}");
            }
        }
        // Sent ones are free when their tickets say so.
        let live = Arc::new(AtomicUsize::new(0));
        let queue = queue([]);
        for _ in 0..10 {
            live.fetch_add(1, Ordering::SeqCst);
            let page = Page(vec![0x42; 30], live.clone(), Some(queue.clone()));
            let message = Message { body: Bytes::from_owner(page), kind: Kind::Close, tag: None };
            assert_eq!(put(&queue, message).result(), Some(Ok(())));
            assert_eq!(live.load(Ordering::SeqCst), 0);
        }
    });
}

// ---- who flushes

/// hyper 4143, vibe.d 760, apache/storm 566: a message that is stranded until the next send. After every step either the
/// wire has everything, or somebody has been told to go on.
#[test]
fn after_every_step_of_a_random_schedule_the_wire_has_it_or_an_event_loop_has_been_told() {
    let seed = seed("after_every_step_of_a_random_schedule");
    for case in 0..500 {
        let mut random = Random::new(seed + case);
        let options = QueueOptions::new()
            .pushers_flush(random.below(2) == 0)
            .turn_bytes(1 + random.below(200) as u64)
            .batch_bytes(1 + random.below(200) as u64);
        let queue = with(Pipe::new([]), options);
        let (woken, waker) = Woken::new();
        let mut context = Context::from_waker(&waker);
        let (mut asleep, mut told) = (false, 0);
        let mut tickets = Vec::new();
        for _ in 0..60 {
            match random.below(5) {
                0 | 1 => tickets.push(put(&queue, message(random.below(120)))),
                2 => tickets.extend(queue.push_control(message(random.below(9))).ok()),
                3 => queue.transport().go_on(
                    &[Step::Take(1 + random.below(150)), Step::Again],
                    [Step::All, Step::Again][random.below(2)],
                ),
                _ => {
                    let flushed = queue.flush().expect("a good stream");
                    let blocked = queue.transport().state().blocked;
                    assert_eq!(matches!(flushed, Flushed::Blocked(_)), blocked && !queue.is_empty());
                }
            }
            // A loop that slept and is not told sleeps on: it may only do so if there is nothing.
            let woke = std::mem::replace(&mut told, woken.count()) < woken.count();
            let context_of = || format!("seed {}: stranded, {queue:?}", seed + case);
            assert!(!asleep || woke || queue.is_empty(), "{}", context_of());
            let work = queue.poll_work(&mut context);
            asleep = work.is_pending();
            assert_eq!(asleep, queue.is_empty(), "{}", context_of());
            let full = queue.transport().state().blocked && !queue.is_empty();
            assert_eq!(work == Poll::Ready(Work::Wait(Blocked::Full)), full, "{}", context_of());
        }
        queue.transport().go_on(&[], Step::All);
        while matches!(queue.flush(), Ok(Flushed::HandedOver | Flushed::Budget)) {}
        assert!(queue.is_empty());
        assert!(tickets.iter().all(|ticket| ticket.result() == Some(Ok(()))));
        assert_eq!(queue.transport().frames().len(), tickets.len());
    }
}

#[test]
fn an_event_loop_is_woken_for_a_push_and_told_when_to_wait_for_the_stream() {
    let queue = quiet(Pipe::new([Step::Take(3)]).then(Step::Again));
    let (woken, waker) = Woken::new();
    let mut context = Context::from_waker(&waker);
    assert!(queue.poll_work(&mut context).is_pending());
    let ticket = put(&queue, message(10));
    assert_eq!(woken.count(), 1);
    assert_eq!(queue.poll_work(&mut context), Poll::Ready(Work::Flush));
    assert_eq!(queue.flush(), Ok(Flushed::Blocked(Blocked::Full)));
    assert_eq!(queue.poll_work(&mut context), Poll::Ready(Work::Wait(Blocked::Full)));
    queue.transport().go_on(&[], Step::All);
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert_eq!(ticket.result(), Some(Ok(())));
    assert!(queue.poll_work(&mut context).is_pending());
    queue.shut_down();
    assert_eq!(queue.poll_work(&mut context), Poll::Ready(Work::Flush), "the end is news");
    assert!(queue.flush().is_err());
}

#[test]
fn pushers_that_do_not_flush_make_no_call() {
    let queue = quiet(Pipe::new([]));
    let tickets: Vec<_> = (0..10).map(|_| put(&queue, message(10))).collect();
    assert!(queue.transport().calls().is_empty());
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    assert_eq!(queue.transport().calls().len(), 1);
    assert!(tickets.iter().all(|ticket| ticket.result() == Some(Ok(()))));
}

#[test]
fn a_flusher_whose_turn_is_over_hands_over_to_one_who_waits() {
    within(|| {
        let options = QueueOptions::new().turn_bytes(1).batch_bytes(1);
        let queue = with(Pipe::new([Step::Hold]), options);
        let pusher = thread::spawn({
            let queue = queue.clone();
            move || drop(queue.try_push(message(10)))
        });
        queue.transport().until_held();
        let others: Vec<_> = (0..20).map(|_| put(&queue, message(10))).collect();
        let last = put(&queue, message(10));
        let waiter = thread::spawn({
            let queue = queue.clone();
            move || queue.wait(&last, soon())
        });
        thread::sleep(SHORT);
        queue.transport().open_gate();
        pusher.join().expect("no panic");
        assert_eq!(waiter.join().expect("no panic"), Some(Ok(())));
        assert!(others.iter().all(|ticket| ticket.result() == Some(Ok(()))));
    });
}

#[test]
fn one_to_whom_it_is_handed_over_does_not_leave_the_others_messages_behind() {
    within(|| {
        let options = QueueOptions::new().turn_bytes(1).batch_bytes(1);
        let queue = with(Pipe::new([Step::Hold]), options);
        let (send, first) = channel();
        let pusher = thread::spawn({
            let queue = queue.clone();
            move || {
                let _ = send.send(queue.try_push(message(10)).map_err(PushError::into_message).ok());
            }
        });
        queue.transport().until_held();
        // Waits for what is in the call, so that it has nothing to wait for when the call returns.
        let gate = queue.clone();
        let others: Vec<_> = (0..20).map(|_| put(&queue, message(10))).collect();
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || {
                    let short = Some(Instant::now() + 2 * SHORT);
                    let own = put(&queue, message(1));
                    let _ = queue.wait(&own, short);
                })
            })
            .collect();
        thread::sleep(SHORT);
        gate.transport().open_gate();
        pusher.join().expect("no panic");
        for waiter in waiters {
            waiter.join().expect("no panic");
        }
        drop(first);
        for ticket in &others {
            assert_eq!(ticket.wait(soon()), Some(Ok(())), "stranded");
        }
    });
}

#[test]
fn a_waiter_whose_own_message_left_with_the_turn_does_not_strand_the_rest() {
    within(|| {
        let options = QueueOptions::new().turn_bytes(1).batch_bytes(1).pushers_flush(false);
        let queue = with(Pipe::new([Step::Hold]), options);
        let first = put(&queue, message(10));
        let flusher = thread::spawn({
            let queue = queue.clone();
            move || queue.flush()
        });
        queue.transport().until_held();
        let waiter = thread::spawn({
            let queue = queue.clone();
            move || queue.wait(&first, soon())
        });
        let others: Vec<_> = (0..5).map(|_| put(&queue, message(10))).collect();
        thread::sleep(SHORT);
        queue.transport().open_gate();
        let flushed = flusher.join().expect("no panic");
        assert_eq!(waiter.join().expect("no panic"), Some(Ok(())));
        if flushed == Ok(Flushed::HandedOver) {
            for ticket in &others {
                assert_eq!(ticket.wait(soon()), Some(Ok(())), "stranded");
            }
        }
    });
}

/// frama-c-mcp 10: a write under the mutex that the timeouts need froze the whole client.
#[test]
fn while_one_thread_is_in_a_call_the_others_push_ask_and_time_out() {
    within(|| {
        let queue = queue([Step::Hold]);
        let flusher = thread::spawn({
            let queue = queue.clone();
            move || queue.try_push(message(10)).is_ok()
        });
        queue.transport().until_held();
        let began = Instant::now();
        let tickets: Vec<_> = (0..100).map(|_| put(&queue, message(10))).collect();
        let control = queue.push_control(message(1)).expect("room");
        assert_eq!(control.wait(Some(Instant::now() + Duration::from_millis(5))), None);
        assert_eq!(queue.wait(&control, Some(Instant::now() + Duration::from_millis(5))), None);
        assert_eq!(queue.flush(), Ok(Flushed::Busy));
        assert!(matches!(tickets.into_iter().next().map(Ticket::revoke), Some(Revocation::Waiting(_))));
        assert_eq!((queue.len(), queue.death()), (101, None));
        let _ = (queue.stats(), format!("{queue:?}"));
        assert!(began.elapsed() < Duration::from_secs(10));
        queue.transport().open_gate();
        assert!(flusher.join().expect("no panic"));
        assert_eq!(control.wait(soon()), Some(Ok(())));
    });
}

// ---- batches

#[test]
fn small_messages_leave_many_a_call_and_a_call_is_filled_up_to_the_slices_it_may_have() {
    let queue = with(Pipe::new([]), QueueOptions::new().pushers_flush(false).bounds(1 << 30, 10_000));
    // Three slices each: header, body, trailer.
    let tickets: Vec<_> = (0..3000).map(|_| put(&queue, message(100))).collect();
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    let calls = queue.transport().calls();
    assert!(calls.len() <= 3000 / 200, "{} calls", calls.len());
    assert!(calls.iter().all(|(_, slices, _)| *slices <= MAX_SLICES));
    assert!(tickets.iter().all(|ticket| ticket.result() == Some(Ok(()))));
    let stats = queue.stats();
    assert_eq!((stats.messages, stats.calls), (3000, calls.len() as u64));
    assert_eq!(stats.bytes, 3000 * (100 + OVERHEAD as u64));
    assert!(!calls.last().expect("a call").2, "the last call says that no more follows");
}

#[test]
fn a_call_holds_no_more_slices_than_it_was_told_and_its_cuts_say_that_more_follows() {
    let options = QueueOptions::new()
        .pushers_flush(false)
        .send(SendOptions::new().max_slices(10))
        .bounds(1 << 20, 1000);
    let queue = with(Pipe::new([]), options);
    for _ in 0..100 {
        drop(put(&queue, message(100)));
    }
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    let calls = queue.transport().calls();
    assert!(calls.iter().all(|(_, slices, _)| *slices <= 10));
    assert!(calls.len() >= 300 / 10);
    assert!(!calls.last().expect("a call").2);
    assert_eq!(queue.transport().frames().len(), 100);
}

#[test]
fn no_more_is_framed_than_the_batch_has_room_for() {
    let options = QueueOptions::new().pushers_flush(false).batch_bytes(250).bounds(1 << 20, 1000);
    let queue = with(Pipe::new([]), options);
    for _ in 0..100 {
        drop(put(&queue, message(100)));
    }
    assert_eq!(queue.flush(), Ok(Flushed::Idle));
    let most = queue.transport().calls().iter().map(|(offered, ..)| *offered).max();
    assert!(most <= Some(3 * (100 + OVERHEAD)), "{most:?}");
    assert_eq!(queue.transport().frames().len(), 100);
}
