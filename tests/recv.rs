//! Receiving, case by case: small deframers of every sort through the conformance harness, and what public reports say went
//! wrong elsewhere. The allocator counts.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use allocation_counter::measure;
use bytes::Bytes;
use segchain::checksum::{Checksum, Crc32c};
use segchain::framer::{
    BodyReq, Deframer, Filled, Landed, LentSlices, LineTooLong, Place, Step, Targets, find_delimiter,
};
use segchain::recv::{Received, Receiver, RecvError, RecvErrorKind, RecvOptions};
use segchain::slab::{SLAB, SlabBuf, SlabPool};
use segchain::straight::Straight;
use segchain::transport::{Interest, SocketRef, VectoredRecv, Wait};
use segchain_testkit::conformance::{Conformance, TargetTable};
use segchain_testkit::naive::{Random, crc, seed};
use segchain_testkit::scripted::{RecvStep, ScriptedRecv, WaitStep};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use RecvStep::{Again, All, Claim, Eof, Errno, Give, Interrupted, Kind};

/// Nothing here takes so long.
const LONG: Duration = Duration::from_secs(60);

// ---- a protocol with a frame of every sort

/// Kind, key, two zero bytes, length, and a CRC-32C of those eight; all little-endian. Then the body, and its CRC-32C.
const HEADER: usize = 12;

const BORROWED: u8 = 0;
const CONTIGUOUS: u8 = 1;
const SLABS: u8 = 2;
const TARGET: u8 = 3;
const DISCARD: u8 = 4;
/// The body comes in pieces, each behind four bytes: its length, and the top bit in the last one.
const PIECES: u8 = 5;

/// Short frames are borrowed only up to here.
const SHORT: usize = 1000;

fn header(kind: u8, key: u8, len: u32) -> Vec<u8> {
    let mut bytes = vec![kind, key, 0, 0];
    bytes.extend(len.to_le_bytes());
    bytes.extend(crc(0x82f6_3b78, !0, &bytes).to_le_bytes());
    bytes
}

fn frame(kind: u8, key: u8, body: &[u8]) -> Vec<u8> {
    pieces_frame(kind, key, &[body])
}

fn pieces_frame(kind: u8, key: u8, pieces: &[&[u8]]) -> Vec<u8> {
    let body = pieces.concat();
    let mut bytes = header(kind, key, body.len() as u32);
    for (index, piece) in pieces.iter().enumerate() {
        if kind == PIECES {
            let last = u32::from(index + 1 == pieces.len()) << 31;
            bytes.extend((piece.len() as u32 | last).to_le_bytes());
        }
        bytes.extend_from_slice(piece);
    }
    bytes.extend(crc(0x82f6_3b78, !0, &body).to_le_bytes());
    bytes
}

#[derive(Debug)]
enum Frame<'h> {
    Borrowed(&'h [u8]),
    Contiguous(Bytes),
    Slabs(SlabBuf),
    Target { key: u64, whole: bool },
}

/// What is kept of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kept {
    Bytes(u8, Vec<u8>),
    Target { key: u64, whole: bool },
}

fn keep(frame: Frame<'_>) -> Kept {
    match frame {
        Frame::Borrowed(bytes) => Kept::Bytes(BORROWED, bytes.to_vec()),
        Frame::Contiguous(bytes) => Kept::Bytes(CONTIGUOUS, bytes.to_vec()),
        Frame::Slabs(slabs) => {
            let bytes = slabs.parts().collect::<Vec<_>>().concat();
            assert_eq!(slabs.len(), bytes.len() as u64);
            assert!(slabs.into_parts().concat() == bytes);
            Kept::Bytes(SLABS, bytes)
        }
        Frame::Target { key, whole } => Kept::Target { key, whole },
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    HeaderCrc,
    Kind,
    Length,
    BodyCrc,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Wrong {}

#[derive(Debug, Default)]
struct Sorts {
    state: State,
    sum: u32,
    landed: Option<Landed>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Header,
    Marker {
        left: u64,
        total: u64,
    },
    Trailer,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

impl Deframer for Sorts {
    type Frame<'h> = Frame<'h>;
    type Error = Wrong;

    fn decode<'h>(&mut self, head: &'h [u8], targets: &mut dyn Targets) -> Result<Step<Frame<'h>>, Wrong> {
        match self.state {
            State::Header => {
                if head.len() < HEADER {
                    return Ok(Step::Need(HEADER));
                }
                let mut sum = Crc32c::raw(!0);
                sum.update(&head[..8]);
                if sum.value() != u32_at(head, 8) {
                    return Err(Wrong::HeaderCrc);
                }
                let (kind, key, len) = (head[0], u64::from(head[1]), u64::from(u32_at(head, 4)));
                let place = match kind {
                    BORROWED => {
                        let total = HEADER + len as usize + 4;
                        if len > SHORT as u64 {
                            return Err(Wrong::Length);
                        }
                        if head.len() < total {
                            return Ok(Step::Need(total));
                        }
                        let body = &head[HEADER..total - 4];
                        let mut sum = Crc32c::raw(!0);
                        sum.update(body);
                        if sum.value() != u32_at(head, total - 4) {
                            return Err(Wrong::BodyCrc);
                        }
                        return Ok(Step::Frame { frame: Frame::Borrowed(body), head: total });
                    }
                    CONTIGUOUS => Place::Contiguous,
                    SLABS => Place::Slabs { offset: key as usize },
                    TARGET if targets.expect(key) >= Some(len) => Place::Target { key, at: 0 },
                    TARGET | DISCARD => Place::Discard,
                    PIECES => {
                        self.state = State::Marker { left: len, total: len };
                        self.sum = !0;
                        return Ok(Step::Used(HEADER));
                    }
                    _ => return Err(Wrong::Kind),
                };
                self.state = State::Trailer;
                Ok(Step::Body { head: HEADER, req: BodyReq::new(len, place).digest(Crc32c::raw(!0)) })
            }
            State::Marker { left, total } => {
                if head.len() < 4 {
                    return Ok(Step::Need(4));
                }
                let marker = u32_at(head, 0);
                let (len, last) = (u64::from(marker & 0x7fff_ffff), marker >> 31 == 1);
                let rest = left.checked_sub(len).ok_or(Wrong::Length)?;
                if last != (rest == 0) && (last || len == 0) {
                    return Err(Wrong::Length);
                }
                self.state = if last { State::Trailer } else { State::Marker { left: rest, total } };
                let place = if left == total { Place::Slabs { offset: 0 } } else { Place::Continue };
                let req = BodyReq::new(len, place).piece_of(total, last).digest(Crc32c::raw(self.sum));
                Ok(Step::Body { head: 4, req })
            }
            State::Trailer => {
                if head.len() < 4 {
                    return Ok(Step::Need(4));
                }
                if self.sum != u32_at(head, 0) {
                    return Err(Wrong::BodyCrc);
                }
                self.state = State::Header;
                let frame = match self.landed.take() {
                    Some(Landed::Contiguous(bytes)) => Frame::Contiguous(bytes),
                    Some(Landed::Slabs(slabs)) => Frame::Slabs(slabs),
                    Some(Landed::Target { key, whole }) => Frame::Target { key, whole },
                    _ => return Ok(Step::Dropped { head: 4 }),
                };
                Ok(Step::Frame { frame, head: 4 })
            }
        }
    }

    fn body(&mut self, piece: Filled) -> Result<(), Wrong> {
        let sum = piece.sum.expect("asked for");
        self.sum = sum.downcast_ref::<Crc32c>().expect("what was asked for").state();
        self.landed = Some(piece.landed);
        Ok(())
    }

    fn awaiting(&self) -> &'static str {
        match self.state {
            State::Header => "header",
            State::Marker { .. } => "marker",
            State::Trailer if self.landed.is_none() => "body",
            State::Trailer => "trailer",
        }
    }
}

