//! Sending: whole messages, in as few calls as the limits allow, resumed at any byte.
//!
//! ```text
//!  [Outgoing, Outgoing, …] ─seal ahead─▶ gather ─▶ one sendmsg ─▶ positions move ─▶ again, until done or blocked
//! ```
//!
//! [`StreamSender`] is the only owner of a half-sent message's position on the stream, and so the only one who can tell
//! whether the next byte belongs there. Who may call it when many threads want to send is not decided here.

mod datagram;
mod error;

use std::io::{self, IoSlice};
use std::thread;
use std::time::{Duration, Instant};

pub use self::datagram::DatagramSender;
pub use self::error::{SendError, SendErrorKind};

use crate::chain::Outgoing;
use crate::sys::{self, reuse};
use crate::transport::{Interest, MAX_BYTES, MAX_SLICES, SendFlags, VectoredSend, Wait};

/// Limits of the sender. The defaults are good; tests and measurements change them.
#[derive(Clone, Debug)]
pub struct SendOptions {
    max_slices: usize,
    max_bytes: u64,
    seal_window: u64,
    turn_bytes: u64,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self { max_slices: MAX_SLICES, max_bytes: MAX_BYTES, seal_window: 1 << 20, turn_bytes: u64::MAX }
    }
}

impl SendOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Slices per call, 1 to [`MAX_SLICES`] (the default).
    #[must_use]
    pub fn max_slices(mut self, slices: usize) -> Self {
        self.max_slices = slices.clamp(1, MAX_SLICES);
        self
    }

    /// Bytes per call, 1 to [`MAX_BYTES`] (the default).
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes.clamp(1, MAX_BYTES);
        self
    }

    /// How far ahead of the send a message is digested, in bytes; 1 MiB unless set. A message of up to two windows is
    /// digested whole.
    ///
    /// Digesting a message warms its pages for the kernel's copy, as long as they stay in the cache: so large messages go in
    /// windows. Small windows cost calls and break the digest's stride.
    #[must_use]
    pub fn seal_window(mut self, bytes: u64) -> Self {
        self.seal_window = bytes.max(1);
        self
    }

    /// After how many bytes [`send`](StreamSender::send) returns [`Progress::Budget`], so that one turn does not last for
    /// ever; no limit unless set, at least 1.
    #[must_use]
    pub fn turn_bytes(mut self, bytes: u64) -> Self {
        self.turn_bytes = bytes.max(1);
        self
    }
}

/// So many short calls in a row are a socket that takes little at a time. One or two are not: a large message may fill a socket
/// that took all before it.
const FEW_CALLS: u32 = 4;
/// What such a socket is offered: they are gathered in a tenth of the time of a call.
const FEW_SLICES: usize = 256;

/// How many bytes a blocking form hands over before it looks at the clock. (A transport that blocks makes it look, too.)
const BETWEEN_LOOKS: u64 = 16 << 20;

/// What was done so far. Counts only ever grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendStats {
    /// Calls that the transport answered, with bytes or with an error.
    pub calls: u64,
    /// Slices offered in them, touching neighbours counted as one.
    pub slices: u64,
    /// Bytes that left.
    pub bytes: u64,
    /// Messages whose last byte left.
    pub messages: u64,
    /// Calls that took fewer bytes than they were offered.
    pub short_writes: u64,
    /// Calls that took none, because the transport was full or short of memory.
    pub blocked: u64,
    /// Payload bytes of begun messages that were copied, being below the copy threshold.
    pub copied: u64,
    /// Bytes read for checksums here. Chains that came sealed are not in it.
    pub digested: u64,
}

/// How far a send came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message that is not done has to be sent on, or the stream is dead"]
#[non_exhaustive]
pub enum Progress {
    /// Every byte of every message was handed over.
    Done,
    /// The transport takes no more now. Send the same messages again when it does.
    Blocked(Blocked),
    /// The turn's bytes are used up. Send the same messages again after the others.
    Budget,
}

/// Why a transport takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocked {
    /// Its buffer is full (EAGAIN): wait until it is writable.
    Full,
    /// The system is short of memory (ENOBUFS, ENOMEM). The socket may well be writable, so wait for some time instead: 1 ms,
    /// doubling to 50 ms, as the blocking forms do.
    Memory,
}

/// How long to wait when the system is short of memory: longer each time, until something was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    const SHORTEST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(50);

    pub(crate) fn new() -> Self {
        Self(Self::SHORTEST)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = Self::LONGEST.min(pause * 2);
        pause
    }
}

