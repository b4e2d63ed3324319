//! Chains: mistakes, slots, fragments, views, and random ones against a naive reference.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes, BytesMut};
use proptest::prelude::*;
use segchain::chain::{
    Abort, ChainBuilder, ChainError, Fragment, Mark, Outgoing, Payload, Revoked, SealedChain, SegmentChain,
};
use segchain::checksum::{Checksum, Crc32, Crc32c};
use segchain::send::SendError;
use segchain_testkit::naive::{NaiveChain, Random, crc};

const CASTAGNOLI: u32 = 0x82f6_3b78;
const IEEE: u32 = 0xedb8_8320;

fn crc32c_raw(bytes: &[u8]) -> Vec<u8> {
    crc(CASTAGNOLI, 0, bytes).to_le_bytes().to_vec()
}

fn crc32(bytes: &[u8]) -> Vec<u8> {
    (!crc(IEEE, !0, bytes)).to_le_bytes().to_vec()
}

/// Fletcher's sum: not linear over GF(2), and the built-in digests do not know it.
#[derive(Clone, Default)]
struct Fletcher(u16, u16);

impl Checksum for Fletcher {
    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 + u16::from(*byte)) % 255;
            self.1 = (self.1 + self.0) % 255;
        }
    }

    fn width(&self) -> usize {
        4
    }

    fn write(&self, out: &mut [u8]) {
        out[..2].copy_from_slice(&self.0.to_be_bytes());
        out[2..].copy_from_slice(&self.1.to_be_bytes());
    }
}

fn fletcher(bytes: &[u8]) -> Vec<u8> {
    let (mut a, mut b) = (0u32, 0u32);
    for byte in bytes {
        a += u32::from(*byte);
        b += a % 255;
    }
    [((a % 255) as u16).to_be_bytes(), ((b % 255) as u16).to_be_bytes()].concat()
}

/// All bytes of a chain through `gather` with these limits, sealed in steps of `window`.
fn gathered(chain: &mut SegmentChain<'_>, window: u64, max_bytes: u64, max_slices: usize) -> Vec<u8> {
    let mut wire = Vec::new();
    let mut at = 0;
    while at < chain.len() {
        if chain.sealed() <= at {
            chain.seal_through(at + window);
            assert!(chain.sealed() >= (at + window).min(chain.len()));
        }
        let mut slices = Vec::new();
        let gathered = chain.gather(at, max_bytes, max_slices, &mut slices);
        assert!(gathered.bytes > 0 && gathered.bytes <= max_bytes && slices.len() <= max_slices);
        assert!(gathered.slices <= slices.len() && at + gathered.bytes <= chain.sealed());
        assert_eq!(gathered.bytes, slices.iter().map(|slice| slice.len() as u64).sum::<u64>());
        assert!(slices.iter().all(|slice| !slice.is_empty()));
        for slice in &slices {
            wire.extend_from_slice(slice);
        }
        at += gathered.bytes;
    }
    wire
}

// ---- mistakes

fn mistake(build: impl FnOnce(&mut ChainBuilder<'_>)) -> ChainError {
    let mut out = ChainBuilder::new();
    build(&mut out);
    let checked = out.check();
    let error = out.finish().expect_err("a mistake");
    if !matches!(error, ChainError::SlotCycle { .. }) {
        assert_eq!(checked, Err(error));
    }
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::InvalidInput);
    assert!(!error.to_string().is_empty());
    error
}

/// Watt-32 76, cpython bpo-33871: lengths that sum past the limit are a typed error before any call.
#[test]
fn lengths_past_two_to_the_63_are_refused_wherever_they_come_from() {
    const HALF: u64 = 1 << 62;
    let too_long = ChainError::TooLong { len: HALF, added: HALF };
    assert_eq!(mistake(|out| _ = (out.push_zeros(HALF), out.push_zeros(HALF))), too_long);
    assert_eq!(mistake(|out| _ = out.push_zeros(1 << 63)), ChainError::TooLong { len: 0, added: 1 << 63 });
    assert_eq!(mistake(|out| _ = out.push_zeros(u64::MAX)), ChainError::TooLong { len: 0, added: u64::MAX });
    let full = i64::MAX as u64;
    let one_more = ChainError::TooLong { len: full, added: 1 };
    assert_eq!(mistake(|out| _ = (out.push_zeros(full), out.put(b"x"))), one_more);
    assert_eq!(mistake(|out| _ = (out.push_zeros(full), out.push(Bytes::from_static(b"x")))), one_more);
    assert_eq!(mistake(|out| _ = (out.push_zeros(full), out.push_borrowed(b"x"))), one_more);
    assert_eq!(mistake(|out| _ = (out.push_zeros(full), out.push_buf(&b"x"[..]))), one_more);
    let pad = |out: &mut ChainBuilder<'_>| {
        let start = out.push_zeros(full);
        out.pad_to(1 << 63, start);
    };
    assert_eq!(mistake(pad), one_more);
    // Markers count too.
    let mut out = ChainBuilder::new();
    out.fragment(HALF, |_| [0; 4]);
    out.push_zeros((1 << 63) - 8);
    assert!(matches!(out.finish(), Err(ChainError::TooLong { .. })));
}

/// A marker takes memory, zeros do not.
#[test]
fn more_fragments_than_the_limit_are_a_mistake_before_one_is_made() {
    let most = ChainBuilder::MAX_FRAGMENTS;
    for (len, fragments) in [(most + 1, most + 1), (1 << 61, 1 << 61)] {
        let mut out = ChainBuilder::new();
        out.fragment(1, |_| [0; 4]);
        out.push_zeros(len);
        assert_eq!(out.finish().err(), Some(ChainError::TooManyFragments { fragments }));
    }
    let mut out = ChainBuilder::new();
    out.fragment(16, |_| [0; 4]);
    out.push_zeros(16 * 1000);
    assert_eq!(out.finish().map(|chain| chain.len()), Ok(20 * 1000));
}

