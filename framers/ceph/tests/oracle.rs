//! The second decoder of version 1 against the real one: a million random streams, valid, mutated and truncated.
//!
//! Both have to see the same frames, and the same end.

mod common;

use std::ops::ControlFlow;

use common::{Seen, SeenData, seen, wire};
use segchain::recv::{Received, Receiver, RecvError, RecvErrorKind, RecvOptions};
use segchain::slab::SlabPool;
use segchain_ceph::osd::{OP, OP_REPLY};
use segchain_ceph::v1::{Control, Deframer, Framer, Options};
use segchain_ceph::{EntityName, Header, Message, features};
use segchain_testkit::conformance::TargetTable;
use segchain_testkit::naive::{Random, seed};
use segchain_testkit::oracle::msgr1::{self, Frame, Settings};
use segchain_testkit::oracle::{self, CUT, EOF, End, Payload, crc32c};
use segchain_testkit::scripted::{RecvStep, ScriptedRecv};

/// Of each part.
const LIMIT: u32 = 2000;
/// Tids that somebody waits for, and the memory there.
const TARGETS: [(u64, usize); 3] = [(0, 0), (1, 20), (2, 400)];

#[test]
fn both_decoders_see_the_same_in_a_million_random_streams() {
    let ends = oracle::run(seed("v1_oracle"), oracle::streams(), || {
        let (pool, script) = (SlabPool::default(), ScriptedRecv::new(&[], []));
        move |number| compare(number, &pool, &script)
    });
    let crcs = ["Crc Header", "Crc Front", "Crc Middle", "Crc Data"].map(|end| (end, 200));
    let limits = ["TooLong Front", "TooLong Middle", "TooLong Data"].map(|end| (end, 10_000));
    let rest = [(EOF, 4), (CUT, 10), ("Tag", 200), ("Incomplete", 200)];
    oracle::assert_seen(&ends, &[&rest[..], &crcs, &limits].concat());
}

/// One stream: how it ended.
fn compare(number: u64, pool: &SlabPool, script: &ScriptedRecv) -> End {
    let mut random = Random::new(number);
    let settings = settings(&mut random);
    let mut seq = 0;
    let mut stream: Vec<u8> =
        (0..=random.below(4)).flat_map(|_| frame(&mut random, &settings, &mut seq)).collect();
    oracle::damage(&mut random, &mut stream);
    let cuts = oracle::cuts(&mut random, stream.len());
    let targets = TARGETS.iter().map(|(tid, len)| (*tid, vec![0; *len])).collect();
    let expected = msgr1::decode(&settings, targets, &stream);

    script.reset(&stream, &[], RecvStep::Eof);
    script.stop_at(&cuts, random.below(2) == 0);
    let mut targets = TargetTable::new(&TARGETS);
    let (frames, end) = real(script, &options(&settings), pool, &mut targets);
    let case = || format!("SEGCHAIN_SEED={number} (the first stream), cut at {cuts:?}");
    assert_eq!(frames, expected.frames, "{}", case());
    assert_eq!(end, expected.end, "{}", case());
    if end == EOF {
        for (tid, memory) in &expected.targets {
            assert_eq!(targets.get(*tid), Some(&memory[..]), "{}: target {tid}", case());
        }
    }
    end
}

/// Mostly what an osd has.
fn settings(random: &mut Random) -> Settings {
    let mut seldom = || random.below(6) == 0;
    let (long_footer, crc_header, crc_data) = (!seldom(), !seldom(), !seldom());
    let skip_incomplete = seldom();
    Settings { long_footer, crc_header, crc_data, skip_incomplete, last_seq: 0, limit: LIMIT as usize }
}

fn options(settings: &Settings) -> Options {
    let features = if settings.long_footer { features::MSG_AUTH } else { 0 };
    let options = Options::new().features(features).skip_incomplete(settings.skip_incomplete);
    let options = options.crc_header(settings.crc_header).crc_data(settings.crc_data);
    options.front_limit(LIMIT).middle_limit(LIMIT).data_limit(LIMIT)
}

fn real(
    script: &ScriptedRecv,
    options: &Options,
    pool: &SlabPool,
    targets: &mut TargetTable,
) -> (Vec<Frame>, End) {
    let limits = RecvOptions::new().read_ahead(4096);
    let mut receiver = Receiver::with_options(script, Deframer::new(options), limits, pool.clone());
    let mut frames = Vec::new();
    loop {
        let received = receiver.receive(targets, |frame| {
            frames.push(plain(seen(frame)));
            ControlFlow::Continue(())
        });
        match received.map_err(RecvError::into_kind) {
            Ok(Received::Blocked) => {}
            Ok(Received::Eof) => return (frames, EOF.into()),
            Err(RecvErrorKind::UnexpectedEof { .. }) => return (frames, CUT.into()),
            Err(RecvErrorKind::Frame(error)) => return (frames, oracle::name(&error)),
            other => panic!("{other:?}"),
        }
    }
}

