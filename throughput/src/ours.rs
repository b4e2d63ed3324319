//! segchain's way with the messages of [`pages`](crate::pages): a chain per message, its memory recycled.

use std::io;
use std::os::fd::AsFd;

use segchain::chain::{ChainBuilder, Outgoing, SegmentChain};
use segchain::checksum::Crc32c;
use segchain::send::{SendOptions, SendStats, StreamSender};
use segchain::transport::SocketRef;

use crate::contest::Counts;
use crate::pages::{CRC_AT, FOOT, Message};

/// A sender of whole messages over one socket.
#[derive(Debug)]
pub struct Whole<'m, S> {
    sender: StreamSender<SocketRef<S>>,
    spare: Option<SegmentChain<'m>>,
}

impl<'m, S: AsFd> Whole<'m, S> {
    /// With the default options.
    pub fn new(socket: S) -> Self {
        Self::with_options(socket, SendOptions::default())
    }

    /// With others.
    pub fn with_options(socket: S, options: SendOptions) -> Self {
        Self { sender: StreamSender::with_options(SocketRef::new(socket), options), spare: None }
    }

    /// The first `count` messages, over and over, one flush each.
    ///
    /// # Errors
    /// As the sender reports them.
    pub fn send(&mut self, messages: &'m [Message<'m>], count: u64, sealed: bool) -> io::Result<Counts> {
        let before = self.sender.stats();
        for message in messages.iter().cycle().take(count as usize) {
            let out = self.spare.take().map(SegmentChain::recycle).unwrap_or_default();
            let mut outgoing = Outgoing::new(chain(message, sealed, out)?);
            self.sender.send_blocking(&mut outgoing, None)?;
            self.spare = outgoing.into_chain();
        }
        Ok(counts(before, self.sender.stats()))
    }
}

/// One message as a chain: header and front, the payload where it is, the footer and its checksum slot.
///
/// # Errors
/// As the builder reports them.
pub fn chain<'m>(
    message: &'m Message<'m>,
    sealed: bool,
    mut out: ChainBuilder<'m>,
) -> io::Result<SegmentChain<'m>> {
    out.put(&message.head[..53]);
    out.put(&message.head[53..]);
    let data = out.here();
    for segment in &message.segments {
        out.push_borrowed(segment);
    }
    let foot = out.put(&[0; FOOT]);
    if sealed {
        out.slot(data..foot, Crc32c::raw(0), foot.at(CRC_AT as u64, 4));
    }
    Ok(out.finish()?)
}

/// What the sender did between two looks at its statistics.
pub fn counts(before: SendStats, after: SendStats) -> Counts {
    Counts {
        calls: after.calls - before.calls,
        resumed: after.short_writes + after.blocked - before.short_writes - before.blocked,
        slices: after.slices - before.slices,
        copied: after.copied - before.copied,
        ..Counts::default()
    }
}
