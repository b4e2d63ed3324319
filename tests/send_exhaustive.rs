//! Every way to cut a message into segments, times every way to cut its sending into short writes, against a naive
//! reference: concatenate, then slice. What is known from public reports to go wrong one byte beside a border (tokio 8158,
//! ntirpc 294, bun 32088, seastar 2023, Watt-32 106) is in here for every border there is.

use std::sync::Arc;

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Outgoing, SegmentChain};
use segchain::checksum::Checksum;
use segchain::send::{Blocked, Progress, SendErrorKind, SendOptions, StreamSender};
use segchain::transport::MAX_SLICES;
use segchain_testkit::scripted::{ScriptedSend, SendStep, Shape};

/// The longest message that is cut in every way.
const LONGEST: usize = 12;
/// The longest one to which faults and empty segments are added.
const LONGEST_WITH_FAULTS: usize = 8;

/// A checksum of one byte that notices order, and is not linear: it has to be digested in one pass.
#[derive(Clone, Default)]
struct Sum(u8);

impl Checksum for Sum {
    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(31).wrapping_add(*byte);
        }
    }

    fn width(&self) -> usize {
        1
    }

    fn write(&self, out: &mut [u8]) {
        out[0] = self.0;
    }
}

/// A message of `len` bytes, the last of which is a checksum over the others.
struct Message {
    len: usize,
    /// Row s holds the bytes from s on, and no two rows touch: neighbouring segments stay two slices.
    rows: [[u8; 16]; LONGEST],
    wire: Vec<u8>,
}

impl Message {
    fn new(len: usize) -> Self {
        let byte = |position: usize| (position * 37 + 11) as u8;
        let mut rows = [[0; 16]; LONGEST];
        for (start, row) in rows.iter_mut().enumerate() {
            for (offset, at) in row.iter_mut().enumerate() {
                *at = byte(start + offset);
            }
        }
        let mut wire: Vec<u8> = (0..len - 1).map(byte).collect();
        let mut sum = 0u8;
        for byte in &wire {
            sum = sum.wrapping_mul(31).wrapping_add(*byte);
        }
        wire.push(sum);
        Self { len, rows, wire }
    }

    /// Cuts the message where `cuts` has a bit: bit i is the border before byte i + 1. The last segment is scratch, for the
    /// slot is in it; the first one is if `header` says so and there are at least three. Before segment i there is an empty
    /// one if bit i of `empties` is set, and one at the end for the bit after the last.
    fn chain<'m>(
        &'m self,
        mut out: ChainBuilder<'m>,
        cuts: usize,
        header: bool,
        empties: usize,
    ) -> (SegmentChain<'m>, Option<Shape>) {
        out.copy_below(0);
        let segments = cuts.count_ones() as usize + 1;
        let header = header && segments >= 3;
        let (mut start, mut index) = (0, 0);
        let begin = out.here();
        let mut shape = (0, self.len as u64, 0);
        while start < self.len {
            if empties >> index & 1 == 1 {
                empty(&mut out, index);
            }
            let len = ((cuts >> start).trailing_zeros() as usize + 1).min(self.len - start);
            let bytes = &self.rows[start][..len];
            if start + len == self.len {
                let last = out.put(bytes);
                let at = last.at(len as u64 - 1, 1);
                out.slot(begin..at, Sum::default(), at);
                shape.2 = len as u64;
            } else if index == 0 && header {
                out.put(bytes);
                shape.0 = len as u64;
            } else {
                out.push_borrowed(bytes);
            }
            (start, index) = (start + len, index + 1);
        }
        if empties >> index & 1 == 1 {
            empty(&mut out, index);
        }
        shape.1 -= shape.0 + shape.2;
        let chain = out.finish().expect("a chain without mistakes");
        (chain, header.then(|| Shape::new(shape.0, shape.1, shape.2)))
    }
}

/// One of the four sorts of nothing.
fn empty(out: &mut ChainBuilder<'_>, index: usize) {
    match index % 4 {
        0 => out.push(Bytes::new()),
        1 => out.push_borrowed(&[]),
        2 => out.put(&[]),
        _ => out.push_zeros(0),
    };
}

/// The limits of one series.
#[derive(Clone, Copy)]
struct Limits {
    slices: usize,
    window: Option<u64>,
}

impl Limits {
    fn sender<'s>(&self, script: &'s ScriptedSend) -> StreamSender<&'s ScriptedSend> {
        let mut options = SendOptions::new().max_slices(self.slices);
        if let Some(window) = self.window {
            options = options.seal_window(window);
        }
        StreamSender::with_options(script, options)
    }

    /// Whether a call has room for header, trailer and one slice more, and does not stop for sealing.
    fn keeps_parts_together(&self) -> bool {
        self.slices >= 3 && self.window.is_none()
    }

    /// Whether nothing but the transport cuts a message.
    fn are_none(&self) -> bool {
        self.slices == MAX_SLICES && self.window.is_none()
    }
}