/// The same protocol in straight lines; frames are copied out as they come.
fn straight() -> impl Deframer<Error = Wrong, Frame<'static> = Kept> + for<'h> Deframer<Frame<'h> = Kept> {
    Straight::new(|mut wire| async move {
        wire.awaiting("header");
        let head = wire.bytes(HEADER).await;
        let mut sum = Crc32c::raw(!0);
        sum.update(&head[..8]);
        if sum.value() != u32_at(&head, 8) {
            return Err(Wrong::HeaderCrc);
        }
        let (kind, key, len) = (head[0], u64::from(head[1]), u64::from(u32_at(&head, 4)));
        let mut sum = Crc32c::raw(!0);
        wire.awaiting("body");
        let landed = match kind {
            BORROWED if len > SHORT as u64 => return Err(Wrong::Length),
            BORROWED => {
                let body = wire.bytes(len as usize).await;
                sum.update(&body);
                Some(Kept::Bytes(BORROWED, body))
            }
            PIECES => {
                let (mut left, mut place) = (len, Place::Slabs { offset: 0 });
                loop {
                    let marker = u32::from_le_bytes(wire.array().await);
                    let (piece, last) = (u64::from(marker & 0x7fff_ffff), marker >> 31 == 1);
                    left = left.checked_sub(piece).ok_or(Wrong::Length)?;
                    if last != (left == 0) && (last || piece == 0) {
                        return Err(Wrong::Length);
                    }
                    let req = BodyReq::new(piece, place).piece_of(len, last).digest(sum);
                    let filled = wire.body(req).await;
                    place = Place::Continue;
                    sum = filled.sum.as_ref().and_then(|sum| sum.downcast_ref()).cloned().expect("asked for");
                    if let Landed::Slabs(slabs) = filled.landed {
                        break Some(keep(Frame::Slabs(slabs)));
                    }
                }
            }
            _ => {
                let place = match kind {
                    CONTIGUOUS => Place::Contiguous,
                    SLABS => Place::Slabs { offset: key as usize },
                    TARGET if wire.expect(key).await >= Some(len) => Place::Target { key, at: 0 },
                    TARGET | DISCARD => Place::Discard,
                    _ => return Err(Wrong::Kind),
                };
                let filled = wire.body(BodyReq::new(len, place).digest(sum)).await;
                sum = filled.sum.as_ref().and_then(|sum| sum.downcast_ref()).cloned().expect("asked for");
                match filled.landed {
                    Landed::Contiguous(bytes) => Some(keep(Frame::Contiguous(bytes))),
                    Landed::Slabs(slabs) => Some(keep(Frame::Slabs(slabs))),
                    Landed::Target { key, whole } => Some(Kept::Target { key, whole }),
                    _ => None,
                }
            }
        };
        wire.awaiting("trailer");
        if sum.value() != u32::from_le_bytes(wire.array().await) {
            return Err(Wrong::BodyCrc);
        }
        Ok(landed)
    })
}

fn body(len: usize) -> Vec<u8> {
    // No zero bytes: what was not written is seen.
    Random::new(len as u64).bytes(len).into_iter().map(|byte| byte | 1).collect()
}

/// A frame of every sort with bodies of about this length.
fn one_of_each(len: usize) -> Vec<Vec<u8>> {
    let bytes = body(len);
    let (a, b) = bytes.split_at(len / 3);
    vec![
        frame(CONTIGUOUS, 0, &bytes),
        frame(TARGET, 9, &bytes),
        frame(SLABS, 3, &bytes[..len - 1]),
        frame(DISCARD, 0, &bytes),
        pieces_frame(PIECES, 0, &[a, b, &[]]),
        frame(TARGET, 77, &bytes), // nobody has it: discarded
        frame(BORROWED, 0, &bytes[..len.min(SHORT)]),
    ]
}

fn kept_of_each(len: usize) -> Vec<Kept> {
    let bytes = body(len);
    vec![
        Kept::Bytes(CONTIGUOUS, bytes.clone()),
        Kept::Target { key: 9, whole: true },
        Kept::Bytes(SLABS, bytes[..len - 1].to_vec()),
        Kept::Bytes(SLABS, bytes.clone()),
        Kept::Bytes(BORROWED, bytes[..len.min(SHORT)].to_vec()),
    ]
}

fn slices(frames: &[Vec<u8>]) -> Vec<&[u8]> {
    frames.iter().map(Vec::as_slice).collect()
}

// ---- conformance

/// libnfs 425: a marker that was read in two parts overwrote its first bytes; nfs3 152, libevpl 49: only whole records were
/// understood.
#[test]
fn a_stream_of_every_sort_of_frame_is_the_same_however_it_is_cut_and_damage_is_seen() {
    let frames = one_of_each(13);
    let conformance =
        Conformance::new(Sorts::default, &slices(&frames)).targets(TargetTable::new(&[(9, 13)]).scattered(5));
    assert!(frames.concat().len() <= 256); // short enough for all pairs of cuts
    assert_eq!(conformance.check(keep), kept_of_each(13));
    conformance.check_take_back(keep, |kept| match kept {
        Kept::Target { key, .. } => vec![Some(Kept::Target { key: *key, whole: false }), None],
        Kept::Bytes(..) => Vec::new(),
    });
}

#[test]
fn the_straight_line_adapter_conforms_as_well() {
    let frames = one_of_each(13);
    let conformance =
        Conformance::new(straight, &slices(&frames)).targets(TargetTable::new(&[(9, 13)]).scattered(5));
    assert_eq!(conformance.check(|kept| kept), kept_of_each(13));
    conformance.check_take_back(
        |kept| kept,
        |kept| match kept {
            Kept::Target { key, .. } => vec![Some(Kept::Target { key: *key, whole: false }), None],
            Kept::Bytes(..) => Vec::new(),
        },
    );
}

#[test]
fn longer_frames_with_a_small_read_ahead_are_the_same_however_they_are_cut() {
    let frames = one_of_each(900);
    for read_ahead in [64, 100, 1024] {
        // Borrowed frames have to fit into the read-ahead.
        let fit = if read_ahead < 1024 { &frames[..6] } else { &frames[..] };
        let conformance = Conformance::new(Sorts::default, &slices(fit))
            .targets(TargetTable::new(&[(9, 900)]))
            .read_ahead(read_ahead);
        assert_eq!(conformance.check_cuts_only(keep), kept_of_each(900)[..fit.len() - 2]);
    }
}

/// libnfs 526, 562: off by four at the edges of buffers and limits.
#[test]
fn bodies_around_every_buffers_edge_arrive_whole() {
    let pool = SlabPool::default();
    let edges = [0, 64, 4096, 8192, SLAB, 2 * SLAB, 3 * SLAB];
    for edge in edges {
        for len in edge.max(20) - 20..=edge + 20 {
            let bytes = body(len);
            let cut = len / 2;
            let stream = [
                frame(SLABS, 1, &bytes),
                frame(TARGET, 1, &bytes),
                if len < 2 {
                    frame(PIECES, 0, &bytes)
                } else {
                    pieces_frame(PIECES, 0, &[&bytes[..cut], &bytes[cut..]])
                },
                frame(DISCARD, 0, &bytes),
                frame(SLABS, 0, b"end"),
            ];
            for first in [1, HEADER, HEADER + 4096, usize::MAX] {
                let script = ScriptedRecv::new(&stream.concat(), [Give(first)]);
                let options = RecvOptions::new().read_ahead(4096).window(SLAB);
                let mut receiver = Receiver::with_options(&script, Sorts::default(), options, pool.clone());
                let mut targets = TargetTable::new(&[(1, len)]).scattered(1000);
                let (frames, end) = receive_all(&mut receiver, &mut targets);
                assert_eq!(end, "Eof", "{len} bytes");
                let whole = Kept::Bytes(SLABS, bytes.clone());
                let target = Kept::Target { key: 1, whole: true };
                assert!(
                    frames == [whole.clone(), target, whole, Kept::Bytes(SLABS, b"end".to_vec())],
                    "{len}"
                );
                assert!(targets.get(1) == Some(&bytes[..]), "{len}");
                let stats = receiver.stats();
                assert_eq!((stats.digested, stats.discarded), (4 * len as u64 + 3, len as u64));
                assert_eq!(stats.bytes, stream.iter().map(|frame| frame.len() as u64).sum::<u64>());
            }
        }
    }
    assert_eq!(pool.live(), 0);
}

fn receive_all(
    receiver: &mut Receiver<&ScriptedRecv, Sorts>,
    targets: &mut dyn Targets,
) -> (Vec<Kept>, String) {
    let mut frames = Vec::new();
    let end = receiver.receive(targets, |frame| {
        frames.push(keep(frame));
        ControlFlow::Continue(())
    });
    (frames, end.map_or_else(|error| format!("{error:?}"), |received| format!("{received:?}")))
}

/// libtirpc GLSA 202210-33 (CVE-2017-8779), libnfs 158: memory by a claimed length.
#[test]
fn a_claimed_length_costs_no_memory() {
    let mut heads = Vec::new();
    for len in [(1 << 31) - 1, u32::MAX, 1 << 20] {
        for kind in [BORROWED, CONTIGUOUS, SLABS, TARGET, DISCARD, PIECES] {
            heads.push(header(kind, 9, len));
        }
        // A record of pieces, the second of which claims the rest.
        let mut pieces = header(PIECES, 0, len);
        pieces.extend(4u32.to_le_bytes());
        pieces.extend([1; 4]);
        pieces.extend(((len - 4) & 0x7fff_ffff).to_le_bytes());
        heads.push(pieces);
    }
    let conformance = Conformance::new(Sorts::default, &[]).targets(TargetTable::new(&[(9, 100)]));
    conformance.check_memory(&heads, |run| measure(run).bytes_max);
    Conformance::new(straight, &[]).check_memory(&heads, |run| measure(run).bytes_max);
}

#[test]
fn a_body_in_short_pieces_holds_no_more_memory_than_what_has_come() {
    let bytes = body(1 << 20);
    let pieces: Vec<&[u8]> = bytes.chunks(4000).collect();
    let stream = pieces_frame(PIECES, 0, &pieces);
    let script = ScriptedRecv::new(&stream, []);
    let options = RecvOptions::new().read_ahead(4096).window(SLAB);
    let used = measure(|| {
        let mut receiver = Receiver::with_options(&script, Sorts::default(), options, SlabPool::new(4));
        let mut targets = ();
        let received = receiver.receive(&mut targets, |_| ControlFlow::Continue(()));
        assert_eq!(received.unwrap(), Received::Eof);
    });
    // A slab is a page longer than what it holds, for the sake of its alignment.
    let slabs = stream.len() + stream.len() / 16;
    let bound = slabs + SLAB + 4096 + SLAB + (16 << 10);
    assert!(used.bytes_max <= bound as u64, "{} of {bound}", used.bytes_max);
}

