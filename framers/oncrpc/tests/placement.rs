//! Replies whose data lands in the caller's pages, and everything that keeps it from there.

mod support;

use segchain::framer::{Deframer, Landed, LentSlices, Targets};
use segchain::recv::{Received, Receiver, RecvOptions};
use segchain_oncrpc::{
    DataAt, Direction, DropReason, Error, Layout, Message, Pending, Placed, Record, RecordDeframer,
    RecordFramer,
};
use std::ops::ControlFlow;
use support::*;

#[test]
fn the_data_of_a_read_lands_in_its_target_wherever_markers_cut_the_reply() {
    let data = pattern(37);
    for (verifier, attributes) in [(0, true), (0, false), (5, true), (400, false)] {
        let mut reply = read_head(7, verifier, attributes, 37);
        let head = reply.clone();
        reply.extend_from_slice(&data);
        reply.extend([0; 3]);
        for a in (0..=reply.len()).step_by(if verifier == 400 { 7 } else { 1 }) {
            for len in [0, 1, 4, 40, reply.len() - a] {
                let wire = cut(&reply, &[a, len.min(reply.len() - a)]);
                for piece in [1, wire.len()] {
                    let mut table = Table::with(7, 40);
                    let got = receive(Wire::pieces(wire.chunks(piece)), expecting(&[7]), &mut table);
                    let [record] = &got.records[..] else { panic!("{:?}", got.dropped) };
                    assert_eq!(record.placed.map(|placed| (placed.len, placed.whole)), Some((37, true)));
                    assert_eq!(record.bytes, [&head[..], &[0; 3]].concat(), "{a} {len}");
                    assert_eq!(table.0[&7], [&data[..], &[0xee; 3]].concat(), "{a} {len}");
                }
            }
        }
    }
}

#[test]
fn data_in_thousands_of_fragments_and_in_one_lands_the_same() {
    let data = pattern((1 << 20) + 3);
    let reply = read_reply(7, &data);
    for max in [210, 8996, 65_532, reply.len()] {
        let wire = cut_evenly(&reply, max);
        let mut table = Table::with(7, data.len());
        let got = receive(Wire::pieces(wire.chunks(50_000)), expecting(&[7]), &mut table);
        assert_eq!(got.end.unwrap(), Received::Eof);
        assert!(got.records.len() == 1 && table.0[&7] == data);
    }
}

#[test]
fn an_error_status_and_a_denied_call_are_handed_out_whole() {
    let deny = words(&[7, 1, 1, 1, 5]);
    let garbage = words(&[7, 1, 0, 0, 0, 4]);
    let stale = words(&[7, 1, 0, 0, 0, 0, 70, 0]);
    let short = words(&[7, 1, 0, 0, 0, 0, 0]);
    let mut long_error = words(&[7, 1, 0, 0, 0, 0, 5]);
    long_error.extend(pattern(100_000));
    for reply in [deny, garbage, stale, short, long_error] {
        for wire in [cut(&reply, &[]), cut_evenly(&reply, 5)] {
            let deframer = expecting(&[7]).max_fragments(u32::MAX);
            let got = receive(Wire::pieces([&*wire]), deframer, &mut Table::with(7, 100));
            assert!(got.records.len() == 1 && got.records[0].bytes == reply);
            assert_eq!(got.records[0].placed, None);
        }
    }
}

#[test]
fn a_read_of_no_bytes_is_placed_nowhere_and_handed_out() {
    let reply = read_reply(7, &[]);
    for wire in [cut(&reply, &[]), cut(&reply, &[reply.len()])] {
        let got = receive(Wire::pieces([&*wire]), expecting(&[7]), &mut Table::with(7, 0));
        assert_eq!(got.records[0].placed.map(|placed| (placed.len, placed.whole)), Some((0, true)));
        assert_eq!(got.records[0].bytes, reply);
    }
}