/// Every segmentation times every way of short writes.
fn every_cut(limits: Limits, longest: usize) {
    let script = ScriptedSend::new([]).caps(limits.slices, 1 << 30);
    let mut sender = limits.sender(&script);
    let mut cases = 0u64;
    for len in 1..=longest {
        let message = Message::new(len);
        let ways = 1usize << (len - 1);
        let mut builder = ChainBuilder::new();
        for cuts in 0..ways {
            for stops in 0..ways {
                let (chain, shape) = message.chain(builder, cuts, stops & 1 == 0, 0);
                let mut outgoing = Outgoing::new(chain);
                script.reset(&[]);
                script.stop_at((stops as u64) << 1);
                script.expect_flush(len as u64);
                if let Some(shape) = shape.filter(|_| limits.keeps_parts_together()) {
                    script.expect_frames(&[shape]);
                }
                let progress = sender.send(&mut outgoing);
                let case = || format!("{len} bytes, segments {cuts:b}, short writes {stops:b}");
                assert_eq!(progress, Ok(Progress::Done), "{}", case());
                assert!(script.wire_is(&message.wire), "{}: {:x?}", case(), script.wire());
                script.assert_uncorked();
                if limits.are_none() {
                    assert_eq!(script.call_count(), stops.count_ones() as usize + 1, "{}", case());
                }
                builder = outgoing.into_chain().map(SegmentChain::recycle).unwrap_or_default();
                cases += 1;
            }
        }
    }
    println!("{} slices a call, window {:?}: {cases} cases", limits.slices, limits.window);
    assert_eq!(cases, ((1u64 << (2 * longest)) - 1) / 3);
}

/// tokio 8158, ntirpc 294, bun 32088, seastar 2023 and Mooncake 2594, Watt-32 106.
#[test]
fn every_cut_is_resumed_at_the_next_byte_with_one_slice_a_call() {
    every_cut(Limits { slices: 1, window: None }, LONGEST);
}

#[test]
fn every_cut_is_resumed_at_the_next_byte_with_two_slices_a_call() {
    every_cut(Limits { slices: 2, window: None }, LONGEST);
}

#[test]
fn every_cut_is_resumed_at_the_next_byte_with_three_slices_a_call() {
    every_cut(Limits { slices: 3, window: None }, LONGEST);
}

#[test]
fn every_cut_is_resumed_at_the_next_byte_with_all_slices_a_call_may_have() {
    every_cut(Limits { slices: MAX_SLICES, window: None }, LONGEST);
}

#[test]
fn every_cut_is_sealed_the_same_in_small_windows() {
    for window in 1..=4 {
        every_cut(Limits { slices: MAX_SLICES, window: Some(window) }, 9);
        every_cut(Limits { slices: 2, window: Some(window) }, 9);
    }
}

