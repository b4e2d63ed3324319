//! Datagrams: one chain is one of them, whole or not at all.

use std::io;
use std::net::SocketAddr;

use super::{Progress, SendError, SendErrorKind, SendStats, blocked};
use crate::chain::SegmentChain;
use crate::sys::{self, reuse};
use crate::transport::{DatagramSend, MAX_SLICES, SendFlags};

/// Sends chains as datagrams.
///
/// ```
/// use std::net::UdpSocket;
/// use segchain::chain::ChainBuilder;
/// use segchain::send::{DatagramSender, Progress};
/// use segchain::transport::SocketRef;
///
/// let peer = UdpSocket::bind("127.0.0.1:0")?;
/// let mut sender = DatagramSender::new(SocketRef::new(UdpSocket::bind("127.0.0.1:0")?));
/// let mut out = ChainBuilder::new();
/// out.put(b"call");
/// let mut chain = out.finish()?;
/// assert_eq!(sender.send(&mut chain, Some(peer.local_addr()?))?, Progress::Done);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct DatagramSender<T> {
    transport: T,
    stats: SendStats,
    slices: Vec<io::IoSlice<'static>>,
}

impl<T> DatagramSender<T> {
    /// A sender over a datagram socket.
    pub fn new(transport: T) -> Self {
        Self { transport, stats: SendStats::default(), slices: Vec::new() }
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// What was done so far.
    pub fn stats(&self) -> SendStats {
        self.stats
    }
}

impl<T: DatagramSend> DatagramSender<T> {
    /// Sends one chain as one datagram, to an address, or to the connected peer with `None`. Never waits: if it is
    /// blocked, send it again. An empty chain makes no call.
    ///
    /// # Errors
    /// [`SendErrorKind::TooManySlices`] before any call; [`SendErrorKind::TooLong`] if the socket says EMSGSIZE; others
    /// as the system reports them. None of them ends anything: a datagram stands alone.
    pub fn send(
        &mut self,
        chain: &mut SegmentChain<'_>,
        to: Option<SocketAddr>,
    ) -> Result<Progress, SendError> {
        if chain.is_empty() {
            return Ok(Progress::Done);
        }
        let digested = chain.digested();
        chain.seal_through(chain.len());
        self.stats.digested += chain.digested() - digested;

        let mut slices = reuse(std::mem::take(&mut self.slices));
        let gathered = chain.gather(0, u64::MAX, MAX_SLICES, &mut slices);
        if gathered.bytes < chain.len() {
            self.slices = reuse(slices);
            return Err(SendError::new(SendErrorKind::TooManySlices, None, 0));
        }
        let flags = SendFlags::DONT_WAIT | SendFlags::NO_SIGNAL;
        let result = loop {
            self.stats.calls += 1;
            self.stats.slices += gathered.slices as u64;
            match self.transport.send_datagram(&slices, to, flags) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        self.slices = reuse(slices);
        match result {
            Ok(n) if n as u64 == chain.len() => {
                self.stats.bytes += chain.len();
                self.stats.messages += 1;
                self.stats.copied += chain.copied();
                Ok(Progress::Done)
            }
            Ok(n) => Err(SendError::new(SendErrorKind::Truncated, None, n as u64)),
            Err(error) if error.raw_os_error() == Some(sys::EMSGSIZE) => {
                Err(SendError::new(SendErrorKind::TooLong, Some(sys::EMSGSIZE), 0))
            }
            Err(error) => match blocked(&error) {
                Some(reason) => {
                    self.stats.blocked += 1;
                    Ok(Progress::Blocked(reason))
                }
                None => Err(SendError::new(SendErrorKind::Io(error.kind()), error.raw_os_error(), 0)),
            },
        }
    }
}
