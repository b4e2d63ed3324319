//! PDUs: every opcode, every setting of the digests, every bit, every limit.

mod common;

use bytes::Bytes;
use common::*;
use segchain::checksum::{Checksum as _, Crc32c};
use segchain::recv::{Receiver, RecvErrorKind};
use segchain_iscsi::{
    AsyncMessage, Bhs, DataIn, DataOut, Error, Field, Header, LoginRequest, LoginResponse, LogoutRequest,
    LogoutResponse, NO_TAG, NopIn, NopOut, Options, Pdu, PduDeframer, R2t, Reject, ScsiCommand, ScsiResponse,
    TaskRequest, TaskResponse, TextRequest, TextResponse,
};
use segchain_testkit::conformance::{Conformance, TargetTable};
use segchain_testkit::scripted::ScriptedRecv;

const LUN: u64 = 0x4123_0000_0000_0000;
const ITT: u32 = 0x0102_0304;

/// One header of each opcode, every field with another value.
#[rustfmt::skip]
fn headers() -> Vec<Header> {
    let (lun, itt, ttt) = (LUN, ITT, 0x0a0b_0c0d);
    let (cmd_sn, exp_stat_sn) = (0x1122_3344, 0x5566_7788);
    let (stat_sn, exp_cmd_sn, max_cmd_sn) = (0x2132_4354, 0x6576_8798, 0xa9ba_cbdc);
    vec![
        NopOut { immediate: true, lun, itt, ttt, cmd_sn, exp_stat_sn }.into(),
        ScsiCommand { immediate: true, last: true, read: false, write: true, attribute: 5, lun, itt, expected_len: 0xdead_beef, cmd_sn, exp_stat_sn, cdb: *b"sixteen bytes...", }.into(),
        TaskRequest { immediate: true, function: 0x55, lun, itt, referenced_itt: 7, cmd_sn, exp_stat_sn, ref_cmd_sn: 8, exp_data_sn: 9 }.into(),
        LoginRequest { immediate: true, transit: true, more: false, csg: 1, nsg: 3, version_max: 4, version_min: 5, isid: *b"isid..", tsih: 0x0607, itt, cid: 0x0809, cmd_sn, exp_stat_sn }.into(),
        TextRequest { immediate: false, last: true, more: false, lun, itt, ttt, cmd_sn, exp_stat_sn }.into(),
        DataOut { last: true, lun, itt, ttt, exp_stat_sn, data_sn: 5, offset: 0xfedc_ba98 }.into(),
        LogoutRequest { immediate: true, reason: 1, itt, cid: 0x0102, cmd_sn, exp_stat_sn }.into(),
        NopIn { lun, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn }.into(),
        ScsiResponse { bidi_overflow: true, bidi_underflow: false, overflow: false, underflow: true, response: 1, status: 2, itt, snack_tag: 3, stat_sn, exp_cmd_sn, max_cmd_sn, exp_data_sn: 4, bidi_residual: 5, residual: 6 }.into(),
        TaskResponse { response: 255, itt, stat_sn, exp_cmd_sn, max_cmd_sn }.into(),
        LoginResponse { transit: false, more: true, csg: 1, nsg: 0, version_max: 1, version_active: 2, isid: *b"ISID..", tsih: 0x0304, itt, stat_sn, exp_cmd_sn, max_cmd_sn, status_class: 2, status_detail: 7 }.into(),
        TextResponse { last: false, more: true, lun, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn }.into(),
        DataIn { last: true, acknowledge: true, overflow: false, underflow: true, has_status: true, status: 8, lun, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn, data_sn: 1, offset: 2, residual: 3 }.into(),
        LogoutResponse { response: 3, itt, stat_sn, exp_cmd_sn, max_cmd_sn, time_to_wait: 0x0102, time_to_retain: 0x0304 }.into(),
        R2t { lun, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn, r2t_sn: 1, offset: 2, desired_len: 3 }.into(),
        AsyncMessage { lun, stat_sn, exp_cmd_sn, max_cmd_sn, event: 1, vendor_code: 2, parameter1: 3, parameter2: 4, parameter3: 5 }.into(),
        Reject { reason: 9, stat_sn, exp_cmd_sn, max_cmd_sn, data_sn: 7 }.into(),
    ]
}