/// freemint issue 246: the server sends more than was asked for.
#[test]
fn data_larger_than_its_target_is_discarded_and_the_next_record_arrives() {
    let large = read_reply(1, &pattern(4084));
    let fits = read_reply(2, &pattern(3072));
    for cuts in [vec![], vec![1], vec![100, 4000], vec![large.len()]] {
        let mut wire = cut(&large, &cuts);
        wire.extend(cut(&fits, &[]));
        let mut table = Table::with(1, 3072);
        table.0.insert(2, vec![0xee; 3072]);
        let got = receive(Wire::pieces(wire.chunks(1000)), expecting(&[1, 2]), &mut table);
        assert_eq!(got.dropped.len(), 1);
        assert_eq!(got.dropped[0].xid, 1);
        assert_eq!(got.dropped[0].reason, DropReason::TargetTooSmall { len: 4084, target: 3072 });
        assert!(table.0[&1].iter().all(|byte| *byte == 0xee));
        assert!(got.records.len() == 1 && table.0[&2] == pattern(3072));
    }
}

/// libnfs issues 526, 562 and 566: off by 4 in the size of a zero-copy read, four bytes too many at exactly the largest.
#[test]
fn data_of_sizes_around_its_targets_fits_or_is_dropped_and_never_passes_the_end() {
    for target in [4, 3072, 4096, 65_536] {
        for len in target - 4..=target + 4 {
            for max in [200_000, 1000] {
                let wire = cut_evenly(&read_reply(7, &pattern(len)), max);
                let mut table = Table::with(7, target);
                let got = receive(Wire::pieces(wire.chunks(1460)), expecting(&[7]), &mut table);
                assert_eq!(
                    (got.records.len(), got.dropped.len()),
                    if len <= target { (1, 0) } else { (0, 1) }
                );
                let kept = if len <= target { len } else { 0 };
                assert!(table.0[&7][..kept] == pattern(len)[..kept], "{len} bytes for {target}");
                assert!(table.0[&7][kept..].iter().all(|byte| *byte == 0xee), "{len} bytes for {target}");
            }
        }
    }
}

#[test]
fn a_reply_that_nobody_waits_for_is_dropped_in_sync() {
    let unknown = read_reply(9, &pattern(100_000));
    let known = read_reply(2, &pattern(10));
    for cuts in [vec![], vec![3], vec![100, 50_000], vec![unknown.len()]] {
        let mut wire = cut(&unknown, &cuts);
        wire.extend(cut(&known, &[]));
        wire.extend(cut(&known, &[])); // a second answer to the same call
        for piece in [999, wire.len()] {
            let mut table = Table::with(2, 10);
            table.0.insert(9, vec![0xee; 100_000]); // a target alone is no call that waits
            let got = receive(Wire::pieces(wire.chunks(piece)), expecting(&[2]), &mut table);
            let dropped: Vec<_> = got.dropped.iter().map(|dropped| (dropped.xid, dropped.reason)).collect();
            assert_eq!(dropped, [(9, DropReason::UnknownXid), (2, DropReason::UnknownXid)]);
            assert!(got.records.len() == 1 && table.0[&2] == pattern(10));
            assert!(table.0[&9].iter().all(|byte| *byte == 0xee));
            assert_eq!(got.end.unwrap(), Received::Eof);
        }
    }
}

#[test]
fn a_reply_whose_target_is_gone_is_dropped() {
    let wire = cut(&read_reply(2, &pattern(10)), &[]);
    let got = receive(Wire::pieces([&*wire]), expecting(&[2]), &mut ());
    assert_eq!(got.dropped[0].reason, DropReason::NoTarget);
    assert_eq!(got.dropped[0].to_string(), "reply 0x00000002 was dropped: its target is gone");
}

#[test]
fn data_that_ends_before_its_announced_length_is_dropped_in_sync() {
    let mut lie = read_head(1, 0, true, 1000);
    lie.extend(pattern(600));
    let fine = read_reply(2, &pattern(10));
    let head = lie.len() - 600;
    for cuts in [vec![], vec![head], vec![head + 1], vec![head - 1, 601], vec![5, 5, 5], vec![head, 300, 300]]
    {
        let mut wire = cut(&lie, &cuts);
        wire.extend(cut(&fine, &[]));
        let mut table = Table::with(1, 1000);
        table.0.insert(2, vec![0; 10]);
        let got = receive(Wire::pieces(wire.chunks(11)), expecting(&[1, 2]), &mut table);
        assert_eq!(got.end.unwrap(), Received::Eof, "{cuts:?}");
        assert_eq!(got.dropped[0].reason, DropReason::DataCutShort { expected: 1000, got: 600 }, "{cuts:?}");
        assert!(got.records.len() == 1 && table.0[&2] == pattern(10));
    }
    // Nothing but the head, then an empty last fragment.
    let wire = cut(&lie[..head], &[head]);
    let got = receive(Wire::pieces([&*wire]), expecting(&[1]), &mut Table::with(1, 1000));
    assert_eq!(got.dropped[0].reason, DropReason::DataCutShort { expected: 1000, got: 0 });
}