/// Lines that end in CRLF, at most 10 bytes of them, borrowed.
#[derive(Debug)]
struct Lines;

impl Deframer for Lines {
    type Frame<'h> = &'h [u8];
    type Error = LineTooLong;

    fn decode<'h>(&mut self, head: &'h [u8], _: &mut dyn Targets) -> Result<Step<&'h [u8]>, LineTooLong> {
        Ok(match find_delimiter(head, b"\r\n", 10)? {
            Some(len) => Step::Frame { frame: &head[..len], head: len + 2 },
            None => Step::Need(head.len() + 1),
        })
    }

    fn body(&mut self, _: Filled) -> Result<(), LineTooLong> {
        Ok(())
    }
}

#[test]
fn lines_are_found_wherever_their_delimiter_is_cut() {
    let lines: [&[u8]; 5] = [b"GET\r\n", b"\r\n", b"0123456789\r\n", b"a\rb\nc\r\n", b"\r\r\n"];
    let all = 0..lines.concat().len();
    let conformance = Conformance::new(|| Lines, &lines).uncovered(std::slice::from_ref(&all)).read_ahead(64);
    let values = conformance.check(<[u8]>::to_vec);
    assert_eq!(values, [&b"GET"[..], b"", b"0123456789", b"a\rb\nc", b"\r"]);

    for too_long in [&b"0123456789a\r\n"[..], b"0123456789ab", b"0123456789\r\r\n"] {
        for again in [false, true] {
            let script = ScriptedRecv::new(too_long, []);
            let every: Vec<usize> = (1..too_long.len()).collect();
            script.stop_at(&every, again);
            let mut receiver = Receiver::new(&script, Lines);
            let end = loop {
                match receiver.receive(&mut (), |_| ControlFlow::Continue(())) {
                    Ok(Received::Blocked) => {}
                    end => break end,
                }
            };
            let error = end.expect_err("a line that is too long");
            assert!(matches!(error.kind(), RecvErrorKind::Frame(LineTooLong { limit: 10, .. })), "{error:?}");
            assert!(script.given() <= 12);
        }
    }
}

/// A length, big-endian, and that many bytes in one piece.
#[derive(Debug, Default)]
struct Lengths(Option<Bytes>);

impl Deframer for Lengths {
    type Frame<'h> = Bytes;
    type Error = Infallible;

    fn decode(&mut self, head: &[u8], _: &mut dyn Targets) -> Result<Step<Bytes>, Infallible> {
        if let Some(frame) = self.0.take() {
            return Ok(Step::Frame { frame, head: 0 });
        }
        let Some(len) = head.first_chunk() else { return Ok(Step::Need(4)) };
        let req = BodyReq::new(u32::from_be_bytes(*len).into(), Place::Contiguous);
        Ok(Step::Body { head: 4, req })
    }

    fn body(&mut self, piece: Filled) -> Result<(), Infallible> {
        if let Landed::Contiguous(bytes) = piece.landed {
            self.0 = Some(bytes);
        }
        Ok(())
    }
}

/// libnfs 158: a record without bytes made a loop or a crash.
#[test]
fn bodies_without_bytes_are_frames_like_others() {
    let frames: [&[u8]; 4] = [b"\0\0\0\x05hello", b"\0\0\0\0", b"\0\0\0\0", b"\0\0\0\x01!"];
    let all = 0..frames.concat().len();
    let conformance = Conformance::new(Lengths::default, &frames).uncovered(std::slice::from_ref(&all));
    assert_eq!(conformance.check(|frame| frame.to_vec()), [&b"hello"[..], b"", b"", b"!"]);
    let empty = frame(TARGET, 1, b"");
    let script = ScriptedRecv::new(&empty.repeat(1000), []);
    let mut receiver = Receiver::new(&script, Sorts::default());
    let (frames, end) = receive_all(&mut receiver, &mut TargetTable::new(&[(1, 0)]));
    assert_eq!((frames.len(), end.as_str()), (1000, "Eof"));
}

/// libevpl 77, ntirpc 306: tables overflowed when a record came in more than 512 or 1024 fragments.
#[test]
fn a_body_in_thousands_of_pieces_is_one_body() {
    let bytes = body(100_000);
    for count in [1, 2, 3, 513, 1025, 5000, 100_000] {
        let pieces: Vec<&[u8]> = bytes.chunks(bytes.len().div_ceil(count)).collect();
        let script = ScriptedRecv::new(&pieces_frame(PIECES, 0, &pieces), []);
        let pool = SlabPool::default();
        let mut receiver =
            Receiver::with_options(&script, Sorts::default(), RecvOptions::new(), pool.clone());
        let mut slabs = 0;
        let received = receiver.receive(&mut (), |frame| {
            let Frame::Slabs(body) = frame else { panic!("asked for slabs") };
            slabs = pool.live();
            assert!(body.parts().collect::<Vec<_>>().concat() == bytes);
            ControlFlow::Continue(())
        });
        assert_eq!(received.unwrap(), Received::Eof);
        // Short ones that double, then whole ones: not one for every piece, nor for every page.
        assert!((2..=7).contains(&slabs), "{slabs} slabs for {count} pieces");
        assert_eq!(pool.live(), 0);
    }
}

// ---- blocked, ended, broken

/// ceph 6971: bytes were at hand, the socket was empty, and recv was called again and again.
#[test]
fn a_blocked_transport_is_asked_once_a_turn() {
    let stream = frame(BORROWED, 0, b"body");
    assert_eq!(stream.len(), 20);
    let script = ScriptedRecv::new(&stream[..10], []).end(Again);
    let mut receiver = Receiver::new(&script, Sorts::default());
    assert_eq!(receive_all(&mut receiver, &mut ()), (Vec::new(), "Blocked".to_owned()));
    for turn in 0..5 {
        let before = script.call_count();
        assert_eq!(receive_all(&mut receiver, &mut ()).1, "Blocked");
        assert_eq!(script.call_count() - before, 1, "turn {turn}");
    }
    assert_eq!(receiver.stats().blocked, 6);
    assert!(receiver.is_between_frames()); // ten bytes are there, and none was used
    script.feed(&stream[10..]);
    assert_eq!(receive_all(&mut receiver, &mut ()).0.len(), 1);
}

#[test]
fn a_stream_that_ends_inside_a_frame_says_in_which_field_and_where() {
    let first = frame(BORROWED, 0, b"first");
    let second = frame(SLABS, 0, &body(100));
    let stream = [first.as_slice(), &second].concat();
    for (end, field, expected, got) in [
        (1, "header", 12, 1),
        (11, "header", 12, 11),
        (12, "body", 100, 0),
        (60, "body", 100, 48),
        (112, "trailer", 4, 0),
        (115, "trailer", 4, 3),
    ] {
        let script = ScriptedRecv::new(&stream[..first.len() + end], []);
        let mut receiver = Receiver::new(&script, Sorts::default());
        let error = receiver.receive(&mut (), |_| ControlFlow::Continue(())).expect_err("a part of a frame");
        let RecvErrorKind::UnexpectedEof { field: f, expected: e, got: g } = *error.kind() else {
            panic!("{error:?}")
        };
        assert_eq!((f, e, g), (field, expected, got), "after {end} bytes");
        // Bytes that were used: all but those of a header or trailer that is not whole.
        let unused = if field == "body" { 0 } else { got };
        assert_eq!(error.offset(), (first.len() + end) as u64 - unused);
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::UnexpectedEof);
        let dead = receiver.receive(&mut (), |_| ControlFlow::Continue(())).expect_err("ended");
        assert!(matches!(dead.kind(), RecvErrorKind::Dead));
    }
}

#[test]
fn the_end_between_two_frames_is_clean_and_stays() {
    let script = ScriptedRecv::new(&frame(DISCARD, 0, b"dropped"), [All, Again, Interrupted, Again, Eof]);
    let mut receiver = Receiver::new(&script, Sorts::default());
    assert_eq!(receive_all(&mut receiver, &mut ()).1, "Blocked");
    assert_eq!(receive_all(&mut receiver, &mut ()).1, "Blocked");
    let calls = script.call_count();
    for _ in 0..3 {
        assert_eq!(receive_all(&mut receiver, &mut ()).1, "Eof");
    }
    assert_eq!(script.call_count(), calls + 1);
}

