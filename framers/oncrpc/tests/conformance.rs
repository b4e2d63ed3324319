//! The deframer under the conformance harness: cuts, truncations, flipped bits, lengths that lie, targets taken back.

mod support;

use segchain_oncrpc::{Direction, Layout, Pending, RecordDeframer};
use segchain_testkit::conformance::{Conformance, TargetTable};
use segchain_testkit::golden::oncrpc;
use support::*;

fn expecting_whole(xids: &[u32]) -> RecordDeframer {
    let pending = Pending::new();
    for xid in xids {
        pending.expect(*xid, Layout::Whole).unwrap();
    }
    RecordDeframer::new(pending)
}

/// There is no checksum, so a flipped bit is noticed only where it changes the framing: in a marker, or in the direction
/// word, whose values are 0 and 1. Not noticed are the transaction id, the lowest bit of the direction, and all else.
#[test]
fn the_golden_frames_conform() {
    for frame in [oncrpc::NULL_CALL, oncrpc::NULL_REPLY, oncrpc::NFS3_WRITE] {
        let bytes = frame.bytes();
        let deframer = || expecting_whole(&[0x1122_3344]);
        let records = Conformance::new(deframer, &[&bytes])
            .uncovered(&[4..8, 11..bytes.len()])
            .check(|record| Seen::from(record));
        assert!(records.len() == 1 && records[0].bytes == bytes[4..], "{}", frame.name);
    }
}

#[test]
fn a_stream_of_calls_and_replies_cut_anywhere_conforms() {
    let wires = [oncrpc::NULL_CALL, oncrpc::NULL_REPLY, oncrpc::NFS3_WRITE].map(|frame| frame.bytes());
    let frames: Vec<&[u8]> = wires.iter().map(Vec::as_slice).collect();
    let records = Conformance::new(|| expecting_whole(&[0x1122_3344]), &frames)
        .check_cuts_only(|record| Seen::from(record));
    assert_eq!(records.len(), 3);
}

/// The markers of later fragments are as good as the first: flipped bits in them are noticed.
#[test]
fn a_reply_in_fragments_with_data_in_a_target_conforms() {
    // Data that is no plausible marker wherever it is taken for one.
    let data: Vec<u8> = (0..57).map(|i| 0xc0 | i).collect();
    let reply = read_reply(7, &data);
    for cuts in [vec![], vec![2], vec![9, 61, 1, 70], vec![140, 8]] {
        let wire = cut(&reply, &cuts);
        let mut uncovered = Vec::new();
        let mut at = 0;
        for len in cuts.iter().copied().chain([reply.len() - cuts.iter().sum::<usize>()]) {
            uncovered.push(at + 4..at + 4 + len);
            at += 4 + len;
        }
        for slices in [1, 5, 100] {
            let harness = Conformance::new(|| expecting(&[7]), &[&wire])
                .targets(TargetTable::new(&[(7, 60)]).scattered(slices))
                .uncovered(&uncovered);
            let records = harness.check(|record| Seen::from(record));
            assert_eq!(records[0].placed.map(|placed| (placed.len, placed.whole)), Some((57, true)));
            harness.check_take_back(
                |record| Seen::from(record),
                |seen| {
                    let placed = seen.placed.map(|mut placed| {
                        placed.whole = false;
                        placed
                    });
                    vec![Some(Seen { placed, ..seen.clone() }), None]
                },
            );
        }
    }
}

#[test]
fn several_replies_with_targets_and_a_call_between_them_conform() {
    let first = cut(&read_reply(1, &pattern(30)), &[50, 90]);
    let call = cut(&words(&[2, 0, 2, 9, 9, 9]), &[]);
    let second = cut(&read_reply(2, &pattern(41)), &[]);
    let harness = Conformance::new(|| expecting(&[1, 2]), &[&first, &call, &second])
        .targets(TargetTable::new(&[(1, 30), (2, 41)]).scattered(7));
    let records = harness.check_cuts_only(|record| Seen::from(record));
    let directions: Vec<_> = records.iter().map(|record| record.direction).collect();
    assert_eq!(directions, [Direction::Reply, Direction::Call, Direction::Reply]);
}

/// CVE-2017-8779: memory by what a length claims.
#[test]
fn memory_is_bounded_by_what_arrived_whatever_a_marker_claims() {
    let marker = |word: u32, message: &[u32]| [words(&[word]), words(message)].concat();
    let mut lying_reply = words(&[u32::MAX]);
    lying_reply.extend(read_head(7, 0, true, u32::MAX));
    let mut lying_string = words(&[0xffff_ffff, 7, 1, 0, 0, u32::MAX]);
    lying_string.extend([0; 40]);
    let heads = [
        marker(0x7fff_ffff, &[7, 0]),
        marker(0xffff_ffff, &[7, 0]),
        marker(0xffff_ffff, &[8, 1]),
        marker(0xffff_ffff, &[7, 1, 0, 0, 0, 0, 0]),
        marker(8, &[9, 0, 0xffff_ffff]),
        lying_reply,
        lying_string,
    ];
    let peak = |run: &mut dyn FnMut()| allocation_counter::measure(run).bytes_max;
    for make in [|| expecting(&[7]).max_record(u64::MAX), || expecting(&[7])] {
        Conformance::new(make, &[]).check_memory(&heads, peak);
        let targets = TargetTable::new(&[(7, 10_000)]);
        Conformance::new(make, &[]).targets(targets).check_memory(&heads, peak);
    }
}
