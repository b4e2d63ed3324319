//! Taking a message back, wherever it is: what becomes of the rest of it on the wire.
//!
//! A revoked message's pages are free when [`Outgoing::revoke`] returns, for what it returns borrows nothing. If part of
//! the message has left, the stream needs the rest, or it is dead: zeros in place of payload, right checksums, and the
//! protocol's abort mark if it has one.

use std::fmt;

use super::builder::AbortRule;
use super::inner::{Inner, Notes};
use super::segment::Segments;
use super::{Outgoing, SegmentChain};

/// What became of a revoked message.
#[derive(Debug)]
#[must_use = "the stream is dead unless the rest of the message is sent"]
#[non_exhaustive]
pub enum Revoked<'b> {
    /// Nothing of it had left. It was framed, though: a sequence number may be spent on it.
    NotStarted(Unsent<'b>),
    /// The rest has to be sent in its place: the peer drops the message.
    AbortedOnWire(Outgoing<'static>),
    /// The rest has to be sent in its place: the peer takes the message as whole, for it was too late to say otherwise.
    Finishing(Outgoing<'static>),
    /// All of it had left.
    AlreadyComplete,
    /// The protocol cannot abort it: the stream has to close.
    MustClose {
        /// Bytes of it that had left.
        sent: u64,
    },
}

/// A message that was framed and of which nothing has left.
pub struct Unsent<'b>(Outgoing<'b>);

impl<'b> Unsent<'b> {
    /// The chain, for its memory, if the message owned it. Drops the message: for protocols that accept a gap in their
    /// sequence numbers.
    pub fn into_chain(self) -> Option<SegmentChain<'b>> {
        self.0.into_chain()
    }

    /// The message as one that the peer drops, for protocols that accept no gap; `None` if this one cannot abort.
    pub fn into_aborted(self) -> Option<Outgoing<'static>> {
        self.0.replacement().and_then(|(rest, aborted)| aborted.then_some(rest))
    }
}

impl fmt::Debug for Unsent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unsent").field(&self.0).finish()
    }
}

impl<'b> Outgoing<'b> {
    /// Takes the message back. When this returns nobody reads its payload any more; what has to be sent in its place
    /// keeps its id and its position, so that the stream takes it for the same message.
    ///
    /// What was digested ahead of the send is put right without reading what has left; only a checksum that is not
    /// linear is digested again, from its cover's start.
    ///
    /// ```
    /// use segchain::chain::{Abort, ChainBuilder, Outgoing, Revoked};
    ///
    /// let page = [1u8; 4096];
    /// let mut out = ChainBuilder::new();
    /// out.push_borrowed(&page);
    /// let status = out.put_u8(b'C'); // complete
    /// out.on_abort(Abort::Patch { at: status, bytes: b"A" });
    /// let message = Outgoing::new(out.finish()?);
    /// let Revoked::NotStarted(unsent) = message.revoke() else { panic!("nothing was sent") };
    /// assert_eq!(unsent.into_aborted().unwrap().remaining(), 4097); // zeros, and the mark
    /// # Ok::<(), segchain::chain::ChainError>(())
    /// ```
    pub fn revoke(self) -> Revoked<'b> {
        let sent = self.sent();
        if self.is_complete() && sent > 0 {
            return Revoked::AlreadyComplete;
        }
        if sent == 0 {
            return Revoked::NotStarted(Unsent(self));
        }
        match self.replacement() {
            Some((rest, true)) => Revoked::AbortedOnWire(rest),
            Some((rest, false)) => Revoked::Finishing(rest),
            None => Revoked::MustClose { sent },
        }
    }

    /// What goes out in its place, and whether the peer drops that; `None` if the stream has to close.
    pub(crate) fn replacement(&self) -> Option<(Outgoing<'static>, bool)> {
        let (chain, aborted) = match self.chain().rest(self.sent()) {
            Rest::Aborted(chain) => (chain, true),
            Rest::Finished(chain) => (chain, false),
            Rest::None => return None,
        };
        Some((Outgoing::with_rest(self.id(), self.sent(), chain), aborted))
    }
}

/// What can be sent in place of the bytes of a chain from some position on.
enum Rest {
    Aborted(SegmentChain<'static>),
    Finished(SegmentChain<'static>),
    None,
}

impl SegmentChain<'_> {
    fn rest(&self, sent: u64) -> Rest {
        match &self.0.notes.abort {
            AbortRule::Patch(mark) if mark.position >= sent => {
                let mut rest = self.over(self.0.segments.without_payload(), 0);
                let Inner { segments, notes } = &mut *rest.0;
                notes.arena[mark.scratch..mark.scratch + mark.bytes.len()].copy_from_slice(&mark.bytes);
                match notes.slots.replace(self.0.content(), segments, &mut notes.arena, sent) {
                    Ok(()) => Rest::Aborted(rest),
                    Err(_) => Rest::None,
                }
            }
            // The mark has left, or none is needed.
            AbortRule::Patch(_) | AbortRule::Finish => self.finished(sent),
            // Nothing of the caller's is left to be sent: closing would win nothing.
            AbortRule::CloseStream if self.0.notes.payload.is_empty() || sent >= self.0.notes.payload.end => {
                self.finished(sent)
            }
            AbortRule::CloseStream => Rest::None,
        }
    }

    /// The rest as it is, copied.
    fn finished(&self, sent: u64) -> Rest {
        let (segments, copied) = self.0.segments.copied_from(sent);
        Rest::Finished(self.over(segments, copied))
    }

    /// The same chain over other segments, of which nobody takes anything back again.
    fn over(&self, segments: Segments<'static>, copied: u64) -> SegmentChain<'static> {
        let Notes { len, sealed, arena, slots, payload, .. } = &self.0.notes;
        let notes = Notes {
            len: *len,
            sealed: *sealed,
            copied,
            arena: arena.clone(),
            slots: slots.clone(),
            payload: payload.clone(),
            abort: AbortRule::Finish,
            ..Notes::default()
        };
        SegmentChain(Box::new(Inner { segments, notes }))
    }
}
