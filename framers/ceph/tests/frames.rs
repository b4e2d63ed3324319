//! Messages and control frames: every part, every option, every error.

mod common;

use std::ops::ControlFlow;

use bytes::Bytes;
use common::{Seen, SeenData, control_wire, header_wire, message, receive, receive_into, seen, wire};
use segchain::chain::{ChainBuilder, Outgoing, Revoked};
use segchain::framer::Framer as _;
use segchain::recv::{Received, Receiver, RecvError, RecvErrorKind, RecvOptions};
use segchain::send::{Progress, SendOptions, StreamSender};
use segchain::slab::{ALIGN, SlabPool};
use segchain_ceph::osd::{OP, OP_REPLY};
use segchain_ceph::v1::{Control, Deframer, Error, Field, Frame, Framer, Options, Stamp};
use segchain_ceph::{Data, Message, features};
use segchain_testkit::conformance::{Conformance, TargetTable};
use segchain_testkit::scripted::{RecvStep, ScriptedRecv, ScriptedSend, SendStep};

const TID: u64 = 0x77;

fn options() -> Options {
    Options::new()
}

fn framer() -> Framer {
    Framer::new(&options())
}

fn message_of(frames: &[Seen], index: usize) -> (u64, &SeenData, Option<u64>) {
    match &frames[index] {
        Seen::Message { seq, data, signature, .. } => (*seq, data, *signature),
        Seen::Control(control) => panic!("{control:?}"),
    }
}

fn frame_error(options: &Options, bytes: &[u8]) -> Error {
    match receive(options, bytes).unwrap_err().into_kind() {
        RecvErrorKind::Frame(error) => error,
        other => panic!("{other:?}"),
    }
}

/// Frames of every kind in one stream, 139 bytes: all pairs of cuts are tried.
#[test]
fn every_cut_truncation_and_flipped_bit_of_a_mixed_stream() {
    let mut framer = framer();
    let frames = [
        control_wire(Control::Ack(0x0101_0101_0101_0101)),
        wire(&mut framer, message(OP, TID, b"payload")),
        control_wire(Control::Keepalive),
        wire(&mut framer, Message::new(segchain_ceph::Header::new(4), Bytes::new(), ())),
        control_wire(Control::Keepalive2Ack(Stamp::new(1, 2))),
        control_wire(Control::Close),
    ];
    let pieces: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let first = 9 + 54 + 15;
    let second = first + 21 + 1 + 54;
    let end = second + 21;
    let uncovered = [
        0..9,                     // ack: no checksum at all; its tag is one bit from Keepalive
        first + 12..first + 21,   // signature and flags
        first + 21..first + 22,   // the tag of Keepalive is one bit from Ack
        second + 12..second + 21, // signature and flags
        end..end + 10,            // keepalive and close: no checksum
    ];
    let make = || Deframer::new(&options());
    let seen = Conformance::new(make, &pieces).uncovered(&uncovered).check(seen);
    assert_eq!(seen.len(), 6);
    assert_eq!(message_of(&seen, 1).0, 1);
    assert_eq!(message_of(&seen, 3), (2, &SeenData::Bytes(vec![]), None));
}

#[test]
fn a_claimed_length_takes_no_memory() {
    let huge = [i32::MAX as u32, u32::MAX];
    let mut heads: Vec<Vec<u8>> = Vec::new();
    for len in huge {
        heads.extend([[len, 0, 0], [0, len, 0], [0, 0, len], [len; 3]].map(|lens| header_wire(OP, lens)));
        heads.push(header_wire(OP_REPLY, [0, 0, len]));
    }
    let peak = |run: &mut dyn FnMut()| allocation_counter::measure(run).bytes_max;
    // Once with our own limits, and once with none but the receiver's.
    let open = options().front_limit(u32::MAX).middle_limit(u32::MAX).data_limit(u32::MAX);
    for options in [options(), open] {
        Conformance::new(|| Deframer::new(&options), &[]).check_memory(&heads, peak);
    }
}

