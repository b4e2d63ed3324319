//! Frames of version 2: every tag, every number of segments, every error, both revisions.

mod common;

use std::ops::ControlFlow;

use bytes::Bytes;
use common::v2::{
    CODECS, Seen, address, control_wire, controls, crc, frame_error, options, preamble, receive,
    receive_into, reseal, seen, wire,
};
use common::{SeenData, message};
use segchain::chain::{ChainBuilder, Outgoing, Revoked};
use segchain::framer::{Deframer as _, Framer as _};
use segchain::recv::{Received, Receiver, RecvError, RecvErrorKind};
use segchain::send::{Progress, SendOptions, StreamSender};
use segchain::slab::ALIGN;
use segchain_ceph::osd::{OP, OP_REPLY};
use segchain_ceph::v2::{Codec, Control, Deframer, Error, Field, Frame, Framer, Options, Outbound, Stamp};
use segchain_ceph::{Data, Header, Message};
use segchain_testkit::conformance::{Conformance, TargetTable};
use segchain_testkit::scripted::{RecvStep, ScriptedRecv, ScriptedSend, SendStep};

const TID: u64 = 0x77;

fn framer(codec: Codec) -> Framer {
    Framer::new(&options(codec))
}

fn message_of(frames: &[Seen], index: usize) -> (u64, &SeenData) {
    match &frames[index] {
        Seen::Message { seq, data, .. } => (*seq, data),
        other => panic!("{other:?}"),
    }
}

