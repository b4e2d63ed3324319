//! Records in and out: fragments cut anywhere, limits, other protocols, sizes at the borders.

mod support;

use segchain::framer::Framer;
use segchain_oncrpc::{CONTIGUOUS, Direction, Error, Layout, Message, Pending, RecordDeframer, RecordFramer};
use support::*;

fn call(xid: u32, args: &[u8]) -> Vec<u8> {
    let mut message = words(&[xid, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]);
    message.extend_from_slice(args);
    message
}

fn only(outcome: Outcome) -> Seen {
    outcome.end.as_ref().unwrap();
    assert!(outcome.dropped.is_empty(), "{:?}", outcome.dropped);
    let [record] = outcome.records.try_into().unwrap();
    record
}

/// Vaiz/nfs3 issue 152: an assertion that the last-fragment bit is set.
#[test]
fn a_reply_in_1_2_3_or_513_fragments_is_the_same_record() {
    let mut message = words(&[7, 1, 0, 0, 0, 0]);
    message.extend(pattern(5000));
    for fragments in [1, 2, 3, 513] {
        let wire = cut_evenly(&message, message.len().div_ceil(fragments));
        let pending = Pending::new();
        pending.expect(7, Layout::Whole).unwrap();
        let record = only(receive(Wire::pieces([&*wire]), RecordDeframer::new(pending), &mut ()));
        assert_eq!((record.xid, record.direction, record.bytes == message), (7, Direction::Reply, true));
        assert!(record.fragments.abs_diff(fragments as u32) <= 10, "{}", record.fragments);
    }
}

/// libnfs issue 425: a marker read in two parts overwrote its first bytes.
#[test]
fn a_stream_cut_at_any_two_places_gives_the_same_records() {
    let mut wire = cut(&call(1, &[]), &[]);
    wire.extend(cut(&call(2, b"abcd"), &[1, 3, 9, 0, 5]));
    let expected = receive(Wire::pieces([&*wire]), server(), &mut ()).records;
    assert_eq!(expected.iter().map(|record| record.xid).collect::<Vec<_>>(), [1, 2]);
    for a in 0..wire.len() {
        for b in a..wire.len() {
            let got = receive(Wire::pieces([&wire[..a], &wire[a..b], &wire[b..]]), server(), &mut ());
            assert_eq!(got.records, expected, "cut at {a} and {b}");
        }
    }
    let got = receive(Wire::pieces(wire.chunks(1)), server(), &mut ());
    assert_eq!(got.records, expected);
}

/// libevpl issue 49, FreeBSD 4302e8b67195, beats issue 40206, libnfs issue 571, unfs3 issue 56: only single fragments.
#[test]
fn fragments_of_mixed_sizes_and_an_empty_last_one_are_one_record() {
    let message = call(9, &pattern(70_000));
    let wire = cut(&message, &[1, 4, 1023, 65_536, message.len() - 66_564]);
    assert!(wire.ends_with(&[0x80, 0, 0, 0]));
    for piece in [1, 7, 1000, 65_536, wire.len()] {
        let record = only(receive(Wire::pieces(wire.chunks(piece)), server(), &mut ()));
        assert_eq!((record.fragments, record.bytes == message), (6, true), "pieces of {piece}");
    }
}

#[test]
fn every_single_cut_of_a_message_into_two_fragments_is_the_same_record() {
    for len in [8, 40, CONTIGUOUS - 1, CONTIGUOUS, CONTIGUOUS + 1] {
        let message = &call(3, &pattern(len))[..len];
        for at in 0..=len {
            let record = only(receive(Wire::pieces([&*cut(message, &[at])]), server(), &mut ()));
            assert_eq!((record.fragments, record.bytes == message), (2, true), "{len} cut at {at}");
        }
    }
}