#[test]
fn lengths_over_their_limits_are_errors_that_name_the_field() {
    let limits = options().front_limit(10).middle_limit(20).data_limit(30);
    let cases = [
        ([11, 20, 30], Field::Front, 23, 11, 10),
        ([10, u32::MAX, 30], Field::Middle, 27, u32::MAX, 20),
        ([10, 20, i32::MAX as u32], Field::Data, 31, i32::MAX as u32, 30),
    ];
    for (lens, field, offset, len, limit) in cases {
        let (len, limit) = (len.into(), limit);
        let expected = Error::TooLong { field, offset, len, limit };
        assert_eq!(frame_error(&limits, &header_wire(OP, lens)), expected);
    }
    let mut framer = framer();
    let fits = wire(&mut framer, message(OP, 1, &[1; 30]));
    assert!(receive(&limits, &fits).is_ok());
}

#[test]
fn a_front_over_the_receivers_limit_for_contiguous_bodies_is_refused_before_it_is_allocated() {
    let script = ScriptedRecv::new(&header_wire(41, [70_000, 0, 0]), []);
    let mut receiver = Receiver::new(&script, Deframer::new(&options()));
    let error = receiver.next(&mut (), None, seen).unwrap_err();
    assert!(matches!(error.kind(), RecvErrorKind::BodyTooLong { len: 70_000, limit: 65_536 }), "{error}");
}

#[test]
fn a_wrong_checksum_names_its_part_and_place() {
    let good = wire(&mut framer(), message(OP, 1, b"payload"));
    let (front, footer) = (54, 54 + 5 + 3 + 7);
    let cases = [
        (9, Field::Header, 50),
        (front, Field::Front, footer),
        (front + 5, Field::Middle, footer + 4),
        (front + 8, Field::Data, footer + 8),
    ];
    for (at, field, offset) in cases {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let carried = u32::from_le_bytes(good[offset..offset + 4].try_into().unwrap());
        match frame_error(&options(), &bad) {
            Error::Crc { field: f, offset: o, expected, got } => {
                assert_eq!((f, o, expected), (field, offset as u64, carried));
                assert_ne!(got, carried);
            }
            other => panic!("{other:?}"),
        }
    }
    let text = frame_error(&options(), &[&good[..57], b"X", &good[58..]].concat()).to_string();
    assert!(
        text.starts_with("wrong crc of the front: 0x") && text.contains(" at 69, the bytes give 0x"),
        "{text}"
    );
}

#[test]
fn an_unknown_tag_is_an_error() {
    for tag in (0..=255).filter(|tag| ![6, 7, 8, 9, 14, 15].contains(tag)) {
        assert_eq!(frame_error(&options(), &[tag]), Error::Tag { got: tag });
    }
}

#[test]
fn the_end_of_the_stream_names_what_was_to_come() {
    let bytes = wire(&mut framer(), message(OP, 1, b"payload"));
    let expected = |end: usize| match end {
        0..54 => "header",
        54..59 => "front",
        59..62 => "middle",
        62..69 => "data",
        _ => "footer",
    };
    for end in 1..bytes.len() {
        match receive(&options(), &bytes[..end]).unwrap_err().into_kind() {
            RecvErrorKind::UnexpectedEof { field, .. } => assert_eq!(field, expected(end), "after {end}"),
            other => panic!("{other:?} after {end}"),
        }
    }
}

/// A footer without COMPLETE: an osd closes (measured), an old one skips the message.
#[test]
fn a_message_that_its_sender_gave_up_is_an_error_or_skipped() {
    let mut framer = framer();
    let mut given_up = wire(&mut framer, message(OP, 1, b"payload"));
    let flags = given_up.len() - 1;
    given_up[flags] = 0;
    given_up[62] ^= 1; // what was to be data is zeros or worse
    assert_eq!(frame_error(&options(), &given_up), Error::Incomplete { offset: flags as u64, got: 0 });

    let next = wire(&mut framer, message(OP, 2, b"next"));
    let frames = receive(&options().skip_incomplete(true), &[given_up, next].concat()).unwrap();
    assert_eq!(frames.len(), 1);
    assert_eq!(message_of(&frames, 0).0, 2);
}

