//! A deframer written as straight-line code: an `async` block that reads one frame.
//!
//! It runs inside [`Deframer::decode`], needs no runtime and never really waits: where it awaits, the receiver goes for
//! more bytes. That costs some hundred nanoseconds a frame (`cargo bench --bench recv`); where this matters, write the
//! [`Deframer`] by hand.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::framer::{BodyReq, Deframer, Filled, LineTooLong, Step, Targets, find_delimiter};

/// A deframer that calls an `async` closure for each frame.
///
/// The closure's future is given up with the receiver, not before: what it has read is read. `Ok(None)` is a frame of
/// which there is nothing to hand out.
///
/// ```
/// use std::ops::ControlFlow;
/// use segchain::framer::{BodyReq, Landed, LineTooLong, Place};
/// use segchain::recv::Receiver;
/// use segchain::straight::Straight;
/// use segchain::transport::SocketRef;
/// # use std::io::Write;
/// # let (mut peer, socket) = std::os::unix::net::UnixStream::pair()?;
/// # peer.write_all(b"5\r\nhello0\r\n")?;
///
/// let deframer = Straight::new(|mut wire| async move {
///     let line = wire.until(b"\r\n", 20).await?;
///     let len = String::from_utf8_lossy(&line).parse().unwrap_or(0);
///     match wire.body(BodyReq::new(len, Place::Contiguous)).await.landed {
///         Landed::Contiguous(bytes) => Ok::<_, LineTooLong>(Some(bytes)),
///         _ => Ok(None),
///     }
/// });
/// let mut receiver = Receiver::new(SocketRef::new(socket), deframer);
/// assert_eq!(receiver.next(&mut (), None, |frame| frame)?.unwrap(), "hello");
/// assert_eq!(receiver.next(&mut (), None, |frame| frame)?.unwrap(), "");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Straight<R, F, E> {
    read: R,
    reading: Option<Reading<F, E>>,
    state: Arc<Mutex<State>>,
}

type Reading<F, E> = Pin<Box<dyn Future<Output = Result<Option<F>, E>> + Send>>;

/// The bytes of one frame, in order.
///
/// The bytes that its methods return are copies: they are for headers. Bodies land where [`body`](Wire::body) says.
///
/// Not cancel safe: a call that was polled and dropped may have used its bytes. Await each to its end.
#[derive(Debug)]
pub struct Wire(Arc<Mutex<State>>);

/// What the frame's code asks for, and the answers.
#[derive(Debug)]
struct State {
    ask: Option<Ask>,
    bytes: Option<Vec<u8>>,
    line: Option<Result<Vec<u8>, LineTooLong>>,
    expected: Option<Expected>,
    filled: Option<Filled>,
    awaiting: &'static str,
}

/// How many bytes a target takes, if it is there.
#[derive(Debug)]
struct Expected(Option<u64>);

#[derive(Debug)]
enum Ask {
    Bytes(usize),
    Line { delimiter: Vec<u8>, limit: usize },
    Expected(u64),
    Body(BodyReq),
}

impl<R, F, E, Fut> Straight<R, F, E>
where
    R: FnMut(Wire) -> Fut,
    Fut: Future<Output = Result<Option<F>, E>> + Send + 'static,
{
    /// A deframer whose frames are read by `read`.
    pub fn new(read: R) -> Self {
        let state =
            State { ask: None, bytes: None, line: None, expected: None, filled: None, awaiting: "frame" };
        Self { read, reading: None, state: Arc::new(Mutex::new(state)) }
    }
}