fn frame_error(options: &Options, bytes: &[u8]) -> Error {
    match receive(options, bytes).unwrap_err().into_kind() {
        RecvErrorKind::Frame(error) => error,
        other => panic!("{other:?}"),
    }
}

/// A header of these lengths, its digest right if it has one.
fn claiming(opcode: u8, ahs_words: u8, data: u32, digest: bool) -> Vec<u8> {
    let mut wire = vec![0; 48 + 4 * usize::from(ahs_words)];
    wire[0] = opcode;
    wire[4..8].copy_from_slice(&(u32::from(ahs_words) << 24 | data).to_be_bytes());
    if digest {
        let mut crc = Crc32c::new();
        crc.update(&wire);
        wire.extend(crc.value().to_le_bytes());
    }
    wire
}

/// RFC 7143 sections 11.9 and 11.17: their tags are reserved, and all ones.
#[test]
fn messages_and_rejects_have_the_tag_that_is_none_whatever_else_is_in_them() {
    for header in headers() {
        let reserved = matches!(header, Header::AsyncMessage(_) | Header::Reject(_));
        assert_eq!(Bhs::from(header).itt() == NO_TAG, reserved, "{header:?}");
    }
}

#[test]
fn every_opcode_comes_back_as_it_was_with_every_setting_of_the_digests() {
    for (header, data) in DIGESTS {
        let options = open(header, data);
        for header in headers() {
            for len in [0, 1, 2, 3, 4, 5, 48, 1023, 1024, 4096, 70_001] {
                let mut pdu = Pdu::new(header, pattern(len).into());
                if len % 2 == 1 {
                    pdu.ahs = Bytes::from_static(b"two words");
                    pdu.ahs.truncate(8);
                }
                let ahs = pdu.ahs.to_vec();
                let pdus = receive(&options, &wire::<Bytes>(&options, pdu)).unwrap();
                assert_eq!(pdus.len(), 1);
                assert_eq!(Header::from(&pdus[0].bhs), header);
                assert_eq!((&pdus[0].ahs, &pdus[0].data), (&ahs, &bytes(&pattern(len))));
                assert_eq!(u64::from(pdus[0].bhs.data_len()), len as u64);
            }
        }
    }
}

/// RFC 7143 section 11: what is not in a header's table is reserved, and sent as 0.
#[test]
fn every_byte_of_a_header_is_a_field_or_reserved() {
    for header in headers() {
        let bhs = Bhs::from(header);
        for bit in 0..8 * Bhs::LEN {
            let mut wire = *bhs.as_bytes();
            wire[bit / 8] ^= 1 << (bit % 8);
            let other = Header::from(&Bhs::from(wire));
            let again = Bhs::from(other);
            // A bit that a field has is written back; one that none has is not.
            let kept = again.as_bytes() == &wire;
            assert!(kept || other == header || wire[0] & 0x3f != bhs.opcode(), "{header:?}, bit {bit}");
        }
    }
}

#[test]
fn an_unknown_opcode_is_a_raw_header_and_can_be_sent_as_one() {
    let options = open(true, true);
    let known: Vec<u8> = headers().into_iter().map(|header| Bhs::from(header).opcode()).collect();
    for opcode in (0..64).filter(|opcode| !known.contains(opcode)) {
        let mut raw: [u8; 48] = std::array::from_fn(|i| i as u8);
        raw[0] = opcode | 0x40;
        let sent = wire(&options, Pdu::new(Header::Other(Bhs::from(raw)), &b"data"[..]));
        let pdus = receive(&options, &sent).unwrap();
        let Header::Other(bhs) = Header::from(&pdus[0].bhs) else { panic!("opcode {opcode:#x}") };
        raw[4..8].copy_from_slice(&[0, 0, 0, 4]); // the lengths are found anew
        assert_eq!((bhs.as_bytes(), bhs.opcode(), bhs.is_immediate()), (&raw, opcode, true));
        assert_eq!(pdus[0].data, bytes(b"data"));
    }
}