/// Sends whole messages over one byte stream, and lets nothing come between their bytes.
///
/// While a message is half-sent the stream is *open* for it alone: any other is refused, and so is a half-sent one that
/// was begun elsewhere. If the open message is dropped, every other is refused with [`SendErrorKind::AnotherOpen`], for
/// ever; if an error ends it, with [`SendErrorKind::Dead`].
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use segchain::chain::{ChainBuilder, Outgoing};
/// use segchain::send::StreamSender;
/// use segchain::transport::SocketRef;
///
/// let (socket, _peer) = UnixStream::pair()?;
/// let mut sender = StreamSender::new(SocketRef::new(socket));
/// let page = vec![1u8; 4096];
/// let mut out = ChainBuilder::new();
/// out.put(&4096u32.to_be_bytes());
/// out.push_borrowed(&page);
/// let mut message = Outgoing::new(out.finish()?);
/// sender.send_blocking(&mut message, None)?;
/// assert_eq!((sender.stats().calls, sender.stats().copied), (1, 0));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct StreamSender<T> {
    transport: T,
    options: SendOptions,
    /// The half-sent message: its id, and the position up to which its bytes are in the stream.
    open: Option<(u64, u64)>,
    dead: Option<SendError>,
    /// Whether the last call carried MSG_MORE and all that it offered was taken.
    more: bool,
    /// How many calls in a row took fewer bytes than they were offered.
    short: u32,
    stats: SendStats,
    slices: Vec<IoSlice<'static>>,
}

impl<T> StreamSender<T> {
    /// A sender over a stream on which no message is half-sent.
    pub fn new(transport: T) -> Self {
        Self::with_options(transport, SendOptions::default())
    }

    /// The same, with other limits.
    pub fn with_options(transport: T, options: SendOptions) -> Self {
        Self {
            transport,
            options,
            open: None,
            dead: None,
            more: false,
            short: 0,
            stats: SendStats::default(),
            slices: Vec::new(),
        }
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// The transport back. If a message is open, whoever writes to it next tears that message.
    pub fn into_transport(self) -> T {
        self.transport
    }

    /// What was done so far.
    pub fn stats(&self) -> SendStats {
        self.stats
    }

    /// The id of the half-sent message, if there is one.
    pub fn open_message(&self) -> Option<u64> {
        self.open.map(|(id, _)| id)
    }

    /// Gives up the open message, if there is one: the stream is dead then, and [`death`](Self::death) says so. For whoever
    /// has dropped a half-sent message and wants to know.
    pub fn abandon(&mut self) {
        if let Some((_, sent)) = self.open {
            self.dead.get_or_insert_with(|| SendError::new(SendErrorKind::Revoked, None, sent));
        }
    }

    /// What ended the stream, if something has.
    pub fn death(&self) -> Option<&SendError> {
        self.dead.as_ref()
    }
}

impl<T: VectoredSend> StreamSender<T> {
    /// Sends one message, or goes on with it. Never waits.
    ///
    /// # Errors
    /// As [`send_batch`](Self::send_batch).
    pub fn send(&mut self, message: &mut Outgoing<'_>) -> Result<Progress, SendError> {
        self.send_batch(std::slice::from_mut(message))
    }

