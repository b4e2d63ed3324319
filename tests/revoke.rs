//! Taking a message back at every byte of it, with every sealing distance, followed by a second message.
//!
//! BUGS of others behind this: Linux messenger_v2 `revoke_*` (the rest goes out as zeros, the checksums say so), Linux
//! xprtsock (a half-sent record of a killed task), microsoft/vstest 16445 and casper-node 4246 (the next message follows
//! a torn one).

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use segchain::chain::{Abort, ChainBuilder, Mark, Outgoing, Revoked, SegmentChain};
use segchain::checksum::{Checksum, Crc32, Crc32c};
use segchain::send::{Blocked, Progress, SendErrorKind, SendOptions, StreamSender};
use segchain::transport::{SendFlags, VectoredSend};
use segchain_testkit::naive::crc;

const CASTAGNOLI: u32 = 0x82f6_3b78;
const IEEE: u32 = 0xedb8_8320;
const MARKER: usize = 4;

/// A stream that takes what a test says and then is full. It knows which memory must not be read any more.
#[derive(Default)]
struct Tap {
    wire: RefCell<Vec<u8>>,
    room: Cell<usize>,
    per_call: Cell<usize>,
    forbidden: RefCell<Vec<Range<usize>>>,
}

impl VectoredSend for Tap {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], _: SendFlags) -> io::Result<usize> {
        for buf in bufs {
            let start = buf.as_ptr() as usize;
            let read = |page: &&Range<usize>| page.start < start + buf.len() && start < page.end;
            let forbidden = self.forbidden.borrow();
            assert!(!forbidden.iter().any(|page| read(&page)), "a slice of the revoked payload");
        }
        let mut left = self.room.get().min(self.per_call.get());
        if left == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut wire = self.wire.borrow_mut();
        let before = wire.len();
        for buf in bufs {
            let n = left.min(buf.len());
            wire.extend_from_slice(&buf[..n]);
            left -= n;
        }
        let taken = wire.len() - before;
        self.room.set(self.room.get() - taken);
        Ok(taken)
    }
}

/// Fletcher's sum: not linear, so that it can only be digested again.
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
        2
    }
    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(&[self.0 as u8, self.1 as u8]);
    }
}

/// A linear checksum of the user's own that also logs what it is given to read.
#[derive(Clone)]
struct Logged(Crc32c, Arc<Mutex<Vec<Range<usize>>>>);

impl Checksum for Logged {
    fn update(&mut self, bytes: &[u8]) {
        let start = bytes.as_ptr() as usize;
        self.1.lock().unwrap_or_else(PoisonError::into_inner).push(start..start + bytes.len());
        self.0.update(bytes);
    }
    fn zeros(&mut self, len: u64) {
        self.0.zeros(len);
    }
    fn width(&self) -> usize {
        4
    }
    fn write(&self, out: &mut [u8]) {
        self.0.write(out);
    }
    fn zero_state(&self) -> Option<Self> {
        Some(Self(self.0.zero_state()?, self.1.clone()))
    }
    fn add(&mut self, other: &Self) {
        self.0.add(&other.0);
    }
}

/// The same, not linear.
#[derive(Clone)]
struct LoggedFletcher(Fletcher, Arc<Mutex<Vec<Range<usize>>>>);

impl Checksum for LoggedFletcher {
    fn update(&mut self, bytes: &[u8]) {
        let start = bytes.as_ptr() as usize;
        self.1.lock().unwrap_or_else(PoisonError::into_inner).push(start..start + bytes.len());
        self.0.update(bytes);
    }
    fn width(&self) -> usize {
        2
    }
    fn write(&self, out: &mut [u8]) {
        self.0.write(out);
    }
}

#[derive(Clone, Copy)]
enum Part {
    Put(usize),
    Borrowed(usize),
    Shared(usize),
    Zeros(usize),
}

use Part::{Borrowed, Put, Shared, Zeros};

