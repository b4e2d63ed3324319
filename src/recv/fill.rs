//! The body that is landing now, and the memory it lands in.

use std::io::IoSliceMut;

use bytes::Bytes;

use super::{LARGE, RecvErrorKind, Stream};
use crate::checksum::Digest;
use crate::framer::{BodyReq, Filled, Landed, LentSlices, Place, Targets};
use crate::slab::SlabBuf;
use crate::sys::reuse;
use crate::transport::MAX_SLICES;

/// A piece of a body: how much of it is still to come, and where it goes.
pub(super) struct Filling {
    len: u64,
    pub(super) left: u64,
    total: u64,
    last: bool,
    pub(super) sum: Option<Digest>,
    pub(super) memory: Memory,
}

/// Where a body is; kept from piece to piece.
pub(super) enum Memory {
    Contiguous {
        bytes: Vec<u8>,
        filled: usize,
    },
    Slabs(SlabBuf),
    Target {
        key: u64,
        at: u64,
    },
    /// A target that was taken back.
    Lost {
        key: u64,
    },
    Discard,
}

impl Stream {
    /// Begins a piece, once it is checked against the limits.
    pub(super) fn begin<E>(&mut self, req: BodyReq) -> Result<(), RecvErrorKind<E>> {
        let BodyReq { len, total, last, place, sum } = req;
        let memory = match (place, self.unfinished.take()) {
            (Place::Continue, Some(mut kept)) => {
                if let Memory::Slabs(slabs) = &mut kept {
                    slabs.grow_in_steps();
                }
                kept
            }
            (Place::Continue, None) | (_, Some(_)) => return Err(RecvErrorKind::Stuck),
            (Place::Contiguous, None) => Memory::Contiguous { bytes: Vec::new(), filled: 0 },
            (Place::Slabs { offset }, None) => Memory::Slabs(SlabBuf::new(&self.pool, offset)),
            (Place::Target { key, at }, None) => Memory::Target { key, at },
            (Place::Discard, None) => Memory::Discard,
        };
        let filling = Filling { len, left: len, total: total.max(len), last, sum, memory };
        if let Memory::Contiguous { filled, .. } = &filling.memory {
            let limit = self.options.contiguous;
            let total = filling.total.max(len.saturating_add(*filled as u64));
            if total > limit {
                return Err(RecvErrorKind::BodyTooLong { len: total, limit });
            }
        }
        self.filling = Some(filling);
        Ok(())
    }

    /// Moves read-ahead bytes to where they belong; the piece, once it is whole.
    pub(super) fn fill_from_ahead(&mut self, targets: &mut dyn Targets) -> Option<Filled> {
        let filling = self.filling.as_mut()?;
        let unused = self.ahead.unused();
        let n = filling.left.min(unused.len() as u64) as usize;
        let bytes = &unused[..n];
        if let Some(sum) = &mut filling.sum {
            sum.update(bytes);
            self.stats.digested += n as u64;
        }
        let copied = filling.memory.copy_in(bytes, targets, &mut self.slices);
        self.stats.copied += copied as u64;
        self.stats.discarded += (n - copied) as u64;
        filling.left -= n as u64;
        self.ahead.start += n;

        let Filling { len, last, sum, memory, .. } = self.filling.take_if(|filling| filling.left == 0)?;
        let landed = if last {
            memory.finish()
        } else {
            self.unfinished = Some(memory);
            Landed::Unfinished
        };
        Some(Filled { len, sum, landed })
    }
}

impl Filling {
    /// Bytes of the piece, and how many of them have landed.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.len, self.len - self.left)
    }

    pub(super) fn is_large(&self) -> bool {
        self.total >= LARGE
    }
}

impl Memory {
    /// Whether it is one slice, whatever its length.
    pub(super) fn is_contiguous(&self) -> bool {
        matches!(self, Memory::Contiguous { .. })
    }

    /// Lends memory for the next `want` bytes to a receive call; returns how much it is, 0 if the bytes go nowhere.
    pub(super) fn lend<'a>(
        &'a mut self,
        want: usize,
        targets: &'a mut dyn Targets,
        lent: &mut LentSlices<'a>,
    ) -> usize {
        lent.room = want;
        match self {
            Memory::Contiguous { bytes, filled } => {
                let end = *filled + want;
                if bytes.len() < end {
                    // Not more than a window ahead of what has arrived, whatever length was claimed.
                    bytes.reserve_exact(end - bytes.len());
                    bytes.resize(end, 0);
                }
                lent.push(&mut bytes[*filled..end]);
            }
            Memory::Slabs(slabs) => lent.extend(slabs.room(want)),
            Memory::Target { key, at } => {
                let (key, at) = (*key, *at);
                if !targets.lend(key, at, want, lent) || lent.room == want {
                    // What was lent before the table changed its mind is not written to.
                    lent.slices.clear();
                    lent.room = want;
                    *self = Memory::Lost { key };
                }
            }
            Memory::Lost { .. } | Memory::Discard => {}
        }
        want - lent.room
    }

    /// The next `n` bytes have landed.
    pub(super) fn landed(&mut self, n: usize) {
        match self {
            Memory::Contiguous { filled, .. } => *filled += n,
            Memory::Slabs(slabs) => slabs.grow(n),
            Memory::Target { at, .. } => *at += n as u64,
            Memory::Lost { .. } | Memory::Discard => {}
        }
    }

    /// Copies bytes in as if they had been received; returns how many did not go nowhere. `slices` is memory to reuse.
    fn copy_in(
        &mut self,
        mut bytes: &[u8],
        targets: &mut dyn Targets,
        slices: &mut Vec<IoSliceMut<'static>>,
    ) -> usize {
        let all = bytes.len();
        while !bytes.is_empty() {
            let mut lent =
                LentSlices { slices: reuse(std::mem::take(slices)), room: 0, max_slices: MAX_SLICES };
            let room = self.lend(bytes.len(), targets, &mut lent);
            for slice in &mut lent.slices {
                let (now, later) = bytes.split_at(slice.len());
                slice.copy_from_slice(now);
                bytes = later;
            }
            *slices = reuse(lent.slices);
            if room == 0 {
                break;
            }
            self.landed(room);
        }
        all - bytes.len()
    }

    fn finish(self) -> Landed {
        match self {
            Memory::Contiguous { bytes, .. } => Landed::Contiguous(Bytes::from(bytes)),
            Memory::Slabs(slabs) => Landed::Slabs(slabs),
            Memory::Target { key, .. } => Landed::Target { key, whole: true },
            Memory::Lost { key } => Landed::Target { key, whole: false },
            Memory::Discard => Landed::Discarded,
        }
    }
}

impl<'a> LentSlices<'a> {
    fn extend(&mut self, slices: impl Iterator<Item = IoSliceMut<'a>>) {
        for slice in slices {
            self.room -= slice.len();
            self.slices.push(slice);
        }
    }
}