    /// Sends messages in order, many per call if they are small, or goes on with them. Never waits. Those that are
    /// complete already are passed over.
    ///
    /// # Errors
    /// [`SendErrorKind::AnotherOpen`] and [`SendErrorKind::HalfSentElsewhere`] refuse the batch and change nothing. Any
    /// other error ends the stream; [`SendError::sent`] tells how many bytes of the message that it struck had left, and
    /// that message keeps its position.
    pub fn send_batch(&mut self, batch: &mut [Outgoing<'_>]) -> Result<Progress, SendError> {
        self.turn(batch, self.options.turn_bytes)
    }

    fn turn(&mut self, batch: &mut [Outgoing<'_>], mut turn: u64) -> Result<Progress, SendError> {
        let mut left = self.admit(batch)?;
        loop {
            if let Some(progress) = self.step(batch, &mut left, &mut turn)? {
                return Ok(progress);
            }
        }
    }

    /// The same, but at most one call: `None` if there is more to do at once. Whoever stops there leaves MSG_MORE set, and
    /// [`owes_more`](Self::owes_more) tells.
    pub(crate) fn send_one_call(
        &mut self,
        batch: &mut [Outgoing<'_>],
    ) -> Result<Option<Progress>, SendError> {
        let mut left = self.admit(batch)?;
        let mut turn = u64::MAX;
        self.step(batch, &mut left, &mut turn)
    }

    /// Whether the stream was told that more follows: if it does not, an empty batch says so.
    pub(crate) fn owes_more(&self) -> bool {
        self.more
    }

    /// One call, and what follows from its result. `left` bytes of the batch have not left, `turn` bytes may in this turn.
    fn step(
        &mut self,
        batch: &mut [Outgoing<'_>],
        left: &mut u64,
        turn: &mut u64,
    ) -> Result<Option<Progress>, SendError> {
        if *left == 0 {
            if std::mem::take(&mut self.more) {
                self.transport.push_out();
            }
            return Ok(Some(Progress::Done));
        }
        if *turn == 0 {
            return Ok(Some(Progress::Budget));
        }
        let (result, offered, more) = self.call(batch, *turn, *left);
        match result {
            Ok(n) if n > 0 && n as u64 <= offered => {
                let n = n as u64;
                // After a short write the kernel holds nothing back (`tcp_sendmsg_locked`).
                self.more = more && n == offered;
                self.stats.short_writes += u64::from(n < offered);
                self.short = if n < offered { self.short.saturating_add(1) } else { 0 };
                self.advance(batch, n);
                (*left, *turn) = (*left - n, *turn - n);
                Ok((*left == 0).then_some(Progress::Done))
            }
            result => self.not_taken(result, batch),
        }
    }

    /// What follows from a call that took nothing, or claims what it was not offered.
    #[cold]
    fn not_taken(
        &mut self,
        result: io::Result<usize>,
        batch: &[Outgoing<'_>],
    ) -> Result<Option<Progress>, SendError> {
        match result {
            Ok(0) => Err(self.die(SendErrorKind::WriteZero, None, sent_of_first(batch))),
            Ok(_) => Err(self.die(SendErrorKind::Overrun, None, sent_of_first(batch))),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => match blocked(&error) {
                Some(reason) => {
                    // What is held back leaves as the peer acknowledges what is in front of it.
                    self.more = false;
                    self.stats.blocked += 1;
                    Ok(Some(Progress::Blocked(reason)))
                }
                None => {
                    Err(self.die(SendErrorKind::Io(error.kind()), error.raw_os_error(), sent_of_first(batch)))
                }
            },
        }
    }

    /// One call: as much of the batch as the limits allow, sealed just before. Returns what the transport said, how much it
    /// was offered, and whether it was told that more follows.
    fn call(&mut self, batch: &mut [Outgoing<'_>], turn: u64, left: u64) -> (io::Result<usize>, u64, bool) {
        let SendOptions { mut max_slices, max_bytes, seal_window, .. } = self.options;
        let limit = max_bytes.min(turn);
        // What is not taken costs as much to offer as what is: to us, and to the kernel, which copies the array.
        if self.short >= FEW_CALLS {
            max_slices = max_slices.min(FEW_SLICES);
        }

        let mut slices = reuse(std::mem::take(&mut self.slices));
        let (mut offered, mut fresh) = (0, 0);
        for message in batch.iter_mut().filter(|message| !message.is_complete()) {
            fresh += message.seal_ahead(seal_window);
            let gathered = message.gather(limit - offered, max_slices - slices.len(), &mut slices);
            offered += gathered;
            let cut = gathered < message.remaining();
            // Two windows are enough for one call.
            if cut || slices.len() == max_slices || offered == limit || fresh >= seal_window.saturating_mul(2)
            {
                break;
            }
        }
        self.stats.digested += fresh;
        // Bytes of this flush remain unoffered if and only if this call does not reach its end.
        let more = offered < left.min(turn);
        let flags = if more { SendFlags::MORE } else { SendFlags::default() };
        let flags = SendFlags::DONT_WAIT | SendFlags::NO_SIGNAL | flags;
        let result = self.transport.send_vectored(&slices, flags);
        self.stats.calls += 1;
        self.stats.slices += sys::slices_in_memory(&slices) as u64;
        self.slices = reuse(slices);
        (result, offered, more)
    }

    /// Moves the positions by `n` bytes, and remembers which message is open.
    fn advance(&mut self, batch: &mut [Outgoing<'_>], n: u64) {
        self.stats.bytes += n;
        let mut left = n;
        for message in batch.iter_mut().filter(|message| !message.is_complete()) {
            if message.sent() == 0 {
                self.stats.copied += message.copied();
            }
            let step = left.min(message.remaining());
            message.advance(step);
            left -= step;
            let complete = message.is_complete();
            self.stats.messages += u64::from(complete);
            self.open = (!complete).then(|| (message.id(), message.sent()));
            if left == 0 {
                break;
            }
        }
    }

    /// Refuses what would tear the open message, or one that was begun elsewhere; returns how many bytes have not left.
    fn admit(&self, batch: &[Outgoing<'_>]) -> Result<u64, SendError> {
        if let Some(death) = &self.dead {
            return Err(SendError::new(SendErrorKind::Dead, death.raw_os_error(), sent_of_first(batch)));
        }
        let mut left: u64 = 0;
        // Only the first may be half-sent, and only where the stream is.
        let mut open = self.open;
        for message in batch.iter().filter(|message| !message.is_complete()) {
            let refused = match open.take() {
                Some(open) if open != (message.id(), message.sent()) => SendErrorKind::AnotherOpen,
                None if message.sent() > 0 => SendErrorKind::HalfSentElsewhere,
                _ => {
                    left = left.saturating_add(message.remaining());
                    continue;
                }
            };
            return Err(SendError::new(refused, None, message.sent()));
        }
        Ok(left)
    }

    #[cold]
    fn die(&mut self, kind: SendErrorKind, errno: Option<i32>, sent: u64) -> SendError {
        self.dead.insert(SendError::new(kind, errno, sent)).clone()
    }
}

impl<T: VectoredSend + Wait> StreamSender<T> {
    /// Sends one message whole, waiting for the transport, at most until `deadline`.
    ///
    /// # Errors
    /// As [`send_batch_blocking`](Self::send_batch_blocking).
    pub fn send_blocking(
        &mut self,
        message: &mut Outgoing<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), SendError> {
        self.send_batch_blocking(std::slice::from_mut(message), deadline)
    }

    /// Sends messages whole, waiting for the transport, at most until `deadline`.
    ///
    /// # Errors
    /// As [`send_batch`](Self::send_batch), and [`SendErrorKind::Deadline`]: in the middle of a message that ends the
    /// stream, between two it does not. The deadline is looked at when the transport takes no more, and every 16 MiB while
    /// it does.
    pub fn send_batch_blocking(
        &mut self,
        batch: &mut [Outgoing<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), SendError> {
        // Without a deadline there is no clock to look at, and a call cut short there would be one more.
        let looks = if deadline.is_some() { BETWEEN_LOOKS } else { u64::MAX };
        let turn = self.options.turn_bytes.min(looks);
        match self.turn(batch, turn)? {
            Progress::Done => Ok(()),
            progress => self.go_on(batch, turn, progress, deadline),
        }
    }

    /// Waits as long as the transport asks for, and goes on, until all is sent.
    #[cold]
    fn go_on(
        &mut self,
        batch: &mut [Outgoing<'_>],
        turn: u64,
        mut progress: Progress,
        deadline: Option<Instant>,
    ) -> Result<(), SendError> {
        let mut backoff = Backoff::new();
        let mut bytes = self.stats.bytes;
        loop {
            let reason = match progress {
                Progress::Done => return Ok(()),
                Progress::Budget => None,
                Progress::Blocked(reason) => Some(reason),
            };
            if std::mem::replace(&mut bytes, self.stats.bytes) != self.stats.bytes {
                backoff = Backoff::new();
            }
            let sent = sent_of_first(batch);
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                let late = SendError::new(SendErrorKind::Deadline, None, sent);
                if self.open.is_some() {
                    self.dead = Some(late.clone());
                }
                return Err(late);
            }
            match reason {
                None => {}
                Some(Blocked::Full) => {
                    if let Err(error) = self.transport.wait(Interest::Writable, left) {
                        return Err(self.die(SendErrorKind::Io(error.kind()), error.raw_os_error(), sent));
                    }
                }
                Some(Blocked::Memory) => {
                    let pause = backoff.next();
                    thread::sleep(left.map_or(pause, |left| left.min(pause)));
                }
            }
            progress = self.turn(batch, turn)?;
        }
    }
}

/// How much has left of the message that an error strikes.
fn sent_of_first(batch: &[Outgoing<'_>]) -> u64 {
    batch.iter().find(|message| !message.is_complete()).map_or(0, Outgoing::sent)
}

/// Whether an error only means "not now".
fn blocked(error: &io::Error) -> Option<Blocked> {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::WouldBlock, _) => Some(Blocked::Full),
        (io::ErrorKind::OutOfMemory, _) | (_, Some(sys::ENOBUFS)) => Some(Blocked::Memory),
        _ => None,
    }
}