impl Wire {
    /// The next `len` bytes: a header, no longer than the read-ahead.
    pub async fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.ask(Ask::Bytes(len), |state| state.bytes.take()).await
    }

    /// The next `N` bytes.
    pub async fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes(N).await);
        array
    }

    /// The bytes before the next `delimiter`, which is used as well: a line of at most `limit` bytes.
    ///
    /// # Errors
    /// [`LineTooLong`] if there is no delimiter within the limit.
    pub async fn until(&mut self, delimiter: &[u8], limit: usize) -> Result<Vec<u8>, LineTooLong> {
        self.ask(Ask::Line { delimiter: delimiter.to_vec(), limit }, |state| state.line.take()).await
    }

    /// How many bytes a target takes: see [`Targets::expect`].
    pub async fn expect(&mut self, key: u64) -> Option<u64> {
        self.ask(Ask::Expected(key), |state| state.expected.take()).await.0
    }

    /// The next bytes as a body, or as a piece of one.
    pub async fn body(&mut self, req: BodyReq) -> Filled {
        self.ask(Ask::Body(req), |state| state.filled.take()).await
    }

    /// Says what is awaited from now on, for error messages.
    pub fn awaiting(&mut self, field: &'static str) {
        lock(&self.0).awaiting = field;
    }

    async fn ask<A>(&mut self, ask: Ask, answer: impl Fn(&mut State) -> Option<A>) -> A {
        {
            let mut state = lock(&self.0);
            // An answer that nobody waited for is not the answer to this.
            answer(&mut state);
            state.ask = Some(ask);
        }
        poll_fn(|_| answer(&mut lock(&self.0)).map_or(Poll::Pending, Poll::Ready)).await
    }
}

impl<R, F, E, Fut> Deframer for Straight<R, F, E>
where
    R: FnMut(Wire) -> Fut,
    Fut: Future<Output = Result<Option<F>, E>> + Send + 'static,
{
    type Frame<'h> = F;
    type Error = E;

    fn decode(&mut self, head: &[u8], targets: &mut dyn Targets) -> Result<Step<F>, E> {
        let mut used = 0;
        if self.reading.is_none() && head.is_empty() {
            return Ok(Step::Need(1));
        }
        loop {
            let rest = &head[used..];
            let mut state = lock(&self.state);
            match state.ask.take() {
                Some(Ask::Bytes(len)) if len <= rest.len() => {
                    state.bytes = Some(rest[..len].to_vec());
                    used += len;
                }
                Some(Ask::Bytes(len)) => {
                    state.ask = Some(Ask::Bytes(len));
                    return Ok(need(used, len));
                }
                Some(Ask::Line { delimiter, limit }) => match find_delimiter(rest, &delimiter, limit) {
                    Ok(None) => {
                        state.ask = Some(Ask::Line { delimiter, limit });
                        return Ok(need(used, rest.len() + 1));
                    }
                    Ok(Some(len)) => {
                        state.line = Some(Ok(rest[..len].to_vec()));
                        used += len + delimiter.len();
                    }
                    Err(error) => state.line = Some(Err(error)),
                },
                Some(Ask::Expected(key)) => state.expected = Some(Expected(targets.expect(key))),
                Some(Ask::Body(req)) => return Ok(Step::Body { head: used, req }),
                None => {}
            }
            drop(state);
            let reading = self.reading.get_or_insert_with(|| Box::pin((self.read)(Wire(self.state.clone()))));
            match reading.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(frame) => {
                    self.reading = None;
                    lock(&self.state).awaiting = "frame";
                    return Ok(match frame? {
                        Some(frame) => Step::Frame { frame, head: used },
                        None => Step::Dropped { head: used },
                    });
                }
                // Code that awaits something else than its wire is stuck, and the receiver says so.
                Poll::Pending if lock(&self.state).ask.is_none() => return Ok(Step::Used(used)),
                Poll::Pending => {}
            }
        }
    }

    fn body(&mut self, piece: Filled) -> Result<(), E> {
        lock(&self.state).filled = Some(piece);
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        lock(&self.state).awaiting
    }
}

/// Used bytes are given up first: the answer to `Need` comes with the same bytes again.
fn need<F>(used: usize, wanted: usize) -> Step<F> {
    if used > 0 { Step::Used(used) } else { Step::Need(wanted) }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R, F, E> fmt::Debug for Straight<R, F, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Straight").field("reading", &self.reading.is_some()).finish_non_exhaustive()
    }
}