impl Part {
    fn len(self) -> usize {
        match self {
            Put(n) | Borrowed(n) | Shared(n) | Zeros(n) => n,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Sum {
    RawCrc32c,
    Crc32,
    Fletcher,
}

impl Sum {
    fn value(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Sum::RawCrc32c => crc(CASTAGNOLI, 0, bytes).to_le_bytes().to_vec(),
            Sum::Crc32 => (!crc(IEEE, !0, bytes)).to_le_bytes().to_vec(),
            Sum::Fletcher => {
                let mut sum = Fletcher::default();
                sum.update(bytes);
                vec![sum.0 as u8, sum.1 as u8]
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Rule {
    Close,
    Finish,
    Patch(usize, &'static [u8]),
}

/// A message, described: every position counts the bytes as if there were no fragments.
struct Spec {
    name: &'static str,
    parts: &'static [Part],
    slots: &'static [(Range<usize>, Sum, usize)],
    rule: Rule,
    fragment: Option<usize>,
}

/// What has to become of it.
#[derive(Debug, PartialEq)]
enum Want {
    /// Nothing had left; what goes out in its place, if it can be aborted.
    NotStarted(Option<Vec<u8>>),
    Aborted(Vec<u8>),
    Finishing(Vec<u8>),
    Complete,
    MustClose,
}

impl Spec {
    /// Where a byte is on the wire.
    fn on_wire(&self, position: usize) -> usize {
        self.fragment.map_or(position, |max| position + MARKER * (position / max + 1))
    }

    /// The bytes, slots empty, without fragment markers. Payload is never zero, so that zeros are seen.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in self.parts {
            for _ in 0..part.len() {
                let value = (bytes.len() * 37 % 255) as u8 + 1;
                bytes.push(if matches!(part, Zeros(_)) { 0 } else { value });
            }
        }
        for (_, sum, at) in self.slots {
            let width = sum.value(&[]).len();
            bytes[*at..*at + width].fill(0);
        }
        bytes
    }

    /// The values of those slots whose first byte has not left, right over what is there.
    fn seal(&self, bytes: &mut [u8], from: usize) {
        for _ in 0..self.slots.len() {
            for (cover, sum, at) in self.slots {
                let value = sum.value(&bytes[cover.clone()]);
                if self.on_wire(*at) >= from {
                    bytes[*at..*at + value.len()].copy_from_slice(&value);
                }
            }
        }
    }

    fn with_markers(&self, bytes: &[u8]) -> Vec<u8> {
        let Some(max) = self.fragment else { return bytes.to_vec() };
        let mut wire = Vec::new();
        let count = bytes.len().div_ceil(max);
        for (number, piece) in bytes.chunks(max).enumerate() {
            let last = u32::from(number + 1 == count) << 31;
            wire.extend((piece.len() as u32 | last).to_be_bytes());
            wire.extend_from_slice(piece);
        }
        wire
    }

    /// Whether the byte is the caller's memory.
    fn payload(&self) -> Vec<bool> {
        let is = |part: &Part| std::iter::repeat_n(matches!(part, Borrowed(_) | Shared(_)), part.len());
        self.parts.iter().flat_map(is).collect()
    }

    fn wire(&self) -> Vec<u8> {
        let mut bytes = self.bytes();
        self.seal(&mut bytes, 0);
        self.with_markers(&bytes)
    }

    fn want(&self, sent: usize) -> Want {
        let mut old = self.bytes();
        self.seal(&mut old, 0);
        let wire = self.with_markers(&old);
        if sent == wire.len() {
            return Want::Complete;
        }
        let (at, mark) = match self.rule {
            Rule::Patch(at, mark) if self.on_wire(at) >= sent => (at, mark),
            _ if sent == 0 => return Want::NotStarted(None),
            Rule::Patch(..) | Rule::Finish => return Want::Finishing(wire),
            Rule::Close => {
                // Zeros are payload of nobody, but the chain counts them with the pages that they are among.
                let page = |part: &Part| !matches!(part, Put(_));
                let after_last = self.parts.iter().rposition(page).map_or(0, |index| index + 1);
                let end: usize = self.parts[..after_last].iter().map(|part| part.len()).sum();
                let end = end.checked_sub(1).map_or(0, |last| self.on_wire(last) + 1);
                return if sent >= end { Want::Finishing(wire) } else { Want::MustClose };
            }
        };
        let mut new = old.clone();
        let payload = self.payload();
        let unsent = |position: usize| self.on_wire(position) >= sent;
        for position in (0..new.len()).filter(|position| unsent(*position) && payload[*position]) {
            new[position] = 0;
        }
        new[at..at + mark.len()].copy_from_slice(mark);
        self.seal(&mut new, sent);
        let broken = self.slots.iter().any(|(cover, _, at)| {
            let changed = |p: usize| unsent(p) && (payload[p] || new[p] != old[p]);
            !unsent(*at) && cover.clone().any(changed)
        });
        match (broken, sent) {
            (true, _) => Want::MustClose,
            (false, 0) => Want::NotStarted(Some(self.with_markers(&new))),
            (false, _) => Want::Aborted(self.with_markers(&new)),
        }
    }

    fn build<'m>(&self, pages: &'m [u8]) -> SegmentChain<'m> {
        let mut out = ChainBuilder::new();
        out.copy_below(0);
        if let Some(max) = self.fragment {
            out.fragment(max as u64, |f| (f.len as u32 | u32::from(f.last) << 31).to_be_bytes());
        }
        let mut marks: Vec<(usize, Mark)> = Vec::new();
        let mut at = 0;
        for part in self.parts {
            let bytes = &pages[at..at + part.len()];
            let mark = match part {
                Put(_) => out.put(bytes),
                Borrowed(_) => out.push_borrowed(bytes),
                Shared(_) => out.push(Bytes::copy_from_slice(bytes)),
                Zeros(len) => out.push_zeros(*len as u64),
            };
            marks.push((at, mark));
            at += part.len();
        }
        let mark = |position: usize, len: usize| {
            let index = marks.partition_point(|(start, _)| *start <= position) - 1;
            let (start, mark) = marks[index];
            mark.at((position - start) as u64, len as u64)
        };
        for (cover, sum, at) in self.slots {
            // An end belongs to the part that it is the end of or the start of the next: either is the same place.
            let (start, end) = (mark(cover.start, 0), mark(cover.end, 0));
            match sum {
                Sum::RawCrc32c => out.slot(start..end, Crc32c::raw(0), mark(*at, 4)),
                Sum::Crc32 => out.slot(start..end, Crc32::new(), mark(*at, 4)),
                Sum::Fletcher => out.slot(start..end, Fletcher::default(), mark(*at, 2)),
            }
        }
        match self.rule {
            Rule::Close => {}
            Rule::Finish => out.on_abort(Abort::Finish),
            Rule::Patch(at, bytes) => out.on_abort(Abort::Patch { at: mark(at, bytes.len()), bytes }),
        }
        out.finish().expect("a chain without mistakes")
    }
}

fn second() -> Outgoing<'static> {
    let mut out = ChainBuilder::new();
    out.put(b"second: ");
    let body = out.push(Bytes::from_static(&[0x55; 1100]));
    let trailer = out.put_u32_le(0);
    out.slot(body..trailer, Crc32c::raw(0), trailer);
    Outgoing::new(out.finish().expect("a chain without mistakes"))
}

fn second_wire() -> &'static [u8] {
    static WIRE: OnceLock<Vec<u8>> = OnceLock::new();
    WIRE.get_or_init(|| {
        let mut wire = b"second: ".to_vec();
        wire.extend_from_slice(&[0x55; 1100]);
        wire.extend(crc(CASTAGNOLI, 0, &[0x55; 1100]).to_le_bytes());
        wire
    })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Own,
    Shared,
    /// Not even offered: no call was made, nothing is sealed.
    Untouched,
}

/// Sends `sent` bytes of a message, takes it back, sends what has to be sent in its place, and another message.
fn check(spec: &Spec, wire: &[u8], want: &Want, sent: usize, window: u64, per_call: usize, kind: Kind) {
    let context =
        || format!("{}: {sent} bytes left, window {window}, {per_call} a call, {kind:?}", spec.name);
    let tap = Tap::default();
    let mut sender = StreamSender::with_options(&tap, SendOptions::new().seal_window(window));

    let pages = spec.bytes();
    let chain = spec.build(&pages);
    let sealed = (kind == Kind::Shared).then(|| Arc::new(spec.build(&pages).seal_all()));
    let mut message = match &sealed {
        Some(sealed) => Outgoing::shared(sealed.clone()),
        None => Outgoing::new(chain),
    };
    tap.room.set(sent);
    tap.per_call.set(per_call);
    if kind != Kind::Untouched {
        match sender.send(&mut message) {
            Ok(Progress::Done) => assert_eq!(sent, wire.len(), "{}", context()),
            progress => assert_eq!(progress, Ok(Progress::Blocked(Blocked::Full)), "{}", context()),
        }
    }
    assert_eq!(message.sent(), sent as u64, "{}", context());
    let id = message.id();
    let revoked = message.revoke();
    let rest: Option<Outgoing<'static>> = match (revoked, want) {
        (Revoked::NotStarted(unsent), Want::NotStarted(aborted)) => {
            let rest = unsent.into_aborted();
            assert_eq!(rest.is_some(), aborted.is_some(), "{}", context());
            rest
        }
        (Revoked::AbortedOnWire(rest), Want::Aborted(_)) | (Revoked::Finishing(rest), Want::Finishing(_)) => {
            assert_eq!((rest.id(), rest.sent(), rest.len()), (id, sent as u64, wire.len() as u64));
            Some(rest)
        }
        (Revoked::AlreadyComplete, Want::Complete) => None,
        (Revoked::MustClose { sent: had_left }, Want::MustClose) => {
            assert_eq!(had_left, sent as u64, "{}", context());
            // The stream stays closed to everybody else.
            tap.room.set(usize::MAX);
            let refused = sender.send(&mut second()).expect_err("a torn message");
            assert_eq!(refused.kind(), SendErrorKind::AnotherOpen, "{}", context());
            assert_eq!(*tap.wire.borrow(), wire[..sent], "{}", context());
            return;
        }
        (revoked, want) => panic!("{}: {revoked:?}, not {want:?}", context()),
    };
    if let Some(sealed) = sealed {
        assert_eq!(sealed.to_vec(), wire, "{}: others still send the shared chain as it was", context());
    }
    // What is left borrows nothing: the pages are gone before it is sent.
    let memory = pages.as_ptr() as usize;
    tap.forbidden.borrow_mut().push(memory..memory + pages.len());
    let pages = std::hint::black_box(pages);

