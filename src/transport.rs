//! What the sender and the receiver need of a socket: one vectored call each, and a way to wait.
//!
//! Whether a call blocks, how much it is offered and what its errors mean is decided in [`send`](crate::send) and
//! [`recv`](crate::recv); the calls themselves are in `sys`. [`SocketRef`] brings them to anything that has a
//! descriptor, a test brings a script.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::ops::BitOr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(target_os = "linux", target_os = "android"))]
use socket2::Protocol;
use socket2::{SockAddr, SockRef};

use crate::sys;

/// The most slices that one call is offered: `IOV_MAX`.
pub const MAX_SLICES: usize = sys::IOV_MAX;
/// The most bytes that one call is offered: 1 GiB. (Linux cuts a call at 0x7ffff000 bytes, macOS refuses a sum over
/// `INT_MAX`.)
pub const MAX_BYTES: u64 = 1 << 30;

/// How many pieces of memory the slices are, touching neighbours counted as one: what [`SocketRef`] hands to the kernel.
///
/// ```
/// use std::io::IoSlice;
/// let page = [0u8; 8];
/// let halves = [IoSlice::new(&page[..4]), IoSlice::new(&page[4..])];
/// assert_eq!(segchain::transport::slices_in_memory(&halves), 1);
/// ```
pub fn slices_in_memory(bufs: &[IoSlice<'_>]) -> usize {
    sys::slices_in_memory(bufs)
}

/// Flags of one send call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags(u8);

impl SendFlags {
    /// `MSG_DONTWAIT`: the call returns at once.
    pub const DONT_WAIT: Self = Self(1);
    /// `MSG_NOSIGNAL`: no SIGPIPE.
    pub const NO_SIGNAL: Self = Self(2);
    /// `MSG_MORE`: more bytes of the same flush follow, do not push a short packet yet. Ignored off Linux.
    pub const MORE: Self = Self(4);

    /// Whether all flags of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn bits(self) -> i32 {
        let bit = |flag, bits| if self.contains(flag) { bits } else { 0 };
        bit(Self::DONT_WAIT, sys::DONT_WAIT)
            | bit(Self::NO_SIGNAL, sys::NO_SIGNAL)
            | bit(Self::MORE, sys::MORE)
    }
}

impl BitOr for SendFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The sending half of a byte stream.
pub trait VectoredSend {
    /// Hands over a prefix of the slices' bytes, in order, and says how long it was. Never waits.
    ///
    /// `bufs` is at most [`MAX_SLICES`] slices and [`MAX_BYTES`] bytes, and none of them is empty.
    ///
    /// # Errors
    /// `WouldBlock` if the stream takes nothing now. `Interrupted`, ENOBUFS and ENOMEM are transient. Whatever else is
    /// returned is the end of the stream. After an error nothing of `bufs` has left.
    fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize>;

    /// Nothing follows the last call after all, though it carried [`SendFlags::MORE`]: what the stream holds back for
    /// that, up to 200 ms on Linux TCP (tcp(7)), leaves. Nothing to do for a transport that holds nothing back.
    fn push_out(&self) {}
}

/// The receiving half of a byte stream.
pub trait VectoredRecv {
    /// Fills a prefix of the slices, in order, and says how long it was; 0 is the end of the stream. Never waits.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there now. `Interrupted` is transient. Whatever else is returned is the end of the
    /// stream. After an error nothing of `bufs` was filled.
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize>;
}

/// The sending half of a datagram socket.
pub trait DatagramSend {
    /// Sends the slices as one datagram, to an address or to the connected peer. Never waits.
    ///
    /// # Errors
    /// As the system reports them: EMSGSIZE if the datagram is too long.
    fn send_datagram(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: SendFlags,
    ) -> io::Result<usize>;
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interest {
    /// Until a receive call would not return `WouldBlock`.
    Readable,
    /// Until a send call would not return `WouldBlock`.
    Writable,
    /// Until either would not.
    Either,
}

/// Waiting for a transport, for the blocking forms. An event loop over many sockets brings its own poller instead:
/// [`SocketRef::get_ref`] has the descriptor.
pub trait Wait {
    /// Waits until the transport is ready or has an error to tell, at most for `timeout`. `false` if it is not ready;
    /// that may come early.
    ///
    /// # Errors
    /// What the system reports of the wait itself.
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool>;

