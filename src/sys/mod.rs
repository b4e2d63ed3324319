//! The system calls, and memory that outlives what was borrowed in it ([`reuse`], [`Recyclable`]): the only unsafe code of
//! the crate. `sendmsg`, `recvmsg`, `poll`, and what differs between platforms. Policy (retries, limits, what an error means)
//! is not here but in the rooms above.
#![allow(unsafe_code)]

mod join;
mod reuse;

use std::ffi::c_int;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use socket2::SockAddr;

pub(crate) use self::join::slices_in_memory;
pub(crate) use self::reuse::{Recyclable, reuse};

/// The most slices one call takes. Linux: `UIO_MAXIOV` in `include/uapi/linux/uio.h`; macOS and the BSDs have the same
/// 1024 as `IOV_MAX`. One more is EMSGSIZE from `sendmsg`.
pub(crate) const IOV_MAX: usize = 1024;

/// No memory for the socket's buffers. (`ENOMEM` has a kind of its own in std.)
pub(crate) const ENOBUFS: c_int = libc::ENOBUFS;
/// A datagram longer than the socket takes.
pub(crate) const EMSGSIZE: c_int = libc::EMSGSIZE;

pub(crate) const DONT_WAIT: c_int = libc::MSG_DONTWAIT;

#[cfg(not(target_vendor = "apple"))]
pub(crate) const NO_SIGNAL: c_int = libc::MSG_NOSIGNAL;
/// There is no such flag; [`no_sigpipe`] sets the socket option instead.
#[cfg(target_vendor = "apple")]
pub(crate) const NO_SIGNAL: c_int = 0;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) const MORE: c_int = libc::MSG_MORE;
/// Linux only; elsewhere the hint is lost, not the data.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) const MORE: c_int = 0;

/// `SO_NOSIGPIPE`, where it takes the place of `MSG_NOSIGNAL`.
#[cfg(target_vendor = "apple")]
pub(crate) fn no_sigpipe(socket: BorrowedFd<'_>) -> io::Result<()> {
    socket2::SockRef::from(&socket).set_nosigpipe(true)
}

#[cfg(not(target_vendor = "apple"))]
#[allow(clippy::unnecessary_wraps)]
pub(crate) fn no_sigpipe(_: BorrowedFd<'_>) -> io::Result<()> {
    Ok(())
}

/// One `sendmsg`. Neighbouring slices whose memory touches reach the kernel as one.
///
/// Inlined up to the caller of the transport: the kernel's calls use up the CPU's stack of return addresses, so that a frame
/// more that a system call returns through is a misprediction more (measured on Linux 6.18: whole-write of 4 KiB).
#[inline]
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    to: Option<&SockAddr>,
    flags: c_int,
) -> io::Result<usize> {
    join::with_iovecs(bufs, |iovecs| {
        let mut header = empty_header();
        if let Some(to) = to {
            // sendmsg reads the address, it does not write to it (POSIX).
            header.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_namelen = to.len();
        }
        header.msg_iov = iovecs.as_ptr().cast_mut();
        header.msg_iovlen = iovecs.len() as _;
        // SAFETY: `header` has no control buffer; it points to the address `to` and to `iovecs`, both of which live until
        // after the call, with their true lengths; every iovec is memory that `bufs` borrows (see `with_iovecs`). sendmsg only reads.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
        result(sent)
    })
}

/// One `recvmsg` into initialised memory.
pub(crate) fn recv(socket: BorrowedFd<'_>, bufs: &mut [IoSliceMut<'_>], flags: c_int) -> io::Result<usize> {
    let mut header = empty_header();
    // `IoSliceMut` has the layout of `iovec` on Unix: std guarantees it.
    header.msg_iov = bufs.as_mut_ptr().cast();
    header.msg_iovlen = bufs.len() as _;
    // SAFETY: `header` has no name and no control buffer, and points to `bufs.len()` iovecs, each of which is memory
    // that `bufs` borrows exclusively for longer than the call. Whatever recvmsg writes there is a valid `u8`.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    result(received)
}

/// Waits until the socket can be read (`POLLIN`) or written (`POLLOUT`), as asked, or has an error to tell; `false` after
/// `timeout`. `None` waits without end. May return early, and `false`, on a signal.
pub(crate) fn poll(
    socket: BorrowedFd<'_>,
    read: bool,
    write: bool,
    timeout: Option<Duration>,
) -> io::Result<bool> {
    let events = if read { libc::POLLIN } else { 0 } | if write { libc::POLLOUT } else { 0 };
    let mut entry = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    let millis = match timeout {
        // Rounded up: waiting 0 ms for the last half one would spin.
        Some(timeout) => c_int::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX),
        None => -1,
    };
    // SAFETY: `entry` is one pollfd, which lives until after the call, and the count says one.
    let ready = unsafe { libc::poll(&raw mut entry, 1, millis) };
    match result(ready as isize) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// `SO_RCVLOWAT`: how many bytes have to be there before [`poll`] calls the socket readable; socket(7).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn set_recv_low_water(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    let (value, len) = ((&raw const bytes).cast(), size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the value is one c_int, as this option takes, which lives until after the call, and `len` is its length.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, len) };
    result(set as isize).map(drop)
}

#[inline]
fn empty_header() -> libc::msghdr {
    // SAFETY: a msghdr is integers and raw pointers, for all of which zero is a value; POSIX takes null pointers with
    // zero lengths for absent parts.
    unsafe { std::mem::zeroed() }
}

#[inline]
fn result(returned: isize) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}