/// A call and a back-channel call share the socket; each side numbers its own.
#[test]
fn a_call_and_a_reply_with_the_same_xid_are_told_apart() {
    let reply = read_reply(7, &pattern(5000));
    let mut call = words(&[7, 0, 2, 0x4000_0000, 1, 1, 0, 0, 0, 0]);
    call.extend(pattern(5000));
    for (first, second) in [(&reply, &call), (&call, &reply)] {
        for max in [10_000, 1000, 9] {
            let wire = [cut_evenly(first, max), cut_evenly(second, max)].concat();
            let mut table = Table::with(7, 5000);
            let got = receive(Wire::pieces(wire.chunks(777)), expecting(&[7]), &mut table);
            assert_eq!(got.records.len(), 2);
            for record in got.records {
                match record.direction {
                    Direction::Call => assert!(record.bytes == call && record.placed.is_none()),
                    _ => assert_eq!(record.placed.map(|placed| placed.len), Some(5000)),
                }
            }
            assert!(table.0[&7] == pattern(5000));
        }
    }
    let wire = [cut(&call, &[]), cut(&call, &[8]), cut(&reply, &[])].concat();
    let got = receive(Wire::pieces([&*wire]), expecting(&[7]).refuse_calls(), &mut Table::with(7, 5000));
    assert_eq!(got.records.len(), 1);
    assert!(got.dropped.iter().all(|dropped| dropped.reason == DropReason::UnwantedCall));
    assert_eq!(got.dropped.len(), 2);
}

#[test]
fn a_message_that_is_neither_call_nor_reply_is_an_error() {
    for cuts in [vec![], vec![6]] {
        let wire = cut(&words(&[7, 2, 0]), &cuts);
        let error = receive(Wire::pieces([&*wire]), expecting(&[7]), &mut ()).error();
        assert!(matches!(error, Error::NoDirection { got: 2, .. }), "{error}");
    }
}

#[test]
fn a_finder_that_asks_for_too_much_gets_its_reply_whole() {
    const FINDERS: [fn(&[u8]) -> DataAt; 5] = [
        |_| DataAt::Need(usize::MAX),
        |_| DataAt::Need(5000),
        |_| DataAt::At { offset: usize::MAX, len: 1 },
        |results| DataAt::Need(results.len()),
        |results| if results.len() < 20 { DataAt::Need(20) } else { DataAt::At { offset: 4, len: 4 } },
    ];
    let reply = read_reply(7, &pattern(6000));
    for find in FINDERS {
        let pending = Pending::new();
        pending.expect(7, Layout::Data(find)).unwrap();
        let wire = cut(&reply, &[]);
        let got = receive(Wire::pieces([&*wire]), RecordDeframer::new(pending), &mut Table::with(7, 9000));
        assert!(got.records[0].bytes == reply && got.records[0].placed.is_none());
    }
}

/// What follows the data, as in NFSv4 where a READ is one operation of several, is handed out too.
#[test]
fn a_tail_of_any_length_comes_out() {
    for len in [0, 4, 4095, 4096, 4097, 100_000] {
        let mut reply = read_reply(7, &pattern(9000));
        let head = reply.len() - 9000;
        reply.extend(pattern(len));
        for max in [reply.len(), 1000] {
            let wire = cut_evenly(&reply, max);
            let got = receive(Wire::pieces(wire.chunks(3000)), expecting(&[7]), &mut Table::with(7, 9000));
            assert!(got.records[0].bytes == [&reply[..head], &pattern(len)].concat());
        }
    }
}

#[test]
fn a_small_read_ahead_is_enough() {
    let reply = read_reply(7, &pattern(9000));
    let mut call = words(&[8, 0, 2]);
    call.extend(pattern(9000));
    let wire = [cut_evenly(&reply, 500), cut(&call, &[]), cut(&call[..100], &[])].concat();
    let options = RecvOptions::new().read_ahead(64);
    let mut table = Table::with(7, 9000);
    let got = receive_with(Wire::pieces([&*wire]), expecting(&[7]), &mut table, options);
    assert_eq!(got.end.unwrap(), Received::Eof);
    assert!(got.records.len() == 3 && got.records[1].bytes == call && table.0[&7] == pattern(9000));
}

