//! Slots: which bytes are digested into which place, in what order, each byte once.

use std::ops::Range;
use std::{fmt, iter};

use smallvec::SmallVec;

use super::ChainError;
use super::segment::{Content, Piece, Segments};
use crate::checksum::{Checksum, Digest};

/// The bytes of `start..end` end up, digested, at `at`.
#[derive(Clone)]
struct Slot {
    start: u64,
    end: u64,
    at: u64,
    /// Where the value ends: not `at` and its width if a fragment's border cuts it.
    at_end: u64,
    /// Where the value's bytes lie in the arena.
    scratch: usize,
    /// The state so far: of the cover's bytes before [`Slots::frontier`], or of all of them.
    digest: Digest,
    /// The state before the first byte, of a checksum from which bytes cannot be taken out by arithmetic.
    initial: Option<Box<Digest>>,
}

/// Where a slot is: what it covers, and where its value goes on the wire and in the arena.
pub(super) struct Place {
    pub(super) cover: Range<u64>,
    pub(super) value: Range<u64>,
    pub(super) scratch: usize,
}

impl Slot {
    /// Whether the value comes before the bytes that it is made of.
    fn leads(&self) -> bool {
        self.at < self.end
    }

    fn write(&self, arena: &mut [u8]) {
        let place = self.scratch..self.scratch + self.digest.width();
        self.digest.write(&mut arena[place]);
    }

    fn covers(&self, other: &Slot) -> bool {
        self.start < self.end && other.at < self.end && other.at_end > self.start
    }
}

/// A checksum whose value has left already covers bytes that were to change.
#[derive(Debug)]
pub(super) struct ValueHasLeft;

/// The slots of a chain, in the order in which their values become known.
///
/// First the *eager* ones: those before their covers, and what these depend on; each is digested by itself, whole. Then
/// the others by where their covers end: one pass over the bytes serves them all.
#[derive(Clone, Default)]
pub(super) struct Slots {
    list: SmallVec<[Slot; 4]>,
    /// How many at the front are eager.
    eager: usize,
    /// How many at the front have their value written.
    done: usize,
    /// What is not eager has digested every byte before this position.
    frontier: u64,
    digested: u64,
}

impl Slots {
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    #[inline]
    pub(super) fn digested(&self) -> u64 {
        self.digested
    }

    #[inline]
    pub(super) fn all_done(&self) -> bool {
        self.done == self.list.len()
    }

    /// A new slot is made in its place, not moved there: a processor waits when it reads in one piece what it has just
    /// written in several.
    #[inline]
    pub(super) fn push(&mut self, place: Place, checksum: impl Checksum) {
        self.list.extend(iter::once_with(|| {
            let Place { cover, value, scratch } = place;
            let digest = Digest::new(checksum);
            let initial = (!digest.is_linear()).then(|| Box::new(digest.clone()));
            let (at, at_end) = (value.start, value.end);
            Slot { start: cover.start, end: cover.end, at, at_end, scratch, digest, initial }
        }));
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        // Without slots nothing was ever counted.
        if !self.list.is_empty() {
            self.list.clear();
            (self.eager, self.done, self.frontier, self.digested) = (0, 0, 0, 0);
        }
    }

    /// Moves every position; `end` is for the end of a cover or a value, which belongs to the byte before it.
    pub(super) fn translate(&mut self, start: impl Fn(u64) -> u64, end: impl Fn(u64) -> u64) {
        for slot in &mut self.list {
            (slot.start, slot.end) = (start(slot.start), end(slot.end).max(start(slot.start)));
            (slot.at, slot.at_end) = (start(slot.at), end(slot.at_end).max(start(slot.at)));
        }
    }

    /// Sorts them; returns whether there are any.
    #[inline]
    pub(super) fn order(&mut self) -> Result<bool, ChainError> {
        match &self.list[..] {
            [] => return Ok(false),
            [slot] if !slot.leads() => {}
            _ => self.sort()?,
        }
        // Nobody digests what is before the first cover.
        self.frontier = self.list[self.eager..].iter().map(|slot| slot.start).min().unwrap_or(0);
        Ok(true)
    }