#[test]
fn the_longest_chain_of_all_is_counted_right() {
    let mut out = ChainBuilder::new();
    out.put(b"head");
    out.push_zeros(i64::MAX as u64 - 8);
    let tail = out.put(b"tail");
    assert_eq!(tail.position(), i64::MAX as u64 - 4);
    let chain = out.finish().unwrap().seal_all();
    assert_eq!(chain.len(), i64::MAX as u64);
    assert_eq!(chain.buf(0).remaining(), i64::MAX as usize);
    assert_eq!(chain.buf(chain.len() - 2).chunk(), b"il");
    let mut slices = Vec::new();
    assert_eq!(chain.gather(chain.len() - 4, u64::MAX, 1024, &mut slices).bytes, 4);
    assert_eq!(&slices[0][..], b"tail");
    // Two of them are too long for one.
    let mut out = ChainBuilder::new();
    out.put(b"x");
    let one = out.finish().unwrap().seal_all();
    let error = chain.append(one).expect_err("too long");
    assert_eq!(error, ChainError::TooLong { len: i64::MAX as u64, added: 1 });
}

#[test]
fn a_mark_of_another_chain_is_refused_wherever_it_is_used() {
    let mut other = ChainBuilder::new();
    other.put(b"before");
    let foreign = other.put(b"four");
    let error = ChainError::ForeignMark { position: 6 };
    assert_eq!(mistake(|out| out.patch(foreign, b"four")), error);
    assert_eq!(mistake(|out| out.patch(foreign, b"five!")), error);
    assert_eq!(mistake(|out| out.on_abort(Abort::Patch { at: foreign, bytes: b"four" })), error);
    assert_eq!(mistake(|out| _ = out.pad_to(4, foreign)), error);
    assert_eq!(mistake(|out| _ = out.pad_to(0, foreign)), error);
    let in_slot = |which: usize| {
        move |out: &mut ChainBuilder<'_>| {
            let start = out.put(b"covered");
            let at = out.put(&[0; 4]);
            let mut marks = [start, at, at];
            marks[which] = foreign;
            out.slot(marks[0]..marks[1], Crc32c::new(), marks[2]);
        }
    };
    for which in 0..3 {
        assert_eq!(mistake(in_slot(which)), error);
    }
    // The memory of a recycled chain is another chain.
    let old = foreign;
    let mut recycled = other.finish().unwrap().recycle();
    recycled.put(b"before");
    recycled.put(b"four");
    recycled.patch(old, b"FOUR");
    assert_eq!(recycled.finish().expect_err("an old mark"), error);
}

#[test]
fn a_part_outside_of_its_mark_is_refused() {
    for (offset, len) in [(0, 5), (1, 4), (4, 1), (5, 0), (u64::MAX, 1), (1, u64::MAX)] {
        let error = mistake(|out| {
            out.put(b"xx");
            let mark = out.put(b"four");
            out.put(b"yyyyyyyyyyyyyyyy");
            out.patch(mark.at(offset, len), b"z");
        });
        assert_eq!(error, ChainError::MarkOutOfRange { position: 2u64.saturating_add(offset), len });
    }
    let mut out = ChainBuilder::new();
    let mark = out.put(b"four");
    out.patch(mark.at(1, 2), b"__");
    out.patch(mark.at(1, 2).at(1, 1), b"-");
    assert_eq!(out.finish().unwrap().seal_all().to_vec(), b"f_-r");
}

#[test]
fn patches_slots_and_abort_marks_need_scratch_bytes() {
    let error = ChainError::NotScratch { position: 1, len: 4 };
    let page = Bytes::from_static(b"page");
    assert_eq!(
        mistake(|out| {
            out.copy_below(0);
            out.put(b"x");
            let page = out.push(page.clone());
            out.patch(page, b"PAGE");
        }),
        error
    );
    assert_eq!(
        mistake(|out| {
            out.put(b"x");
            let zeros = out.push_zeros(4);
            let end = out.put(b"rest");
            out.slot(end..end, Crc32::new(), zeros);
        }),
        error
    );
    assert_eq!(
        mistake(|out| {
            out.copy_below(0);
            out.put(b"x");
            let page = out.push_borrowed(b"page");
            out.on_abort(Abort::Patch { at: page, bytes: b"PAGE" });
        }),
        error
    );
    // Copied behind scratch bytes it is scratch.
    let mut out = ChainBuilder::new();
    out.put(b"x");
    let page = out.push(page);
    out.patch(page, b"PAGE");
    assert_eq!(out.finish().unwrap().seal_all().to_vec(), b"xPAGE");
}

#[test]
fn nothing_can_be_patched_with_nothing() {
    let mut out = ChainBuilder::new();
    out.copy_below(0);
    let none = out.put(b"");
    out.patch(none, b"");
    out.push_borrowed(b"page");
    out.patch(none, b"");
    let end = out.here();
    out.patch(end, b"");
    assert_eq!(out.finish().unwrap().seal_all().to_vec(), b"page");
}

#[test]
fn bytes_of_another_length_than_their_mark_are_refused() {
    let error = |got| ChainError::Length { position: 2, expected: 4, got };
    let put = |out: &mut ChainBuilder<'_>| {
        out.put(b"xx");
        out.put(&[0; 4])
    };
    for bytes in [&b"abc"[..], b"abcde", b""] {
        let patched = mistake(|out| {
            let at = put(out);
            out.patch(at, bytes);
        });
        assert_eq!(patched, error(bytes.len() as u64));
        let aborted = mistake(|out| {
            let at = put(out);
            out.on_abort(Abort::Patch { at, bytes });
        });
        assert_eq!(aborted, error(bytes.len() as u64));
    }
    let slot = mistake(|out| {
        let start = out.here();
        out.put(b"xx");
        let at = out.put(&[0; 8]);
        out.slot(start..at, Crc32c::new(), at);
    });
    assert_eq!(slot, ChainError::Length { position: 2, expected: 8, got: 4 });
}

#[test]
fn a_cover_has_to_run_forwards_and_around_its_slot() {
    let reversed = mistake(|out| {
        let start = out.put(b"ab");
        let end = out.put(b"cd");
        let at = out.put(&[0; 4]);
        out.slot(end..start, Crc32c::new(), at);
    });
    assert_eq!(reversed, ChainError::CoverReversed { start: 2, end: 0 });
    // Any overlap is inside: the whole slot, its first byte, its last.
    for (start, end) in [(0, 12), (4, 8), (0, 5), (7, 12), (5, 6)] {
        let inside = mistake(|out| {
            let all = out.put(&[0; 12]);
            out.slot(all.at(start, 0)..all.at(end, 0), Crc32c::new(), all.at(4, 4));
        });
        assert_eq!(inside, ChainError::SlotInsideCover { position: 4, start, end });
    }
    for (start, end) in [(0, 4), (8, 12), (4, 4), (8, 8), (0, 0)] {
        let mut out = ChainBuilder::new();
        let all = out.put(&[0; 12]);
        out.slot(all.at(start, 0)..all.at(end, 0), Crc32c::new(), all.at(4, 4));
        assert!(out.finish().is_ok(), "{start}..{end}");
    }
}