    /// Waits until `bytes` bytes are there to be received: for a receiver that has far to go, and would be woken for each
    /// packet. `true` may come with fewer, and has to when no more can come: the peer has closed, or the buffer is full. The
    /// default is [`wait`](Self::wait) until any byte is there.
    ///
    /// ```
    /// use std::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    /// use segchain::transport::{SocketRef, Wait};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let peer = TcpStream::connect(listener.local_addr()?)?;
    /// let socket = SocketRef::new(listener.accept()?.0);
    /// assert!(!socket.wait_for_bytes(64 << 10, Some(Duration::from_millis(1)))?);
    /// drop(peer);
    /// assert!(socket.wait_for_bytes(64 << 10, None)?); // the end of the stream is there to be received
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    fn wait_for_bytes(&self, bytes: usize, timeout: Option<Duration>) -> io::Result<bool> {
        let _ = bytes;
        self.wait(Interest::Readable, timeout)
    }
}

/// A stream or datagram socket: anything with a descriptor, owned or borrowed. TCP, MPTCP, AF_UNIX and vsock are known
/// to work on Linux.
///
/// Its calls never block, whatever mode the socket is in, and never raise SIGPIPE.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use segchain::chain::{ChainBuilder, Outgoing};
/// use segchain::send::{Progress, StreamSender};
/// use segchain::transport::SocketRef;
///
/// let (a, _b) = UnixStream::pair()?;
/// let mut sender = StreamSender::new(SocketRef::new(&a));
/// let mut out = ChainBuilder::new();
/// out.put(b"hello");
/// let mut message = Outgoing::new(out.finish()?);
/// assert_eq!(sender.send(&mut message)?, Progress::Done);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SocketRef<S> {
    socket: S,
    /// Whether it is TCP, and nothing built on it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    tcp: bool,
}

impl<S: AsFd> SocketRef<S> {
    /// Takes a socket as it is.
    pub fn new(socket: S) -> Self {
        // Best effort where the flag does not exist: a refusal shows as a signal, which no caller can act on here.
        let _ = sys::no_sigpipe(socket.as_fd());
        Self {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            tcp: matches!(SockRef::from(&socket).protocol(), Ok(Some(Protocol::TCP))),
            socket,
        }
    }

    /// The socket.
    pub fn get_ref(&self) -> &S {
        &self.socket
    }

    /// The socket back.
    pub fn into_inner(self) -> S {
        self.socket
    }

    /// `TCP_NODELAY`. On for every protocol of this crate: `MSG_MORE` does the coalescing, and Nagle's algorithm would
    /// hold back the end of a message until the peer acknowledges what is before it.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        SockRef::from(&self.socket.as_fd()).set_tcp_nodelay(on)
    }

    /// `TCP_NOTSENT_LOWAT`: the socket is writable only while fewer than `bytes` wait unsent in the kernel. A small value
    /// lets a control message overtake bulk that is still in user space.
    ///
    /// # Errors
    /// As the system reports them.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        SockRef::from(&self.socket.as_fd()).set_tcp_notsent_lowat(bytes)
    }

    /// `SO_SNDBUF`, in bytes. Linux doubles it for its own bookkeeping (socket(7)); setting it ends auto-tuning.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        SockRef::from(&self.socket.as_fd()).set_send_buffer_size(bytes)
    }

    /// `SO_RCVBUF`, in bytes; as for [`set_send_buffer`](Self::set_send_buffer).
    ///
    /// # Errors
    /// As the system reports them.
    pub fn set_recv_buffer(&self, bytes: usize) -> io::Result<()> {
        SockRef::from(&self.socket.as_fd()).set_recv_buffer_size(bytes)
    }
}

impl<S: AsFd> VectoredSend for SocketRef<S> {
    #[inline]
    fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        sys::send(self.socket.as_fd(), bufs, None, flags.bits())
    }

    /// By taking `TCP_CORK` off, which pushes whether or not it was on (`__tcp_sock_set_cork` in net/ipv4/tcp.c). Best
    /// effort: what is no TCP socket refuses, and holds nothing back.
    fn push_out(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = SockRef::from(&self.socket.as_fd()).set_tcp_cork(false);
    }
}