/// Four PDUs in one stream, every bit of it under a digest.
#[test]
fn a_stream_with_both_digests_conforms_to_the_last_bit() {
    let options = open(true, true);
    let mut with_ahs = Pdu::new(headers()[1], &b"12345"[..]);
    with_ahs.ahs = Bytes::from_static(b"\0\x05\x01\0ABCD");
    let frames = [
        wire(&options, Pdu::new(headers()[0], &b"ABCDE"[..])),
        wire(&options, with_ahs),
        wire(&options, Pdu::new(headers()[9], ())),
        wire(&options, Pdu::new(headers()[16], &[7; 48][..])),
    ];
    let pieces: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let pdus = Conformance::new(|| PduDeframer::new(&options), &pieces).check(seen);
    assert_eq!(pdus.len(), 4);
    assert_eq!((&pdus[1].ahs[..], &pdus[1].data), (&b"\0\x05\x01\0ABCD"[..], &bytes(b"12345")));
}

#[test]
fn a_stream_with_one_digest_or_none_conforms_where_there_is_something_to_notice() {
    for (header, data) in [(false, false), (true, false), (false, true)] {
        let options = open(header, data);
        let frames = [
            wire(&options, Pdu::new(headers()[0], &b"ABCDE"[..])),
            wire(&options, Pdu::new(headers()[7], &b"four"[..])),
        ];
        let head = if header { 52 } else { 48 };
        let mut uncovered = Vec::new();
        for (start, len) in [(0, 8), (frames[0].len(), 4)] {
            if !header {
                uncovered.push(start..start + 48);
            }
            if !data {
                uncovered.push(start + head..start + head + len);
            }
        }
        let pieces: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let make = || PduDeframer::new(&options);
        let pdus = Conformance::new(make, &pieces).uncovered(&uncovered).check(seen);
        assert_eq!(pdus.len(), 2);
    }
}

#[test]
fn data_in_lands_at_its_offset_in_the_targets_memory() {
    let options = open(true, true);
    let data_in = |offset: u32, data: &[u8]| {
        let header = DataIn { itt: ITT, offset, last: true, ..DataIn::default() };
        wire(&options, Pdu::new(header, data))
    };
    let frames = [data_in(7, b"world"), data_in(0, b"hello, "), data_in(12, b"!")];
    let pieces: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    for slices in [1, 5, 100] {
        let targets = TargetTable::new(&[(ITT.into(), 13)]).scattered(slices);
        let harness = Conformance::new(|| PduDeframer::new(&options), &pieces).targets(targets.clone());
        let pdus = harness.check(seen);
        assert_eq!(pdus[0].data, SeenData::Target { len: 5, whole: true });
        harness.check_take_back(seen, |pdu| {
            let lost = |pdu: &Seen, data| Some(Seen { data, ..pdu.clone() });
            let SeenData::Target { len, .. } = pdu.data else { panic!() };
            let own = pdu.bhs.data_len() as usize;
            let text: &[u8] = match own {
                5 => b"world",
                7 => b"hello, ",
                _ => b"!",
            };
            vec![lost(pdu, SeenData::Target { len, whole: false }), lost(pdu, bytes(text))]
        });
        let mut table = targets;
        receive_into(&options, &frames.concat(), &mut table).unwrap();
        assert_eq!(table.get(ITT.into()), Some(&b"hello, world!"[..]));
    }
}

#[test]
fn data_past_the_end_of_its_target_is_discarded_in_sync_and_that_of_other_tasks_goes_to_slabs() {
    let options = open(false, true);
    let data = |itt, offset| DataOut { itt, offset, ..DataOut::default() };
    let stream = [
        wire(&options, Pdu::new(data(1, 9), &b"12"[..])),
        wire(&options, Pdu::new(data(1, u32::MAX), &b"12"[..])),
        wire(&options, Pdu::new(data(2, 0), &b"12"[..])),
        wire(&options, Pdu::new(data(1, 8), &b"12"[..])),
    ];
    let mut targets = TargetTable::new(&[(1, 10)]);
    let pdus = receive_into(&options, &stream.concat(), &mut targets).unwrap();
    let landed: Vec<_> = pdus.into_iter().map(|pdu| pdu.data).collect();
    let discarded = SeenData::Discarded { len: 2 };
    let target = SeenData::Target { len: 2, whole: true };
    assert_eq!(landed, [discarded.clone(), discarded, bytes(b"12"), target]);
    assert_eq!(targets.get(1), Some(&b"\0\0\0\0\0\0\0\x0012"[..]));
}