#[test]
fn each_error_of_the_transport_has_its_outcome() {
    use io::ErrorKind as K;
    let stream = frame(BORROWED, 0, b"body");
    for (step, kind) in [
        (Errno(libc::ECONNRESET), Some(K::ConnectionReset)),
        (Errno(libc::ETIMEDOUT), Some(K::TimedOut)),
        (Errno(libc::EPIPE), Some(K::BrokenPipe)),
        (Errno(libc::ENOTCONN), Some(K::NotConnected)),
        (Errno(libc::EHOSTUNREACH), Some(K::HostUnreachable)),
        (Kind(K::UnexpectedEof), Some(K::UnexpectedEof)),
        (Errno(libc::EINTR), None),
        (Kind(K::Interrupted), None),
    ] {
        for before in [0, 1, 19] {
            let steps = [Give(before), step].into_iter().skip(usize::from(before == 0));
            let script = ScriptedRecv::new(&stream, steps);
            let mut receiver = Receiver::new(&script, Sorts::default());
            let received = receiver.receive(&mut (), |_| ControlFlow::Continue(()));
            match kind {
                None => assert_eq!(received.expect("goes on"), Received::Eof),
                Some(kind) => {
                    let error = received.expect_err("final");
                    assert_eq!(error.offset(), 0);
                    assert_eq!(io::Error::from(error).kind(), kind);
                    let dead = receiver.receive(&mut (), |_| ControlFlow::Continue(())).expect_err("dead");
                    assert_eq!(io::Error::from(dead).kind(), K::BrokenPipe);
                    assert_eq!(script.call_count(), 1 + usize::from(before > 0));
                }
            }
        }
    }
    for step in [Errno(libc::EAGAIN), Kind(K::WouldBlock)] {
        let script = ScriptedRecv::new(&stream, [step]);
        let mut receiver = Receiver::new(&script, Sorts::default());
        assert_eq!(receive_all(&mut receiver, &mut ()).1, "Blocked");
        assert_eq!(receive_all(&mut receiver, &mut ()).0.len(), 1);
    }
}

#[test]
fn a_thousand_interruptions_before_every_byte_change_nothing() {
    let stream = frame(SLABS, 0, b"0123456789");
    let steps = stream.iter().flat_map(|_| [Interrupted; 1000].into_iter().chain([Give(1)]));
    let script = ScriptedRecv::new(&stream, steps);
    let mut receiver = Receiver::new(&script, Sorts::default());
    let (frames, end) = receive_all(&mut receiver, &mut ());
    assert_eq!((frames.len(), end.as_str()), (1, "Eof"));
    assert_eq!(script.call_count(), stream.len() * 1001 + 1);
}

#[test]
fn a_transport_that_claims_more_than_there_was_room_for_is_not_believed() {
    for claim in [SLAB + 1, usize::MAX] {
        let script = ScriptedRecv::new(&[], [Claim(claim)]);
        let mut receiver = Receiver::new(&script, Sorts::default());
        let error = receiver.receive(&mut (), |_| ControlFlow::Continue(())).expect_err("a lie");
        assert!(matches!(error.kind(), RecvErrorKind::Io(_)));
        // In the middle of a body too.
        let script = ScriptedRecv::new(&header(SLABS, 0, 100_000), [All, Claim(claim.max(1 << 20))]);
        let mut receiver = Receiver::new(&script, Sorts::default());
        let error = receiver.receive(&mut (), |_| ControlFlow::Continue(())).expect_err("a lie");
        assert!(matches!(error.kind(), RecvErrorKind::Io(_)));
        assert_eq!(error.offset(), HEADER as u64);
    }
}

#[test]
fn the_protocols_own_error_comes_with_its_offset_and_ends_the_stream() {
    let good = frame(BORROWED, 0, b"good");
    let mut bad = frame(CONTIGUOUS, 0, b"bad body");
    let len = bad.len();
    bad[len - 1] ^= 1;
    let script = ScriptedRecv::new(&[good.as_slice(), &bad].concat(), []);
    let mut receiver = Receiver::new(&script, Sorts::default());
    let mut frames = 0;
    let error = receiver
        .receive(&mut (), |_| {
            frames += 1;
            ControlFlow::Continue(())
        })
        .expect_err("a wrong crc");
    assert_eq!(frames, 1);
    assert!(matches!(error.kind(), RecvErrorKind::Frame(Wrong::BodyCrc)));
    assert_eq!(error.offset(), (good.len() + len - 4) as u64);
    assert_eq!(error.to_string(), format!("BodyCrc (at offset {} of the stream)", error.offset()));
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidData);
    assert!(receiver.receive(&mut (), |_| ControlFlow::Continue(())).is_err());
}

// ---- deframers that contradict themselves

type Answer = Box<dyn FnMut(&[u8]) -> Step<()>>;

struct Scripted(Answer);

impl Deframer for Scripted {
    type Frame<'h> = ();
    type Error = Infallible;

    fn decode(&mut self, head: &[u8], _: &mut dyn Targets) -> Result<Step<()>, Infallible> {
        Ok((self.0)(head))
    }

    fn body(&mut self, _: Filled) -> Result<(), Infallible> {
        Ok(())
    }
}

fn ends(answer: impl FnMut(&[u8]) -> Step<()> + 'static) -> RecvErrorKind<Infallible> {
    let script = ScriptedRecv::new(&[1; 200], []).end(Again);
    let options = RecvOptions::new().read_ahead(100);
    let deframer = Scripted(Box::new(answer));
    let mut receiver = Receiver::with_options(&script, deframer, options, SlabPool::default());
    let mut frames = 0;
    let received = receiver.receive(&mut (), |()| {
        frames += 1;
        ControlFlow::Continue(())
    });
    assert!(frames < 100, "{frames} frames out of nothing");
    assert!(script.call_count() < 10);
    received.expect_err("stuck").into_kind()
}

/// libnfs 158, snort 106-5: loops without progress.
#[test]
fn deframers_that_contradict_themselves_are_reported_and_not_spun_on() {
    use RecvErrorKind::Stuck;
    let body = |len, place| Step::Body { head: 0, req: BodyReq::new(len, place) };
    assert!(matches!(ends(|_| Step::Need(0)), Stuck));
    assert!(matches!(ends(|head| Step::Need(head.len())), Stuck));
    assert!(matches!(ends(|_| Step::Used(0)), Stuck));
    assert!(matches!(ends(|head| Step::Used(head.len() + 1)), Stuck));
    assert!(matches!(ends(|head| Step::Frame { frame: (), head: head.len() + 1 }), Stuck));
    assert!(matches!(ends(|_| Step::Frame { frame: (), head: 0 }), Stuck));
    assert!(matches!(ends(|_| Step::Dropped { head: 0 }), Stuck));
    assert!(matches!(ends(|_| Step::Dropped { head: usize::MAX }), Stuck));
    assert!(matches!(ends(move |_| body(0, Place::Discard)), Stuck));
    assert!(matches!(ends(move |_| body(0, Place::Contiguous)), Stuck));
    assert!(matches!(ends(move |_| body(0, Place::Target { key: 0, at: 0 })), Stuck));
    // Nothing to go on behind, and something else where a body was to go on.
    assert!(matches!(ends(move |_| body(5, Place::Continue)), Stuck));
    let unfinished = |_: &[u8]| Step::Body {
        head: 0,
        req: BodyReq::new(5, Place::Slabs { offset: 0 }).piece_of(10, false),
    };
    assert!(matches!(ends(unfinished), Stuck));
    // And in between, whatever is honest for a while.
    let mut calls = 0;
    let sometimes = move |head: &[u8]| {
        calls += 1;
        match calls % 3 {
            0 if calls < 30 => Step::Used(head.len().min(1)),
            1 => Step::Dropped { head: 0 },
            _ => Step::Used(0),
        }
    };
    assert!(matches!(ends(sometimes), Stuck));
}

#[test]
fn limits_are_checked_before_memory_is_taken() {
    let head = ends(|_| Step::Need(101));
    assert!(matches!(head, RecvErrorKind::HeadTooLong { len: 101, limit: 100 }), "{head:?}");
    let head = ends(|_| Step::Need(usize::MAX));
    assert!(matches!(head, RecvErrorKind::HeadTooLong { limit: 100, .. }), "{head:?}");
    for len in [(64 << 10) + 1, u64::MAX] {
        let body = ends(move |_| Step::Body { head: 0, req: BodyReq::new(len, Place::Contiguous) });
        assert!(matches!(body, RecvErrorKind::BodyTooLong { len: l, limit: 65536 } if l == len), "{body:?}");
    }
    // Pieces are checked for fit by their total, before the first one lands: chimera 1100, the cap did not apply to a
    // lone last fragment.
    let req = |len, total, last| BodyReq::new(len, Place::Contiguous).piece_of(total, last);
    for (len, total, last) in [(1, 65537, false), (65537, 65537, true), (65537, 0, true)] {
        let body = ends(move |_| Step::Body { head: 0, req: req(len, total, last) });
        assert!(matches!(body, RecvErrorKind::BodyTooLong { len: 65537, .. }), "{body:?}");
    }
    // And pieces whose total was a lie, when the sum passes the limit.
    let mut first = true;
    let options = RecvOptions::new().contiguous(100);
    let script = ScriptedRecv::new(&[1; 300], []);
    let deframer = Scripted(Box::new(move |_| {
        let place = if std::mem::take(&mut first) { Place::Contiguous } else { Place::Continue };
        Step::Body { head: 0, req: BodyReq::new(40, place).piece_of(40, false) }
    }));
    let mut receiver = Receiver::with_options(&script, deframer, options, SlabPool::default());
    let error = receiver.receive(&mut (), |()| ControlFlow::Continue(())).expect_err("120 bytes");
    assert!(matches!(error.kind(), RecvErrorKind::BodyTooLong { len: 120, limit: 100 }), "{error:?}");
    assert_eq!(error.offset(), 80);
}

// ---- stopping, going on, changing over

