//! A peer that takes a set time for each request, and any number of them at once.
//!
//! ```text
//!  requests ─▶ receiving job: whole? ─(due in SERVICE, number)─▶ timer thread ─▶ reply: the number
//! ```
//!
//! All requests take as long, and so they are due in the order in which they came: a queue is all the timer needs, and one
//! thread that sleeps until its head is due.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use crate::link::or_shut_down;
use crate::machine::{Machine, Side};
use crate::pages::{FOOT, HEAD, Sum};

/// Bytes of a reply: the number of the request, little-endian.
pub const REPLY: usize = 8;
/// Bytes received in one call.
const BUFFER: usize = 256 << 10;

/// Requests that wait for their time; the timer ends when this is dropped.
#[derive(Clone, Debug)]
pub struct Service {
    due: Sender<(Instant, [u8; REPLY])>,
    lasting: Duration,
}

impl Service {
    /// Starts the timer thread, on the receiver's core, which answers on `socket` each request that is
    /// [received](Self::receive), so long after it arrived.
    pub fn start<'s>(
        scope: &'s Scope<'s, '_>,
        machine: &'s Machine,
        socket: &'s TcpStream,
        lasting: Duration,
    ) -> Self {
        let (due, waiting) = channel();
        scope.spawn(move || {
            if machine.pin(Side::Receiver).and_then(|()| answer(socket, &waiting)).is_err() {
                // The client sees the end of the stream.
                let _ = socket.shutdown(Shutdown::Both);
            }
        });
        Self { due, lasting }
    }

    /// One whose timer has ended.
    #[cfg(test)]
    pub(crate) fn broken() -> Self {
        Self { due: channel().0, lasting: Duration::ZERO }
    }

    /// Receives so many messages of `payload` bytes; a digest of them, if one is asked for. On an error the stream is shut
    /// down, so that the client does not wait for replies.
    ///
    /// # Errors
    /// As the system reports them; the end of the stream.
    pub fn receive(&self, socket: &TcpStream, payload: u64, count: u64, check: bool) -> io::Result<u64> {
        or_shut_down(socket, self.take(socket, payload, count, check))
    }

    fn take(&self, mut socket: &TcpStream, payload: u64, count: u64, check: bool) -> io::Result<u64> {
        let (mut buffer, mut sum) = (vec![0; BUFFER], Sum::new());
        for _ in 0..count {
            let mut number = [0; REPLY];
            socket.read_exact(&mut number)?;
            if check {
                sum.update(&number);
            }
            let mut left = payload + (HEAD + FOOT - REPLY) as u64;
            while left > 0 {
                let room = left.min(BUFFER as u64) as usize;
                let n = match socket.read(&mut buffer[..room])? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => n,
                };
                if check {
                    sum.update(&buffer[..n]);
                }
                left -= n as u64;
            }
            let due = (Instant::now() + self.lasting, number);
            self.due.send(due).map_err(|_| io::Error::other("the timer has ended"))?;
        }
        Ok(if check { sum.value() } else { 0 })
    }
}

fn answer(mut socket: &TcpStream, waiting: &Receiver<(Instant, [u8; REPLY])>) -> io::Result<()> {
    for (due, number) in waiting {
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::sleep(left);
        }
        socket.write_all(&number)?;
    }
    Ok(())
}