/// RFC 7143 section 11.2.3: nothing of a header is believed before its digest is right, but how long it is.
#[test]
fn every_bit_of_a_header_and_of_its_digest_is_a_header_digest_error() {
    let options = Options::new().digests(true, true);
    for ahs in [&b""[..], b"\0\x05\x01\0ABCD"] {
        let mut pdu = Pdu::new(headers()[1], &b"data"[..]);
        pdu.ahs = Bytes::from_static(ahs);
        let good = wire(&options, pdu);
        let header = 48 + ahs.len() + 4;
        // Whatever length the header claims for itself, the bytes are there.
        let stream = [&good[..], &pattern(2000)].concat();
        for bit in 0..8 * header {
            let mut bad = stream.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = frame_error(&options, &bad);
            let ahs_len = 4 * u64::from(bad[4]);
            let Error::Digest { field: Field::Header, offset, expected, got } = error else {
                panic!("bit {bit}: {error}")
            };
            assert_eq!(offset, 48 + ahs_len);
            assert_ne!(expected, got);
        }
        for bit in 8 * header..8 * good.len() {
            let mut bad = stream.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = frame_error(&options, &bad);
            assert!(matches!(error, Error::Digest { field: Field::Data, .. }), "bit {bit}: {error}");
        }
    }
}

#[test]
fn a_wrong_digest_is_told_with_its_place_and_both_values() {
    let options = open(true, true);
    let mut bad = wire(&options, Pdu::new(headers()[0], &b"ABCDE"[..]));
    let carried = u32::from_le_bytes(*bad.last_chunk().unwrap());
    bad[52] ^= 1;
    let error = frame_error(&options, &bad);
    let Error::Digest { field: Field::Data, offset: 60, expected, got } = error else { panic!("{error}") };
    assert_eq!(expected, carried);
    let text = format!("wrong data digest: {carried:#010x} at 60, the bytes give {got:#010x}");
    assert_eq!(error.to_string(), text);
    bad[52] ^= 1;
    bad[8] ^= 1;
    assert!(frame_error(&options, &bad).to_string().starts_with("wrong header digest: 0x"));
}

/// The pad is covered by the data digest (RFC 7143 section 11.2.3), and without one it may be anything.
#[test]
fn the_pad_is_under_the_data_digest() {
    let with = open(false, true);
    let mut pdu = wire(&with, Pdu::new(headers()[0], &b"ABCDE"[..]));
    pdu[54] = 1;
    assert!(matches!(frame_error(&with, &pdu), Error::Digest { field: Field::Data, offset: 56, .. }));
    let without = open(false, false);
    let mut pdu = wire(&without, Pdu::new(headers()[0], &b"ABCDE"[..]));
    pdu[54] = 1;
    assert_eq!(receive(&without, &pdu).unwrap()[0].data, bytes(b"ABCDE"));
}

#[test]
fn lengths_over_their_limits_are_errors_that_name_the_field() {
    let limits = Options::new().max_recv(1000).ahs_limit(8);
    for digest in [false, true] {
        let limits = limits.clone().digests(digest, false);
        let data = |len| frame_error(&limits, &claiming(0x20, 0, len, digest));
        let expected = |len| Error::TooLong { field: Field::Data, offset: 5, len, limit: 1000 };
        assert_eq!(data(1001), expected(1001));
        assert_eq!(data(0xff_ffff), expected(0xff_ffff));
        for words in [3, 255] {
            let expected =
                Error::TooLong { field: Field::Ahs, offset: 4, len: 4 * u64::from(words), limit: 8 };
            assert_eq!(frame_error(&limits, &claiming(0x20, words, 0, digest)), expected);
        }
        assert!(receive(&limits, &claiming(0x20, 2, 0, digest)).is_ok());
    }
    // A wrong digest comes first: the length may be what is wrong.
    let mut wrong = claiming(0x20, 0, 0xff_ffff, true);
    wrong[9] ^= 1;
    let error = frame_error(&limits.digests(true, false), &wrong);
    assert!(matches!(error, Error::Digest { field: Field::Header, .. }));
}