/// xbmc 28265: the callback replaced the connection, and the loop went on with the old bytes.
#[test]
fn after_the_callback_stops_no_byte_more_is_used_and_no_call_made() {
    let frames: Vec<Vec<u8>> = (0..5u8).map(|n| frame(BORROWED, 0, &[n; 3])).collect();
    let script = ScriptedRecv::new(&frames.concat(), []);
    let mut receiver = Receiver::new(&script, Sorts::default());
    let received = receiver.receive(&mut (), |_| ControlFlow::Break(())).unwrap();
    assert_eq!((received, script.call_count(), receiver.stats().frames), (Received::Stopped, 1, 1));
    assert!(receiver.is_between_frames());
    // What was read ahead is for whoever comes next.
    let mut receiver = receiver.replace(straight()).unwrap_or_else(|_| panic!("between two frames"));
    let mut second = None;
    let received = receiver.receive(&mut (), |kept| {
        second = Some(kept);
        ControlFlow::Break(())
    });
    assert_eq!((received.unwrap(), second), (Received::Stopped, Some(Kept::Bytes(BORROWED, vec![1; 3]))));
    let parts = receiver.into_parts();
    assert_eq!(parts.unread, frames[2..].concat());
    assert_eq!(script.call_count(), 1);
    // And for a receiver of its own, over another transport.
    let rest = ScriptedRecv::new(&frame(BORROWED, 0, &[5; 3]), []);
    let mut receiver = Receiver::new(&rest, Sorts::default()).with_unread(&parts.unread);
    let (kept, end) = receive_all(&mut receiver, &mut ());
    assert_eq!((kept.len(), end.as_str()), (4, "Eof"));
    assert_eq!(kept[0], Kept::Bytes(BORROWED, vec![2; 3]));
}

#[test]
fn unread_bytes_may_be_many_and_count_for_offsets() {
    let many: Vec<u8> = (0..50u8).flat_map(|n| frame(BORROWED, 0, &[n; 10])).collect();
    let script = ScriptedRecv::new(&many, []);
    let options = RecvOptions::new().read_ahead(64);
    let receiver = Receiver::with_options(&script, Sorts::default(), options, SlabPool::default());
    let mut receiver = receiver.with_unread(&many[..700]).with_unread(&many[700..]);
    let (kept, end) = receive_all(&mut receiver, &mut ());
    assert_eq!((kept.len(), end.as_str()), (100, "Eof"));
    // An error among them, and one behind.
    for (unread, rest, offset) in [
        (&b"0123456789ab"[..], &b""[..], 0),
        (&frame(BORROWED, 0, b"x"), b"0123456789ab", 17),
        (b"012", b"", 0),
    ] {
        let script = ScriptedRecv::new(rest, []);
        let mut receiver = Receiver::new(&script, Sorts::default()).with_unread(unread);
        let error = receiver.receive(&mut (), |_| ControlFlow::Continue(())).expect_err("not a header");
        assert_eq!(error.offset(), offset, "{error:?}");
    }
}

#[test]
fn a_deframer_is_not_changed_in_the_middle_of_a_frame() {
    let stream = frame(SLABS, 0, &body(50));
    for at in 1..stream.len() {
        let script = ScriptedRecv::new(&stream[..at], []).end(Again);
        let mut receiver = Receiver::new(&script, Sorts::default());
        assert_eq!(receive_all(&mut receiver, &mut ()).1, "Blocked");
        let between = at < HEADER; // no byte of it was used yet
        assert_eq!(receiver.is_between_frames(), between, "after {at} bytes");
        match receiver.replace(Lines) {
            Ok(_) => assert!(between),
            Err(receiver) => {
                assert!(!between);
                let mut receiver = *receiver;
                script.feed(&stream[at..]);
                assert_eq!(receive_all(&mut receiver, &mut ()).0, [Kept::Bytes(SLABS, body(50))]);
            }
        }
    }
}

/// tokio 3900, 6877: what a receive future held was lost with it. Here the receiver holds it.
#[test]
fn a_receive_that_is_given_up_at_any_byte_is_gone_on_with() {
    let stream = one_of_each(40).concat();
    for at in 1..stream.len() {
        let script = ScriptedRecv::new(&stream, [Give(at), Again]);
        let mut receiver = Receiver::new(&script, Sorts::default());
        let mut targets = TargetTable::new(&[(9, 40)]);
        let (mut kept, end) = receive_all(&mut receiver, &mut targets);
        assert_eq!(end, "Blocked");
        let (rest, end) = receive_all(&mut receiver, &mut targets);
        kept.extend(rest);
        assert_eq!((kept, end.as_str()), (kept_of_each(40), "Eof"));
        assert_eq!(targets.get(9), Some(&body(40)[..]));
    }
}

#[test]
fn a_turn_ends_when_its_bytes_are_used_up() {
    let stream = frame(BORROWED, 0, &[1; 84]).repeat(1000); // 100 bytes each
    let script = ScriptedRecv::new(&stream, []);
    let options = RecvOptions::new().read_ahead(1000).turn_bytes(10_000);
    let mut receiver = Receiver::with_options(&script, Sorts::default(), options, SlabPool::default());
    let mut turns = 0;
    loop {
        let before = receiver.stats();
        let (_, end) = receive_all(&mut receiver, &mut ());
        turns += 1;
        if end == "Eof" {
            break;
        }
        assert_eq!(end, "Budget");
        let after = receiver.stats();
        assert!(after.bytes - before.bytes < 11_000, "{}", after.bytes - before.bytes);
        // What has arrived is handed out before the turn ends.
        assert_eq!(after.frames, after.bytes / 100);
    }
    assert_eq!((turns, receiver.stats().frames), (11, 1000));
}

// ---- deadlines

#[test]
fn a_deadline_is_told_and_nothing_is_lost() {
    let stream = frame(SLABS, 0, &body(50));
    for at in 0..stream.len() {
        let script = ScriptedRecv::new(&stream[..at], []).end(Again).waits([], WaitStep::Late);
        let mut receiver = Receiver::new(&script, Sorts::default());
        let start = Instant::now();
        let error =
            receiver.next(&mut (), Some(start + Duration::from_millis(2)), keep).expect_err("too late");
        assert!(matches!(error.kind(), RecvErrorKind::Deadline));
        assert!(start.elapsed() >= Duration::from_millis(2) && start.elapsed() < LONG);
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
        script.feed(&stream[at..]);
        let kept = receiver.next(&mut (), Some(Instant::now() + LONG), keep).unwrap();
        assert_eq!(kept, Some(Kept::Bytes(SLABS, body(50))));
    }
}

#[test]
fn a_deadline_that_has_passed_still_takes_what_is_there() {
    let script = ScriptedRecv::new(&frame(BORROWED, 0, b"here"), []).end(Again);
    let mut receiver = Receiver::new(&script, Sorts::default());
    let kept = receiver.next(&mut (), Some(Instant::now()), keep).unwrap();
    assert_eq!(kept, Some(Kept::Bytes(BORROWED, b"here".to_vec())));
    assert!(script.wait_calls().is_empty());
}