    let mut expected = match want {
        Want::NotStarted(Some(bytes)) | Want::Aborted(bytes) | Want::Finishing(bytes) => bytes.clone(),
        Want::NotStarted(None) => Vec::new(),
        Want::Complete => wire.to_vec(),
        Want::MustClose => unreachable!("returned above"),
    };
    expected.extend(second_wire());
    tap.room.set(usize::MAX);
    let mut batch: Vec<_> = rest.into_iter().chain([second()]).collect();
    assert_eq!(sender.send_batch(&mut batch), Ok(Progress::Done), "{}", context());
    let wire_now = tap.wire.borrow();
    assert_eq!(wire_now[..sent], wire[..sent], "{}: what had left", context());
    assert!(*wire_now == expected, "{}:\n got {:?}\nwant {expected:?}", context(), *wire_now);
    drop(pages);
}

/// At every byte, for every sealing distance.
fn everywhere(spec: &Spec) {
    let wire = &spec.wire();
    let len = wire.len();
    for sent in 0..=len {
        let want = &spec.want(sent);
        let windows = (1..=20).chain((21..len as u64 + 3).step_by(7)).chain([1 << 20]);
        for window in windows {
            check(spec, wire, want, sent, window, usize::MAX, Kind::Own);
        }
        // A byte a call seals later than one call of many bytes.
        for window in [1, 2, 5, 12, 33, 60] {
            check(spec, wire, want, sent, window, 1, Kind::Own);
        }
        check(spec, wire, want, sent, 1 << 20, 7, Kind::Shared);
        if sent == 0 {
            check(spec, wire, want, sent, 1 << 20, 7, Kind::Untouched);
        }
    }
}