#[test]
fn what_cannot_be_framed_is_refused_and_names_the_field() {
    use segchain::chain::ChainBuilder;
    use segchain::framer::Framer as _;
    let mut framer = segchain_iscsi::PduFramer::new(&Options::new().max_send(1000));
    let mut frame = |ahs: usize, data: usize| {
        let mut pdu = Pdu::new(NopOut::default(), Bytes::from(vec![1; data]));
        pdu.ahs = vec![0; ahs].into();
        framer.frame(pdu, &mut ChainBuilder::new())
    };
    assert_eq!(frame(1020, 1000), Ok(()));
    let too_long = |field, offset, len, limit| Err(Error::TooLong { field, offset, len, limit });
    assert_eq!(frame(0, 1001), too_long(Field::Data, 5, 1001, 1000));
    assert_eq!(frame(1024, 0), too_long(Field::Ahs, 4, 1024, 1020));
    assert_eq!(frame(6, 0), Err(Error::AhsUnaligned { offset: 4, len: 6 }));
    // More than 24 bits is too long whatever the peer says that it takes.
    let mut framer = segchain_iscsi::PduFramer::new(&Options::new().max_send(u32::MAX));
    let zeros = vec![0; 1 << 24];
    let result = framer.frame(Pdu::new(NopOut::default(), &zeros[..]), &mut ChainBuilder::new());
    assert_eq!(result, too_long(Field::Data, 5, 1 << 24, (1 << 24) - 1));
}

#[test]
fn a_claimed_length_takes_no_memory() {
    let peak = |run: &mut dyn FnMut()| allocation_counter::measure(run).bytes_max;
    for digest in [false, true] {
        let heads: Vec<Vec<u8>> = [0x25, 0x05, 0x20, 0x01, 0x24, 0x3f, 0x11]
            .into_iter()
            .flat_map(|opcode| [(0, 0xff_ffff), (255, 0xff_ffff), (255, 0)].map(|(w, l)| (opcode, w, l)))
            .map(|(opcode, words, len)| claiming(opcode, words, len, digest))
            .collect();
        for options in [open(digest, digest), Options::new().digests(digest, digest)] {
            let harness = Conformance::new(|| PduDeframer::new(&options), &[]);
            harness.check_memory(&heads, peak);
            harness.targets(TargetTable::new(&[(0, 10_000)])).check_memory(&heads, peak);
        }
    }
}

#[test]
fn text_over_the_receivers_limit_for_contiguous_bodies_is_refused_before_it_is_allocated() {
    let script = ScriptedRecv::new(&claiming(0x24, 0, 70_000, false), []);
    let mut receiver = Receiver::new(&script, PduDeframer::new(&open(false, false)));
    let error = receiver.next(&mut (), None, seen).unwrap_err();
    assert!(matches!(error.kind(), RecvErrorKind::BodyTooLong { len: 70_000, limit: 65_536 }), "{error}");
}

#[test]
fn the_end_of_the_stream_names_what_was_to_come() {
    let options = open(true, true);
    let pdu = wire(&options, Pdu::new(headers()[0], &b"ABCDE"[..]));
    for end in 1..pdu.len() {
        let expected = match end {
            0..52 => "header",
            52..57 => "data",
            _ => "pad and data digest",
        };
        match receive(&options, &pdu[..end]).unwrap_err().into_kind() {
            RecvErrorKind::UnexpectedEof { field, .. } => assert_eq!(field, expected, "after {end}"),
            other => panic!("{other:?} after {end}"),
        }
    }
}

/// Digests begin in the middle of a stream: what was read ahead of the change is for the new deframer.
#[test]
fn bytes_read_ahead_of_the_login_s_end_are_taken_apart_with_digests() {
    let (before, after) = (open(false, false), open(true, true));
    let stream = [
        wire(&before, Pdu::new(LoginResponse::default(), &b"HeaderDigest=CRC32C\0"[..])),
        wire(&after, Pdu::new(headers()[7], &b"ABCDE"[..])),
    ]
    .concat();
    let script = ScriptedRecv::new(&stream, []);
    let mut receiver = Receiver::new(&script, PduDeframer::new(&before));
    assert!(receiver.next(&mut (), None, seen).unwrap().is_some());
    let mut receiver = receiver.replace(PduDeframer::new(&after)).unwrap();
    assert_eq!(receiver.next(&mut (), None, seen).unwrap().unwrap().data, bytes(b"ABCDE"));
    assert_eq!(script.call_count(), 1);
}