fn parts(front: &'static [u8], middle: &'static [u8], data: &'static [u8]) -> Message<&'static [u8]> {
    let mut message = message(OP, TID, data);
    (message.front, message.middle) = (Bytes::from_static(front), Bytes::from_static(middle));
    message
}

#[test]
fn a_frame_of_every_tag_goes_both_ways_in_both_revisions() {
    for codec in CODECS {
        for (tag, control) in (1..=20).filter(|tag| *tag != 17).zip(controls()) {
            assert_eq!(control.tag(), tag);
            let bytes = control_wire(codec, control.clone());
            assert_eq!((bytes[0], bytes[1]), (tag, 1));
            assert_eq!(receive(&options(codec), &bytes).unwrap(), [Seen::Control(control)]);
        }
    }
    for tag in [0, 21, 128, 255] {
        assert_eq!(frame_error(&Options::new(), &preamble(tag, 1, [(0, 8); 4])), Error::Tag { got: tag });
    }
}

#[test]
fn a_message_has_as_many_segments_as_it_needs() {
    let cases = [
        (parts(b"", b"", b""), 1),
        (parts(b"f", b"", b""), 2),
        (parts(b"", b"mi", b""), 3),
        (parts(b"f", b"mi", b""), 3),
        (parts(b"", b"", b"data"), 4),
        (parts(b"f", b"", b"data"), 4),
        (parts(b"f", b"mi", b"data"), 4),
    ];
    for codec in CODECS {
        for (message, segments) in cases.clone() {
            let lens = [41, message.front.len(), message.middle.len(), message.data.len()];
            let bytes = wire(&mut framer(codec), message.clone());
            assert_eq!(bytes[1], segments);
            let epilogue = match (codec, segments) {
                (Codec::CrcRev0, _) => 17,
                (_, 1) => 4,
                _ => 4 + 13,
            };
            assert_eq!(bytes.len(), 32 + lens.iter().sum::<usize>() + epilogue);
            let crcs: Vec<[u8; 4]> =
                bytes[bytes.len() - 12..].chunks(4).map(|c| c.try_into().unwrap()).collect();
            for (index, crc) in
                (1..).zip(crcs).take(if codec == Codec::CrcRev0 || segments > 1 { 3 } else { 0 })
            {
                let absent = index >= usize::from(segments);
                let empty = lens[index] == 0;
                assert_eq!((crc == [0; 4], crc == [0xff; 4]), (absent, empty && !absent), "segment {index}");
            }
            let frames = receive(&options(codec), &bytes).unwrap();
            let Seen::Message { seq: 1, front, middle, data, .. } = &frames[0] else { panic!("{frames:?}") };
            assert_eq!((front, middle), (&message.front, &message.middle));
            assert_eq!(data, &SeenData::Bytes(message.data.to_vec()));
        }
    }
}

/// An empty control segment is a frame without a checksum: WAIT is one (Linux c4c22b846ece refuses all, for as a client it
/// gets none). Where a field is expected it is missing by name.
#[test]
fn an_empty_control_segment_is_wait_and_for_any_other_tag_an_error() {
    for codec in CODECS {
        let bytes = control_wire(codec, Control::Wait);
        assert_eq!(bytes.len(), if codec == Codec::CrcRev1 { 32 } else { 32 + 17 });
        assert_eq!(bytes[..28], [&[16, 1, 0, 0, 0, 0, 8, 0][..], &[0; 20]].concat());
        for tag in (1..=20).filter(|tag| *tag != 16) {
            let mut bytes = bytes.clone();
            bytes[0] = tag;
            reseal(&mut bytes);
            match frame_error(&options(codec), &bytes) {
                Error::HeaderTooShort { offset: 2, len: 0 } => assert_eq!(tag, 17),
                Error::Short { tag: named, offset: 32, got: 0, .. } => {
                    assert_eq!((named, tag != 17), (tag, true));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// 2,763,520 of three bits, 32,640 of two, 256 of one.
#[test]
fn every_error_of_one_two_and_three_bits_in_a_preamble_is_refused() {
    let good = &wire(&mut framer(Codec::CrcRev1), parts(b"front", b"", b"payload"))[..32];
    let mut deframer = Deframer::new(&Options::new());
    let mut wire: [u8; 32] = good.try_into().unwrap();
    let mut refused = 0;
    let mut check = |wire: &[u8; 32], bits: [usize; 3]| match deframer.decode(wire, &mut ()) {
        Err(Error::Crc { field: Field::Preamble, offset: 28, .. }) => refused += 1,
        other => panic!("bits {bits:?}: {other:?}"),
    };
    let flip = |wire: &mut [u8; 32], bit: usize| wire[bit / 8] ^= 1 << (bit % 8);
    for a in 0..256 {
        flip(&mut wire, a);
        check(&wire, [a; 3]);
        for b in a + 1..256 {
            flip(&mut wire, b);
            check(&wire, [a, b, b]);
            for c in b + 1..256 {
                flip(&mut wire, c);
                check(&wire, [a, b, c]);
                flip(&mut wire, c);
            }
            flip(&mut wire, b);
        }
        flip(&mut wire, a);
    }
    assert_eq!(refused, 2_763_520 + 32_640 + 256);
    assert_eq!(wire, good);
}

#[test]
fn no_segment_five_segments_and_an_empty_last_one_are_errors() {
    let some = [(41, 8), (1, 8), (1, 8), (1, 4096)];
    for codec in CODECS {
        for got in (0..=255).filter(|count| !(1..=4).contains(count)) {
            let error = frame_error(&options(codec), &preamble(17, got, some));
            assert_eq!(error, Error::Segments { tag: 17, got, limit: 4 });
        }
        for (tag, got) in (1..=20).filter(|tag| *tag != 17).flat_map(|tag| [(tag, 0), (tag, 2), (tag, 4)]) {
            let error = frame_error(&options(codec), &preamble(tag, got, some));
            assert_eq!(error, Error::Segments { tag, got, limit: 1 });
        }
        for count in 2..=4 {
            let mut segments = some;
            segments[count - 1].0 = 0;
            let error = frame_error(&options(codec), &preamble(17, count as u8, segments));
            assert_eq!(error, Error::LastEmpty { count });
        }
    }
}

/// Linux 69fb5d91bba4 (CVE-2026-43406): a read beyond the segment.
#[test]
fn a_message_header_of_fewer_than_41_bytes_is_an_error_and_more_are_passed_over() {
    for codec in CODECS {
        for len in 0..41 {
            let wire = preamble(17, 2, [(len, 8), (5, 8), (0, 0), (0, 0)]);
            assert_eq!(frame_error(&options(codec), &wire), Error::HeaderTooShort { offset: 2, len });
            let wire = preamble(17, 1, [(len, 8), (0, 0), (0, 0), (0, 0)]);
            assert_eq!(frame_error(&options(codec), &wire), Error::HeaderTooShort { offset: 2, len });
        }
    }
    let mut longer = wire(&mut framer(Codec::CrcRev1), parts(b"", b"", b""));
    longer.truncate(32 + 41);
    longer.extend([7; 3]);
    let crc = crc(!0, &longer[32..]);
    longer.extend(crc);
    longer[2] = 44;
    reseal(&mut longer);
    assert_eq!(receive(&Options::new(), &longer).unwrap().len(), 1);
}

/// Linux a282a2f10539: a length of 2^31 or more passed a signed check.
#[test]
fn lengths_over_their_limits_are_errors_that_name_the_field() {
    let limits = |codec| options(codec).control_limit(50).front_limit(10).middle_limit(20).data_limit(30);
    let fields = [Field::Header, Field::Front, Field::Middle, Field::Data];
    for codec in CODECS {
        for len in [i32::MAX as u32, 1 << 31, u32::MAX] {
            for index in 0..4 {
                let mut segments = [(41, 8), (1, 8), (1, 8), (1, 8)];
                segments[index].0 = len;
                for (options, limit) in [
                    (Options::new().codec(codec), [32 << 10, 16 << 20, 16 << 20, 64 << 20][index]),
                    (limits(codec), [50, 10, 20, 30][index]),
                ] {
                    let (field, offset) = (fields[index], 2 + 6 * index as u64);
                    let expected = Error::TooLong { field, offset, len: len.into(), limit };
                    assert_eq!(frame_error(&options, &preamble(17, 4, segments)), expected);
                }
            }
            let expected = Error::TooLong { field: Field::Control, offset: 2, len: len.into(), limit: 50 };
            assert_eq!(frame_error(&limits(codec), &preamble(1, 1, [(len, 8); 4])), expected);
        }
        let fits = wire(&mut framer(codec), message(OP, 1, &[1; 30]));
        assert!(receive(&limits(codec), &fits).is_ok());
    }
}

#[test]
fn a_claimed_length_takes_no_memory() {
    let mut heads: Vec<Vec<u8>> = Vec::new();
    for len in [i32::MAX as u32, 1 << 31, u32::MAX] {
        for index in 0..4 {
            let mut segments = [(41, 8), (1, 8), (1, 8), (1, 8)];
            segments[index].0 = len;
            // With a right header behind, so that the body is reached.
            let header = wire(&mut framer(Codec::CrcRev1), parts(b"", b"", b""))[32..].to_vec();
            heads.push([preamble(17, 4, segments), header].concat());
        }
        heads.push(preamble(2, 1, [(len, 8); 4]));
    }
    let peak = |run: &mut dyn FnMut()| allocation_counter::measure(run).bytes_max;
    let most = u32::MAX;
    for codec in CODECS {
        let open = options(codec).control_limit(most).front_limit(most).middle_limit(most).data_limit(most);
        for options in [options(codec), open] {
            Conformance::new(|| Deframer::new(&options), &[]).check_memory(&heads, peak);
        }
    }
    // A count inside a control frame.
    for (tag, at) in [(2, 4), (3, 8), (9, 1)] {
        let control = controls().into_iter().find(|control| control.tag() == tag).unwrap();
        let mut bytes = control_wire(Codec::CrcRev1, control);
        bytes[32 + at..36 + at].fill(0xff);
        let end = bytes.len() - 4;
        let right = crc(!0, &bytes[32..end]);
        bytes[end..].copy_from_slice(&right);
        let used = allocation_counter::measure(|| {
            let mut deframer = Deframer::new(&Options::new());
            assert!(matches!(
                deframer.decode(&bytes, &mut ()),
                Err(Error::Short { .. } | Error::Value { .. })
            ));
        });
        assert!(used.bytes_max < 4096, "{} bytes for a count that is only claimed", used.bytes_max);
    }
}

/// CVE-2026-22984 and its like.
#[test]
fn every_truncation_and_every_length_inside_a_control_segment_is_an_error_or_a_frame() {
    for control in controls() {
        let bytes = control_wire(Codec::CrcRev1, control.clone());
        let segment = if control == Control::Wait { vec![] } else { bytes[32..bytes.len() - 4].to_vec() };
        let framed = |segment: &[u8]| {
            let mut wire = preamble(control.tag(), 1, [(segment.len() as u32, 8), (0, 0), (0, 0), (0, 0)]);
            wire.extend(segment);
            wire.extend(crc(!0, segment));
            wire.truncate(if segment.is_empty() { 32 } else { wire.len() });
            wire
        };
        for end in 0..segment.len() {
            let Error::Short { offset, expected, got, .. } =
                frame_error(&Options::new(), &framed(&segment[..end]))
            else {
                panic!("{control:?} cut to {end}")
            };
            assert!(offset <= 32 + end as u64 && expected > got);
        }
        for at in 0..segment.len().saturating_sub(3) {
            for len in [0, 1, i32::MAX as u32, 1 << 31, u32::MAX] {
                let mut segment = segment.clone();
                segment[at..at + 4].copy_from_slice(&len.to_le_bytes());
                let _ = receive(&Options::new(), &framed(&segment));
            }
        }
        let longer = [&segment[..], b"of a newer version"].concat();
        assert_eq!(receive(&Options::new(), &framed(&longer)).unwrap(), [Seen::Control(control.clone())]);
    }
}

#[test]
fn a_wrong_checksum_names_its_part_and_place() {
    let (front, middle, data) = (32 + 41, 32 + 41 + 5, 32 + 41 + 8);
    for codec in CODECS {
        let more = if codec == Codec::CrcRev1 { 4 } else { 0 };
        let good = wire(&mut framer(codec), message(OP, 1, b"payload"));
        let epilogue = data + more + 7;
        let (header_crc, crcs) = if more > 0 { (front, epilogue + 1) } else { (epilogue + 1, epilogue + 5) };
        let cases = [
            (3, Field::Preamble, 28),
            (40, Field::Header, header_crc),
            (front + more, Field::Front, crcs),
            (middle + more, Field::Middle, crcs + 4),
            (data + more, Field::Data, crcs + 8),
        ];
        for (at, field, offset) in cases {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let carried = u32::from_le_bytes(good[offset..offset + 4].try_into().unwrap());
            match frame_error(&options(codec), &bad) {
                Error::Crc { field: f, offset: o, expected, got } => {
                    assert_eq!((f, o, expected), (field, offset as u64, carried));
                    assert_ne!(got, carried);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Revision 1: `check_epilogue_late_status` of Ceph `frames_v2.cc`. Revision 0: `FRAME_LATE_FLAG_ABORTED` is one bit.
#[test]
fn the_late_status_is_its_low_nibble_and_in_revision_0_its_lowest_bit() {
    let tail = wire(&mut framer(Codec::CrcRev1), message(OP, 2, b"next"));
    let mut later = Framer::resume(&options(Codec::CrcRev0), 1);
    let tail_0 = wire(&mut later, message(OP, 2, b"next"));
    for status in 0..=255 {
        let mut bytes = wire(&mut framer(Codec::CrcRev1), message(OP, TID, b"payload"));
        let at = bytes.len() - 13;
        assert_eq!(bytes[at], 0x0e);
        bytes[at] = status;
        match status & 15 {
            0xe => assert_eq!(message_of(&receive(&Options::new(), &bytes).unwrap(), 0).0, 1),
            0x1 => {
                let frames = receive(&Options::new(), &[bytes, tail.clone()].concat()).unwrap();
                assert_eq!(frames[0], Seen::Aborted { tag: 17, tid: Some(TID) });
                assert_eq!(message_of(&frames, 1), (1, &SeenData::Bytes(b"next".to_vec())));
            }
            _ => {
                let expected = Error::LateStatus { offset: at as u64, got: status };
                assert_eq!(frame_error(&Options::new(), &bytes), expected);
            }
        }

        let rev0 = options(Codec::CrcRev0);
        let mut bytes = wire(&mut framer(Codec::CrcRev0), message(OP, TID, b"payload"));
        let at = bytes.len() - 17;
        assert_eq!(bytes[at], 0);
        bytes[at] = status;
        let frames = receive(&rev0, &[bytes, tail_0.clone()].concat()).unwrap();
        match status & 1 {
            0 => assert_eq!((frames.len(), message_of(&frames, 0).0), (2, 1)),
            _ => assert_eq!(frames[0], Seen::Aborted { tag: 17, tid: Some(TID) }),
        }
        assert_eq!(message_of(&frames, 1).0, 2);
        let mut keepalive = control_wire(Codec::CrcRev0, Control::Keepalive2(Stamp::new(1, 2)));
        let at = keepalive.len() - 17;
        keepalive[at] = status;
        let aborted = receive(&rev0, &keepalive).unwrap() == [Seen::Aborted { tag: 18, tid: None }];
        assert_eq!(aborted, status & 1 == 1);
    }
}

/// Measured against ceph-osd 16.2.15: one with right checksums is dropped, one with wrong ones closes the connection.
#[test]
fn an_aborted_frame_with_a_wrong_checksum_is_an_error_and_one_with_right_ones_is_counted() {
    for codec in CODECS {
        let mut bytes = wire(&mut framer(codec), message(OP_REPLY, TID, b"payload"));
        let status = bytes.len() - if codec == Codec::CrcRev1 { 13 } else { 17 };
        bytes[status] = 1;
        let script = ScriptedRecv::new(&bytes, []);
        let mut receiver = Receiver::new(&script, Deframer::new(&options(codec)));
        let mut targets = TargetTable::new(&[(TID, 7)]);
        assert_eq!(receiver.receive(&mut targets, |_| ControlFlow::Continue(())).unwrap(), Received::Eof);
        let deframer = receiver.deframer();
        assert_eq!((deframer.aborted(), deframer.last_seq(), deframer.duplicates()), (1, 0, 0));
        bytes[status - 1] ^= 1;
        assert!(matches!(frame_error(&options(codec), &bytes), Error::Crc { field: Field::Data, .. }));
    }
}

/// Linux libceph tracker 4450, and `revoke_at_*` of its messenger_v2.c: what is sent in place of revoked data must fit the
/// checksums, those already sent included.
#[test]
fn a_message_revoked_at_any_byte_is_dropped_by_the_peer_which_takes_the_next() {
    let data = [7; 64];
    for codec in CODECS {
        let whole = wire(&mut framer(codec), message(OP, 1, &data));
        let len = whole.len();
        let status = len - if codec == Codec::CrcRev1 { 13 } else { 17 };
        for cut in 1..len {
            let transport = ScriptedSend::new([SendStep::Accept(cut), SendStep::Again]);
            let mut sender = StreamSender::new(&transport);
            let mut framer = framer(codec);
            let mut out = ChainBuilder::new();
            out.copy_below(0);
            framer.frame(message(OP, 1, &data), &mut out).unwrap();
            let mut half = Outgoing::new(out.finish().unwrap());
            assert!(matches!(sender.send(&mut half), Ok(Progress::Blocked(_))));
            let (mut rest, aborted) = match half.revoke() {
                Revoked::AbortedOnWire(rest) => (rest, true),
                Revoked::Finishing(rest) => (rest, false),
                other => panic!("cut at {cut}: {other:?}"),
            };
            assert_eq!(aborted, cut <= status, "cut at {cut}");
            assert_eq!(sender.send(&mut rest), Ok(Progress::Done));
            let mut out = ChainBuilder::new();
            framer.frame(message(OP, 2, b"next"), &mut out).unwrap();
            assert_eq!(sender.send(&mut Outgoing::new(out.finish().unwrap())), Ok(Progress::Done));

            let sent = transport.wire();
            assert_eq!(sent[..cut], whole[..cut]);
            let frames = receive(&options(codec), &sent).unwrap();
            let first = if aborted { Seen::Aborted { tag: 17, tid: Some(1) } } else { frames[0].clone() };
            assert_eq!((frames.len(), &frames[0]), (2, &first), "cut at {cut}");
            assert_eq!(message_of(&frames, 1), (2, &SeenData::Bytes(b"next".to_vec())));
            // In front of the cut the data is ours, behind it there are zeros.
            let start = status - 64;
            let zeros = sent[start..status].iter().zip(start..).filter(|(_, at)| *at >= cut);
            assert!(!aborted || zeros.clone().all(|(byte, _)| *byte == 0), "cut at {cut}");
        }
    }
}

#[test]
fn an_unsent_message_is_dropped_or_sent_aborted_and_a_frame_of_one_segment_is_finished() {
    let mut out = ChainBuilder::new();
    framer(Codec::CrcRev1).frame(message(OP, 1, b"payload"), &mut out).unwrap();
    let Revoked::NotStarted(unsent) = Outgoing::new(out.finish().unwrap()).revoke() else { panic!() };
    let transport = ScriptedSend::new([]);
    let mut aborted = unsent.into_aborted().unwrap();
    assert_eq!(StreamSender::new(&transport).send(&mut aborted), Ok(Progress::Done));
    let frames = receive(&Options::new(), &transport.wire()).unwrap();
    assert_eq!(frames, [Seen::Aborted { tag: 17, tid: Some(1) }]);

    for control in controls() {
        let expected = control_wire(Codec::CrcRev1, control.clone());
        let transport = ScriptedSend::new([SendStep::Accept(10), SendStep::Again]);
        let mut sender = StreamSender::new(&transport);
        let mut out = ChainBuilder::new();
        framer(Codec::CrcRev1).frame(control, &mut out).unwrap();
        let mut half = Outgoing::new(out.finish().unwrap());
        assert!(matches!(sender.send(&mut half), Ok(Progress::Blocked(_))));
        let Revoked::Finishing(mut rest) = half.revoke() else { panic!() };
        assert_eq!(sender.send(&mut rest), Ok(Progress::Done));
        assert!(transport.wire_is(&expected));
    }
}

#[test]
fn every_cut_truncation_and_flipped_bit_of_a_mixed_stream() {
    for codec in CODECS {
        let mut framer = framer(codec);
        let mut frames = vec![
            wire(&mut framer, parts(b"front", b"", b"data")),
            wire(&mut framer, Outbound::<&[u8]>::Control(Control::Keepalive2(Stamp::new(1, 2)))),
            wire(&mut framer, Outbound::Message(parts(b"", b"", b""))),
        ];
        let mut aborted = wire(&mut framer, parts(b"f", b"mid", b""));
        let epilogue = if codec == Codec::CrcRev1 { 13 } else { 17 };
        let status = aborted.len() - epilogue;
        aborted[status] = 1;
        frames.push(aborted);
        frames.push(control_wire(codec, Control::Wait));
        // Status bits without a meaning, and checksums of segments that are not there.
        let mut uncovered = Vec::new();
        let mut end = 0;
        for frame in &frames {
            end += frame.len();
            let segments = usize::from(frame[1]);
            if codec == Codec::CrcRev0 || segments > 1 {
                uncovered.push(end - epilogue..end - epilogue + 1);
                uncovered.push(end - 4 * (4 - segments)..end);
            }
        }
        let pieces: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let make = || Deframer::new(&options(codec));
        let seen = Conformance::new(make, &pieces).uncovered(&uncovered).check(seen);
        assert_eq!(seen.len(), 5);
        assert_eq!(message_of(&seen, 2).0, 2);
        assert_eq!(seen[3], Seen::Aborted { tag: 17, tid: Some(TID) });
    }
}

#[test]
fn the_end_of_the_stream_names_what_was_to_come() {
    let bytes = wire(&mut framer(Codec::CrcRev1), message(OP, 1, b"payload"));
    let expected = |end: usize| match end {
        0..77 => "preamble and first segment",
        77..82 => "front",
        82..85 => "middle",
        85..92 => "data",
        _ => "epilogue",
    };
    for end in 1..bytes.len() {
        match receive(&Options::new(), &bytes[..end]).unwrap_err().into_kind() {
            RecvErrorKind::UnexpectedEof { field, .. } => assert_eq!(field, expected(end), "after {end}"),
            other => panic!("{other:?} after {end}"),
        }
    }
}

#[test]
fn read_data_lands_in_the_target_of_its_tid_and_survives_a_take_back_at_every_byte() {
    for codec in CODECS {
        let mut framer = framer(codec);
        let mut reply = wire(&mut framer, message(OP_REPLY, TID, &[0xaa; 40]));
        reply.extend(wire(&mut framer, message(OP_REPLY, TID + 1, b"in slabs")));
        for slices in [usize::MAX, 16, 1] {
            let targets = TargetTable::new(&[(TID, 40)]).scattered(slices);
            let make = || Deframer::new(&options(codec));
            let check = Conformance::new(make, &[&reply]).targets(targets);
            let frames = check.check_cuts_only(seen);
            assert_eq!(message_of(&frames, 0).1, &SeenData::Target { len: 40, whole: true });
            assert_eq!(message_of(&frames, 1).1, &SeenData::Bytes(b"in slabs".to_vec()));
            check.check_take_back(seen, |frame| match frame {
                Seen::Message { data: SeenData::Target { len, .. }, .. } => {
                    // Before its data is reached there is no target at all: slabs.
                    let other =
                        [SeenData::Target { len: *len, whole: false }, SeenData::Bytes(vec![0xaa; 40])];
                    let with = |data| {
                        let mut frame = frame.clone();
                        if let Seen::Message { data: old, .. } = &mut frame {
                            *old = data;
                        }
                        Some(frame)
                    };
                    other.map(with).to_vec()
                }
                _ => vec![],
            });
        }
    }
}

#[test]
fn a_target_too_small_or_missing_means_discard_in_sync() {
    let mut framer = framer(Codec::CrcRev1);
    let stream = [
        wire(&mut framer, message(OP_REPLY, 1, &[1; 10])), // fits with room to spare
        wire(&mut framer, message(OP_REPLY, 2, &[2; 10])), // one byte too small
        wire(&mut framer, message(OP_REPLY, 3, &[3; 10])), // nobody waits
        wire(&mut framer, message(41, 1, &[4; 10])),       // not a reply: its tid means nothing to us
    ]
    .concat();
    let table = || TargetTable::new(&[(1, 12), (2, 9)]);
    let mut targets = table();
    let frames = receive_into(&Options::new(), &stream, &mut targets).unwrap();
    let data: Vec<&SeenData> = (0..4).map(|index| message_of(&frames, index).1).collect();
    assert_eq!(data[0], &SeenData::Target { len: 10, whole: true });
    assert_eq!(data[1], &SeenData::Discarded { len: 10 });
    assert_eq!((data[2], data[3]), (&SeenData::Bytes(vec![3; 10]), &SeenData::Bytes(vec![4; 10])));
    assert_eq!(targets.get(1).unwrap(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    let strict = Options::new().discard_unexpected(true);
    let frames = receive_into(&strict, &stream, &mut table()).unwrap();
    assert_eq!(message_of(&frames, 2).1, &SeenData::Discarded { len: 10 });
    let none = receive_into(&Options::new().reply_kind(None), &stream, &mut table()).unwrap();
    assert_eq!(message_of(&none, 0).1, &SeenData::Bytes(vec![1; 10]));
}

/// ceph PRs 18475 and 41143: an alignment from the wire goes neither into an allocation's size nor into its layout.
#[test]
fn data_lands_at_a_pages_start_whatever_alignment_is_asked_for() {
    for codec in CODECS {
        for alignment in [0, 1, 3, 4, 7, 8, 512, 4095, 4096, 4097, 32768, 65535] {
            for len in [1, 4096, 70_000] {
                let data: Vec<u8> = (0..len).map(|i: u32| i as u8).collect();
                let mut bytes = wire(&mut framer(codec), message(OP, 1, &data));
                for at in [6, 12, 18, 24] {
                    bytes[at..at + 2].copy_from_slice(&u16::to_le_bytes(alignment));
                }
                reseal(&mut bytes);
                let script = ScriptedRecv::new(&bytes, []);
                let mut receiver = Receiver::new(&script, Deframer::new(&options(codec)));
                let frame = receiver.next(&mut (), None, |frame| frame).unwrap();
                let Some(Frame::Message(message)) = frame else { panic!("{frame:?}") };
                let Data::Slabs(slabs) = message.data else { panic!("{:?}", message.data) };
                assert_eq!(slabs.parts().next().unwrap().as_ptr() as usize % ALIGN, 0);
                assert_eq!((slabs.len(), slabs.parts().collect::<Vec<_>>().concat()), (len.into(), data));
            }
        }
    }
}

/// Two ends of one connection, each with its framer out of reach: what has arrived is acknowledged with the next message,
/// and what was never sent cannot be, by a message or by an ACK.
#[test]
fn paired_halves_acknowledge_and_check_by_themselves() {
    let (mut here, mut there) = (Framer::new(&Options::new()), Framer::new(&Options::new()));
    let receive = |framer: &Framer, bytes: &[u8]| {
        let script = ScriptedRecv::new(bytes, []);
        let mut receiver = Receiver::new(&script, Deframer::new(&Options::new()).paired(framer));
        let mut acks = Vec::new();
        let received = receiver.receive(&mut (), |frame| {
            if let Seen::Message { acked, .. } = seen(frame) {
                acks.push(acked);
            }
            ControlFlow::Continue(())
        });
        received.map(|_| acks).map_err(RecvError::into_kind)
    };
    let sent: Vec<u8> = (1..=3).flat_map(|tid| wire(&mut here, message(OP, tid, b"data"))).collect();
    assert_eq!(receive(&there, &sent).unwrap(), [0, 0, 0]);
    let answer = wire(&mut there, message(OP, 1, b"data"));
    assert_eq!(receive(&here, &answer).unwrap(), [3]);
    for (acked, good) in [(3, true), (4, false), (u64::MAX, false)] {
        there.received(acked);
        for frame in
            [wire(&mut there, message(OP, 1, b"data")), control_wire(Codec::CrcRev1, Control::Ack(acked))]
        {
            match receive(&here, &frame) {
                Ok(_) => assert!(good, "{acked}"),
                Err(RecvErrorKind::Frame(error)) => {
                    assert_eq!((error, good), (Error::AckBeyond { sent: 3, got: acked }, false));
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }
}

/// ceph PRs 9456 and 2886: numbers of 64 bits; what was acknowledged is not taken twice, what was not sent cannot be
/// acknowledged, and every message carries an acknowledgement.
#[test]
fn sequence_numbers_go_on_past_32_bits_and_duplicates_are_dropped() {
    let before = u64::from(u32::MAX) - 1;
    let mut framer = Framer::resume(&Options::new(), before);
    framer.received(1 << 33);
    let sent: Vec<Vec<u8>> = (1..=3).map(|tid| wire(&mut framer, message(OP, tid, b"data"))).collect();
    assert_eq!(framer.check_ack(0x1_0000_0001), Ok(()));
    assert_eq!(
        framer.check_ack(0x1_0000_0002),
        Err(Error::AckBeyond { sent: 0x1_0000_0001, got: 0x1_0000_0002 })
    );
    let order = [0, 0, 2, 1];
    let bytes: Vec<u8> = order.iter().flat_map(|index| sent[*index].clone()).collect();
    let script = ScriptedRecv::new(&bytes, []);
    let mut receiver = Receiver::new(&script, Deframer::resume(&Options::new(), before));
    let mut seqs = Vec::new();
    let _ = receiver.receive(&mut (), |frame| {
        let Seen::Message { seq, acked, .. } = seen(frame) else { panic!() };
        seqs.push((seq, acked));
        ControlFlow::Continue(())
    });
    assert_eq!(seqs, [(0xffff_ffff, 1 << 33), (0x1_0000_0001, 1 << 33)]);
    assert_eq!((receiver.deframer().last_seq(), receiver.deframer().duplicates()), (0x1_0000_0001, 2));
}

#[test]
fn a_failed_frame_spends_no_number() {
    let mut framer = framer(Codec::CrcRev1);
    let mut out = ChainBuilder::new();
    let foreign = ChainBuilder::new().put(b"x");
    out.patch(foreign, b"y");
    assert!(matches!(framer.frame(message(OP, 1, b""), &mut out), Err(Error::Chain(_))));
    let mut too_long = ChainBuilder::new();
    let result = framer.frame(Message::new(Header::new(1), Bytes::new(), Zeros), &mut too_long);
    let limit = u32::MAX.into();
    assert_eq!(result, Err(Error::TooLong { field: Field::Data, offset: 20, len: 1 << 32, limit }));
    assert_eq!(framer.last_seq(), 0);
}

/// 4 GiB that take no memory.
struct Zeros;

impl segchain::chain::Payload for Zeros {
    fn len(&self) -> u64 {
        1 << 32
    }

    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        out.push_zeros(1 << 32);
    }
}

#[test]
fn a_compressed_frame_is_refused_and_other_flags_mean_nothing() {
    for bit in 0..16 {
        let mut bytes = control_wire(Codec::CrcRev1, Control::Ack(3));
        bytes[26 + bit / 8] ^= 1 << (bit % 8);
        reseal(&mut bytes);
        match bit {
            0 => assert_eq!(frame_error(&Options::new(), &bytes), Error::Compressed { offset: 26, got: 1 }),
            _ => assert_eq!(receive(&Options::new(), &bytes).unwrap().len(), 1),
        }
    }
    let mut unused = control_wire(Codec::CrcRev1, Control::Ack(3));
    unused[8..26].fill(0xff);
    reseal(&mut unused);
    assert_eq!(receive(&Options::new(), &unused).unwrap(), [Seen::Control(Control::Ack(3))]);
}

/// ceph PR 6971: bytes of a header at hand and an empty socket are one call, not a loop.
#[test]
fn a_part_of_a_preamble_and_an_empty_socket_is_one_call() {
    let bytes = wire(&mut framer(Codec::CrcRev1), message(OP, 1, b"payload"));
    let script = ScriptedRecv::new(&bytes[..10], []).end(RecvStep::Again);
    let mut receiver = Receiver::new(&script, Deframer::new(&Options::new()));
    let go_on = |_: Frame| ControlFlow::Continue(());
    assert_eq!(receiver.receive(&mut (), go_on).unwrap(), Received::Blocked);
    let calls = script.call_count();
    assert_eq!(receiver.receive(&mut (), go_on).unwrap(), Received::Blocked);
    assert_eq!(script.call_count(), calls + 1);
}

/// ceph PRs 26965 and 28453: receive state of one connection in the next. A deframer is for one connection, and cannot be
/// changed in the middle of a frame.
#[test]
fn a_connection_that_ends_anywhere_leaves_nothing_to_the_next() {
    for codec in CODECS {
        let bytes = wire(&mut framer(codec), message(OP, 1, b"payload"));
        let begun = if codec == Codec::CrcRev1 { 77 } else { 73 };
        for end in 1..bytes.len() {
            let script = ScriptedRecv::new(&bytes[..end], []).end(RecvStep::Again);
            let mut receiver = Receiver::new(&script, Deframer::new(&options(codec)));
            assert_eq!(receiver.receive(&mut (), |_| ControlFlow::Continue(())).unwrap(), Received::Blocked);
            let inside = !receiver.is_between_frames();
            let refused = receiver.replace(Deframer::new(&options(codec))).is_err();
            assert_eq!((inside, refused), (end >= begun, end >= begun));
        }
        assert_eq!(receive(&options(codec), &bytes).unwrap().len(), 1);
    }
}

/// ceph PRs 26552, 3764 and 15017: a checksum that outlives a change of its buffer; ceph PR 66377: a wrong seed.
#[test]
fn pages_that_changed_between_two_messages_are_digested_again() {
    let mut framer = framer(Codec::CrcRev1);
    let mut page = [1; 4096];
    let mut stream = wire(&mut framer, message(OP, 1, &page));
    page[4095] = 2;
    stream.extend(wire(&mut framer, message(OP, 2, &page)));
    let frames = receive(&Options::new(), &stream).unwrap();
    assert_eq!(message_of(&frames, 1).1, &SeenData::Bytes(page.to_vec()));
    let zeros = wire(&mut framer, message(OP, 3, &[0; 4096]));
    assert_eq!(zeros[zeros.len() - 4..], 0x6706_be76_u32.to_le_bytes(), "4096 zeros from seed 0xffffffff");
}

/// By counts: one call, nothing copied, every byte digested once, the caller's own pages.
#[test]
fn a_message_of_1_mib_in_pages_is_one_call_without_a_copy() {
    let memory = vec![5; 512 * 4096];
    // Every other page, so that no two of them touch.
    let pages: Vec<&[u8]> = memory.chunks(4096).step_by(2).collect();
    for codec in CODECS {
        let transport = ScriptedSend::new([]);
        let mut sender = StreamSender::new(&transport);
        let mut out = ChainBuilder::new();
        let front = Bytes::from(vec![1; 212]);
        framer(codec).frame(Message::new(Header::new(OP), front, &pages[..]), &mut out).unwrap();
        let mut message = Outgoing::new(out.finish().unwrap());
        transport.expect_flush(message.len());
        assert_eq!(sender.send(&mut message), Ok(Progress::Done));

        let calls = transport.calls();
        assert_eq!((calls.len(), calls[0].slices.len()), (1, 258));
        let sent: Vec<usize> = calls[0].slices[1..257].iter().map(|slice| slice.0).collect();
        assert_eq!(sent, pages.iter().map(|page| page.as_ptr() as usize).collect::<Vec<_>>());
        let stats = sender.stats();
        assert_eq!((stats.calls, stats.copied, stats.digested), (1, 0, (1 << 20) + 28 + 41 + 212));

        let script = ScriptedRecv::new(&transport.wire(), []);
        let mut receiver = Receiver::new(&script, Deframer::new(&options(codec)));
        assert!(receiver.next(&mut (), None, drop).unwrap().is_some());
        let stats = receiver.stats();
        assert_eq!(stats.digested, (1 << 20) + 212, "each byte of front and data once");
        assert!(stats.copied <= 64 << 10, "at most one read-ahead: {}", stats.copied);
    }
}

#[test]
fn a_message_of_4_mib_is_at_most_4_calls() {
    let memory = vec![5; 2048 * 4096];
    let pages: Vec<&[u8]> = memory.chunks(4096).step_by(2).collect();
    let transport = ScriptedSend::new([]);
    let mut sender = StreamSender::with_options(&transport, SendOptions::new());
    let mut out = ChainBuilder::new();
    let message = Message::new(Header::new(OP), Bytes::from_static(b"front"), &pages[..]);
    framer(Codec::CrcRev1).frame(message, &mut out).unwrap();
    assert_eq!(sender.send(&mut Outgoing::new(out.finish().unwrap())), Ok(Progress::Done));
    assert_eq!(sender.stats().copied, 0);
    assert!(transport.call_count() <= 4);
}

#[test]
fn addresses_that_are_not_known_are_errors_that_name_the_field() {
    let good = control_wire(Codec::CrcRev1, Control::Hello { entity_type: 8, peer: address("1.2.3.4:5", 6) });
    let cases = [(33, "address marker", 33), (40, "address kind", 40), (52, "address family", 52)];
    for (at, name, offset) in cases {
        let mut bad = good.clone();
        bad[at] = 77;
        let right = crc(!0, &bad[32..68]);
        bad[68..].copy_from_slice(&right);
        let expected = Error::Value { tag: 1, field: name, offset, got: 77 };
        assert_eq!(frame_error(&Options::new(), &bad), expected);
        assert_eq!(expected.to_string(), format!("unknown {name} 77 at {offset} of a frame with tag 1"));
    }
}