/// Ceph v1: header with its CRC; front, middle, data; footer with three CRCs and the flags, whose bit 0 says "complete".
const V1: Spec = Spec {
    name: "v1",
    parts: &[Put(24), Borrowed(20), Shared(9), Borrowed(30), Put(21)],
    slots: &[
        (0..20, Sum::RawCrc32c, 20),
        (24..44, Sum::RawCrc32c, 83),
        (44..53, Sum::RawCrc32c, 87),
        (53..83, Sum::RawCrc32c, 91),
    ],
    rule: Rule::Patch(103, &[0]),
    fragment: None,
};

/// msgr2.1: preamble and its CRC; segment 0 with its CRC directly behind; three segments; late status and three CRCs.
const MSGR2: Spec = Spec {
    name: "msgr2.1",
    parts: &[Put(32), Shared(20), Put(4), Borrowed(17), Zeros(8), Borrowed(25), Put(13)],
    slots: &[
        (0..28, Sum::RawCrc32c, 28),
        (32..52, Sum::RawCrc32c, 52),
        (56..73, Sum::RawCrc32c, 107),
        (73..81, Sum::RawCrc32c, 111),
        (81..106, Sum::RawCrc32c, 115),
    ],
    rule: Rule::Patch(106, &[0xe1]),
    fragment: None,
};