#[test]
fn slots_that_depend_on_themselves_by_a_detour_are_found() {
    // A leading slot covers a trailing one, which covers the leading one.
    let two = mistake(|out| {
        let lead = out.put(&[0; 4]);
        let body = out.put(b"body");
        let trail = out.put(&[0; 4]);
        let end = out.here();
        out.slot(lead..trail, Crc32c::new(), trail);
        out.slot(body..end, Crc32c::new(), lead);
    });
    assert!(matches!(two, ChainError::SlotCycle { .. }), "{two:?}");
    // Each covers the next one's value, the last the first's: a ring of any size.
    for size in [2u64, 3, 10, 1000] {
        let ring = mistake(|out| {
            let all = out.put(&vec![0; 4 * size as usize]);
            for slot in 0..size {
                let next = (slot + 1) % size;
                out.slot(all.at(4 * next, 0)..all.at(4 * next + 4, 0), Crc32c::new(), all.at(4 * slot, 4));
            }
        });
        assert!(matches!(ring, ChainError::SlotCycle { .. }), "{size}: {ring:?}");
        // Without the last one it is a row, and needs no more stack for being long.
        let mut out = ChainBuilder::new();
        let mut naive = NaiveChain::new();
        naive.add(&vec![0; 4 * size as usize]);
        let all = out.put(&vec![0; 4 * size as usize]);
        for slot in 0..size - 1 {
            let next = slot + 1;
            out.slot(all.at(4 * next, 0)..all.at(4 * next + 4, 0), Crc32c::raw(0), all.at(4 * slot, 4));
        }
        for slot in (0..size as usize - 1).rev() {
            naive.slot(4 * slot + 4..4 * slot + 8, crc32c_raw, 4 * slot);
        }
        if size < 100 {
            assert_eq!(out.finish().unwrap().seal_all().to_vec(), naive.finish(), "{size}");
        } else {
            let _ = out.finish().unwrap().seal_all();
        }
    }
}

/// The checksum of nothing depends on nothing, wherever that nothing is.
#[test]
fn an_empty_cover_inside_of_a_value_needs_no_value() {
    let mut out = ChainBuilder::new();
    let all = out.put(&[9; 12]);
    out.slot(all.at(10, 0)..all.at(10, 0), Crc32c::raw(7), all.at(0, 4));
    out.slot(all.at(0, 0)..all.at(4, 0), Crc32c::raw(0), all.at(8, 4));
    let wire = out.finish().unwrap().seal_all().to_vec();
    assert_eq!(wire[..4], 7u32.to_le_bytes());
    assert_eq!(wire[8..], crc32c_raw(&7u32.to_le_bytes()));
}

#[test]
fn more_slots_than_the_most_are_refused() {
    let slots = |count: usize| {
        move |out: &mut ChainBuilder<'_>| {
            let body = out.put(b"body");
            let values = out.put(&vec![0; 4 * count]);
            for slot in 0..count as u64 {
                out.slot(body..values, Crc32c::new(), values.at(4 * slot, 4));
            }
        }
    };
    assert_eq!(mistake(slots(ChainBuilder::MAX_SLOTS + 1)), ChainError::TooManySlots);
    let mut out = ChainBuilder::new();
    slots(ChainBuilder::MAX_SLOTS)(&mut out);
    let mut chain = out.finish().unwrap();
    chain.seal_through(u64::MAX);
    assert_eq!(chain.digested(), 4); // one pass for a thousand slots
}

#[test]
fn fragments_come_first_and_have_a_size() {
    let marker = |_: Fragment| [0; 4];
    assert_eq!(mistake(|out| out.fragment(0, marker)), ChainError::Zero);
    assert_eq!(
        mistake(|out| _ = (out.put(b"x"), out.fragment(9, marker))),
        ChainError::FragmentNotFirst { len: 1 }
    );
    let twice = mistake(|out| {
        out.fragment(9, marker);
        out.fragment(9, marker);
    });
    assert_eq!(twice, ChainError::FragmentNotFirst { len: 4 });
    assert_eq!(mistake(|out| _ = out.pad_to(0, out.here())), ChainError::Zero);
}

#[test]
fn the_first_mistake_is_the_one_that_is_told() {
    let error = mistake(|out| {
        let mark = out.put(b"four");
        out.patch(mark, b"x");
        out.fragment(0, |_| [0; 4]);
        out.push_zeros(u64::MAX);
        out.push_buf(&b"more"[..]);
        assert_eq!(out.len(), 4); // later calls do nothing
    });
    assert_eq!(error, ChainError::Length { position: 0, expected: 4, got: 1 });
}

// ---- slots

/// The shape of msgr2.1: a preamble with a checksum of itself, segments with one each in the preamble and in the epilogue.
#[test]
fn four_slots_in_two_places_are_sealed_in_one_pass() {
    let (front, data) = (vec![1u8; 300], vec![2u8; 5000]);
    let mut out = ChainBuilder::new();
    let preamble = out.put(&[7; 28]);
    let preamble_crc = out.put(&[0; 4]);
    let front_mark = out.push_borrowed(&front);
    let front_crc = out.put(&[0; 4]);
    let data_mark = out.push_borrowed(&data);
    let epilogue = out.put(&[0; 13]);
    out.slot(preamble..preamble_crc, Crc32c::raw(0), preamble_crc);
    out.slot(front_mark..front_crc, Crc32c::raw(!0), front_crc);
    out.slot(data_mark..epilogue, Crc32c::raw(!0), epilogue.at(1, 4));
    out.slot(data_mark..data_mark, Crc32c::raw(!0), epilogue.at(5, 4)); // an empty segment: its seed (ceph 31876)
    let mut chain = out.finish().unwrap();
    let wire = gathered(&mut chain, 64, 1000, 3);
    assert_eq!(wire[28..32], crc(CASTAGNOLI, 0, &[7; 28]).to_le_bytes());
    assert_eq!(wire[332..336], crc(CASTAGNOLI, !0, &front).to_le_bytes());
    let epilogue = &wire[wire.len() - 13..];
    assert_eq!(epilogue[1..5], crc(CASTAGNOLI, !0, &data).to_le_bytes());
    assert_eq!(epilogue[5..9], [0xff; 4]);
    assert_eq!(chain.digested(), 28 + 300 + 5000);
}