/// Faults and empty segments, one at every place and empty ones everywhere.
fn every_fault(limits: Limits) {
    let script = ScriptedSend::new([]).caps(limits.slices, 1 << 30);
    let elsewhere_script = ScriptedSend::new([]);
    let mut sender = limits.sender(&script);
    let mut elsewhere = limits.sender(&elsewhere_script);
    let mut cases = 0u64;
    let faults = [SendStep::Again, SendStep::Interrupted, SendStep::Errno(libc::ENOBUFS)];
    for len in 1..=LONGEST_WITH_FAULTS {
        let message = Message::new(len);
        let ways = 1usize << (len - 1);
        let other = Message::new(3);
        for cuts in 0..ways {
            let segments = cuts.count_ones() as usize + 1;
            // None, one at each place, all of them.
            let empties = (0..=segments).map(|place| 1usize << place).chain([0, (2usize << segments) - 1]);
            for empties in empties {
                for stops in 0..ways {
                    let mut call = 0;
                    loop {
                        // The first round has no fault, and tells how many calls there are.
                        let mut calls = 0;
                        for fault in faults {
                            let (chain, _) = message.chain(ChainBuilder::new(), cuts, true, empties);
                            let mut outgoing = Outgoing::new(chain);
                            script.reset(&[]);
                            script.stop_at((stops as u64) << 1);
                            script.expect_flush(len as u64);
                            script.fault_at(call, fault);
                            let case = || {
                                format!(
                                    "{len} bytes, segments {cuts:b}, empty {empties:b}, short writes {stops:b}, {fault:?} at call {call}"
                                )
                            };
                            let first =
                                sender.send(&mut outgoing).unwrap_or_else(|e| panic!("{}: {e}", case()));
                            let reason = match fault {
                                SendStep::Interrupted => None,
                                SendStep::Again => Some(Blocked::Full),
                                _ => Some(Blocked::Memory),
                            };
                            let reason = reason.filter(|_| script.call_count() == call + 1);
                            match reason.filter(|_| !outgoing.is_complete()) {
                                None => assert_eq!(first, Progress::Done, "{}", case()),
                                Some(reason) => {
                                    assert_eq!(first, Progress::Blocked(reason), "{}", case());
                                    assert_eq!(outgoing.sent(), script.taken(), "{}", case());
                                    if outgoing.sent() > 0 {
                                        let (second, _) = other.chain(ChainBuilder::new(), 0, false, 0);
                                        refused_in_the_middle(
                                            &mut sender,
                                            second,
                                            &mut outgoing,
                                            &mut elsewhere,
                                        );
                                        cases += 1;
                                    }
                                    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done), "{}", case());
                                }
                            }
                            assert!(script.wire_is(&message.wire), "{}: {:x?}", case(), script.wire());
                            script.assert_uncorked();
                            calls = script.call_count();
                            cases += 1;
                        }
                        call += 1;
                        if call >= calls {
                            break;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(elsewhere_script.call_count(), 0);
    println!("{} slices a call: {cases} cases", limits.slices);
}

/// vstest 16445, vm0 12205, rmk 943: the next message follows a torn one. Here it is refused, and so is the torn one on
/// another stream.
fn refused_in_the_middle(
    sender: &mut StreamSender<&ScriptedSend>,
    second: SegmentChain<'_>,
    half_sent: &mut Outgoing<'_>,
    elsewhere: &mut StreamSender<&ScriptedSend>,
) {
    let sent = half_sent.sent();
    let before = sender.transport().call_count();
    let mut second = Outgoing::new(second);
    let error = sender.send(&mut second).expect_err("a second message in the middle of the first");
    assert_eq!(error.kind(), SendErrorKind::AnotherOpen);
    assert_eq!(second.sent(), 0);
    let error = elsewhere.send(half_sent).expect_err("a message that was begun elsewhere");
    assert_eq!((error.kind(), error.sent()), (SendErrorKind::HalfSentElsewhere, sent));
    assert_eq!(half_sent.sent(), sent);
    assert_eq!(sender.transport().call_count(), before);
    assert_eq!(sender.open_message(), Some(half_sent.id()));
}

/// Watt-32 106 (EAGAIN after progress), tinyfugue 62 and criu 2975 (EINTR), helio 363; rust 74088, PhotonLibOS 1601 and
/// yrmcds 28 (empty segments).
#[test]
fn faults_and_empty_segments_change_nothing_with_one_slice_a_call() {
    every_fault(Limits { slices: 1, window: None });
}

#[test]
fn faults_and_empty_segments_change_nothing_with_two_slices_a_call() {
    every_fault(Limits { slices: 2, window: None });
}

#[test]
fn faults_and_empty_segments_change_nothing_with_three_slices_a_call() {
    every_fault(Limits { slices: 3, window: None });
}

#[test]
fn faults_and_empty_segments_change_nothing_with_all_slices_a_call_may_have() {
    every_fault(Limits { slices: MAX_SLICES, window: None });
}

/// Two messages in a batch: a call may end in either, and a short write at any byte of either.
#[test]
fn a_batch_is_cut_anywhere_and_its_messages_stay_whole_and_in_order() {
    let mut cases = 0u64;
    for slices in [1, 2, 3, MAX_SLICES] {
        let limits = Limits { slices, window: None };
        let script = ScriptedSend::new([]).caps(slices, 1 << 30);
        let mut sender = limits.sender(&script);
        for (first_len, second_len) in (1..=6).flat_map(|first| [(first, 7 - first), (first, 4)]) {
            let (first, second) = (Message::new(first_len), Message::new(second_len));
            let len = first_len + second_len;
            let wire = [first.wire.as_slice(), &second.wire].concat();
            for cuts in 0..1usize << (len - 2) {
                let (cuts_1, cuts_2) = (cuts & ((1 << (first_len - 1)) - 1), cuts >> (first_len - 1));
                for stops in 0..1usize << (len - 1) {
                    for again in [None, Some(0), Some(1), Some(2)] {
                        let chain_1 = first.chain(ChainBuilder::new(), cuts_1, true, 0).0;
                        let chain_2 = second.chain(ChainBuilder::new(), cuts_2, true, 0).0;
                        let mut batch = [Outgoing::new(chain_1), Outgoing::new(chain_2)];
                        script.reset(&[]);
                        script.stop_at((stops as u64) << 1);
                        script.expect_flush(len as u64);
                        if let Some(call) = again {
                            script.fault_at(call, SendStep::Again);
                        }
                        let mut turns = 0;
                        while sender.send_batch(&mut batch) != Ok(Progress::Done) {
                            turns += 1;
                            assert!(turns < 2 && again.is_some(), "{:?}", sender.death());
                        }
                        assert!(script.wire_is(&wire), "{len} bytes, segments {cuts:b}, stops {stops:b}");
                        script.assert_uncorked();
                        cases += 1;
                    }
                }
            }
        }
    }
    println!("{cases} cases");
}

/// go 45163, getty 144: a chain that was sent is still there, for the next peer.
#[test]
fn a_shared_chain_is_sent_to_many_streams_however_each_of_them_cuts_it() {
    for len in 1..=7 {
        let message = Message::new(len);
        for cuts in 0..1usize << (len - 1) {
            let sealed = Arc::new(message.chain(ChainBuilder::new(), cuts, true, 0).0.seal_all());
            for stops in 0..1usize << (len - 1) {
                let script = ScriptedSend::new([]);
                script.stop_at((stops as u64) << 1);
                let mut sender = StreamSender::new(&script);
                let mut outgoing = Outgoing::shared(sealed.clone());
                assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
                assert!(script.wire_is(&message.wire));
            }
        }
    }
}