const ISCSI: Spec = Spec {
    name: "iSCSI",
    parts: &[Put(52), Borrowed(41), Put(7)],
    slots: &[(0..48, Sum::Crc32, 48), (52..96, Sum::Crc32, 96)],
    rule: Rule::Close,
    fragment: None,
};

#[test]
fn a_v1_message_goes_on_as_zeros_without_the_complete_flag() {
    everywhere(&V1);
}

#[test]
fn a_v1_message_whose_rule_is_to_finish_goes_on_as_it_is() {
    everywhere(&Spec { name: "v1, finish", rule: Rule::Finish, ..V1 });
}

#[test]
fn a_msgr2_frame_goes_on_as_zeros_with_its_late_status_aborted() {
    everywhere(&MSGR2);
}

#[test]
fn an_iscsi_pdu_cannot_be_taken_back_until_its_data_has_left() {
    everywhere(&ISCSI);
}

#[test]
fn a_record_in_one_fragment_or_in_many_cannot_be_taken_back() {
    const RECORD: Spec = Spec {
        name: "record",
        parts: &[Put(28), Borrowed(30), Put(2)],
        slots: &[],
        rule: Rule::Close,
        fragment: None,
    };
    for max in [1, 7, 13, 30, 59, 60, 61, 1000] {
        everywhere(&Spec { fragment: Some(max), ..RECORD });
    }
}

#[test]
fn a_message_without_a_byte_of_the_callers_is_finished_rather_than_the_stream_closed() {
    everywhere(&Spec {
        name: "scratch only",
        parts: &[Put(40)],
        slots: &[(0..36, Sum::Crc32, 36)],
        rule: Rule::Close,
        fragment: None,
    });
}

#[test]
fn covers_that_reach_over_fragments_are_put_right_without_the_markers() {
    for max in [1, 5, 8, 21, 33] {
        everywhere(&Spec { name: "v1 in fragments", fragment: Some(max), ..V1 });
    }
}

#[test]
fn a_value_that_left_before_its_cover_means_that_the_stream_closes() {
    everywhere(&Spec {
        name: "leading",
        parts: &[Put(12), Borrowed(30), Put(10)],
        // The second is over bytes that do not change before the end.
        slots: &[(12..45, Sum::RawCrc32c, 4), (9..12, Sum::Fletcher, 0)],
        rule: Rule::Patch(43, &[0]),
        fragment: None,
    });
}

#[test]
fn a_leading_value_over_scratch_that_does_not_change_may_have_left() {
    everywhere(&Spec {
        name: "leading, unchanged",
        parts: &[Put(20), Borrowed(30), Put(10)],
        slots: &[(8..20, Sum::RawCrc32c, 0), (20..50, Sum::RawCrc32c, 50)],
        rule: Rule::Patch(59, &[0]),
        fragment: None,
    });
}