/// The shape of an event stream: the trailer's checksum covers everything, the prelude's value included.
#[test]
fn a_slot_over_an_earlier_slot_covers_its_value() {
    let mut out = ChainBuilder::new();
    let mut naive = NaiveChain::new();
    let prelude = out.put(b"lengths.");
    naive.add(b"lengths.");
    let prelude_crc = out.put(&[0; 4]);
    naive.add(&[0; 4]);
    out.push_borrowed(b"headers and payload");
    naive.add(b"headers and payload");
    let message_crc = out.put(&[0; 4]);
    naive.add(&[0; 4]);
    // Declared the wrong way round: order is the chain's business.
    out.slot(prelude..message_crc, Crc32::new(), message_crc);
    out.slot(prelude..prelude_crc, Crc32::new(), prelude_crc);
    naive.slot(0..31, crc32, 31);
    naive.slot(0..8, crc32, 8);
    let mut chain = out.finish().unwrap();
    assert_eq!(gathered(&mut chain, 1, 1, 1), naive.finish());
    assert_eq!(chain.digested(), 31);
}

#[test]
fn overlapping_covers_read_each_byte_once() {
    let page = vec![5u8; 10_000];
    let mut out = ChainBuilder::new();
    let body = out.push_borrowed(&page);
    out.push_zeros(1 << 40); // not read at all
    let end = out.here();
    let values = out.put(&[0; 40]);
    let parts: [Range<u64>; 8] =
        [0..10_000, 100..9000, 100..9000, 0..1, 9999..10_000, 5000..5000, 3000..7000, 6000..10_000];
    for (index, part) in parts.iter().enumerate() {
        let cover = body.at(part.start, 0)..body.at(part.end, 0);
        out.slot(cover, Crc32c::raw(index as u32), values.at(4 * index as u64, 4));
    }
    out.slot(body..end, Crc32c::raw(8), values.at(32, 4));
    let mut chain = out.finish().unwrap();
    chain.seal_through(u64::MAX);
    assert_eq!(chain.digested(), 10_000);
    let sealed = chain.seal_all();
    let mut rest = sealed.buf(10_000 + (1 << 40));
    for (index, part) in parts.iter().enumerate() {
        let expected = crc(CASTAGNOLI, index as u32, &page[part.start as usize..part.end as usize]);
        assert_eq!(rest.get_u32_le(), expected, "{part:?}");
    }
    let mut expected = Crc32c::raw(8);
    expected.update(&page);
    expected.zeros(1 << 40);
    assert_eq!(rest.get_u32_le(), expected.value());
}

#[test]
fn a_leading_slot_is_right_before_its_first_byte_leaves() {
    let page = vec![3u8; 5000];
    for window in [1, 7, 5000, u64::MAX >> 1] {
        let mut out = ChainBuilder::new();
        let lead = out.put(&[0; 4]);
        let body = out.push_borrowed(&page);
        let trail = out.put(&[0; 8]);
        let end = out.here();
        // The leading one covers the trailing ones' values, which are therefore sealed first.
        out.slot(body..end, Crc32::new(), lead);
        out.slot(body..trail, Crc32c::raw(0), trail.at(0, 4));
        out.slot(body..trail.at(4, 0), Fletcher::default(), trail.at(4, 4));
        let mut naive = NaiveChain::new();
        naive.add(&[0; 4]);
        naive.add(&page);
        naive.add(&[0; 8]);
        naive.slot(4..5012, crc32, 0);
        naive.slot(4..5004, crc32c_raw, 5004);
        naive.slot(4..5008, fletcher, 5008);
        let mut chain = out.finish().unwrap();
        assert!(gathered(&mut chain, window, 999, 2) == naive.finish(), "window {window}");
    }
}

#[test]
fn sealing_is_monotonic_and_costs_nothing_twice() {
    let page = vec![3u8; 5000];
    let mut out = ChainBuilder::new();
    let body = out.push_borrowed(&page);
    let at = out.put(&[0; 4]);
    out.put(&[1; 100]);
    out.slot(body..at, Crc32c::new(), at);
    let mut chain = out.finish().unwrap();
    assert_eq!((chain.sealed(), chain.digested()), (0, 0));
    for (to, sealed) in [(0, 0), (10, 10), (5, 10), (10, 10), (4999, 4999)] {
        chain.seal_through(to);
        assert_eq!((chain.sealed(), chain.digested()), (sealed, sealed));
    }
    // What follows the last cover needs no sealing.
    chain.seal_through(5000);
    assert_eq!((chain.sealed(), chain.digested()), (5104, 5000));
    chain.seal_through(u64::MAX);
    assert_eq!((chain.sealed(), chain.digested()), (5104, 5000));
    // And a chain without slots is sealed from the start.
    let mut out = ChainBuilder::new();
    out.push_borrowed(&page);
    assert_eq!(out.finish().unwrap().sealed(), 5000);
}

// ---- fragments

fn record_marker(index: usize, len: usize, last: bool) -> Vec<u8> {
    vec![index as u8, len as u8, u8::from(last), b'#']
}

fn fragment_marker(fragment: Fragment) -> [u8; 4] {
    [fragment.index as u8, fragment.len as u8, u8::from(fragment.last), b'#']
}

/// A chain with everything that a fragment's border can cut, and its naive image.
fn cut_anywhere<'m>(out: &mut ChainBuilder<'m>, pages: &'m [[u8; 5]; 3]) -> NaiveChain {
    out.copy_below(0);
    let mut naive = NaiveChain::new();
    let lead = out.put(&[0; 4]);
    naive.add(&[0; 4]);
    let patched = out.put(b"....");
    naive.add(b"....");
    for page in pages {
        out.push_borrowed(page);
        naive.add(page);
    }
    let middle = out.put(&[0; 4]);
    naive.add(&[0; 4]);
    let zeros = out.push_zeros(3);
    naive.add(&[0; 3]);
    let trail = out.put(&[0; 6]);
    naive.add(&[0; 6]);
    let end = out.here();
    out.patch(patched, b"HEAD");
    naive.patch(4, b"HEAD");
    // A value in the middle that half of a later cover holds, and a leading one over all of it.
    out.slot(patched..middle, Crc32c::raw(0), middle);
    naive.slot(4..23, crc32c_raw, 23);
    out.slot(middle.at(2, 0)..trail, Crc32::new(), trail.at(1, 4));
    naive.slot(25..30, crc32, 31);
    out.slot(middle.at(1, 0)..end, Fletcher::default(), lead);
    naive.slot(24..36, fletcher, 0);
    out.slot(zeros..zeros, Crc32::new(), patched.at(0, 4));
    naive.slot(27..27, crc32, 4);
    out.on_abort(Abort::Patch { at: trail.at(5, 1), bytes: b"A" });
    naive
}