/// Linux libceph tracker 4450: what is sent in place of revoked data must fit the checksums already counted.
#[test]
fn a_revoked_message_is_dropped_by_a_peer_that_skips_it_wherever_it_was_cut() {
    let data = [7; 64];
    let skipping = options().peer_skips_incomplete(true).skip_incomplete(true);
    let len = wire(&mut framer(), message(OP, 1, &data)).len() as u64;
    for cut in 1..len {
        let transport = ScriptedSend::new([SendStep::Accept(cut as usize), SendStep::Again]);
        let mut sender = StreamSender::new(&transport);
        let mut framer = Framer::new(&skipping);
        let mut out = ChainBuilder::new();
        framer.frame(message(OP, 1, &data), &mut out).unwrap();
        let mut half = Outgoing::new(out.finish().unwrap());
        assert!(matches!(sender.send(&mut half), Ok(Progress::Blocked(_))));
        let Revoked::AbortedOnWire(mut rest) = half.revoke() else { panic!("cut at {cut}") };
        assert_eq!(sender.send(&mut rest), Ok(Progress::Done));
        let mut out = ChainBuilder::new();
        framer.frame(message(OP, 2, b"next"), &mut out).unwrap();
        assert_eq!(sender.send(&mut Outgoing::new(out.finish().unwrap())), Ok(Progress::Done));

        let frames = receive(&skipping, &transport.wire()).unwrap();
        assert_eq!(frames.len(), 1, "cut at {cut}");
        assert_eq!(message_of(&frames, 0), (2, &SeenData::Bytes(b"next".to_vec()), None));
    }
}

#[test]
fn a_message_to_a_peer_that_closes_on_incomplete_ones_must_close() {
    let transport = ScriptedSend::new([SendStep::Accept(10), SendStep::Again]);
    let mut sender = StreamSender::new(&transport);
    let mut out = ChainBuilder::new();
    // Not copied: what is copied is finished instead, for nothing of the caller's is left.
    framer().frame(message(OP, 1, &[7; 2000]), &mut out).unwrap();
    let mut half = Outgoing::new(out.finish().unwrap());
    assert!(matches!(sender.send(&mut half), Ok(Progress::Blocked(_))));
    assert!(matches!(half.revoke(), Revoked::MustClose { sent: 10 }));
}

/// ceph PR 28913: with checksums of data off they are sent as 0 and not looked at; with them on, 0 is one like any other.
#[test]
fn data_without_checksum_is_accepted_and_a_checksum_of_0_is_checked() {
    let off = options().crc_data(false);
    let mut nocrc = wire(&mut Framer::new(&off), message(OP, 1, b"payload"));
    let (footer, end) = (69, nocrc.len());
    assert_eq!((&nocrc[footer + 8..footer + 12], nocrc[end - 1]), (&[0; 4][..], 3));
    assert_ne!(nocrc[50..54], [0; 4]);
    assert_ne!(nocrc[footer..footer + 4], [0; 4]);
    nocrc[62] ^= 1; // nobody can notice
    for receiver in [&options(), &off] {
        assert!(receive(receiver, &nocrc).is_ok());
    }
    let mut bad = nocrc.clone();
    bad[54] ^= 1;
    assert!(matches!(frame_error(&off, &bad), Error::Crc { field: Field::Front, .. }));
    bad[54] ^= 1;
    bad[end - 1] = 1; // says that there is a checksum, and it is 0
    assert!(matches!(frame_error(&options(), &bad), Error::Crc { field: Field::Data, expected: 0, .. }));
    assert!(receive(&off, &bad).is_ok(), "a receiver with checks of data off does not look");

    // From seed 0 the checksum of zeros is 0.
    let zeros = wire(&mut framer(), message(OP, 1, &[0; 7]));
    assert_eq!(zeros[footer + 8..footer + 12], [0; 4]);
    assert!(receive(&options(), &zeros).is_ok());
}

#[test]
fn all_checksums_off_are_four_zeros() {
    let off = options().crc_data(false).crc_header(false);
    let bytes = wire(&mut Framer::new(&off), message(OP, 1, b"payload"));
    assert_eq!((&bytes[50..54], &bytes[69..81], bytes[bytes.len() - 1]), (&[0; 4][..], &[0; 12][..], 3));
    assert!(receive(&off, &bytes).is_ok());
    assert!(matches!(
        frame_error(&options(), &bytes),
        Error::Crc { field: Field::Header, offset: 50, expected: 0, .. }
    ));
}