/// What comes before its cover is digested at once, whole: before that, nothing of it is.
#[test]
fn a_leading_value_whose_cover_begins_before_all_others_is_right_if_nothing_was_sealed() {
    everywhere(&Spec {
        name: "leading, before the others",
        parts: &[Put(4), Borrowed(50), Put(6)],
        slots: &[(4..55, Sum::RawCrc32c, 0), (55..56, Sum::RawCrc32c, 56)],
        rule: Rule::Patch(54, &[0x7e]),
        fragment: None,
    });
    everywhere(&Spec {
        name: "leading, before the others, not linear",
        parts: &[Put(4), Shared(50), Put(6)],
        slots: &[(2..55, Sum::Fletcher, 0), (55..56, Sum::RawCrc32c, 56)],
        rule: Rule::Patch(54, &[0x7e]),
        fragment: None,
    });
}

#[test]
fn nested_values_follow_the_values_that_they_cover() {
    everywhere(&Spec {
        name: "nested",
        parts: &[Put(10), Borrowed(20), Put(6), Shared(15), Put(16)],
        slots: &[
            (10..30, Sum::RawCrc32c, 30),
            // Over a value, and over the abort mark.
            (0..52, Sum::Crc32, 53),
            (30..57, Sum::RawCrc32c, 57),
            // Before what it covers; and covered by none.
            (30..36, Sum::RawCrc32c, 4),
            (0..61, Sum::Fletcher, 63),
        ],
        rule: Rule::Patch(51, &[0x7e]),
        fragment: None,
    });
}

#[test]
fn overlapping_covers_of_one_kind_and_of_several_are_all_put_right() {
    everywhere(&Spec {
        name: "overlapping",
        parts: &[Put(5), Borrowed(23), Zeros(6), Borrowed(19), Put(30)],
        slots: &[
            (0..28, Sum::RawCrc32c, 60),
            (5..53, Sum::RawCrc32c, 64),
            (10..53, Sum::Crc32, 68),
            (5..40, Sum::Fletcher, 72),
            (28..34, Sum::RawCrc32c, 74),
            (20..60, Sum::Crc32, 78),
        ],
        rule: Rule::Patch(55, &[1, 2, 3]),
        fragment: None,
    });
}

#[test]
fn a_checksum_that_is_not_linear_is_digested_again() {
    everywhere(&Spec {
        name: "Fletcher",
        parts: &[Put(10), Borrowed(40), Put(4), Shared(10), Put(8)],
        slots: &[(0..50, Sum::Fletcher, 50), (3..64, Sum::Fletcher, 66), (54..64, Sum::RawCrc32c, 68)],
        rule: Rule::Patch(65, &[0]),
        fragment: None,
    });
}

/// Header, one page, and a trailer of status, unused and checksum.
fn logged<C: Checksum>(page: &[u8], checksum: C) -> SegmentChain<'_> {
    let mut out = ChainBuilder::new();
    out.copy_below(0);
    out.put(&[1; 16]);
    let body = out.push_borrowed(page);
    let width = checksum.width();
    let trailer = out.put(&[9; 12]);
    out.slot(body..trailer, checksum, trailer.at(4, width as u64));
    out.on_abort(Abort::Patch { at: trailer.at(0, 1), bytes: &[0] });
    out.finish().expect("a chain without mistakes")
}

/// Sends some of it and takes it back; returns what was read by the revoke.
fn read_again<C: Checksum>(
    page: &[u8],
    checksum: C,
    log: &Mutex<Vec<Range<usize>>>,
    sent: usize,
    window: u64,
) -> (u64, Vec<Range<usize>>) {
    let tap = Tap::default();
    tap.room.set(sent);
    tap.per_call.set(usize::MAX);
    let mut sender = StreamSender::with_options(&tap, SendOptions::new().seal_window(window));
    let mut message = Outgoing::new(logged(page, checksum));
    assert_eq!(sender.send(&mut message), Ok(Progress::Blocked(Blocked::Full)));
    let ahead = sender.stats().digested;
    log.lock().expect("no panic").clear();
    assert!(matches!(message.revoke(), Revoked::AbortedOnWire(_)));
    (ahead, log.lock().expect("no panic").clone())
}