/// libevpl issue 77, ntirpc issue 306: tables of fixed size for fragments.
#[test]
fn a_record_of_1_mib_may_come_in_thousands_of_fragments() {
    let message = call(5, &pattern(1 << 20));
    for fragments in [513, 1025, 5000] {
        let wire = cut_evenly(&message, message.len().div_ceil(fragments));
        let record = only(receive(Wire::pieces(wire.chunks(100_000)), server(), &mut ()));
        assert!(record.fragments >= fragments as u32 - 30 && record.bytes == message);
    }
}

/// libnfs issue 158 (a loop on a PDU of 0 bytes), and snort rule 106-5: daemons that hang on fragments of no bytes.
#[test]
fn an_empty_record_is_an_error_and_so_is_one_below_8_bytes() {
    for (wire, offset, got) in [
        (words(&[0x8000_0000]), 0, 0),
        (words(&[0x8000_0004, 1]), 0, 4),
        (words(&[0x0000_0004, 1, 0x8000_0000]), 8, 4),
        (words(&[0, 0, 0x8000_0000]), 8, 0),
    ] {
        let error = receive(Wire::pieces([&*wire]), server(), &mut ()).error();
        assert_eq!(error, Error::RecordTooShort { offset, expected: 8, got });
    }
}

/// libnfs issue 158 again: a peer that never stops does not keep the turn.
#[test]
fn one_receive_reads_no_more_than_its_budget() {
    let wire = cut(&call(1, &[]), &[]).repeat(1000);
    let options = segchain::recv::RecvOptions::new().turn_bytes(440);
    let outcome = receive_with(Wire::pieces(wire.chunks(44)), server(), &mut (), options);
    assert_eq!(outcome.end.unwrap(), segchain::recv::Received::Budget);
    assert_eq!(outcome.records.len(), 10);
}

#[test]
fn a_few_empty_fragments_are_tolerated_and_many_are_not() {
    let message = call(5, &[]);
    for (empty, fine) in [(1, true), (16, true), (17, false)] {
        let mut wire = vec![0; 4 * empty];
        wire.extend(cut(&message, &[]));
        let outcome = receive(Wire::pieces([&*wire]), server(), &mut ());
        if fine {
            assert_eq!(only(outcome).fragments as usize, empty + 1);
        } else {
            let error = Error::TooManyEmptyFragments { offset: 64, expected: 16, got: 17 };
            assert_eq!(outcome.error(), error);
        }
    }
}

/// chimera issue 1100: a cap that a lone last fragment went around.
#[test]
fn the_cap_on_a_record_holds_for_a_lone_last_fragment_and_for_the_sum() {
    let max = 1000;
    let limited = || server().max_record(max as u64);
    for (cuts, len, fine) in [
        (vec![], max, true),
        (vec![], max + 1, false),
        (vec![600], max, true),
        (vec![600], max + 1, false),
        (vec![600, 400], max, true),
        (vec![1; 999], max, true),
        (vec![1; 1000], max + 1, false),
    ] {
        let message = &call(1, &pattern(max))[..len];
        let outcome = receive(Wire::pieces([&*cut(message, &cuts)]), limited(), &mut ());
        if fine {
            assert_eq!(only(outcome).bytes, message);
        } else {
            let offset = cuts.iter().map(|len| *len as u64 + 4).sum();
            let got = len as u64;
            let error = Error::RecordTooLong { offset, expected: max as u64, got, looks_like: None };
            assert_eq!(outcome.error(), error);
        }
    }
}

/// opentelemetry-ebpf-instrumentation issue 2516: tiny fragments without end.
#[test]
fn the_cap_on_fragments_is_checked_at_the_marker() {
    let message = call(1, &pattern(100));
    for (fragments, fine) in [(9, true), (10, true), (11, false)] {
        let wire = cut(&message, &vec![4; fragments - 1]);
        let outcome = receive(Wire::pieces(wire.chunks(3)), server().max_fragments(10), &mut ());
        if fine {
            assert_eq!(only(outcome).fragments as usize, fragments);
        } else {
            let error = Error::TooManyFragments { offset: 80, expected: 10, got: 11 };
            assert_eq!(outcome.error(), error);
        }
    }
}