/// A target in two halves, taken back once `left` bytes were lent.
struct Fleeting {
    memory: Vec<u8>,
    gone_at: u64,
    wrote_after: bool,
}

impl Targets for Fleeting {
    fn expect(&mut self, _: u64) -> Option<u64> {
        Some(self.memory.len() as u64)
    }

    fn lend<'a>(&'a mut self, _: u64, at: u64, len: usize, out: &mut LentSlices<'a>) -> bool {
        if at >= self.gone_at {
            self.wrote_after = false;
            return false;
        }
        let end = (self.gone_at as usize).min(at as usize + len).min(self.memory.len());
        out.push(&mut self.memory[at as usize..end]);
        true
    }
}

#[test]
fn a_target_taken_back_at_any_byte_is_written_no_further_and_the_stream_goes_on() {
    let reply = read_reply(7, &pattern(40));
    let next = words(&[8, 0, 2]);
    let wire = [cut(&reply, &[140, 20]), cut(&next, &[])].concat();
    for gone_at in 0..=40 {
        for piece in [1, 3, wire.len()] {
            let mut target = Fleeting { memory: vec![0xee; 40], gone_at, wrote_after: true };
            let got = receive(Wire::pieces(wire.chunks(piece)), expecting(&[7]), &mut target);
            assert_eq!(got.records.len(), 2);
            let placed: Placed = got.records[0].placed.unwrap();
            assert_eq!((placed.len, placed.whole), (40, gone_at == 40));
            let kept = gone_at as usize;
            assert_eq!(target.memory[..kept], pattern(40)[..kept]);
            assert!(target.memory[kept..].iter().all(|byte| *byte == 0xee));
        }
    }
}

/// xbmc issue 28265, libnfs issue 592: a callback that ends the connection inside of the read loop.
#[test]
fn a_callback_that_stops_keeps_every_later_byte_from_the_old_deframer() {
    let first = words(&[1, 0, 2]);
    let wire = [cut(&first, &[]), cut(&words(&[2, 0, 2]), &[]), b"STARTTLS".to_vec()].concat();
    let mut receiver = Receiver::new(Wire::pieces([&*wire]), server());
    let mut seen = 0;
    let received = receiver.receive(&mut (), |record| {
        seen += 1;
        if record.xid() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((received.unwrap(), seen), (Received::Stopped, 2));
    assert!(receiver.is_between_frames());
    assert_eq!(receiver.into_parts().unread, b"STARTTLS");
}

#[test]
fn a_datagram_is_a_record_without_a_marker() {
    let message = words(&[5, 1, 0, 0, 0, 0]);
    assert_eq!(framed(RecordFramer::datagram(), Message::new(&message)), message);
    let record = Record::from_datagram(&message).unwrap();
    assert_eq!((record.xid(), record.direction(), record.head()), (5, Direction::Reply, &message[..]));
    let error = Record::from_datagram(&message[..7]).unwrap_err();
    assert_eq!(error, Error::RecordTooShort { offset: 0, expected: 8, got: 7 });
    let error = Record::from_datagram(&words(&[5, 9])).unwrap_err();
    assert_eq!(error.to_string(), "message type at offset 4: expected 0 (call) or 1 (reply), got 0x00000009");
}

#[test]
fn what_is_awaited_is_named_when_the_peer_closes() {
    let reply = read_reply(7, &pattern(5000));
    let wire = cut(&reply, &[]);
    for (at, what) in [
        (2, "record marker: expected 4 bytes, got 2"),
        (6, "RPC header: expected"),
        (200, "reply data: expected"),
        (wire.len() - 1, "reply data: expected"),
    ] {
        let got = receive(Wire::pieces([&wire[..at]]), expecting(&[7]), &mut Table::with(7, 5000));
        let error = got.end.unwrap_err().to_string();
        assert!(error.contains(what), "{at}: {error}");
    }
    assert_eq!(server().awaiting(), "record marker");
    let _: fn(Landed) = drop;
}
