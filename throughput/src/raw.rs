//! The plainest ways: system calls by hand, nothing kept, nothing built. What these reach is the limit, and what people
//! wrote before there was anything better.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg};

use segchain::transport::{Interest, SocketRef, Wait};

use crate::contest::Counts;
use crate::link::or_shut_down;
use crate::pages::Sum;

/// The most slices that a call takes on Linux (`UIO_MAXIOV`).
pub const MAX_SLICES: usize = 1024;
/// The buffer of the receiver that does nothing with what it receives.
const DRAIN: usize = 256 << 10;

/// One blocking sendmsg for each 1024 slices, `MSG_MORE` on all but the last.
///
/// # Errors
/// As the system reports them.
pub fn send_ready(socket: impl AsFd, ready: &[IoSlice<'_>], counts: &mut Counts) -> io::Result<()> {
    let mut chunks = ready.chunks(MAX_SLICES).peekable();
    while let Some(chunk) = chunks.next() {
        let more = if chunks.peek().is_some() { SendFlags::MORE } else { SendFlags::empty() };
        send(&socket, chunk, more, counts)?;
    }
    Ok(())
}

/// One sendmsg of at most 1024 slices, gone on with if it was short.
///
/// # Errors
/// As the system reports them.
pub fn send(
    socket: impl AsFd,
    slices: &[IoSlice<'_>],
    flags: SendFlags,
    counts: &mut Counts,
) -> io::Result<()> {
    let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
    let sent = call(&socket, slices, flags, counts)?;
    if sent == wanted {
        return Ok(());
    }
    let mut rest = slices.to_vec();
    let mut rest = &mut rest[..];
    IoSlice::advance_slices(&mut rest, sent);
    while !rest.is_empty() {
        let sent = call(&socket, rest, flags, counts)?;
        IoSlice::advance_slices(&mut rest, sent);
    }
    Ok(())
}

fn call(
    socket: impl AsFd,
    slices: &[IoSlice<'_>],
    flags: SendFlags,
    counts: &mut Counts,
) -> io::Result<usize> {
    counts.calls += 1;
    counts.slices += slices.len() as u64;
    let flags = flags | SendFlags::NOSIGNAL;
    match sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags)? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        sent => Ok(sent),
    }
}

/// One blocking recvmsg into at most 1024 slices, with `MSG_WAITALL`: it fills them all.
///
/// # Errors
/// As the system reports them; a stream that ends before.
pub fn recv_all(socket: impl AsFd, slices: &mut [IoSliceMut<'_>], counts: &mut Counts) -> io::Result<()> {
    counts.calls += 1;
    counts.slices += slices.len() as u64;
    let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
    let received = recvmsg(socket, slices, &mut RecvAncillaryBuffer::default(), RecvFlags::WAITALL)?;
    if received.bytes == wanted { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The same without `MSG_WAITALL`: what is there, then a wait for half of what is missing, 64 to 256 KiB (`SO_RCVLOWAT`).
///
/// # Errors
/// As the system reports them; a stream that ends before.
pub fn recv_by_halves(
    socket: impl AsFd,
    mut rest: &mut [IoSliceMut<'_>],
    counts: &mut Counts,
) -> io::Result<()> {
    let socket = SocketRef::new(socket);
    let mut left: usize = rest.iter().map(|slice| slice.len()).sum();
    while left > 0 {
        let offered = rest.len().min(MAX_SLICES);
        counts.calls += 1;
        counts.slices += offered as u64;
        let room: usize = rest[..offered].iter().map(|slice| slice.len()).sum();
        let call = recvmsg(
            socket.get_ref(),
            &mut rest[..offered],
            &mut RecvAncillaryBuffer::default(),
            RecvFlags::DONTWAIT,
        );
        let received = match call.map(|received| received.bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(received) => received,
            Err(Errno::AGAIN) => 0,
            Err(error) => return Err(error.into()),
        };
        left -= received;
        IoSliceMut::advance_slices(&mut rest, received);
        if received < room {
            counts.resumed += 1;
            match (left / 2).min(256 << 10) {
                half if half < 64 << 10 => socket.wait(Interest::Readable, None)?,
                half => socket.wait_for_bytes(half, None)?,
            };
        }
    }
    Ok(())
}

/// Receives exactly `bytes` into one buffer of 256 KiB, over and over: the other side of every sending method. Returns a
/// digest if one is asked for. On an error the stream is shut down, so that the sender ends too.
///
/// # Errors
/// As the system reports them; the end of the stream.
pub fn drain(mut socket: impl Read + AsFd, bytes: u64, check: bool) -> io::Result<u64> {
    let drained = take(&mut socket, bytes, check);
    or_shut_down(&socket, drained)
}

fn take(socket: &mut impl Read, bytes: u64, check: bool) -> io::Result<u64> {
    let mut buffer = vec![0; DRAIN];
    let (mut left, mut sum) = (bytes, Sum::new());
    while left > 0 {
        let room = left.min(DRAIN as u64) as usize;
        let n = match socket.read(&mut buffer[..room])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => n,
        };
        if check {
            sum.update(&buffer[..n]);
        }
        left -= n as u64;
    }
    Ok(if check { sum.value() } else { 0 })
}

/// Sends so many messages of ready slices, over and over: the other side of the receiving methods. On an error the stream is
/// shut down, so that the receiver ends too.
///
/// # Errors
/// As the system reports them.
pub fn feed(socket: impl AsFd, ready: &[Vec<IoSlice<'_>>], messages: u64) -> io::Result<u64> {
    let mut counts = Counts::default();
    let mut ready = ready.iter().cycle().take(messages as usize);
    or_shut_down(&socket, ready.try_for_each(|ready| send_ready(&socket, ready, &mut counts)))?;
    Ok(0)
}