/// ntirpc 294, libnfs 526: markers and what they cut were counted inconsistently.
#[test]
fn a_message_is_cut_into_fragments_of_every_size() {
    let pages = [*b"page1", *b"page2", *b"page3"];
    for max in 1..=40 {
        for (window, max_slices) in [(1, 1), (3, 2), (100, 1024)] {
            let mut out = ChainBuilder::new();
            out.fragment(max, fragment_marker);
            let naive = cut_anywhere(&mut out, &pages);
            let expected = naive.finish_fragmented(max as usize, record_marker);
            let mut chain = out.finish().unwrap();
            assert_eq!(chain.len(), expected.len() as u64, "max {max}");
            let wire = gathered(&mut chain, window, u64::MAX, max_slices);
            assert_eq!(wire, expected, "max {max}, window {window}");
        }
    }
}

#[test]
fn a_slot_whose_value_is_cut_by_a_border_is_known_before_what_covers_a_part_of_it() {
    for max in 1..=24u64 {
        let mut out = ChainBuilder::new();
        out.fragment(max, fragment_marker);
        let mut naive = NaiveChain::new();
        let all = out.put(&[9; 24]);
        naive.add(&[9; 24]);
        // Value at 6..10; the leading slot covers its last byte, or its last two, or three.
        for (slot, from) in [(0, 9), (12, 8), (16, 7)] {
            out.slot(all.at(from, 0)..all.at(10, 0), Crc32c::raw(0), all.at(slot, 4));
            naive.slot(from as usize..10, crc32c_raw, slot as usize);
        }
        out.slot(all.at(4, 0)..all.at(6, 0), Crc32c::raw(0), all.at(6, 4));
        naive.slot(4..6, crc32c_raw, 6);
        let expected = naive.finish_fragmented(max as usize, record_marker);
        assert_eq!(out.finish().unwrap().seal_all().to_vec(), expected, "max {max}");
    }
}

#[test]
fn a_cycle_through_a_value_that_is_cut_by_a_border_is_found() {
    for max in 1..=12 {
        let mut out = ChainBuilder::new();
        out.fragment(max, fragment_marker);
        let all = out.put(&[0; 12]);
        out.slot(all.at(11, 0)..all.at(12, 0), Crc32::new(), all.at(0, 4));
        out.slot(all.at(3, 0)..all.at(4, 0), Crc32::new(), all.at(8, 4));
        assert!(matches!(out.finish(), Err(ChainError::SlotCycle { .. })), "max {max}");
    }
}

#[test]
fn markers_may_be_of_any_width_and_see_every_fragment_once() {
    for len in 0..10usize {
        for max in 1..=10 {
            let bytes = [7u8; 10];
            let seen = Arc::new(Mutex::new(Vec::new()));
            let mut out = ChainBuilder::new();
            let sees = seen.clone();
            out.fragment(max, move |f| {
                sees.lock().unwrap().push((f.index, f.len, f.last));
                []
            });
            out.push_borrowed(&bytes[..len]);
            assert_eq!(out.finish().unwrap().seal_all().to_vec(), &bytes[..len]);
            let seen = seen.lock().unwrap();
            let count = len.div_ceil(max as usize).max(1) as u64;
            assert_eq!(seen.len() as u64, count);
            assert!(seen.iter().enumerate().all(|(i, s)| s.0 == i as u64 && s.2 == (s.0 + 1 == count)));
            assert_eq!(seen.iter().map(|s| s.1).sum::<u64>(), len as u64);

            let mut out = ChainBuilder::new();
            out.fragment(max, |f| [f.len as u8; 11]);
            out.push_borrowed(&bytes[..len]);
            assert_eq!(out.finish().unwrap().len(), len as u64 + 11 * count);
        }
    }
}

// ---- views

fn sample(pages: &[Vec<u8>]) -> SealedChain<'_> {
    let mut out = ChainBuilder::new();
    out.copy_below(0);
    let head = out.put(b"head");
    out.push_borrowed(&pages[0]);
    out.push_zeros(70_000);
    out.put(b"middle");
    out.push(Bytes::from(pages[1].clone()));
    let trailer = out.put(&[0; 4]);
    out.slot(head..trailer, Crc32c::raw(!0), trailer);
    out.finish().unwrap().seal_all()
}

fn sample_bytes(pages: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = [b"head", pages[0].as_slice(), &vec![0; 70_000], b"middle", &pages[1]].concat();
    bytes.extend(crc(CASTAGNOLI, !0, &bytes).to_le_bytes());
    bytes
}

fn sample_pages() -> [Vec<u8>; 2] {
    let mut random = Random::new(3);
    [random.bytes(100), random.bytes(33)]
}

/// What hyper does with a `Buf`: a few slices, a write that takes some of them, `advance`.
fn written_through(mut buf: impl Buf, slices: usize, accept: impl Fn(usize) -> usize) -> Vec<u8> {
    let mut wire = Vec::new();
    while buf.has_remaining() {
        let mut vectored = vec![IoSlice::new(&[]); slices];
        let filled = buf.chunks_vectored(&mut vectored);
        assert!(filled > 0 && filled <= slices);
        let offered: usize = vectored[..filled].iter().map(|slice| slice.len()).sum();
        assert!(offered > 0 && offered <= buf.remaining());
        let taken = accept(offered).clamp(1, offered);
        let bytes: Vec<u8> =
            vectored[..filled].iter().flat_map(|slice| slice.iter()).copied().take(taken).collect();
        assert!(bytes.starts_with(&buf.chunk()[..buf.chunk().len().min(taken)]));
        wire.extend(bytes);
        buf.advance(taken);
    }
    wire
}