    /// Sorts, and finds slots that depend on themselves. Seldom needed, and so out of the way of the usual single slot.
    #[inline(never)]
    fn sort(&mut self) -> Result<(), ChainError> {
        if !self.list.iter().any(Slot::leads) {
            // A trailing slot is covered only by slots that end later.
            if !self.list.is_sorted_by_key(|slot| slot.end) {
                self.list.sort_by_key(|slot| slot.end);
            }
            return Ok(());
        }
        let mut order = Vec::with_capacity(self.list.len());
        let mut state = vec![Visit::New; self.list.len()];
        for index in 0..self.list.len() {
            if self.list[index].leads() {
                self.visit(index, &mut state, &mut order)?;
            }
        }
        self.eager = order.len();
        let mut rest: Vec<usize> = (0..self.list.len()).filter(|i| state[*i] == Visit::New).collect();
        rest.sort_by_key(|index| self.list[*index].end);
        order.extend(rest);
        self.list = order.iter().map(|index| self.list[*index].clone()).collect();
        Ok(())
    }

    /// Depth first, without recursion: a thousand slots in a row must not cost a thousand stack frames.
    fn visit(&self, root: usize, state: &mut [Visit], order: &mut Vec<usize>) -> Result<(), ChainError> {
        let mut path = vec![(root, 0)];
        if state[root] == Visit::Done {
            return Ok(());
        }
        state[root] = Visit::Open;
        while let Some((slot, next)) = path.last_mut() {
            let slot = *slot;
            let needed = (*next..self.list.len()).find(|i| self.list[slot].covers(&self.list[*i]));
            let Some(needed) = needed else {
                state[slot] = Visit::Done;
                order.push(slot);
                path.pop();
                continue;
            };
            *next = needed + 1;
            match state[needed] {
                Visit::Done => {}
                Visit::Open => return Err(ChainError::SlotCycle { position: self.list[needed].at }),
                Visit::New => {
                    state[needed] = Visit::Open;
                    path.push((needed, 0));
                }
            }
        }
        Ok(())
    }

    /// Makes every slot before `to` final.
    pub(super) fn seal_through(&mut self, segments: &Segments<'_>, arena: &mut [u8], to: u64) {
        let Self { list, eager, done, frontier, digested } = self;
        let list = list.as_mut_slice();
        while *done < *eager {
            let slot = &mut list[*done];
            *digested += digest(&mut slot.digest, Content { segments, arena }, slot.start, slot.end);
            slot.write(arena);
            *done += 1;
        }
        loop {
            while let Some(slot) = list.get(*done).filter(|slot| slot.end <= *frontier) {
                slot.write(arena);
                *done += 1;
            }
            if *frontier >= to || *done == list.len() {
                return;
            }
            let (border, read) = advance(&mut list[*done..], Content { segments, arena }, *frontier, to);
            *frontier = border;
            *digested += read;
        }
    }