#[test]
fn a_peer_without_msg_auth_uses_the_short_footer() {
    let short = options().features(features::OFFERED & !features::MSG_AUTH);
    let mut framer = Framer::new(&short);
    let bytes =
        [wire(&mut framer, message(OP, 1, b"payload")), wire(&mut framer, message(OP, 2, b""))].concat();
    assert_eq!(bytes.len(), 54 + 15 + 13 + 54 + 8 + 13);
    let frames = receive(&short, &bytes).unwrap();
    assert_eq!(message_of(&frames, 0), (1, &SeenData::Bytes(b"payload".to_vec()), None));
    let make = || Deframer::new(&short);
    let flags = 81..82;
    Conformance::new(make, &[&bytes[..82]]).uncovered(std::slice::from_ref(&flags)).check(seen);
}

/// Ceph tracker 24836: the signature belongs to the authentication and passes through here untouched.
#[test]
fn a_signature_is_carried_as_it_is() {
    let mut signed = message(OP, 1, b"payload");
    signed.signature = Some(0x0102_0304_0506_0708);
    let bytes = wire(&mut framer(), signed);
    assert_eq!(bytes[81..], [8, 7, 6, 5, 4, 3, 2, 1, 5]);
    assert_eq!(message_of(&receive(&options(), &bytes).unwrap(), 0).2, Some(0x0102_0304_0506_0708));
}