/// lede issue 6799 and kernel logs full of "fragment too large": 323119476 is BitTorrent, 1195725856 is HTTP.
#[test]
fn a_client_of_another_protocol_is_named_in_the_error() {
    for (bytes, what) in [
        (
            &b"\x13BitTorrent protocol"[..],
            "323119476 bytes announced, the limit is 67174400 (these bytes look like BitTorrent)",
        ),
        (
            b"GET / HTTP/1.1\r\n",
            "1195725856 bytes announced, the limit is 67174400 (these bytes look like HTTP)",
        ),
        (
            b"\x16\x03\x01\x02\0\x01",
            "369295618 bytes announced, the limit is 67174400 (these bytes look like TLS)",
        ),
        (b"SSH-2.0-OpenSSH", "1397966893 bytes announced, the limit is 67174400 (these bytes look like SSH)"),
        (b"\x13foo", "325480303 bytes announced, the limit is 67174400"),
    ] {
        let outcome = receive(Wire::pieces([bytes]), server(), &mut ());
        assert_eq!(outcome.error().to_string(), format!("record marker at offset 0: {what}"));
    }
}

/// apache/nuttx issue 3707, chimera issue 1368: the marker is put in front of a message, never kept with it.
#[test]
fn a_kept_message_is_framed_again_in_other_fragments() {
    let message = call(4, &pattern(1000));
    let record = only(receive(Wire::pieces([&*cut_evenly(&message, 100)]), server(), &mut ()));
    let again = framed(RecordFramer::new(), Message::new(&[]).raw(&record.bytes[..]));
    assert_eq!(again, cut(&message, &[]));
}

/// libnfs issues 526, 562 and 566: the marker's 4 bytes counted or not counted, wrong data at exactly the largest size.
#[test]
fn sizes_around_every_border_survive_framing_and_deframing() {
    for max in [8, 12, 1024, CONTIGUOUS as u32, 65_532] {
        for border in [8, CONTIGUOUS, 65_532, 65_536, 2 * 65_532] {
            for len in border - 4..=border + 4 {
                let message = &call(1, &pattern(len))[..len.max(8)];
                let wire =
                    framed(RecordFramer::fragments_of(max), Message::new(&message[..8]).raw(&message[8..]));
                assert_eq!(wire, cut_evenly(message, max as usize), "{len} in fragments of {max}");
                let deframer = server().max_record(message.len() as u64).max_fragments(20_000);
                let record = only(receive(Wire::pieces(wire.chunks(60_000)), deframer, &mut ()));
                assert!(record.bytes == message, "{len} in fragments of {max}");
                let deframer = server().max_record(message.len() as u64 - 1);
                assert!(receive(Wire::pieces([&*wire]), deframer, &mut ()).end.is_err());
            }
        }
    }
}

/// RFC 4506 section 4.10; the marker counts the pad (RFC 5531 section 11).
#[test]
fn an_opaque_is_padded_to_words_and_the_tail_follows_the_pad() {
    for len in 0..=9u32 {
        let payload = pattern(len as usize);
        let padded = len.next_multiple_of(4);
        let message = Message::new(&[7; 8]).opaque(&payload[..]).tail(b"tail");
        let mut expected = words(&[0x8000_0000 | (8 + 4 + padded + 4), 0x0707_0707, 0x0707_0707, len]);
        expected.extend_from_slice(&payload);
        expected.resize(16 + padded as usize, 0);
        expected.extend_from_slice(b"tail");
        assert_eq!(framed(RecordFramer::new(), message.clone()), expected);
        assert_eq!(framed(RecordFramer::datagram(), message), expected[4..]);
    }
}

#[test]
fn overhead_bounds_what_framing_adds() {
    for max in [8, 12, 100] {
        for len in 0..300 {
            let payload = pattern(len);
            for framer in [RecordFramer::new(), RecordFramer::fragments_of(max), RecordFramer::datagram()] {
                let added =
                    framed(framer.clone(), Message::new(&[0; 8]).opaque(&payload[..])).len() - 8 - len;
                let most = Framer::<Message>::overhead(&framer, 8 + len as u64);
                assert!(added as u64 <= most, "{framer:?}: {added} > {most}");
            }
        }
    }
}