impl<S: AsFd> VectoredRecv for SocketRef<S> {
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        sys::recv(self.socket.as_fd(), bufs, sys::DONT_WAIT)
    }
}

impl<S: AsFd> DatagramSend for SocketRef<S> {
    fn send_datagram(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: SendFlags,
    ) -> io::Result<usize> {
        let to = to.map(SockAddr::from);
        sys::send(self.socket.as_fd(), bufs, to.as_ref(), flags.bits())
    }
}

impl<S: AsFd> Wait for SocketRef<S> {
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool> {
        sys::poll(
            self.socket.as_fd(),
            interest != Interest::Writable,
            interest != Interest::Readable,
            timeout,
        )
    }

    /// TCP on Linux waits by `SO_RCVLOWAT`, which is 1 afterwards, as it is on a new socket, and comes back when the buffer is
    /// full (`tcp_epollin_ready` in include/net/tcp.h). Whoever else waits for this socket meanwhile waits for as many bytes;
    /// and unless `SO_RCVBUF` was set, the buffer may grow, up to `tcp_rmem` (tcp(7)), where it would have stayed smaller.
    ///
    /// Other sockets wait for any byte: MPTCP, with a small buffer, does not see that it is full (measured on Linux 6.18), and
    /// AF_UNIX has no mark. Nor does any wait last long with it, so that no kernel can keep a full buffer to itself.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn wait_for_bytes(&self, bytes: usize, timeout: Option<Duration>) -> io::Result<bool> {
        const LONGEST: Duration = Duration::from_millis(50);
        if !self.tcp || sys::set_recv_low_water(self.socket.as_fd(), bytes).is_err() {
            return self.wait(Interest::Readable, timeout);
        }
        let ready =
            self.wait(Interest::Readable, Some(timeout.map_or(LONGEST, |timeout| timeout.min(LONGEST))));
        let reset = sys::set_recv_low_water(self.socket.as_fd(), 1);
        if ready? {
            return reset.map(|()| true);
        }
        reset?;
        match timeout.map(|timeout| timeout.saturating_sub(LONGEST)) {
            Some(Duration::ZERO) => Ok(false),
            left => self.wait(Interest::Readable, left),
        }
    }
}

impl<T: VectoredSend + ?Sized> VectoredSend for Arc<T> {
    #[inline]
    fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        (**self).send_vectored(bufs, flags)
    }

    fn push_out(&self) {
        (**self).push_out();
    }
}

impl<T: VectoredRecv + ?Sized> VectoredRecv for Arc<T> {
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (**self).recv_vectored(bufs)
    }
}

impl<T: DatagramSend + ?Sized> DatagramSend for Arc<T> {
    fn send_datagram(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: SendFlags,
    ) -> io::Result<usize> {
        (**self).send_datagram(bufs, to, flags)
    }
}

impl<T: Wait + ?Sized> Wait for Arc<T> {
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool> {
        (**self).wait(interest, timeout)
    }

    fn wait_for_bytes(&self, bytes: usize, timeout: Option<Duration>) -> io::Result<bool> {
        (**self).wait_for_bytes(bytes, timeout)
    }
}

impl<T: VectoredSend + ?Sized> VectoredSend for &T {
    #[inline]
    fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        (**self).send_vectored(bufs, flags)
    }

    fn push_out(&self) {
        (**self).push_out();
    }
}

impl<T: VectoredRecv + ?Sized> VectoredRecv for &T {
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (**self).recv_vectored(bufs)
    }
}

impl<T: DatagramSend + ?Sized> DatagramSend for &T {
    fn send_datagram(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: SendFlags,
    ) -> io::Result<usize> {
        (**self).send_datagram(bufs, to, flags)
    }
}

impl<T: Wait + ?Sized> Wait for &T {
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool> {
        (**self).wait(interest, timeout)
    }

    fn wait_for_bytes(&self, bytes: usize, timeout: Option<Duration>) -> io::Result<bool> {
        (**self).wait_for_bytes(bytes, timeout)
    }
}