/// bytes 701, hyper 3650 and 4132 (later bytes before all of the first), opendal 8063 (bytes that were cut off).
#[test]
fn the_buf_of_a_chain_is_right_however_it_is_consumed() {
    let pages = sample_pages();
    let expected = sample_bytes(&pages);
    let chain = sample(&pages);
    for slices in [1, 2, 3, 64] {
        for accept in [1000usize, 4095, 99, 104, 70_104, usize::MAX] {
            assert!(written_through(chain.buf(0), slices, |_| accept) == expected, "{slices} {accept}");
        }
        assert!(written_through(chain.buf(0), slices, |offered| offered / 2) == expected);
        // Behind something else, cut short, and from every kind of place.
        let chained = Bytes::from_static(b"before").chain(chain.buf(0));
        assert!(written_through(chained, slices, |_| 777) == [b"before", &expected[..]].concat());
        assert!(written_through(chain.buf(0).take(130), slices, |_| 3) == expected[..130]);
    }
    for from in (0..200).chain(70_090..expected.len() + 10) {
        let mut buf = chain.buf(from as u64);
        let rest = &expected[from.min(expected.len())..];
        assert_eq!(buf.position(), from.min(expected.len()) as u64);
        assert_eq!(buf.remaining(), rest.len());
        assert!(buf.copy_to_bytes(rest.len()) == rest);
        assert_eq!((buf.chunk(), buf.chunks_vectored(&mut [IoSlice::new(&[])])), (&[][..], 0));
    }
    let mut copied = BytesMut::new();
    bytes::BufMut::put(&mut copied, chain.buf(0));
    assert!(copied == expected);
}

#[test]
#[should_panic(expected = "advance past the end")]
fn advancing_a_buf_past_its_end_panics_as_buf_asks() {
    let pages = sample_pages();
    let chain = sample(&pages);
    chain.buf(chain.len() - 1).advance(2);
}

#[test]
fn a_chain_is_split_anywhere_and_put_together_again() {
    let pages = sample_pages();
    let expected = sample_bytes(&pages);
    for at in (0..120).chain([
        70_000,
        70_104,
        70_105,
        expected.len() - 4,
        expected.len() - 1,
        expected.len(),
        usize::MAX,
    ]) {
        let (head, tail) = sample(&pages).split(at as u64);
        let cut = at.min(expected.len());
        assert_eq!((head.len(), tail.len()), (cut as u64, (expected.len() - cut) as u64));
        assert!(head.to_vec() == expected[..cut] && tail.to_vec() == expected[cut..], "at {at}");
        let (swapped, again) = (tail.append(head).unwrap(), [&expected[cut..], &expected[..cut]].concat());
        assert!(swapped.to_vec() == again && swapped.into_owned().to_vec() == again);
    }
}

#[test]
fn splitting_and_appending_copy_no_payload() {
    let page = vec![1u8; 4096];
    let mut out = ChainBuilder::new();
    out.put(b"head");
    out.push_borrowed(&page);
    let (head, tail) = out.finish().unwrap().seal_all().split(1004);
    let both = tail.append(head).unwrap();
    let mut slices = Vec::new();
    both.gather(0, u64::MAX, 1024, &mut slices);
    let addresses: Vec<*const u8> = slices.iter().map(|slice| slice.as_ptr()).collect();
    assert_eq!((addresses[0], addresses[2]), (page[1000..].as_ptr(), page.as_ptr()));
}

#[test]
fn an_owned_chain_outlives_its_pages_and_counts_what_it_copied() {
    let (owned, expected) = {
        let pages = sample_pages();
        let mut out = ChainBuilder::new();
        out.copy_below(0);
        let start = out.push_borrowed(&pages[0]);
        out.push(Bytes::from(pages[1].clone()));
        let at = out.put(&[0; 4]);
        out.slot(start..at, Crc32c::raw(0), at);
        let mut chain = out.finish().unwrap();
        chain.seal_through(50); // half sealed: the state goes along
        let mut expected = pages.concat();
        expected.extend(crc32c_raw(&expected));
        (chain.into_owned(), expected)
    };
    assert_eq!((owned.copied(), owned.sealed(), owned.digested()), (100, 50, 50));
    assert_eq!(owned.seal_all().to_vec(), expected);
}

#[test]
fn recycled_memory_holds_nothing_of_the_last_message() {
    let page = [0xeeu8; 64];
    let mut out = ChainBuilder::new();
    for round in 0..50usize {
        out.copy_below(0);
        let mut naive = NaiveChain::new();
        let start = out.put(&vec![round as u8; round % 7]);
        naive.add(&vec![round as u8; round % 7]);
        for _ in 0..round {
            out.push_borrowed(&page);
            naive.add(&page);
        }
        if round % 3 == 0 {
            let at = out.put(&[0; 4]);
            out.slot(start..at, Crc32c::raw(0), at);
            let len = naive.len();
            naive.add(&[0; 4]);
            naive.slot(0..len, crc32c_raw, len);
        }
        let mut chain = out.finish().unwrap();
        assert_eq!(chain.digested(), 0);
        assert!(gathered(&mut chain, 100, 1000, 16) == naive.finish());
        out = chain.recycle();
        assert!(out.is_empty() && out.check().is_ok());
    }
}

#[test]
fn debug_shows_shape_and_never_payload() {
    let secret = b"hunter2hunter2hunter2";
    let mut out = ChainBuilder::new();
    out.copy_below(0);
    out.put(secret);
    out.push_borrowed(secret);
    out.push(Bytes::from_static(secret));
    for _ in 0..100 {
        out.push_borrowed(secret);
    }
    let trailer = out.put(&[0; 4]);
    out.slot(trailer..trailer, Crc32c::new(), trailer);
    let mut texts = vec![format!("{out:?}")];
    let chain = out.finish().unwrap();
    texts.push(format!("{chain:?}"));
    let outgoing = segchain::chain::Outgoing::new(chain);
    texts.push(format!("{outgoing:?}"));
    let sealed = outgoing.into_chain().unwrap().seal_all();
    texts.push(format!("{sealed:?}"));
    texts.push(format!("{:?}", sealed.buf(3)));
    for text in texts {
        assert!(text.contains("scratch 21") && text.contains("borrowed 21"), "{text}");
        for leak in ["hunter", "104, 117, 110", "68756e"] {
            assert!(!text.contains(leak), "{text}");
        }
        assert!(text.len() < 600, "as long as the payload: {text}");
    }
}

