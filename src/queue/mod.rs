//! Many producers, one stream.
//!
//! ```text
//!  push ─▶ [waiting messages] ─frame─▶ [batch: Outgoing …] ─▶ one sendmsg ─▶ tickets
//!  push_control ─▶ [control lane] ┘      └ whoever has taken the batch is the flusher
//! ```
//!
//! Messages wait, not chains: they are framed, in order, when they reach the head. Whoever finds the batch in its place
//! may take it and flush: the pusher itself, a thread, an event loop. Replies are not this room's business: see
//! [`window`](crate::window).
//!
//! **Somebody has to bring the queue on.** A push sends what the socket takes and returns. When the socket is full, the rest
//! leaves when somebody calls [`run`](SendQueue::run) (a thread that does nothing else: the simplest),
//! [`wait`](SendQueue::wait), [`flush`](SendQueue::flush) (an event loop), or pushes into a full queue. Awaiting a
//! [`Ticket`] does not.

mod core;
mod drive;
mod options;
mod push;
mod ticket;
mod turn;

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::task::{Context, Poll};
use std::time::Instant;

pub use self::options::QueueOptions;
pub use self::push::{Push, PushError};
pub use self::ticket::{Revocation, Ticket};

use self::core::{Batch, Core, Lane, Later, Share, State, Waiting};
use self::ticket::Outcome;
use self::turn::{AtTheEnd, Engine, Turn};
use crate::framer::Framer;
use crate::send::{Blocked, SendError, SendErrorKind, SendStats, StreamSender};
use crate::sync::{Arc, Mutex, MutexGuard, lock, planted};
use crate::transport::{SendFlags, VectoredSend, Wait};
use crate::window::Ledger;

/// A message that can wait in a queue.
pub trait Queued: Send + 'static {
    /// How many bytes it counts for in the queue's bounds: about its length on the wire.
    fn bytes(&self) -> u64;
}

/// How a flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Flushed {
    /// Nothing is left.
    Idle,
    /// The transport takes no more now. Flush again when it does.
    Blocked(Blocked),
    /// Somebody else flushes.
    Busy,
    /// The turn is over, and another one who waits was woken.
    HandedOver,
    /// The turn is over, and nobody else is there: flush again after whatever else there is to do.
    Budget,
}

/// What a task that flushes does next: see [`SendQueue::poll_work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// [`SendQueue::flush`].
    Flush,
    /// Wait until the transport takes bytes again, then flush.
    Wait(Blocked),
}

/// A queue of messages for one stream. Clones are handles to the same queue.
///
/// Any number of threads push; no message is lost, torn, or overtaken by a later one of the same producer. When the last
/// handle is dropped what has not left fails. Messages are `'static`: their pages are shared (`Bytes`), not borrowed.
///
/// ```
/// use std::io::Read;
/// use std::os::unix::net::UnixStream;
/// use bytes::Bytes;
/// use segchain::chain::{ChainBuilder, ChainError};
/// use segchain::framer::Framer;
/// use segchain::queue::{Queued, SendQueue};
/// use segchain::transport::SocketRef;
///
/// struct Record(Bytes);
/// impl Queued for Record {
///     fn bytes(&self) -> u64 {
///         self.0.len() as u64
///     }
/// }
///
/// struct Lengths;
/// impl Framer<Record> for Lengths {
///     type Error = ChainError;
///     fn overhead(&self, _: u64) -> u64 {
///         4
///     }
///     fn frame<'m>(&mut self, record: Record, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
///     where
///         Record: 'm,
///     {
///         out.put_u32_be(record.0.len() as u32);
///         out.push(record.0);
///         out.check()
///     }
/// }
///
/// let (socket, mut peer) = UnixStream::pair()?;
/// let queue = SendQueue::new(Lengths, SocketRef::new(socket));
/// std::thread::scope(|scope| {
///     scope.spawn(|| queue.run()); // brings the queue on whenever the socket was full; ends when it is closed
///     let mut producers = Vec::new();
///     for word in ["one", "two"] {
///         let queue = queue.clone();
///         producers.push(scope.spawn(move || drop(queue.push(Record(word.into())).expect("an open queue"))));
///     }
///     producers.into_iter().for_each(|producer| producer.join().unwrap());
///     queue.close();
/// });
/// let mut bytes = [0; 14];
/// peer.read_exact(&mut bytes)?;
/// assert!(bytes == *b"\0\0\0\x03one\0\0\0\x03two" || bytes == *b"\0\0\0\x03two\0\0\0\x03one");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct SendQueue<M, F, T>
where
    M: Queued,
{
    shared: Arc<Shared<M, F, T>>,
}