#[test]
fn who_waits_makes_no_call_to_learn_that_nothing_is_left_and_who_does_not_makes_one() {
    let stream = frame(SLABS, 0, &body(5000));
    let steps = [Give(3), Give(700), Give(1), Give(2000)];
    let script = ScriptedRecv::new(&stream, steps).waits([], WaitStep::Ready);
    let mut receiver = Receiver::new(&script, Sorts::default());
    assert!(receiver.next(&mut (), None, keep).unwrap().is_some());
    let stats = receiver.stats();
    assert_eq!((stats.calls, stats.blocked, script.wait_calls().len()), (5, 0, 4));

    let script = ScriptedRecv::new(&stream, steps.into_iter().flat_map(|step| [step, Again]));
    let mut receiver = Receiver::new(&script, Sorts::default());
    for _ in 0..4 {
        let received = receiver.receive(&mut (), |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(received, Received::Blocked);
    }
    let stats = receiver.stats();
    assert_eq!((stats.calls, stats.blocked), (8, 4));
}

#[test]
fn waits_that_come_back_early_are_repeated_and_those_that_fail_end_the_stream() {
    let stream = frame(BORROWED, 0, b"here");
    let script = ScriptedRecv::new(&stream, [Again, Give(3), Again, Again])
        .waits([WaitStep::Early; 2], WaitStep::Ready);
    let mut receiver = Receiver::new(&script, Sorts::default());
    assert!(receiver.next(&mut (), Some(Instant::now() + LONG), keep).unwrap().is_some());
    assert_eq!(script.wait_calls().len(), 4);
    assert_eq!(receiver.next(&mut (), None, keep).unwrap(), None); // the peer closed

    let script = ScriptedRecv::new(&stream, [Again]).waits([], WaitStep::Errno(libc::EBADF));
    let mut receiver = Receiver::new(&script, Sorts::default());
    assert!(matches!(
        receiver.next(&mut (), None, keep).expect_err("no socket").kind(),
        RecvErrorKind::Io(_)
    ));
    assert!(matches!(receiver.next(&mut (), None, keep).expect_err("dead").kind(), RecvErrorKind::Dead));
}

/// Of a piece of a body half of what is missing is waited for, and never so much that the peer could wait too.
#[test]
fn in_the_midst_of_a_large_body_a_wait_is_for_half_of_what_is_missing() {
    const KIB: usize = 1 << 10;
    let with = |options: RecvOptions, len: usize, give: &[usize], waits: &[WaitStep]| {
        let script = ScriptedRecv::new(&frame(SLABS, 0, &body(len)), give.iter().map(|n| Give(*n)))
            .waits(waits.iter().copied(), WaitStep::Ready);
        let script = Arc::new(script);
        let mut receiver =
            Receiver::with_options(script.clone(), Sorts::default(), options, SlabPool::default());
        assert!(receiver.next(&mut (), None, keep).unwrap().is_some());
        script.awaited()
    };
    let awaited = |len, give: &[usize]| with(RecvOptions::new(), len, give, &[]);
    // At most 256 KiB and at least 64, or any byte.
    let give = [HEADER + 24 * KIB, 256 * KIB, 256 * KIB, 244 * KIB, 122 * KIB, 61 * KIB];
    assert_eq!(awaited(1024 * KIB, &give), [256 * KIB, 256 * KIB, 244 * KIB, 122 * KIB, 1, 1]);
    assert_eq!(awaited(128 * KIB, &[HEADER, KIB]), [64 * KIB, 1]);
    assert_eq!(awaited(128 * KIB - 1, &[HEADER, KIB]), [1, 1]);
    let most = |bytes| with(RecvOptions::new().low_water(bytes), 1024 * KIB, &give, &[]);
    assert_eq!(most(100 * KIB), [100 * KIB, 100 * KIB, 100 * KIB, 100 * KIB, 1, 1]);
    assert_eq!(most(64 * KIB - 1), [1; 6]);
    // A wait that is not ready says nothing of the transport, nor does a call that has no room for so much.
    let early = with(RecvOptions::new(), 1024 * KIB, &[HEADER, 10 * KIB], &[WaitStep::Early]);
    assert_eq!(early, [256 * KIB; 2]);
    let small = RecvOptions::new().window(8 * KIB);
    assert_eq!(with(small, 1024 * KIB, &[HEADER, 8 * KIB, 100], &[])[..2], [256 * KIB; 2]);
}

/// AF_UNIX and others come back at the first byte, a young TCP connection may.
#[test]
fn a_transport_that_comes_back_early_is_asked_for_many_bytes_less_and_less_often() {
    const MANY: usize = 256 << 10;
    let give = |all: &mut dyn Iterator<Item = usize>| {
        let script = ScriptedRecv::new(&frame(SLABS, 0, &body(2 << 20)), all.map(Give));
        let mut receiver = Receiver::new(&script, Sorts::default());
        assert!(receiver.next(&mut (), None, keep).unwrap().is_some());
        script.awaited()
    };
    let mut early = give(&mut std::iter::once(HEADER).chain(std::iter::repeat_n(1000, 400)));
    early.truncate(400);
    let asked: Vec<usize> = (0..400).filter(|wait| early[*wait] == MANY).collect();
    assert_eq!(asked, [0, 3, 8, 17, 34, 67, 132, 197, 262, 327, 392]);
    // Once it keeps its word it is trusted as at first.
    let steps = [[HEADER].as_slice(), &[1000; 8], &[MANY], &[1000; 4]].concat();
    let kept = give(&mut steps.iter().copied());
    let asked: Vec<usize> = (0..steps.len()).filter(|wait| kept.get(*wait) == Some(&MANY)).collect();
    assert_eq!(asked, [0, 3, 8, 9, 12]);
}

// ---- targets

/// A table that lends as it is told: so many bytes at most, from a memory of its own with guards around.
struct Lender {
    memory: Vec<u8>,
    answers: Box<dyn FnMut(u64, usize) -> Option<usize>>,
}

impl Targets for Lender {
    fn expect(&mut self, _: u64) -> Option<u64> {
        Some(u64::MAX) // it promises everything
    }

    fn lend<'a>(&'a mut self, _: u64, at: u64, len: usize, out: &mut LentSlices<'a>) -> bool {
        let Some(most) = (self.answers)(at, len) else { return false };
        let end = self.memory.len().min(at as usize + most);
        let start = end.min(at as usize);
        out.push(&mut self.memory[start..end]);
        true
    }
}

fn lent(
    memory: usize,
    len: usize,
    steps: &[RecvStep],
    answers: impl FnMut(u64, usize) -> Option<usize> + 'static,
) -> (Vec<u8>, bool) {
    let stream = [frame(TARGET, 1, &body(len)), frame(BORROWED, 0, b"next")].concat();
    let script = ScriptedRecv::new(&stream, steps.iter().copied());
    let options = RecvOptions::new().read_ahead(64).window(4096);
    let mut receiver = Receiver::with_options(&script, Sorts::default(), options, SlabPool::default());
    let mut lender = Lender { memory: vec![0; memory], answers: Box::new(answers) };
    let mut kept = Vec::new();
    loop {
        let (more, end) = receive_all(&mut receiver, &mut lender);
        kept.extend(more);
        match end.as_str() {
            "Blocked" => {}
            "Eof" => break,
            end => panic!("{end}"),
        }
    }
    let [Kept::Target { key: 1, whole }, Kept::Bytes(BORROWED, next)] = &kept[..] else { panic!("{kept:?}") };
    assert_eq!(next, b"next"); // in sync, whatever happened
    let stats = receiver.stats();
    assert_eq!(stats.digested, len as u64);
    (lender.memory, *whole)
}

/// freemint 246: the server sent more than was asked for, and the buffer overran.
#[test]
fn a_target_that_is_too_short_is_filled_to_its_end_and_the_rest_discarded() {
    for (memory, len) in [(3072, 4084), (1, 4096), (4095, 4096), (0, 100), (100, 101), (10_000, 20_000)] {
        for steps in [&[][..], &[Give(30), Again], &[Give(1); 100]] {
            let (bytes, whole) = lent(memory, len, steps, |_, len| Some(len));
            assert!(bytes == body(len)[..memory], "{memory} of {len}");
            assert!(!whole);
        }
    }
    for len in [0, 1, 4096, 20_000] {
        let (bytes, whole) = lent(len, len, &[], |_, len| Some(len));
        assert!(whole && bytes == body(len));
    }
}

#[test]
fn a_target_may_lend_as_little_as_it_likes_but_not_nothing() {
    for most in [1, 7, 100, 5000] {
        let (bytes, whole) = lent(3000, 3000, &[Give(20), Give(33)], move |_, len| Some(len.min(most)));
        assert!(whole && bytes == body(3000), "{most}");
    }
    let (bytes, whole) =
        lent(3000, 3000, &[], |at, len| Some(len.min(500).min(1000usize.saturating_sub(at as usize))));
    assert!(!whole && bytes[..1000] == body(3000)[..1000] && bytes[1000..] == [0; 2000]);
}

/// Once it says no it is not asked again, nor written to.
#[test]
fn a_target_that_is_gone_is_not_asked_again() {
    for gone_at in [0u64, 1, 100, 2999] {
        for steps in [&[][..], &[Give(50), Again], &[Give(13); 40]] {
            let mut gone = false;
            let (bytes, whole) = lent(3000, 3000, steps, move |at, len| {
                assert!(!gone, "asked again");
                gone = at >= gone_at;
                (!gone).then(|| len.min((gone_at - at) as usize))
            });
            assert!(!whole);
            let cut = gone_at as usize;
            assert!(bytes[..cut] == body(3000)[..cut] && bytes[cut..] == vec![0; 3000 - cut], "{gone_at}");
        }
    }
}

/// Pushes, and then says no.
struct Undecided(Vec<u8>);

impl Targets for Undecided {
    fn expect(&mut self, _: u64) -> Option<u64> {
        Some(u64::MAX)
    }

    fn lend<'a>(&'a mut self, _: u64, _: u64, _: usize, out: &mut LentSlices<'a>) -> bool {
        out.push(&mut self.0);
        false
    }
}

#[test]
fn memory_that_was_lent_with_a_no_is_not_written_to() {
    let stream = [frame(TARGET, 1, &body(3000)), frame(BORROWED, 0, b"next")].concat();
    for steps in [&[][..], &[Give(HEADER), Again], &[Give(50), Again]] {
        let script = ScriptedRecv::new(&stream, steps.iter().copied());
        let options = RecvOptions::new().read_ahead(64).window(4096);
        let mut receiver = Receiver::with_options(&script, Sorts::default(), options, SlabPool::default());
        let mut undecided = Undecided(vec![0; 3000]);
        let mut kept = Vec::new();
        while kept.len() < 2 {
            kept.extend(receive_all(&mut receiver, &mut undecided).0);
        }
        assert_eq!(kept, [Kept::Target { key: 1, whole: false }, Kept::Bytes(BORROWED, b"next".to_vec())]);
        assert!(undecided.0 == [0; 3000]);
    }
}

#[test]
fn a_target_in_a_thousand_pieces_does_not_pass_the_slice_limit() {
    let bytes = body(5000);
    let script = ScriptedRecv::new(&frame(TARGET, 1, &bytes), [Give(HEADER)]);
    let mut receiver = Receiver::new(&script, Sorts::default());
    let mut targets = TargetTable::new(&[(1, 5000)]).scattered(1);
    let (kept, _) = receive_all(&mut receiver, &mut targets);
    assert_eq!(kept, [Kept::Target { key: 1, whole: true }]);
    assert!(targets.get(1) == Some(&bytes[..]));
    let most = script.calls().iter().map(|call| call.slices.len()).max();
    assert_eq!(most, Some(1023)); // one is for the read-ahead
}

