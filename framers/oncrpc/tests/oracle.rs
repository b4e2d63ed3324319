//! The second decoder of records against the real one: a million random streams, valid, mutated and truncated.
//!
//! Both have to hand out the same records, drop the same ones for the same reasons, and see the same end. There is no
//! checksum, and so most mutations are other valid streams.

mod support;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use segchain::recv::{Received, Receiver, RecvError, RecvErrorKind, RecvOptions};
use segchain::slab::SlabPool;
use segchain_oncrpc::{Direction, DropReason, Dropped, Layout, Pending, RecordDeframer};
use segchain_testkit::conformance::TargetTable;
use segchain_testkit::naive::{Random, seed};
use segchain_testkit::oracle::rpc::{self, Reason, Record, Settings};
use segchain_testkit::oracle::{self, CUT, EOF, End};
use segchain_testkit::scripted::{RecvStep, ScriptedRecv};
use support::{Seen, read_data, read_head, words};

const MAX_RECORD: u64 = 3000;
const MAX_FRAGMENTS: u32 = 24;
/// Memory for the data of replies; whose calls wait is in `WAITING`.
const TARGETS: [(u64, usize); 4] = [(1, 0), (2, 20), (3, 400), (4, 2000)];
/// Calls that wait, and whether they are READs. Nobody has memory for 5, nobody waits for 7 and more.
const WAITING: [(u32, bool); 6] = [(1, true), (2, true), (3, true), (4, true), (5, true), (6, false)];

#[test]
fn both_decoders_see_the_same_in_a_million_random_streams() {
    let ends = oracle::run(seed("rpc_oracle"), oracle::streams(), || {
        let (pool, script) = (SlabPool::default(), ScriptedRecv::new(&[], []));
        move |number| compare(number, &pool, &script)
    });
    let limits = [("RecordTooLong", 100), ("TooManyFragments", 1000), ("RecordTooShort", 1000)];
    let rest = [(EOF, 4), (CUT, 10), ("TooManyEmptyFragments", 1000), ("NoDirection", 100)];
    oracle::assert_seen(&ends, &[&limits[..], &rest].concat());
}

/// One stream: how it ended.
fn compare(number: u64, pool: &SlabPool, script: &ScriptedRecv) -> End {
    let mut random = Random::new(number);
    let mut stream: Vec<u8> = (0..=random.below(5)).flat_map(|_| record(&mut random)).collect();
    oracle::damage(&mut random, &mut stream);
    let cuts = oracle::cuts(&mut random, stream.len());
    let settings = Settings {
        calls: random.below(4) > 0,
        max_record: MAX_RECORD,
        max_fragments: MAX_FRAGMENTS.into(),
        max_empty: 16,
        waiting: WAITING.iter().map(|(xid, is_read)| (u64::from(*xid), *is_read)).collect(),
    };
    let targets = TARGETS.iter().map(|(xid, len)| (*xid, vec![0; *len])).collect();
    let expected = rpc::decode(&settings, targets, &stream);

    script.reset(&stream, &[], RecvStep::Eof);
    script.stop_at(&cuts, random.below(2) == 0);
    let mut targets = TargetTable::new(&TARGETS).scattered(if random.below(2) == 0 { 7 } else { 4096 });
    let read_ahead = [64, 256, 8192][random.below(3)];
    let (records, end) = real(script, settings.calls, read_ahead, pool, &mut targets);
    let case = || format!("SEGCHAIN_SEED={number} (the first stream), cut at {cuts:?}, {read_ahead}");
    assert_eq!(records, expected.frames, "{}", case());
    assert_eq!(end, expected.end, "{}", case());
    if end == EOF {
        for (xid, memory) in &expected.targets {
            assert_eq!(targets.get(*xid), Some(&memory[..]), "{}: target {xid}", case());
        }
    }
    end
}