#[test]
fn payloads_of_every_shape_are_pushed_uncopied_and_in_order() {
    fn addresses(payload: impl Payload) -> Vec<*const u8> {
        let mut out = ChainBuilder::new();
        out.copy_below(0);
        payload.push_to(&mut out);
        let chain = out.finish().unwrap();
        let mut slices = Vec::new();
        chain.gather(0, u64::MAX, 1024, &mut slices);
        slices.iter().map(|slice| slice.as_ptr()).collect()
    }
    let pages = [vec![1u8; 10], vec![2; 10]];
    let at = [pages[0].as_ptr(), pages[1].as_ptr()];
    let slices = [&pages[0][..], &pages[1][..]];
    assert_eq!(addresses(&pages[..]), at);
    assert_eq!(addresses(&slices[..]), at);
    assert_eq!(addresses(&pages[0][..]), at[..1]);
    let shared = [Bytes::from(vec![1u8; 10]), Bytes::from(vec![2; 10])];
    let at = [shared[0].as_ptr(), shared[1].as_ptr()];
    assert_eq!(addresses(&shared[..]), at);
    assert_eq!(addresses(shared.to_vec()), at);
    assert_eq!(addresses(shared[1].clone()), at[1..]);
    assert!(addresses(()).is_empty());
    // A buffer of shared parts is shared, not copied.
    let mut out = ChainBuilder::new();
    out.push_buf(shared[0].clone().chain(shared[1].clone()));
    let chain = out.finish().unwrap();
    let mut slices = Vec::new();
    chain.gather(0, u64::MAX, 1024, &mut slices);
    assert_eq!(slices.iter().map(|slice| slice.as_ptr()).collect::<Vec<_>>(), at);
}

// ---- random chains

#[derive(Clone, Debug)]
enum Op {
    Put(usize),
    Push(usize),
    Borrowed(usize),
    Zeros(usize),
    Parts(usize, usize),
    Pad(usize, usize),
    Patch(usize),
    Slot { kind: u8, from: usize, to: usize },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0usize..12).prop_map(Op::Put),
        (0usize..60).prop_map(Op::Push),
        (0usize..60).prop_map(Op::Borrowed),
        (0usize..60).prop_map(Op::Zeros),
        (0usize..30, 0usize..30).prop_map(|(a, b)| Op::Parts(a, b)),
        (1usize..80, any::<usize>()).prop_map(|(multiple, since)| Op::Pad(multiple, since)),
        any::<usize>().prop_map(Op::Patch),
        (0u8..3, any::<usize>(), any::<usize>()).prop_map(|(kind, from, to)| Op::Slot { kind, from, to }),
    ]
}

/// What two slots have to do with each other: whether the first covers a byte of the second's value.
fn covers(cover: &Range<usize>, at: usize) -> bool {
    at < cover.end && at + 4 > cover.start && !cover.is_empty()
}

/// Whether the slots depend on each other in a circle: take away the ones that need no other until none is left.
fn circular(slots: &[(Range<usize>, usize)]) -> bool {
    let mut open: Vec<usize> = (0..slots.len()).collect();
    loop {
        let ready =
            open.iter().position(|slot| !open.iter().any(|other| covers(&slots[*slot].0, slots[*other].1)));
        match ready {
            Some(index) => _ = open.remove(index),
            None => return !open.is_empty(),
        }
    }
}

/// Builds the same message both ways. Declares the slots at the end, for a cover may lie anywhere.
fn build<'m>(
    out: &mut ChainBuilder<'m>,
    ops: &[Op],
    memory: &'m [u8],
) -> (NaiveChain, Vec<(Range<usize>, usize)>, bool) {
    let mut naive = NaiveChain::new();
    let mut random = Random::new(ops.len() as u64);
    let mut marks: Vec<(Mark, usize)> = Vec::new();
    let mut scratch = Vec::new();
    let mut wanted = Vec::new();
    for op in ops {
        let start = naive.len();
        let from = random.below(memory.len() - 64);
        let mark = match *op {
            Op::Put(len) => {
                naive.add(&memory[from..from + len]);
                let mark = out.put(&memory[from..from + len]);
                scratch.push((mark, start, len));
                mark
            }
            Op::Push(len) => {
                naive.add(&memory[from..from + len]);
                out.push(Bytes::copy_from_slice(&memory[from..from + len]))
            }
            Op::Borrowed(len) => {
                naive.add(&memory[from..from + len]);
                out.push_borrowed(&memory[from..from + len])
            }
            Op::Zeros(len) => {
                naive.add(&vec![0; len]);
                out.push_zeros(len as u64)
            }
            Op::Parts(a, b) => {
                let (a, b) = (&memory[from..from + a], &memory[from..from + b]);
                naive.add(a);
                naive.add(b);
                out.push_buf(Bytes::copy_from_slice(a).chain(Bytes::copy_from_slice(b)).chain(&b""[..]))
            }
            Op::Pad(multiple, since) => match marks.get(since % marks.len().max(1)).copied() {
                Some((mark, position)) => {
                    naive.pad_to(multiple, position);
                    out.pad_to(multiple as u64, mark)
                }
                None => out.here(),
            },
            Op::Patch(which) => {
                if let Some((mark, position, len)) = scratch.get(which % scratch.len().max(1)).copied() {
                    naive.patch(position, &memory[from..from + len]);
                    out.patch(mark, &memory[from..from + len]);
                }
                out.here()
            }
            Op::Slot { kind, from, to } => {
                naive.add(&[0; 4]);
                let at = out.put(&[0; 4]);
                wanted.push((kind, from, to, at, start));
                at
            }
        };
        marks.push((mark, start));
    }
    marks.push((out.here(), naive.len()));
    // In any order: which value is needed first is the chain's business.
    for index in (1..wanted.len()).rev() {
        wanted.swap(index, random.below(index + 1));
    }
    let mut slots = Vec::new();
    let mut same_kind = true;
    for (kind, from, to, at, position) in wanted {
        let (mut from, mut to) = (marks[from % marks.len()], marks[to % marks.len()]);
        if from.1 > to.1 {
            std::mem::swap(&mut from, &mut to);
        }
        let cover = from.0..to.0;
        let value = match kind {
            0 => {
                out.slot(cover, Crc32c::raw(0), at);
                crc32c_raw
            }
            1 => {
                out.slot(cover, Crc32::new(), at);
                crc32
            }
            _ => {
                out.slot(cover, Fletcher::default(), at);
                fletcher
            }
        };
        same_kind &= kind == 0;
        naive.slot(from.1..to.1, value, position);
        slots.push((from.1..to.1, position));
    }
    (naive, slots, same_kind)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_chains_are_what_the_naive_reference_says(
        ops in proptest::collection::vec(op(), 0..25),
        copy_below in prop_oneof![Just(0usize), Just(20), Just(1024)],
        fragment in proptest::option::of(1u64..200),
        window in 1u64..300,
        max_bytes in 1u64..300,
        max_slices in 1usize..8,
        cut in any::<prop::sample::Index>(),
    ) {
        let memory = Random::new(1).bytes(500);
        let make = || {
            let mut out = ChainBuilder::new();
            out.copy_below(copy_below);
            if let Some(max) = fragment {
                out.fragment(max, fragment_marker);
            }
            let parts = build(&mut out, &ops, &memory);
            (out.finish(), parts)
        };
        let (chain, (naive, slots, same_kind)) = make();
        if slots.iter().any(|(cover, at)| covers(cover, *at)) {
            let inside = matches!(chain, Err(ChainError::SlotInsideCover { .. }));
            prop_assert!(inside, "{chain:?}");
            return Ok(());
        }
        if circular(&slots) {
            let cycle = matches!(chain, Err(ChainError::SlotCycle { .. }));
            prop_assert!(cycle, "{chain:?}");
            return Ok(());
        }
        let covered: u64 = (0..naive.len()).filter(|at| slots.iter().any(|(cover, _)| cover.contains(at))).count() as u64;
        let trailing = slots.iter().all(|(cover, at)| *at >= cover.end);
        let expected = match fragment {
            Some(max) => naive.finish_fragmented(max as usize, record_marker),
            None => naive.finish(),
        };
        let mut chain = chain.expect("a chain without mistakes");
        prop_assert_eq!(chain.len(), expected.len() as u64);
        prop_assert_eq!(&gathered(&mut chain, window, max_bytes, max_slices), &expected);
        if trailing && same_kind {
            prop_assert!(chain.digested() <= covered, "{} read of {covered}", chain.digested());
        }
        // A second pass is the same: nothing is consumed.
        prop_assert_eq!(&gathered(&mut chain, window, u64::MAX, 1024), &expected);

        let sealed = make().0.expect("the same again").seal_all();
        prop_assert_eq!(&sealed.to_vec(), &expected);
        prop_assert_eq!(&written_through(sealed.buf(0), max_slices, |_| max_bytes as usize), &expected);
        let at = cut.index(expected.len() + 1);
        let (head, tail) = sealed.split(at as u64);
        prop_assert_eq!(&head.to_vec(), &expected[..at]);
        prop_assert_eq!(&tail.to_vec(), &expected[at..]);
        let whole = head.append(tail).expect("short enough").into_owned();
        prop_assert_eq!(&written_through(whole.buf(at as u64), max_slices, |_| max_bytes as usize), &expected[at..]);
    }
}