/// ceph PR 9456.
#[test]
fn sequence_numbers_go_on_past_32_bits() {
    let before = u64::from(u32::MAX) - 1;
    let mut framer = Framer::resume(&options(), before);
    let bytes: Vec<u8> = (1..=3).flat_map(|tid| wire(&mut framer, message(OP, tid, b""))).collect();
    assert_eq!(framer.last_seq(), 0x1_0000_0001);
    assert!(framer.check_ack(0x1_0000_0001).is_ok());

    let script = ScriptedRecv::new(&bytes, []);
    let mut receiver = Receiver::new(&script, Deframer::resume(&options(), before));
    let mut seqs = Vec::new();
    let _ = receiver
        .receive(&mut (), |frame| {
            seqs.push(message_of(&[seen(frame)], 0).0);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seqs, [0xffff_ffff, 0x1_0000_0000, 0x1_0000_0001]);
    assert_eq!(receiver.deframer().last_seq(), 0x1_0000_0001);
    let ack = control_wire(Control::Ack(0x1_0000_0001));
    assert_eq!(receive(&options(), &ack).unwrap(), [Seen::Control(Control::Ack(0x1_0000_0001))]);
}

/// ceph PR 2886: what was acknowledged is not taken twice, and what was not sent cannot be acknowledged.
#[test]
fn duplicates_are_dropped_gaps_are_accepted_and_acks_beyond_are_errors() {
    let mut framer = framer();
    let sent: Vec<Vec<u8>> = (1..=9).map(|tid| wire(&mut framer, message(OP, tid, b"data"))).collect();
    let order = [1, 2, 2, 1, 5, 3, 6];
    let bytes: Vec<u8> = order.iter().flat_map(|seq| sent[seq - 1].clone()).collect();
    let frames = receive(&options(), &bytes).unwrap();
    let seqs: Vec<u64> = (0..frames.len()).map(|index| message_of(&frames, index).0).collect();
    assert_eq!(seqs, [1, 2, 5, 6]);
    assert_eq!(framer.check_ack(9), Ok(()));
    assert_eq!(framer.check_ack(10), Err(Error::AckBeyond { sent: 9, got: 10 }));
}

/// The framer is in a queue, and nobody can ask it.
#[test]
fn a_paired_deframer_checks_acks_by_itself() {
    let mut framer = framer();
    for (sent, acked) in [(0, 0), (0, 1), (2, 1), (2, 2), (2, 3), (2, u64::MAX)] {
        while framer.last_seq() < sent {
            wire(&mut framer, message(OP, 1, b"data"));
        }
        let script = ScriptedRecv::new(&control_wire(Control::Ack(acked)), []);
        let mut receiver = Receiver::new(&script, Deframer::new(&options()).paired(&framer));
        let received = receiver.receive(&mut (), |_| ControlFlow::Continue(())).map_err(RecvError::into_kind);
        match received {
            Ok(_) => assert!(acked <= sent),
            Err(RecvErrorKind::Frame(error)) => assert_eq!(error, Error::AckBeyond { sent, got: acked }),
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_duplicate_does_not_touch_the_target_of_its_tid() {
    let mut framer = framer();
    let first = wire(&mut framer, message(OP_REPLY, TID, b"first"));
    let mut targets = TargetTable::new(&[(TID, 5)]);
    receive_into(&options(), &first, &mut targets).unwrap();
    let script = ScriptedRecv::new(&first, []);
    let mut receiver = Receiver::new(&script, Deframer::resume(&options(), 1));
    let mut again = TargetTable::new(&[(TID, 5)]);
    let received = receiver.receive(&mut again, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((received, receiver.deframer().duplicates()), (Received::Eof, 1));
    assert_eq!((targets.get(TID), again.get(TID)), (Some(&b"first"[..]), Some(&[0; 5][..])));
}

#[test]
fn a_failed_frame_spends_no_number() {
    let mut framer = framer();
    let mut out = ChainBuilder::new();
    let foreign = ChainBuilder::new().put(b"x");
    out.patch(foreign, b"y");
    assert!(matches!(framer.frame(message(OP, 1, b""), &mut out), Err(Error::Chain(_))));
    assert_eq!(framer.last_seq(), 0);

    let mut too_long = ChainBuilder::new();
    let result =
        framer.frame(Message::new(segchain_ceph::Header::new(1), Bytes::new(), Zeros), &mut too_long);
    let (field, offset, len, limit) = (Field::Data, 31, 1 << 32, u32::MAX.into());
    assert_eq!(result, Err(Error::TooLong { field, offset, len, limit }));
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
fn read_data_lands_in_the_target_of_its_tid_and_survives_a_take_back_at_every_byte() {
    let mut framer = framer();
    let mut reply = wire(&mut framer, message(OP_REPLY, TID, &[0xaa; 40]));
    reply.extend(wire(&mut framer, message(OP_REPLY, TID + 1, b"in slabs")));
    for slices in [usize::MAX, 16, 1] {
        let targets = TargetTable::new(&[(TID, 40)]).scattered(slices);
        let make = || Deframer::new(&options());
        let check = Conformance::new(make, &[&reply]).targets(targets);
        let frames = check.check_cuts_only(seen);
        assert_eq!(message_of(&frames, 0).1, &SeenData::Target { len: 40, whole: true });
        assert_eq!(message_of(&frames, 1).1, &SeenData::Bytes(b"in slabs".to_vec()));
        check.check_take_back(seen, |frame| match frame.clone() {
            Seen::Message { seq, header, front, middle, signature, data: SeenData::Target { len, .. } } => {
                // Before its data is reached there is no target at all: slabs.
                let other = |data| Seen::Message {
                    seq,
                    header,
                    front: front.clone(),
                    middle: middle.clone(),
                    data,
                    signature,
                };
                let data = [SeenData::Target { len, whole: false }, SeenData::Bytes(vec![0xaa; 40])];
                data.map(|data| Some(other(data))).to_vec()
            }
            _ => vec![],
        });
    }
}

#[test]
fn a_target_too_small_or_missing_means_discard_in_sync() {
    let mut framer = framer();
    let stream = [
        wire(&mut framer, message(OP_REPLY, 1, &[1; 10])), // fits with room to spare
        wire(&mut framer, message(OP_REPLY, 2, &[2; 10])), // one byte too small
        wire(&mut framer, message(OP_REPLY, 3, &[3; 10])), // nobody waits
        wire(&mut framer, message(41, 1, &[4; 10])),       // not a reply: its tid means nothing to us
    ]
    .concat();
    let table = || TargetTable::new(&[(1, 12), (2, 9)]);
    let mut targets = table();
    let frames = receive_into(&options(), &stream, &mut targets).unwrap();
    let data: Vec<&SeenData> = (0..4).map(|index| message_of(&frames, index).1).collect();
    assert_eq!(data[0], &SeenData::Target { len: 10, whole: true });
    assert_eq!(data[1], &SeenData::Discarded { len: 10 });
    assert_eq!(data[2], &SeenData::Bytes(vec![3; 10]));
    assert_eq!(data[3], &SeenData::Bytes(vec![4; 10]));
    assert_eq!(targets.get(1).unwrap(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    assert_eq!(targets.get(2).unwrap(), [0; 9]);

    let strict = options().discard_unexpected(true);
    let frames = receive_into(&strict, &stream, &mut table()).unwrap();
    assert_eq!(message_of(&frames, 2).1, &SeenData::Discarded { len: 10 });
    assert_eq!(message_of(&frames, 3).1, &SeenData::Bytes(vec![4; 10]));
    let none = receive_into(&options().reply_kind(None), &stream, &mut table()).unwrap();
    assert_eq!(message_of(&none, 0).1, &SeenData::Bytes(vec![1; 10]));
}

/// Discarded data is checked as well, and so is a target that is used again (ceph PR 26552: a checksum cached over a
/// buffer that was used again).
#[test]
fn wrong_data_is_found_wherever_it_lands() {
    let mut framer = framer();
    let good = wire(&mut framer, message(OP_REPLY, 1, &[1; 10]));
    let mut bad = wire(&mut framer, message(OP_REPLY, 1, &[2; 10]));
    bad[62] ^= 0x80;
    let stream = [good, bad].concat();
    for room in [10, 9, 0] {
        let mut targets = TargetTable::new(&[(1, room)]);
        let error = receive_into(&options(), &stream, &mut targets).unwrap_err();
        assert!(
            matches!(error.kind(), RecvErrorKind::Frame(Error::Crc { field: Field::Data, .. })),
            "room {room}: {error}"
        );
    }
    assert!(receive_into(&options(), &stream, &mut ()).is_err());
}

/// ceph PRs 18475 and 41143: an alignment from the wire goes neither into an allocation's size nor into its layout.
#[test]
fn data_lies_where_in_a_page_its_sender_wants_it() {
    for data_off in [0, 1, 7, 4095, 4096, 4097, 65535] {
        for len in [1, 4096, 70_000] {
            let data: Vec<u8> = (0..len).map(|i: u32| i as u8).collect();
            let mut aligned = message(OP, 1, &data);
            aligned.header.data_off = data_off;
            let script = ScriptedRecv::new(&wire(&mut framer(), aligned), []);
            let mut receiver = Receiver::new(&script, Deframer::new(&options()));
            let frame = receiver.next(&mut (), None, |frame| frame).unwrap();
            let Some(Frame::Message(message)) = frame else { panic!("{frame:?}") };
            let Data::Slabs(slabs) = message.data else { panic!("{:?}", message.data) };
            let first = slabs.parts().next().unwrap();
            assert_eq!(first.as_ptr() as usize % ALIGN, usize::from(data_off) % ALIGN);
            assert_eq!(slabs.parts().collect::<Vec<_>>().concat(), data);
        }
    }
}

/// ceph PR 6971: bytes of a header at hand and an empty socket are one call, not a loop.
#[test]
fn a_part_of_a_header_and_an_empty_socket_is_one_call() {
    let bytes = wire(&mut framer(), message(OP, 1, b"payload"));
    let script = ScriptedRecv::new(&bytes[..10], []).end(RecvStep::Again);
    let mut receiver = Receiver::new(&script, Deframer::new(&options()));
    let go_on = |_: Frame| ControlFlow::Continue(());
    assert_eq!(receiver.receive(&mut (), go_on).unwrap(), Received::Blocked);
    let calls = script.call_count();
    assert_eq!(receiver.receive(&mut (), go_on).unwrap(), Received::Blocked);
    assert_eq!(script.call_count(), calls + 1);
}

/// ceph PR 31876, and Linux libceph tracker 4598 for data that ends with a page.
#[test]
fn parts_of_no_bytes_and_of_whole_pages() {
    for (front, middle, data) in [(0, 0, 0), (0, 0, 4096), (0, 7, 0), (5, 0, 8192), (70_000, 3, 65536)] {
        let bytes = vec![9; data];
        let mut message = message(OP, 1, &bytes);
        message.front = vec![1; front].into();
        message.middle = vec![2; middle].into();
        let expected = (message.front.clone(), message.middle.clone());
        let frames = receive(&options(), &wire(&mut framer(), message)).unwrap();
        let Seen::Message { front, middle, data, .. } = &frames[0] else { panic!() };
        assert_eq!(((front, middle), data), ((&expected.0, &expected.1), &SeenData::Bytes(bytes)));
    }
}

/// ceph PRs 3764 and 15017: a checksum that outlives a change of its buffer. Each frame digests the bytes as they are.
#[test]
fn pages_that_changed_between_two_messages_are_digested_again() {
    let mut framer = framer();
    let mut page = [1; 4096];
    let mut stream = wire(&mut framer, message(OP, 1, &page));
    page[4095] = 2;
    stream.extend(wire(&mut framer, message(OP, 2, &page)));
    let frames = receive(&options(), &stream).unwrap();
    assert_eq!(message_of(&frames, 1).1, &SeenData::Bytes(page.to_vec()));
}

/// ceph PRs 26965 and 28453: receive state of one connection in the next. A deframer is for one connection, and cannot be
/// changed in the middle of a frame.
#[test]
fn a_connection_that_ends_anywhere_leaves_nothing_to_the_next() {
    let bytes = wire(&mut framer(), message(OP, 1, b"payload"));
    for end in 1..bytes.len() {
        let script = ScriptedRecv::new(&bytes[..end], []).end(RecvStep::Again);
        let mut receiver = Receiver::new(&script, Deframer::new(&options()));
        assert_eq!(receiver.receive(&mut (), |_| ControlFlow::Continue(())).unwrap(), Received::Blocked);
        let inside = !receiver.is_between_frames();
        // Before its header is whole nothing of a message was used, and the bytes are there for another deframer.
        assert_eq!((inside, receiver.replace(Deframer::new(&options())).is_err()), (end >= 54, end >= 54));
    }
    assert_eq!(receive(&options(), &bytes).unwrap().len(), 1);
}

/// By counts: one call, nothing copied, every byte digested once, the caller's own pages.
#[test]
fn a_message_of_1_mib_in_pages_is_one_call_without_a_copy() {
    let memory = vec![5; 512 * 4096];
    // Every other page, so that no two of them touch.
    let pages: Vec<&[u8]> = memory.chunks(4096).step_by(2).collect();
    let transport = ScriptedSend::new([]);
    let mut sender = StreamSender::new(&transport);
    let mut out = ChainBuilder::new();
    let front = Bytes::from(vec![1; 212]);
    framer().frame(Message::new(segchain_ceph::Header::new(OP), front, &pages[..]), &mut out).unwrap();
    let mut message = Outgoing::new(out.finish().unwrap());
    transport.expect_flush(message.len());
    assert_eq!(sender.send(&mut message), Ok(Progress::Done));

    let calls = transport.calls();
    assert_eq!((calls.len(), calls[0].slices.len()), (1, 258));
    let sent: Vec<usize> = calls[0].slices[1..257].iter().map(|slice| slice.0).collect();
    assert_eq!(sent, pages.iter().map(|page| page.as_ptr() as usize).collect::<Vec<_>>());
    let stats = sender.stats();
    assert_eq!((stats.calls, stats.copied, stats.digested), (1, 0, (1 << 20) + 212 + 49));

    let script = ScriptedRecv::new(&transport.wire(), []);
    let options = RecvOptions::new();
    let mut receiver =
        Receiver::with_options(&script, Deframer::new(&self::options()), options, SlabPool::default());
    assert!(receiver.next(&mut (), None, drop).unwrap().is_some());
    let stats = receiver.stats();
    assert_eq!(stats.digested, (1 << 20) + 212, "each byte of front and data once");
    assert!(stats.copied <= 64 << 10, "at most one read-ahead: {}", stats.copied);
}

#[test]
fn a_message_of_4_mib_is_4_calls_while_it_is_sealed_and_2_when_it_is() {
    let memory = vec![5; 2048 * 4096];
    let pages: Vec<&[u8]> = memory.chunks(4096).step_by(2).collect();
    let calls = |options: &Options, windows: SendOptions| {
        let transport = ScriptedSend::new([]);
        let mut sender = StreamSender::with_options(&transport, windows);
        let mut out = ChainBuilder::new();
        let message = Message::new(segchain_ceph::Header::new(OP), Bytes::from_static(b"front"), &pages[..]);
        Framer::new(options).frame(message, &mut out).unwrap();
        assert_eq!(sender.send(&mut Outgoing::new(out.finish().unwrap())), Ok(Progress::Done));
        assert_eq!(sender.stats().copied, 0);
        transport.call_count()
    };
    assert!(calls(&options(), SendOptions::new()) <= 4);
    let off = options().crc_data(false).crc_header(false);
    assert_eq!(calls(&off, SendOptions::new()), 2);
}