    /// Corrects what was digested ahead of `sent`, after `old` became `segments` and `arena`: payload from there on became
    /// zeros, and scratch bytes may differ. Values that have not left are written to `arena` again.
    ///
    /// The unsent part of what a linear checksum has digested is read once more and taken out by arithmetic; others are
    /// digested again from their cover's start, as far as they had come.
    pub(super) fn replace(
        &mut self,
        old: Content<'_>,
        segments: &Segments<'_>,
        arena: &mut [u8],
        sent: u64,
    ) -> Result<(), ValueHasLeft> {
        for index in 0..self.list.len() {
            let (done, frontier) = (index < self.done, self.frontier);
            let slot = &mut self.list[index];
            let digested = match index {
                _ if done => slot.end,
                // Each at once, or not yet.
                _ if index < self.eager => slot.start,
                _ => slot.end.min(frontier),
            };
            let from = slot.start.max(sent);
            if from >= slot.end {
                continue;
            }
            if slot.at < sent {
                // Part of the value is on the wire: it can only stay right if nothing that it covers changes.
                if difference(old, arena, from, slot.end, None) {
                    return Err(ValueHasLeft);
                }
                continue;
            }
            if from < digested {
                if let Some(mut delta) = slot.digest.zero_state() {
                    difference(old, arena, from, digested, Some(&mut delta));
                    let added = slot.digest.add(&delta);
                    debug_assert!(added, "made from the same checksum");
                } else if let Some(initial) = &slot.initial {
                    slot.digest = (**initial).clone();
                    digest(&mut slot.digest, old, slot.start, from);
                    digest(&mut slot.digest, Content { segments, arena }, from, digested);
                }
            }
            if done {
                slot.write(arena);
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Visit {
    New,
    Open,
    Done,
}

/// Digests from a position up to the next border of a cover, at most to `to`; returns where that is, and how many bytes were
/// read.
fn advance(open: &mut [Slot], content: Content<'_>, from: u64, to: u64) -> (u64, u64) {
    let (mut border, mut first, mut covering) = (to, 0, 0);
    for (index, slot) in open.iter().enumerate() {
        if slot.start > from {
            border = border.min(slot.start);
        } else if slot.end > from {
            border = border.min(slot.end);
            first = if covering == 0 { index } else { first };
            covering += 1;
        }
    }
    let read = match covering {
        0 => 0,
        1 => digest(&mut open[first].digest, content, from, border),
        _ => digest_once(&mut open[first..], content, from, border),
    };
    (border, read)
}

/// Digests the bytes between two positions; returns how many were read.
fn digest(digest: &mut Digest, content: Content<'_>, from: u64, to: u64) -> u64 {
    let (mut pieces, mut read) = (content.walk(from, to), 0);
    loop {
        let mut zeros = None;
        digest.update_all(iter::from_fn(|| {
            loop {
                match pieces.next()? {
                    Piece::Scratch(bytes, _) | Piece::Payload(bytes) => {
                        read += bytes.len() as u64;
                        return Some(bytes);
                    }
                    Piece::Zeros(len) => {
                        zeros = Some(len);
                        return None;
                    }
                    Piece::Marker => {}
                }
            }
        }));
        match zeros {
            Some(len) => digest.zeros(len),
            None => return read,
        }
    }
}

/// The same for all slots whose covers hold these bytes. Built-in checksums read them once, from the zero state, and are
/// joined; a caller's reads them itself. Seldom needed, and so out of the way of the usual single cover.
#[inline(never)]
fn digest_once(slots: &mut [Slot], content: Content<'_>, from: u64, to: u64) -> u64 {
    let mut read = 0;
    let mut shared: SmallVec<[(Digest, u64); 2]> = SmallVec::new();
    for slot in slots.iter_mut().filter(|slot| slot.start <= from && slot.end > from) {
        let known = shared.iter().find(|(zero, _)| zero.same_kind(&slot.digest));
        if let Some((value, len)) = known {
            let joined = slot.digest.concat(value, *len);
            debug_assert!(joined, "of the same kind");
        } else if let Some(mut zero) = slot.digest.zero_state().filter(|zero| zero.same_kind(&slot.digest)) {
            let len = covered(content, from, to);
            read += digest(&mut zero, content, from, to);
            let joined = slot.digest.concat(&zero, len);
            debug_assert!(joined, "of the same kind");
            shared.push((zero, len));
        } else {
            read += digest(&mut slot.digest, content, from, to);
        }
    }
    read
}

/// Whether any byte between two positions differs, payload having become zeros; the difference (exclusive or) is
/// digested.
fn difference(old: Content<'_>, arena: &[u8], from: u64, to: u64, mut delta: Option<&mut Digest>) -> bool {
    let mut differs = false;
    for piece in old.walk(from, to) {
        match (piece, &mut delta) {
            (Piece::Payload(bytes), Some(delta)) => {
                differs = true;
                delta.update(bytes);
            }
            (Piece::Payload(_), None) => differs = true,
            (Piece::Scratch(before, offset), delta) => {
                let after = &arena[offset..offset + before.len()];
                let changed: SmallVec<[u8; 64]> = before.iter().zip(after).map(|(a, b)| a ^ b).collect();
                differs |= changed.iter().any(|byte| *byte != 0);
                if let Some(delta) = delta {
                    delta.update(&changed);
                }
            }
            (Piece::Zeros(len), Some(delta)) => delta.zeros(len),
            (Piece::Zeros(_), None) | (Piece::Marker, _) => {}
        }
    }
    differs
}

/// How many bytes between two positions a cover counts.
fn covered(content: Content<'_>, from: u64, to: u64) -> u64 {
    let len = |piece| match piece {
        Piece::Scratch(bytes, _) | Piece::Payload(bytes) => bytes.len() as u64,
        Piece::Zeros(len) => len,
        Piece::Marker => 0,
    };
    content.walk(from, to).map(len).sum()
}

/// Where and how long, never the values.
impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.list.iter().map(|slot| (slot.start..slot.end, slot.at));
        f.debug_list().entries(slots).finish()
    }
}