/// A `Buf` that breaks its contract: opendal 8063 and its kind.
#[test]
fn a_buf_that_hides_its_bytes_is_a_mistake_and_not_a_short_message() {
    struct Hidden;
    impl Buf for Hidden {
        fn remaining(&self) -> usize {
            7
        }
        fn chunk(&self) -> &[u8] {
            &[]
        }
        fn advance(&mut self, _: usize) {}
    }
    let mut out = ChainBuilder::new();
    out.put(b"head");
    out.push_buf(Hidden);
    assert_eq!(out.finish().err(), Some(ChainError::EmptyChunk { position: 4, remaining: 7 }));
}

// ---- shapes

/// A message is moved from hand to hand, and its result is asked for after each call.
#[test]
fn what_is_moved_is_one_pointer() {
    const POINTER: usize = size_of::<usize>();
    assert_eq!(size_of::<ChainBuilder<'_>>(), POINTER);
    assert_eq!(size_of::<Option<SegmentChain<'_>>>(), POINTER);
    assert_eq!(size_of::<Option<SealedChain<'_>>>(), POINTER);
    assert_eq!(size_of::<Result<(), SendError>>(), POINTER);
}

#[test]
fn messages_may_be_sent_to_and_shared_with_other_threads() {
    fn both<T: Send + Sync>() {}
    both::<(ChainBuilder<'_>, SegmentChain<'_>, SealedChain<'_>, Outgoing<'_>, SendError)>();
}

/// Compiles, or does not: a chain of a longer lifetime is one of a shorter, and may be dropped after its pages.
#[test]
fn a_chain_lives_no_shorter_than_it_has_to() {
    fn shorter<'s>(long: SegmentChain<'static>, _: &'s [u8]) -> SegmentChain<'s> {
        long
    }
    let mut out = ChainBuilder::new();
    out.put(b"head");
    let bytes = vec![1; 2000];
    let chain = shorter(out.finish().unwrap(), &bytes);
    let pages = vec![2; 2000];
    let mut out = ChainBuilder::new();
    out.push_borrowed(&pages);
    let late = out.finish().unwrap();
    assert_eq!((chain.len(), late.len()), (4, 2000));
    drop(pages); // before `late` is
}

/// What replaces a revoked message, and what was copied, are recycled like any other.
#[test]
fn memory_of_replacements_is_good_for_the_next_message() {
    let build = |mut out: ChainBuilder<'static>| {
        let len = out.put_u32_be(0);
        let data = out.push_zeros(3000);
        let crc = out.put_u32_le(0);
        out.slot(data..crc, Crc32c::raw(7), crc);
        out.patch(len, &3000u32.to_be_bytes());
        out.on_abort(Abort::Patch { at: len, bytes: &[0; 4] });
        out.finish().unwrap()
    };
    let wire = build(ChainBuilder::new()).seal_all().to_vec();
    let Revoked::NotStarted(unsent) = Outgoing::new(build(ChainBuilder::new())).revoke() else {
        panic!("nothing was sent")
    };
    let rest = unsent.into_aborted().unwrap().into_chain().unwrap();
    assert_eq!(build(rest.recycle()).seal_all().to_vec(), wire);
    let mut chain = build(ChainBuilder::new());
    chain.seal_through(2000);
    assert_eq!(build(chain.into_owned().recycle()).seal_all().to_vec(), wire);
}

#[test]
fn nothing_is_gathered_past_what_is_sealed_or_past_the_end() {
    let mut out = ChainBuilder::new();
    let head = out.put(b"head");
    out.push_zeros(3000);
    let crc = out.put_u32_le(0);
    out.slot(head..crc, Crc32c::raw(7), crc);
    let mut chain = out.finish().unwrap();
    chain.seal_through(1000);
    let mut slices = Vec::new();
    for from in [1000, 1001, 3007, 3008] {
        assert_eq!(chain.gather(from, u64::MAX, 16, &mut slices).bytes, 0);
    }
    assert!(slices.is_empty());
}