fn real(
    script: &ScriptedRecv,
    calls: bool,
    read_ahead: usize,
    pool: &SlabPool,
    targets: &mut TargetTable,
) -> (Vec<Record>, End) {
    let pending = Pending::new();
    for (xid, is_read) in WAITING {
        pending.expect(xid, if is_read { Layout::Data(read_data) } else { Layout::Whole }).unwrap();
    }
    let records = Arc::new(Mutex::new(Vec::new()));
    let log = records.clone();
    let deframer = RecordDeframer::new(pending).max_record(MAX_RECORD).max_fragments(MAX_FRAGMENTS);
    let deframer = if calls { deframer } else { deframer.refuse_calls() };
    let deframer = deframer.on_dropped(move |dropped| log.lock().unwrap().push(plain_dropped(&dropped)));
    let limits = RecvOptions::new().read_ahead(read_ahead);
    let mut receiver = Receiver::with_options(script, deframer, limits, pool.clone());
    let end = loop {
        let received = receiver.receive(targets, |record| {
            records.lock().unwrap().push(plain(Seen::from(record)));
            ControlFlow::Continue(())
        });
        match received.map_err(RecvError::into_kind) {
            Ok(Received::Blocked) => {}
            Ok(Received::Eof) => break EOF.into(),
            Err(RecvErrorKind::UnexpectedEof { .. }) => break CUT.into(),
            Err(RecvErrorKind::Frame(error)) => break oracle::name(&error),
            other => panic!("{other:?}"),
        }
    };
    let records = std::mem::take(&mut *records.lock().unwrap());
    (records, end)
}

// ---- streams

/// A record in fragments, which may be too long, too short, too many, or say more than there is.
fn record(random: &mut Random) -> Vec<u8> {
    let message = message(random);
    let mut wire = Vec::new();
    let mut rest = &message[..];
    let pieces = match random.below(12) {
        0..6 => 0,
        6..11 => random.below(5),
        _ => random.below(60),
    };
    let seldom_empty = random.below(4) > 0;
    for _ in 0..pieces {
        let most = 1 + rest.len().min(1 << random.below(9));
        let len = random.below(most).max(usize::from(seldom_empty)).min(rest.len());
        wire.extend((len as u32).to_be_bytes());
        wire.extend(&rest[..len]);
        rest = &rest[len..];
    }
    let too_much = if random.below(60) == 0 { 1 << (10 + random.below(20)) } else { 0 };
    wire.extend((1 << 31 | (rest.len() as u32 + too_much)).to_be_bytes());
    wire.extend(rest);
    wire
}

fn message(random: &mut Random) -> Vec<u8> {
    let xid = random.below(9) as u32;
    let body = |random: &mut Random, len: usize| -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| random.number().to_le_bytes()).take(len).collect()
    };
    match random.below(10) {
        0 => {
            let len = random.below(12);
            body(random, len)
        }
        1..4 => {
            let direction =
                if random.below(20) == 0 { random.below(300) as u32 } else { random.below(2) as u32 };
            let len = random.below(60);
            [words(&[xid, direction]), body(random, len)].concat()
        }
        _ => {
            let len = match random.below(6) {
                0 => 0,
                1..5 => random.below(30),
                _ if random.below(8) == 0 => random.below(3200),
                _ => random.below(500),
            };
            let verifier = if random.below(6) == 0 { random.below(420) } else { 0 };
            let mut reply = read_head(xid, verifier, random.below(2) == 0, len as u32);
            // A word of the head that is another one: the reply may be denied, a failure, or of another length.
            if random.below(5) == 0 {
                let at = 4 * random.below(reply.len() / 4);
                reply[at + 3] = random.number() as u8;
            }
            let data = body(random, len.next_multiple_of(4));
            reply.extend(data);
            if random.below(8) == 0 {
                reply.truncate(random.below(reply.len() + 1));
            }
            reply
        }
    }
}

// ---- what the real one says, in the oracle's words

fn plain(seen: Seen) -> Record {
    let Seen { xid, direction, fragments, bytes, placed } = seen;
    let placed = placed.map(|placed| {
        assert!(placed.whole, "nobody takes a target back");
        placed.len
    });
    let (xid, fragments, direction) = (xid.into(), fragments.into(), number(direction));
    Record::Message { xid, direction, fragments, bytes, placed }
}

fn plain_dropped(dropped: &Dropped) -> Record {
    let reason = match dropped.reason {
        DropReason::UnknownXid => Reason::UnknownXid,
        DropReason::UnwantedCall => Reason::UnwantedCall,
        DropReason::NoTarget => Reason::NoTarget,
        DropReason::TargetTooSmall { len, target } => Reason::TargetTooSmall(len, target),
        DropReason::DataCutShort { expected, got } => Reason::DataCutShort(expected, got),
        other => panic!("{other:?}"),
    };
    Record::Dropped { xid: dropped.xid.into(), direction: number(dropped.direction), reason }
}

fn number(direction: Direction) -> u64 {
    match direction {
        Direction::Call => 0,
        Direction::Reply => 1,
        other => panic!("{other:?}"),
    }
}