struct Shared<M, F, T> {
    core: Arc<Core<M>>,
    /// With the flusher while there is one.
    engine: Mutex<Option<Box<Engine<M, F, T>>>>,
    transport: std::sync::Arc<T>,
    options: QueueOptions,
}

/// Control messages served before a bulk message gets its turn.
const CONTROL_BURST: usize = 8;

impl<M, F, T> SendQueue<M, F, T>
where
    M: Queued,
    F: Framer<M>,
    F::Error: fmt::Display,
    T: VectoredSend,
{
    /// A queue in front of a stream on which no message is half-sent.
    pub fn new(framer: F, transport: T) -> Self {
        Self::with_options(framer, transport, QueueOptions::default())
    }

    /// The same, with other bounds.
    pub fn with_options(framer: F, transport: T, options: QueueOptions) -> Self {
        let transport = std::sync::Arc::new(transport);
        let bulk = Ledger::new(options.max_bytes, options.max_messages);
        let control = Ledger::new(u64::MAX >> 1, options.control_messages);
        let core = Arc::new(Core::new(framer.accepts_gap(), bulk, control));
        let sender = StreamSender::with_options(transport.clone(), options.send.clone());
        let engine = Box::new(Engine {
            framer,
            sender,
            taken: VecDeque::new(),
            refused: Vec::new(),
            later: Later::default(),
            spare: Vec::new(),
        });
        Self { shared: Arc::new(Shared { core, engine: Mutex::new(Some(engine)), transport, options }) }
    }

    /// Flushes until nothing is left or the transport takes no more, unless somebody else does. Never waits. For event
    /// loops: call it when the transport is writable, and when [`poll_work`](Self::poll_work) is ready.
    ///
    /// # Errors
    /// What ended the stream. Every ticket that it concerns has it too.
    pub fn flush(&self) -> Result<Flushed, SendError> {
        let mut state = self.shared.core.lock();
        if let Some(death) = &state.dead {
            return Err(death.clone());
        }
        let Some(batch) = state.take_batch() else {
            // Readiness may be told only once (epoll(7), edge triggered): whoever is there has to try again.
            state.ready = !planted("readiness is lost");
            return Ok(Flushed::Busy);
        };
        self.shared.turn(state, batch, AtTheEnd::Leave)
    }

    /// Ready when there is something to do that nobody does, or the stream has ended.
    ///
    /// For one task, which keeps polling for as long as the queue lives: a flusher whose turn is over leaves the rest to it.
    pub fn poll_work(&self, context: &mut Context<'_>) -> Poll<Work> {
        // Neither cloned nor dropped under the lock.
        let waker = context.waker().clone();
        let mut state = self.shared.core.lock();
        let work = match state.blocked {
            _ if state.dead.is_some() => Some(Work::Flush),
            _ if state.batch.is_none() || !state.has_work() => None,
            None => Some(Work::Flush),
            Some(reason) => Some(Work::Wait(reason)),
        };
        if let Some(work) = work {
            drop(state);
            return Poll::Ready(work);
        }
        let old = state.work.replace(waker);
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// When the stream is given up if it takes nothing before, while it does: a task that waits for the transport calls
    /// [`flush`](Self::flush) then, which fails every ticket. See [`QueueOptions::stall`]. Threads that wait in the queue
    /// look at it themselves.
    pub fn stall_deadline(&self) -> Option<Instant> {
        self.shared.stalled_until(&self.shared.core.lock())
    }

    /// Pushes unless the queue is full. Does not wait for the transport, but flushes if nobody else does, and then what others
    /// push meanwhile as well: after [`QueueOptions::turn_bytes`] the next who pushes or waits takes over.
    ///
    /// When the transport takes no more the push returns, and somebody has to go on later: a thread in
    /// [`run`](Self::run) or [`wait`](Self::wait), or whoever calls [`flush`](Self::flush).
    ///
    /// # Errors
    /// The message comes back if the queue is full, closed, or its stream has ended.
    pub fn try_push(&self, message: M) -> Result<Ticket<M>, PushError<M>> {
        self.push_if_there_is_room(message, Lane::Bulk)
    }

    /// Pushes a small message that is served before bulk ones, between two of them. Does not wait for room or for the
    /// transport, but may flush, as [`try_push`](Self::try_push) does.
    ///
    /// # Errors
    /// As [`try_push`](Self::try_push); the control lane has a bound of its own.
    pub fn push_control(&self, message: M) -> Result<Ticket<M>, PushError<M>> {
        self.push_if_there_is_room(message, Lane::Control)
    }

    /// Pushes, waiting for room as a future. The poll in which it gets in may flush, as [`try_push`](Self::try_push) does.
    /// Cancel safe: dropped before it is ready, it has pushed nothing.
    pub fn push_async(&self, message: M) -> Push<M, F, T> {
        Push::new(self.clone(), message)
    }

    fn push_if_there_is_room(&self, message: M, lane: Lane) -> Result<Ticket<M>, PushError<M>> {
        // The caller's code, not to be run under the lock.
        let bytes = message.bytes();
        let mut state = self.shared.core.lock();
        let refusal = state.refusal();
        if planted("a push looks before it locks") {
            drop(state);
            state = self.shared.core.lock();
        }
        let share = if refusal.is_none() { state.room(lane).take(bytes) } else { None };
        match share {
            Some(bytes) => Ok(self.enqueue(state, message, Share { lane, bytes })),
            None => Err(PushError::new(message, refusal)),
        }
    }

    /// A message that has its room stands in its line, and is flushed if nobody else does.
    fn enqueue(&self, mut state: MutexGuard<'_, State<M>>, message: M, share: Share) -> Ticket<M> {
        let core = &self.shared.core;
        let fate = state.tickets.open();
        let ticket = Ticket::new(core.clone(), fate.clone());
        let line = match share.lane {
            Lane::Bulk => &mut state.bulk,
            Lane::Control => &mut state.control,
        };
        line.waiting.push_back(Waiting { message, ticket: fate, share });
        let flush = self.shared.options.pushers_flush && state.blocked.is_none();
        let batch = if flush { state.take_batch() } else { None };
        if let Some(batch) = batch {
            // An error reaches everybody by the tickets.
            let _ = self.shared.turn(state, batch, AtTheEnd::StayUntilRelieved);
            return ticket;
        }
        let take_over = flush && state.over_budget;
        // Who has the batch finds the message there; nobody else need be told.
        if state.batch.is_some() && (state.threads > 0 || state.work.is_some()) {
            let mut later = Later::default();
            later.wake_threads();
            later.wake(state.work.take());
            core.unlock(state, &mut later);
        } else {
            drop(state);
        }
        if take_over {
            self.shared.take_over();
        } else if planted("a pusher writes past the flusher") {
            let _ = self.shared.transport.send_vectored(&[IoSlice::new(&[0; 2])], SendFlags::default());
        }
        ticket
    }

    /// Takes no more messages, from whoever waits for room neither. What is in the queue is still sent, by whoever brings it
    /// on.
    pub fn close(&self) {
        let mut state = self.shared.core.lock();
        state.closed = true;
        let mut later = Later::default();
        later.wake_threads();
        later.wake(state.work.take());
        if !planted("close refuses no task") {
            later.wake(state.bulk.room.take_wakers());
        }
        self.shared.core.unlock(state, &mut later);
    }

    /// Ends the queue: what has not left fails with [`SendErrorKind::ShutDown`]. The stream is left as it is, in the
    /// middle of a message maybe: close it.
    pub fn shut_down(&self) {
        self.shared.die(SendError::new(SendErrorKind::ShutDown, None, 0));
    }

    /// What ended the stream, if something has.
    pub fn death(&self) -> Option<SendError> {
        self.shared.core.lock().dead.clone()
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.shared.transport
    }

    /// Counts of the calls, as of the last one.
    pub fn stats(&self) -> SendStats {
        self.shared.core.lock().stats
    }

    /// Messages in the queue that have not left, framed ones included, and pushes that were just granted room.
    pub fn len(&self) -> usize {
        let state = self.shared.core.lock();
        state.bulk.room.requests() + state.control.room.requests()
    }

    /// Whether nothing is in the queue, and nothing on its way in.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tickets that somebody holds or that are not resolved. Counts them: for tests and for looking at a queue.
    pub fn live_tickets(&self) -> usize {
        self.shared.core.lock().tickets.live()
    }
}

impl<M, F, T> SendQueue<M, F, T>
where
    M: Queued,
    F: Framer<M>,
    F::Error: fmt::Display,
    T: VectoredSend + Wait,
{
    /// Pushes, waiting for room. While it waits it flushes, or waits for the transport, if nobody else does. Not to be called
    /// by a waker, or by what is dropped with a message, in a thread that flushes the same queue: it would wait for itself.
    ///
    /// # Errors
    /// The message comes back if the queue is closed or its stream has ended.
    pub fn push(&self, message: M) -> Result<Ticket<M>, PushError<M>> {
        let message = match self.try_push(message) {
            Ok(ticket) => return Ok(ticket),
            Err(refused) if refused.is_full() => refused.into_message(),
            Err(refused) => return Err(refused),
        };
        let mut push = self.push_async(message);
        let pushed = loop {
            match push.advance(&mut None) {
                Ok(pushed) => break pushed,
                Err(state) => self.shared.drive(state, None),
            }
        };
        self.shared.go_on_if_handed_over();
        pushed
    }

    /// Waits until a ticket's message has left or has failed, at most until `deadline`; `None` if the deadline passed.
    /// While it waits it flushes, or waits for the transport, if nobody else does. What others were promised is not left
    /// lying: past the deadline it still sends what the transport takes, if that was left to it and nobody relieves it.
    pub fn wait(&self, ticket: &Ticket<M>, deadline: Option<Instant>) -> Option<Result<(), SendError>> {
        if !ticket.is_of(&self.shared.core) {
            // Another queue's: somebody else has to flush that.
            return ticket.wait(deadline);
        }
        let result = loop {
            let state = self.shared.core.lock();
            if let Some(outcome) = ticket.outcome() {
                break Some(match outcome {
                    Outcome::Failed(error) => Err(error),
                    _ => Ok(()),
                });
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break None;
            }
            self.shared.drive(state, deadline);
        };
        self.shared.go_on_if_handed_over();
        result
    }

    /// Flushes, until the queue is closed and empty: for a thread that does nothing else.
    ///
    /// # Errors
    /// What ended the stream.
    pub fn run(&self) -> Result<(), SendError> {
        loop {
            let state = self.shared.core.lock();
            if let Some(death) = &state.dead {
                return Err(death.clone());
            }
            if state.closed && state.batch.is_some() && !state.has_work() {
                return Ok(());
            }
            self.shared.drive(state, None);
        }
    }
}

impl<M, F, T> Shared<M, F, T> {
    /// A turn of whoever has taken the batch.
    fn turn<'q>(
        &'q self,
        state: MutexGuard<'q, State<M>>,
        batch: Batch,
        end: AtTheEnd,
    ) -> Result<Flushed, SendError>
    where
        M: Queued,
        F: Framer<M>,
        F::Error: fmt::Display,
        T: VectoredSend,
    {
        let engine = lock(&self.engine).take();
        let afresh = planted("a half-sent message stays with its flusher");
        let batch = if afresh { Batch::default() } else { batch };
        Turn { shared: self, batch: Some(batch), engine, end }.run(state)
    }

    fn die(&self, error: SendError) {
        let mut later = Later::default();
        let mut state = self.core.lock();
        state.die(error, &mut later);
        self.core.unlock(state, &mut later);
    }
}

/// The last handle is gone: nobody will ever flush what is left.
impl<M, F, T> Drop for Shared<M, F, T> {
    fn drop(&mut self) {
        if planted("the last handle leaves quietly") {
            return;
        }
        self.die(SendError::new(SendErrorKind::ShutDown, None, 0));
    }
}

impl<M: Queued, F, T> Clone for SendQueue<M, F, T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<M: Queued, F, T> fmt::Debug for SendQueue<M, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.core.lock();
        f.debug_struct("SendQueue")
            .field("bulk", &state.bulk.waiting.len())
            .field("control", &state.control.waiting.len())
            .field("flushing", &state.batch.is_none())
            .field("revoking", &state.revokes.len())
            .field("dead", &state.dead)
            .finish_non_exhaustive()
    }
}