#[test]
fn a_fragment_limit_is_rounded_down_to_words_and_never_below_8() {
    for (asked, first) in [(0, 8), (1, 8), (8, 8), (11, 8), (12, 12), (u32::MAX, 0x7fff_fffc)] {
        let wire = framed(RecordFramer::fragments_of(asked), Message::new(pattern(16)));
        let first = if first < 16 { first } else { 0x8000_0010 };
        assert_eq!(wire[..4], u32::to_be_bytes(first), "{asked}");
    }
}

#[test]
fn a_message_without_a_direction_is_not_sent() {
    for mut framer in [RecordFramer::new(), RecordFramer::fragments_of(100), RecordFramer::datagram()] {
        let mut out = segchain::chain::ChainBuilder::new();
        let error = framer.frame(Message::new(&[0; 7]), &mut out).unwrap_err();
        assert_eq!(error, Error::Undersize { expected: 8, got: 7 });
    }
}

struct Zeros(u64);

impl segchain::chain::Payload for Zeros {
    fn len(&self) -> u64 {
        self.0
    }

    fn push_to<'m>(self, out: &mut segchain::chain::ChainBuilder<'m>)
    where
        Self: 'm,
    {
        out.push_zeros(self.0);
    }
}

/// RFC 5531 section 11: 31 bits of length a fragment, and a record of more only in several.
#[test]
fn a_record_over_2_to_the_31_minus_1_needs_fragments() {
    const MOST: u64 = 0x7fff_ffff;
    for (len, fine) in [(MOST - 8, true), (MOST - 7, false), (u64::from(u32::MAX), false)] {
        let mut out = segchain::chain::ChainBuilder::new();
        let result = RecordFramer::new().frame(Message::new(&[0; 8]).raw(Zeros(len)), &mut out);
        assert_eq!(result, if fine { Ok(()) } else { Err(Error::Oversize { expected: MOST, got: len + 8 }) });
    }
    let mut out = segchain::chain::ChainBuilder::new();
    RecordFramer::fragments_of(u32::MAX).frame(Message::new(&[0; 8]).raw(Zeros(1 << 33)), &mut out).unwrap();
    assert_eq!(out.finish().unwrap().len(), 8 + (1 << 33) + 5 * 4);
    let mut out = segchain::chain::ChainBuilder::new();
    let result =
        RecordFramer::fragments_of(u32::MAX).frame(Message::new(&[0; 8]).opaque(Zeros(1 << 32)), &mut out);
    assert_eq!(result, Err(Error::Oversize { expected: u32::MAX.into(), got: 1 << 32 }));
}

/// suricata issues 6992, 7049 and 7089 again, for the deframer: any bytes are records, an error, or the wait for more.
#[test]
fn no_stream_makes_the_deframer_panic_or_stick() {
    let mut random = segchain_testkit::naive::Random::new(segchain_testkit::naive::seed("oncrpc streams"));
    let reply = read_reply(7, &pattern(200));
    for _ in 0..20_000 {
        let mut wire = cut_evenly(&reply, 1 + random.below(reply.len()));
        wire.extend(cut_evenly(&call(7, &pattern(50)), 1 + random.below(60)));
        for _ in 0..random.below(6) {
            let at = random.below(wire.len());
            // Lengths and counts are small or enormous where it hurts.
            wire[at] = [0, 1, 4, 0x7f, 0x80, 0xff][random.below(6)];
        }
        let piece = 1 + random.below(wire.len());
        let mut table = Table::with(7, [0, 199, 200, 1000][random.below(4)]);
        let deframer = expecting(&[7]).max_record([600, u64::MAX][random.below(2)]);
        let outcome = receive(Wire::pieces(wire.chunks(piece)), deframer, &mut table);
        if let Err(error) = outcome.end {
            assert!(!matches!(error.kind(), segchain::recv::RecvErrorKind::Stuck), "{error}");
        }
    }
}