/// How many slices each call was offered for the bodies of `frames`, sent so and received into pieces of 4 KiB.
fn offers(frames: &[usize], give: &[usize], options: RecvOptions) -> Vec<usize> {
    let stream: Vec<u8> =
        frames.iter().zip(1..).flat_map(|(len, key)| frame(TARGET, key, &body(*len))).collect();
    let script = ScriptedRecv::new(&stream, give.iter().map(|n| Give(*n)));
    let mut receiver = Receiver::with_options(&script, Sorts::default(), options, SlabPool::default());
    let sizes: Vec<_> = (1..).zip(frames.iter().copied()).collect();
    let mut targets = TargetTable::new(&sizes).scattered(1 << 12);
    let (kept, _) = receive_all(&mut receiver, &mut targets);
    for ((key, len), kept) in sizes.iter().zip(kept) {
        assert_eq!(kept, Kept::Target { key: *key, whole: true });
        assert!(targets.get(*key) == Some(&body(*len)[..]));
    }
    script.calls().iter().map(|call| call.slices.len()).collect()
}

/// A slow sender's bytes do not pay for pages that they do not reach, a fast one's come with few calls.
#[test]
fn a_call_is_offered_about_as_much_as_came_last() {
    const LEN: usize = 1 << 20;
    let one = |give: usize| {
        let steps: Vec<_> = std::iter::once(HEADER).chain(std::iter::repeat_n(give, LEN / give)).collect();
        offers(&[LEN], &steps, RecvOptions::new()).split_off(1)
    };
    // The whole window first; then never less than 64 KiB, which is 16 pieces.
    let slow = one(1 << 10);
    assert_eq!(slow[0], 256 + 1); // and the read-ahead
    assert!(slow[1..].iter().all(|slices| *slices <= 16 + 1), "{slow:?}");
    // Twice as much each time as came, up to the window.
    assert_eq!(one(32 << 10)[1..3], [16, 16]);
    assert_eq!(one(256 << 10)[..4], [256 + 1, 128, 128 + 1, 64 + 1]);
    assert_eq!(one(LEN)[..2], [256 + 1, 1]); // and what comes after it
}

/// The end of a body is no slow sender.
#[test]
fn a_body_that_ends_does_not_shorten_what_the_next_is_offered() {
    let (between, long) = (4 + HEADER, 1 << 20); // a frame ends with its checksum
    let steps = [HEADER, 4 << 10, between, long, 64 << 10, between, long];
    let frames = [4 << 10, long + (64 << 10), long];
    let calls = offers(&frames, &steps, RecvOptions::new());
    assert_eq!(calls[..7], [1, 1 + 1, 1, 256, 16 + 1, 1, 256 + 1]);
}

#[test]
fn a_call_is_offered_no_more_than_a_small_window() {
    let steps = [HEADER, 1 << 10, 1 << 10];
    let calls = offers(&[32 << 10], &steps, RecvOptions::new().window(8 << 10));
    assert_eq!(calls[..6], [1, 2, 2, 2, 2, 2]);
}

/// Bodies that are placed by offset, out of order, into one target: iSCSI does so.
#[test]
fn pieces_are_placed_by_offset() {
    let script = ScriptedRecv::new(b"333111222", [Give(1), Again, Give(4), Again]);
    let mut places = vec![(0, 3), (3, 3), (6, 3)];
    let deframer = Scripted(Box::new(move |head| match places.pop() {
        // Not before there is a byte: otherwise the places would be used up by looking.
        Some((at, len)) if !head.is_empty() => {
            Step::Body { head: 0, req: BodyReq::new(len, Place::Target { key: 1, at }) }
        }
        Some(place) => {
            places.push(place);
            Step::Need(1)
        }
        None => Step::Need(head.len() + 1),
    }));
    let mut receiver = Receiver::new(&script, deframer);
    let mut targets = TargetTable::new(&[(1, 9)]);
    for _ in 0..3 {
        let _ = receiver.receive(&mut targets, |()| ControlFlow::Continue(()));
    }
    assert_eq!(targets.get(1), Some(&b"222111333"[..]));
}

// ---- counts

#[test]
fn at_most_one_read_ahead_of_a_body_is_copied() {
    let mut random = Random::new(seed("at_most_one_read_ahead_of_a_body_is_copied"));
    for read_ahead in [64, 4096, 64 << 10] {
        for len in [1000, 64 << 10, 1 << 20, (3 << 20) + 5] {
            let bytes = body(len);
            let stream =
                [frame(SLABS, 0, &bytes), frame(TARGET, 1, &bytes), frame(SLABS, 0, &bytes)].concat();
            let steps: Vec<RecvStep> =
                (0..random.below(30)).map(|_| Give(1 + random.below(100_000))).collect();
            let script = ScriptedRecv::new(&stream, steps);
            let options = RecvOptions::new().read_ahead(read_ahead);
            let mut receiver =
                Receiver::with_options(&script, Sorts::default(), options, SlabPool::default());
            let (kept, end) = receive_all(&mut receiver, &mut TargetTable::new(&[(1, len)]));
            assert_eq!((kept.len(), end.as_str()), (3, "Eof"));
            let copied = receiver.stats().copied;
            assert!(copied <= 3 * read_ahead as u64, "{copied} of {len} with {read_ahead}");
            for call in script.calls() {
                assert!(call.offered() <= (1 << 20) + read_ahead);
            }
        }
    }
}

#[test]
fn a_body_its_trailer_and_the_next_header_come_with_one_call() {
    let bytes = body(256 << 10);
    let stream = frame(SLABS, 0, &bytes).repeat(20);
    let script = ScriptedRecv::new(&stream, []);
    let mut receiver = Receiver::new(&script, Sorts::default());
    assert_eq!(receive_all(&mut receiver, &mut ()).0.len(), 20);
    let stats = receiver.stats();
    assert!(stats.calls <= 20 + 2, "{} calls", stats.calls);
    // 64 KiB of the first one; then 8 KiB a body, less the trailer and header among them.
    assert!(stats.copied <= (64 << 10) + 19 * (8 << 10), "{} copied", stats.copied);
}

#[test]
fn small_frames_behind_a_large_body_are_read_ahead_in_full_again() {
    let small = frame(BORROWED, 0, &[1; 184]).repeat(5000); // a million bytes
    let stream = [frame(SLABS, 0, &body(256 << 10)), small].concat();
    let script = ScriptedRecv::new(&stream, []);
    let mut receiver = Receiver::new(&script, Sorts::default());
    assert_eq!(receive_all(&mut receiver, &mut ()).0.len(), 5001);
    let calls = receiver.stats().calls;
    assert!(calls <= 25, "{calls} calls for a million bytes of small frames");
}

#[test]
fn small_borrowed_frames_do_not_allocate() {
    let stream = frame(BORROWED, 0, &[7; 200]).repeat(10_000);
    let script = ScriptedRecv::new(&stream, []);
    let options = RecvOptions::new().turn_bytes(200_000);
    let mut receiver = Receiver::with_options(&script, Sorts::default(), options, SlabPool::default());
    let mut bytes = 0;
    let mut turn = |receiver: &mut Receiver<&ScriptedRecv, Sorts>| {
        receiver.receive(&mut (), |frame| {
            if let Frame::Borrowed(frame) = frame {
                bytes += frame.len();
            }
            ControlFlow::Continue(())
        })
    };
    assert_eq!(turn(&mut receiver).unwrap(), Received::Budget);
    let mut allocations = 0;
    while receiver.stats().frames < 8000 {
        allocations += measure(|| _ = turn(&mut receiver)).count_total;
    }
    // The transport records its calls in two lists that grow: a few times, not per frame nor per call.
    assert!(allocations <= 10, "{allocations} allocations");
    assert!(bytes >= 8000 * 200);
}

#[test]
fn slabs_go_back_to_their_pool_and_are_used_again() {
    let bytes = body(1 << 20);
    let stream = frame(SLABS, 0, &bytes).repeat(10);
    let script = ScriptedRecv::new(&stream, []);
    let pool = SlabPool::new(40);
    let mut receiver = Receiver::with_options(&script, Sorts::default(), RecvOptions::new(), pool.clone());
    let mut frames = 0;
    let info = measure(|| {
        let _ = receiver.receive(&mut (), |frame| {
            frames += 1;
            drop(frame);
            ControlFlow::Continue(())
        });
    });
    assert_eq!((frames, pool.live()), (10, 0));
    // One body's worth of slabs, each of them over-allocated for its alignment, and a few lists.
    assert!(info.bytes_total < 2 << 20, "{info:?}");
}

// ---- a real socket