/// The other direction.
#[test]
fn the_framer_writes_what_the_oracle_reads() {
    let mut random = Random::new(seed("v1_framer"));
    for seq in 1..20_000 {
        let settings = Settings { last_seq: seq - 1, ..settings(&mut random) };
        let mut framer = Framer::resume(&options(&settings), seq - 1);
        let mut header = Header::new(random.number() as u16);
        (header.tid, header.data_off) = (random.number(), random.number() as u16);
        (header.priority, header.version) = (random.number() as u16, random.number() as u16);
        (header.compat_version, header.reserved) = (random.number() as u16, random.number() as u16);
        header.src = EntityName::new(random.number() as u8, random.number().cast_signed());
        let [front, middle, data] = [(); 3].map(|()| part(&mut random));
        let mut message = Message::new(header, front.clone().into(), &data[..]);
        message.middle = middle.clone().into();
        message.signature = (settings.long_footer && random.below(2) == 0).then(|| random.number());
        let signature = message.signature;
        let decoded = msgr1::decode(
            &Settings { limit: 1 << 24, ..settings },
            oracle::Targets::new(),
            &wire(&mut framer, message),
        );
        assert_eq!(decoded.end, EOF);
        let data = SeenData::Bytes(data);
        let seen = Seen::Message { seq, header, front: front.into(), middle: middle.into(), data, signature };
        assert_eq!(decoded.frames, [plain(seen)]);
    }
}

// ---- streams

fn part(random: &mut Random) -> Vec<u8> {
    let len = match random.below(8) {
        0..4 => 0,
        4..7 => random.below(40),
        _ if random.below(4) == 0 => random.below(2100),
        _ => random.below(300),
    };
    (0..len.div_ceil(8)).flat_map(|_| random.number().to_le_bytes()).take(len).collect()
}

/// A frame with right checksums, or none; it may be incomplete, too long, or have come before.
fn frame(random: &mut Random, settings: &Settings, seq: &mut u64) -> Vec<u8> {
    let tag = match random.below(12) {
        0 if random.below(4) == 0 => random.number() as u8,
        0..4 => [6, 8, 9, 14, 15][random.below(5)],
        _ => 7,
    };
    let mut wire = vec![tag];
    match tag {
        8 | 14 | 15 => wire.extend(random.number().to_le_bytes()),
        7 => {
            *seq += random.below(3) as u64;
            let parts = [(); 3].map(|()| part(random));
            wire.extend(seq.to_le_bytes());
            wire.extend((random.below(4) as u64).to_le_bytes());
            wire.extend(if random.below(2) == 0 { OP } else { OP_REPLY }.to_le_bytes());
            wire.extend(&random.number().to_le_bytes()[..4]); // priority, version
            wire.extend(parts.iter().flat_map(|part| (part.len() as u32).to_le_bytes()));
            wire.extend(random.number().to_le_bytes());
            wire.extend(&random.number().to_le_bytes()[..7]); // data_off, src, compat version, reserved
            let crc = |bytes: &[u8], on: bool| if on { crc32c(0, bytes) } else { 0 };
            wire.extend(crc(&wire[1..], settings.crc_header).to_le_bytes());
            wire.extend(parts.concat());
            let flags = match random.below(10) {
                0 => random.number() as u8,
                1 => 3,
                2 => 5,
                _ => 1,
            };
            let on = [settings.crc_header, settings.crc_header, settings.crc_data && flags & 2 == 0];
            for (part, on) in parts.iter().zip(on) {
                wire.extend(crc(part, on).to_le_bytes());
            }
            if settings.long_footer {
                wire.extend(random.number().to_le_bytes());
            }
            wire.push(flags);
        }
        _ => {}
    }
    wire
}

// ---- what the real one says, in the oracle's words

fn plain(seen: Seen) -> Frame {
    match seen {
        Seen::Message { seq, header, front, middle, data, signature } => {
            let Header { tid, kind, priority, version, compat_version, data_off, src, reserved, .. } = header;
            let [kind, priority, version, data_off, compat, reserved] =
                [kind, priority, version, data_off, compat_version, reserved].map(u64::from);
            let (entity, number) = (src.kind.into(), src.num.cast_unsigned());
            let header = [seq, tid, kind, priority, version, data_off, entity, number, compat, reserved];
            let data = match data {
                SeenData::Bytes(bytes) => Payload::Bytes(bytes),
                SeenData::Target { len, whole: true } => Payload::Target(len),
                SeenData::Discarded { len } => Payload::Discarded(len),
                SeenData::Target { .. } => panic!("nobody takes a target back"),
            };
            Frame::Message { header, front: front.to_vec(), middle: middle.to_vec(), data, signature }
        }
        Seen::Control(control) => match control {
            Control::Close => Frame::Control(6, vec![]),
            Control::Ack(seq) => Frame::Control(8, vec![seq]),
            Control::Keepalive => Frame::Control(9, vec![]),
            Control::Keepalive2(at) => Frame::Control(14, vec![at.sec.into(), at.nsec.into()]),
            Control::Keepalive2Ack(at) => Frame::Control(15, vec![at.sec.into(), at.nsec.into()]),
            other => panic!("{other:?}"),
        },
    }
}