#[test]
fn a_linear_checksum_reads_the_unsent_part_of_what_was_sealed_once_and_nothing_that_has_left() {
    let page = vec![0xa5; 10_000];
    let start = page.as_ptr() as usize;
    for window in [1, 100, 1000, 3000, 1 << 20] {
        for sent in [1, 15, 16, 17, 500, 1000, 4999, 9999, 10_015] {
            let log = Arc::new(Mutex::new(Vec::new()));
            let checksum = Logged(Crc32c::raw(0), log.clone());
            let (digested, read) = read_again(&page, checksum, &log, sent, window);
            let sealed = digested as usize;
            let left_of_page = sent.saturating_sub(16);
            let in_page = |r: &&Range<usize>| r.start >= start && r.end <= start + page.len();
            let again: usize = read.iter().filter(in_page).map(ExactSizeIterator::len).sum();
            assert_eq!(again, sealed.saturating_sub(left_of_page), "{sent} left, window {window}");
            let sent_again = read.iter().filter(in_page).any(|r| r.start < start + left_of_page);
            assert!(!sent_again, "{sent} left, window {window}: a sent byte was read again");
            // Scratch inside of the cover is not there.
            let all: usize = read.iter().map(ExactSizeIterator::len).sum();
            assert_eq!(all, again, "{sent} left, window {window}");
        }
    }
}

#[test]
fn a_checksum_that_is_not_linear_reads_no_more_than_what_was_sealed() {
    let page = vec![0xa5; 10_000];
    for window in [1, 100, 1000, 3000, 1 << 20] {
        for sent in [1, 16, 17, 500, 4999, 10_015] {
            let log = Arc::new(Mutex::new(Vec::new()));
            let checksum = LoggedFletcher(Fletcher::default(), log.clone());
            let (digested, read) = read_again(&page, checksum, &log, sent, window);
            let again: usize = read.iter().map(ExactSizeIterator::len).sum();
            // Zeros in the page's place are read by the default `zeros`, from a page of its own.
            assert!(again as u64 <= digested, "{sent} left, window {window}: {again} of {digested}");
        }
    }
}

#[test]
fn a_large_half_sent_message_is_aborted_without_a_page_of_memory() {
    // 64 MiB of zero pages stand for it: what replaces it has no payload of its own.
    let page = vec![7; 1 << 20];
    let mut out = ChainBuilder::new();
    let body = out.here();
    for _ in 0..64 {
        out.push_borrowed(&page);
    }
    let trailer = out.put(&[1; 5]);
    out.slot(body..trailer, Crc32c::raw(0), trailer.at(1, 4));
    out.on_abort(Abort::Patch { at: trailer.at(0, 1), bytes: &[0] });
    let mut message = Outgoing::new(out.finish().expect("a chain without mistakes"));
    let tap = Tap::default();
    tap.room.set(3_000_001);
    tap.per_call.set(usize::MAX);
    let mut sender = StreamSender::new(&tap);
    assert_eq!(sender.send(&mut message), Ok(Progress::Blocked(Blocked::Full)));
    let Revoked::AbortedOnWire(mut rest) = message.revoke() else { panic!("not aborted") };
    drop(page);
    tap.room.set(usize::MAX);
    assert_eq!(sender.send(&mut rest), Ok(Progress::Done));
    let wire = tap.wire.borrow();
    assert_eq!(wire.len(), (64 << 20) + 5);
    assert!(wire[..3_000_001].iter().all(|byte| *byte == 7));
    assert!(wire[3_000_001..64 << 20].iter().all(|byte| *byte == 0));
    assert_eq!(wire[64 << 20], 0);
    let mut sum = Crc32c::raw(0);
    sum.update(&wire[..64 << 20]);
    assert_eq!(wire[(64 << 20) + 1..], sum.value().to_le_bytes());
}