#[test]
fn everything_arrives_over_a_real_socket() {
    let frames: Vec<Vec<u8>> = (0..20usize).flat_map(|n| one_of_each(100 + 3000 * n)).collect();
    let (mut peer, socket) = UnixStream::pair().unwrap();
    let stream = frames.concat();
    let writer = thread::spawn(move || {
        peer.set_write_timeout(Some(LONG))?;
        let mut random = Random::new(11);
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let n = (1 + random.below(30_000)).min(rest.len());
            peer.write_all(&rest[..n])?;
            rest = &rest[n..];
        }
        io::Result::Ok(())
    });
    let mut receiver = Receiver::new(SocketRef::new(socket), Sorts::default());
    let mut targets = TargetTable::new(&[(9, 60_000)]);
    let mut kept = Vec::new();
    let received = receiver.receive_blocking(&mut targets, Some(Instant::now() + LONG), |frame| {
        kept.push(keep(frame));
        ControlFlow::Continue(())
    });
    writer.join().unwrap().unwrap();
    assert_eq!(received.unwrap(), Received::Eof);
    let expected: Vec<Kept> = (0..20usize).flat_map(|n| kept_of_each(100 + 3000 * n)).collect();
    assert!(kept == expected);
}

#[test]
fn errors_say_what_and_where() {
    let text = |error: RecvError<Wrong>| error.to_string();
    let script = ScriptedRecv::new(b"123", []);
    let mut receiver = Receiver::new(&script, Sorts::default());
    let error = receiver.receive(&mut (), |_| ControlFlow::Continue(())).expect_err("three bytes");
    assert_eq!(
        text(error),
        "the peer closed inside header: expected 12 bytes, got 3 (at offset 0 of the stream)"
    );
    let shown = format!("{:?}", Receiver::new((), Sorts::default()).with_unread(b"123"));
    assert!(shown.contains("unused: 3") && !shown.contains("49, 50, 51"), "{shown}");
}

/// A peer that has always more to say, none of it of any use.
struct Chatter(Instant);

impl VectoredRecv for Chatter {
    fn recv_vectored(&self, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        // In case that nobody looks at the clock.
        if self.0.elapsed() > Duration::from_secs(20) { Ok(0) } else { Ok(bufs[0].len()) }
    }
}

impl Wait for Chatter {
    fn wait(&self, _: Interest, _: Option<Duration>) -> io::Result<bool> {
        Ok(true)
    }
}

struct Drops;

impl Deframer for Drops {
    type Frame<'h> = ();
    type Error = Infallible;

    fn decode(&mut self, head: &[u8], _: &mut dyn Targets) -> Result<Step<()>, Infallible> {
        Ok(if head.is_empty() { Step::Need(1) } else { Step::Dropped { head: head.len() } })
    }

    fn body(&mut self, _: Filled) -> Result<(), Infallible> {
        Ok(())
    }
}

#[test]
fn a_peer_that_never_stops_does_not_get_around_the_deadline() {
    let mut receiver = Receiver::new(Chatter(Instant::now()), Drops);
    let deadline = Some(Instant::now() + Duration::from_millis(50));
    let error = receiver.next(&mut (), deadline, |()| ()).expect_err("no frame ever comes");
    assert!(matches!(error.kind(), RecvErrorKind::Deadline), "{error}");
}

#[test]
fn a_callback_that_panics_does_not_see_its_frame_again() {
    let stream = [frame(BORROWED, 0, b"first"), frame(BORROWED, 0, b"second")].concat();
    let script = ScriptedRecv::new(&stream, []);
    let mut receiver = Receiver::new(&script, Sorts::default());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = receiver.receive(&mut (), |_| panic!("a fault of the caller's"));
    }));
    assert!(panicked.is_err());
    let error = receiver.receive(&mut (), |_| ControlFlow::Continue(())).expect_err("ended");
    assert!(matches!(error.kind(), RecvErrorKind::Dead));
}

#[test]
fn a_socket_is_waited_for_in_either_direction() {
    let (here, mut there) = UnixStream::pair().expect("a pair");
    let socket = SocketRef::new(&here);
    let now = Some(Duration::ZERO);
    let ready = |interest| socket.wait(interest, now).expect("a socket");
    assert_eq!(
        (ready(Interest::Readable), ready(Interest::Writable), ready(Interest::Either)),
        (false, true, true)
    );
    there.write_all(b"x").expect("room");
    assert_eq!((ready(Interest::Readable), ready(Interest::Either)), (true, true));
}

/// A socket that waits for many bytes: for so many, but not past the end of the stream, and as any other afterwards.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn a_tcp_socket_is_waited_for_until_it_has_as_many_bytes_as_asked() {
    const MANY: usize = 64 << 10;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut there = TcpStream::connect(listener.local_addr().expect("an address")).expect("a listener");
    let (mut here, _) = listener.accept().expect("a peer");
    let (soon, late) = (Some(Duration::from_millis(20)), Some(LONG));
    let wait = |bytes, timeout| SocketRef::new(&here).wait_for_bytes(bytes, timeout).expect("a socket");
    there.write_all(&vec![1; MANY - 1]).expect("room");
    assert!(wait(MANY - 1, late)); // all of them have come
    assert!(!wait(MANY, soon));
    assert!(SocketRef::new(&here).wait(Interest::Readable, Some(Duration::ZERO)).expect("a socket"));
    there.write_all(&[1]).expect("room");
    assert!(wait(MANY, late));
    assert!(!wait(MANY + 1, soon));
    drop(there);
    assert!(wait(MANY + 1, late)); // no more will come
    let mut all = Vec::new();
    here.read_to_end(&mut all).expect("what was sent");
    assert_eq!(all.len(), MANY);

    // A wait with a mark does not last: a kernel that keeps it to itself that nothing more fits costs no more than that.
    let mut there = TcpStream::connect(listener.local_addr().expect("an address")).expect("a listener");
    let (here, _) = listener.accept().expect("a peer");
    there.write_all(&[1]).expect("room");
    assert!(SocketRef::new(&here).wait_for_bytes(MANY, late).expect("a socket"));
    assert!(SocketRef::new(&here).wait_for_bytes(MANY, None).expect("a socket"));

    // Others wait for any byte: to AF_UNIX a mark means nothing, and MPTCP could wait for ever.
    let any = |here: &dyn AsFd, there: &mut dyn Write| {
        there.write_all(&[1]).expect("room");
        assert!(SocketRef::new(here.as_fd()).wait_for_bytes(MANY, soon).expect("a socket"));
    };
    let (here, mut there) = UnixStream::pair().expect("a pair");
    any(&here, &mut there);
    // A kernel may be without it.
    if let Ok(here) = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)) {
        here.connect(&listener.local_addr().expect("an address").into()).expect("a listener");
        any(&here, &mut listener.accept().expect("a peer").0);
    }
}

/// A peer that goes on only when it has an answer to a body, or to the middle of one that has not come within a deadline.
#[test]
fn a_large_body_over_tcp_comes_out_once_it_is_there_and_deadlines_and_the_end_are_seen() {
    let whole = frame(SLABS, 0, &body(1 << 20));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut there = TcpStream::connect(listener.local_addr().expect("an address")).expect("a listener");
    let (here, _) = listener.accept().expect("a peer");
    let writer = thread::spawn(move || {
        there.set_nodelay(true)?;
        there.set_read_timeout(Some(LONG))?;
        let mut answer = [0];
        there.write_all(&whole)?;
        there.read_exact(&mut answer)?;
        whole.chunks(700).try_for_each(|piece| there.write_all(piece))?;
        there.read_exact(&mut answer)?;
        let (first, second) = whole.split_at(300_000);
        there.write_all(first)?;
        there.read_exact(&mut answer)?;
        there.write_all(second)?;
        there.read_exact(&mut answer)?;
        there.write_all(first)
    });
    let late = || Some(Instant::now() + LONG);
    let expected = Some(Kept::Bytes(SLABS, body(1 << 20)));
    let mut receiver = Receiver::new(SocketRef::new(here), Sorts::default());
    let answer = |receiver: &Receiver<SocketRef<TcpStream>, Sorts>| {
        receiver.transport().get_ref().write_all(&[1]).expect("room");
    };
    for _ in 0..2 {
        assert!(receiver.next(&mut (), late(), keep).unwrap() == expected);
        answer(&receiver);
    }
    let soon = Some(Instant::now() + Duration::from_millis(50));
    let error = receiver.next(&mut (), soon, keep).expect_err("the second part has not come");
    assert!(matches!(error.kind(), RecvErrorKind::Deadline), "{error}");
    answer(&receiver);
    assert!(receiver.next(&mut (), late(), keep).unwrap() == expected);
    answer(&receiver);
    let error = receiver.next(&mut (), late(), keep).expect_err("the second part never comes");
    let end = matches!(error.kind(), RecvErrorKind::UnexpectedEof { expected: 1_048_576, got: 299_988, .. });
    assert!(end, "{error}");
    writer.join().unwrap().unwrap();

    // And a reset.
    let mut there = TcpStream::connect(listener.local_addr().expect("an address")).expect("a listener");
    let (here, _) = listener.accept().expect("a peer");
    let writer = thread::spawn(move || {
        SockRef::from(&there).set_linger(Some(Duration::ZERO))?;
        there.write_all(&frame(SLABS, 0, &body(1 << 20))[..300_000])
    });
    let mut receiver = Receiver::new(SocketRef::new(here), Sorts::default());
    let error = receiver.next(&mut (), late(), keep).expect_err("the peer is gone");
    assert!(matches!(error.kind(), RecvErrorKind::Io(_)), "{error}");
    writer.join().unwrap().unwrap();
}
