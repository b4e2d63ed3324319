//! The second decoder of version 2 against the real one: a million random streams, valid, mutated and truncated.
//!
//! Both have to see the same frames, and the same end.

mod common;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use common::SeenData;
use common::v2::{Seen, control_wire, controls, options, seen, wire};
use segchain::recv::{Received, Receiver, RecvError, RecvErrorKind};
use segchain::slab::SlabPool;
use segchain_ceph::osd::{OP, OP_REPLY};
use segchain_ceph::v2::{Codec, Control, Deframer, Framer, Ident, Options};
use segchain_ceph::{EntityAddr, Header, Message};
use segchain_testkit::conformance::TargetTable;
use segchain_testkit::naive::{Random, seed};
use segchain_testkit::oracle::msgr2::{self, Frame, Settings};
use segchain_testkit::oracle::{self, CUT, EOF, End, Payload, crc32c, le};
use segchain_testkit::scripted::{RecvStep, ScriptedRecv};

/// Of segments but the first.
const LIMIT: u32 = 1 << 16;
const CONTROL_LIMIT: u32 = 4000;
/// Tids that somebody waits for, and the memory there.
const TARGETS: [(u64, usize); 3] = [(0, 0), (1, 20), (2, 400)];

#[test]
fn both_decoders_see_the_same_in_a_million_random_streams() {
    let ends = oracle::run(seed("v2_oracle"), oracle::streams(), || {
        let (pool, script) = (SlabPool::default(), ScriptedRecv::new(&[], []));
        move |number| compare(number, &pool, &script)
    });
    let ten_thousand = ["Tag", "Segments", "LastEmpty", "HeaderTooShort", "Compressed", "Value"];
    let thousand =
        ["Preamble", "Control", "Header", "Front", "Middle", "Data"].map(|part| format!("Crc {part}"));
    let too_long = ["Control", "Header", "Front", "Middle", "Data"].map(|part| format!("TooLong {part}"));
    let mut one_in = vec![(EOF, 4), (CUT, 10), ("LateStatus", 1000), ("Short", 1000)];
    one_in.extend(thousand.iter().map(|end| (end.as_str(), 1000)));
    one_in.extend(too_long.iter().map(String::as_str).chain(ten_thousand).map(|end| (end, 10_000)));
    oracle::assert_seen(&ends, &one_in);
}

/// One stream: how it ended.
fn compare(number: u64, pool: &SlabPool, script: &ScriptedRecv) -> End {
    let rev1 = number.is_multiple_of(2);
    let mut streams = Streams { random: Random::new(number), rev1, seq: 0 };
    let mut stream = streams.stream();
    oracle::damage(&mut streams.random, &mut stream);
    let cuts = oracle::cuts(&mut streams.random, stream.len());
    let targets = TARGETS.iter().map(|(tid, len)| (*tid, vec![0; *len])).collect();
    let expected = msgr2::decode(&settings(rev1, 0), targets, &stream);

    script.reset(&stream, &[], RecvStep::Eof);
    script.stop_at(&cuts, streams.one_in(2));
    let codec = if rev1 { Codec::CrcRev1 } else { Codec::CrcRev0 };
    let options = options(codec).control_limit(CONTROL_LIMIT).data_limit(LIMIT);
    let options = options.front_limit(LIMIT).middle_limit(LIMIT);
    let mut targets = TargetTable::new(&TARGETS);
    let (frames, end) = real(script, &options, pool, &mut targets);
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

fn settings(rev1: bool, last_seq: u64) -> Settings {
    Settings { rev1, last_seq, first_limit: CONTROL_LIMIT as usize, limit: LIMIT as usize }
}

fn real(
    script: &ScriptedRecv,
    options: &Options,
    pool: &SlabPool,
    targets: &mut TargetTable,
) -> (Vec<Frame>, End) {
    let limits = segchain::recv::RecvOptions::new().contiguous(LIMIT.into()).read_ahead(4096);
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

// ---- what the real one says, in the oracle's words

fn plain(seen: Seen) -> Frame {
    match seen {
        Seen::Message { seq, acked, header, front, middle, data } => {
            message(seq, acked, &header, front.to_vec(), middle.to_vec(), data)
        }
        Seen::Control(control) => Frame::Control(control.tag(), numbers(&control)),
        Seen::Aborted { tag, tid } => Frame::Aborted(tag, tid),
    }
}

fn message(seq: u64, acked: u64, header: &Header, front: Vec<u8>, middle: Vec<u8>, data: SeenData) -> Frame {
    let Header { tid, kind, priority, version, compat_version, data_off, reserved, .. } = *header;
    let rest = [kind, priority, version, compat_version, data_off, reserved].map(u64::from);
    let [kind, priority, version, compat, data_off, reserved] = rest;
    let header = [seq, acked, tid, kind, priority, version, compat, data_off, reserved];
    let data = match data {
        SeenData::Bytes(bytes) => Payload::Bytes(bytes),
        SeenData::Target { len, whole: true } => Payload::Target(len),
        SeenData::Discarded { len } => Payload::Discarded(len),
        SeenData::Target { .. } => panic!("nobody takes a target back"),
    };
    Frame::Message { header, front, middle, data }
}

fn numbers(control: &Control) -> Vec<u64> {
    fn bytes(bytes: &[u8]) -> Vec<u64> {
        bytes.iter().map(|byte| u64::from(*byte)).collect()
    }
    fn u32s(numbers: &[u32]) -> Vec<u64> {
        numbers.iter().map(|number| u64::from(*number)).collect()
    }
    fn addr(addr: &EntityAddr) -> Vec<u64> {
        let mut out = vec![addr.kind as u64, addr.nonce.into()];
        match addr.socket {
            None => {}
            Some(std::net::SocketAddr::V4(v4)) => out.extend([v4.port().into(), le(&v4.ip().octets())]),
            Some(std::net::SocketAddr::V6(v6)) => {
                let ip = v6.ip().octets();
                let (flow, scope) = (v6.flowinfo().into(), v6.scope_id().into());
                out.extend([v6.port().into(), flow, le(&ip[..8]), le(&ip[8..]), scope]);
            }
        }
        out
    }
    fn addrs(all: &[EntityAddr]) -> Vec<u64> {
        all.iter().flat_map(addr).collect()
    }
    fn ident(ident: &Ident) -> [u64; 6] {
        let Ident { gid, global_seq, features, required, flags, cookie, .. } = ident;
        [gid.cast_unsigned(), *global_seq, *features, *required, *flags, *cookie]
    }
    match control {
        Control::Hello { entity_type, peer } => [vec![(*entity_type).into()], addr(peer)].concat(),
        Control::AuthRequest { method, modes, payload } => {
            [vec![(*method).into()], u32s(modes), bytes(payload)].concat()
        }
        Control::AuthBadMethod { method, result, methods, modes } => {
            let first = vec![(*method).into(), result.cast_unsigned().into()];
            [first, u32s(methods), u32s(modes)].concat()
        }
        Control::AuthReplyMore(payload) | Control::AuthRequestMore(payload) => bytes(payload),
        Control::AuthDone { global_id, mode, payload } => {
            [vec![*global_id, (*mode).into()], bytes(payload)].concat()
        }
        Control::AuthSignature(signature) => bytes(signature),
        Control::ClientIdent { ident: client, target } => {
            [addrs(&client.addrs), addr(target), ident(client).to_vec()].concat()
        }
        Control::ServerIdent(server) => [addrs(&server.addrs), ident(server).to_vec()].concat(),
        Control::SessionReconnect {
            addrs: own,
            client_cookie,
            server_cookie,
            global_seq,
            connect_seq,
            msg_seq,
        } => {
            let rest = vec![*client_cookie, *server_cookie, *global_seq, *connect_seq, *msg_seq];
            [addrs(own), rest].concat()
        }
        Control::SessionReset { full } => vec![(*full).into()],
        Control::IdentMissingFeatures(number)
        | Control::SessionRetry(number)
        | Control::SessionRetryGlobal(number)
        | Control::SessionReconnectOk(number)
        | Control::Ack(number) => vec![*number],
        Control::Wait => vec![],
        Control::Keepalive2(stamp) | Control::Keepalive2Ack(stamp) => {
            vec![stamp.sec.into(), stamp.nsec.into()]
        }
        other => panic!("{other:?}"),
    }
}

// ---- streams

/// The segment of a control frame of each tag.
static CONTROLS: LazyLock<HashMap<u8, Vec<u8>>> = LazyLock::new(|| {
    let segment = |control: Control| {
        let (tag, whole) = (control.tag(), control_wire(Codec::CrcRev0, control));
        (tag, whole[32..whole.len() - 17].to_vec())
    };
    controls().into_iter().map(segment).collect()
});

struct Streams {
    random: Random,
    rev1: bool,
    seq: u64,
}

impl Streams {
    fn one_in(&mut self, n: usize) -> bool {
        self.random.below(n) == 0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.random.number().to_le_bytes());
        words.take(len).collect()
    }

    fn length(&mut self) -> usize {
        match self.random.below(8) {
            0..4 => 0,
            4..7 => self.random.below(40),
            _ if self.one_in(4) => self.random.below(5100),
            _ => self.random.below(300),
        }
    }

    fn frame(&mut self) -> Vec<u8> {
        let tag = if self.one_in(2) { 17 } else { 1 + self.random.below(20) as u8 };
        let mut segments: Vec<Vec<u8>> = if tag == 17 {
            self.seq += self.random.below(3) as u64;
            let mut header = self.seq.to_le_bytes().to_vec();
            header.extend((self.random.below(4) as u64).to_le_bytes());
            header.extend(if self.one_in(2) { OP } else { OP_REPLY }.to_le_bytes());
            header.extend(self.bytes(23));
            let mut all = vec![header];
            for _ in 0..3 {
                let len = self.length();
                all.push(self.bytes(len));
            }
            while all.len() > 1 && all.last().is_some_and(Vec::is_empty) {
                all.pop();
            }
            all
        } else {
            vec![CONTROLS[&tag].clone()]
        };
        // Wrong in itself, with right checksums.
        if self.one_in(8) {
            let index = self.random.below(segments.len());
            let segment = &mut segments[index];
            match self.random.below(3) {
                0 => segment.truncate(self.random.below(segment.len() + 1)),
                1 => segment.extend(self.random.bytes(9)),
                _ if segment.is_empty() => {}
                _ => {
                    let at = self.random.below(segment.len());
                    segment[at] = [0, 1, 2, 0x7f, 0xff, self.random.number() as u8][self.random.below(6)];
                }
            }
        }
        let status = match (self.random.below(12), self.rev1) {
            (0, _) => 1,
            (1, _) => self.random.number() as u8,
            (_, rev1) => {
                if rev1 {
                    0x0e
                } else {
                    0
                }
            }
        };
        self.build(tag, &segments, status)
    }

    fn build(&mut self, tag: u8, segments: &[Vec<u8>], status: u8) -> Vec<u8> {
        let mut wire = vec![tag, segments.len() as u8];
        for index in 0..4 {
            let len = segments.get(index).map_or(0, Vec::len) as u32;
            wire.extend(len.to_le_bytes());
            wire.extend((self.random.number() as u16).to_le_bytes());
        }
        wire.extend([0, 0]);
        if self.one_in(20) {
            let at = self.random.below(28);
            wire[at] = [0, 1, 5, 0x7f, 0x80, 0xff][self.random.below(6)];
        }
        let crc = crc32c(0, &wire);
        wire.extend(crc.to_le_bytes());
        let crcs: Vec<u32> = segments.iter().map(|segment| crc32c(!0, segment)).collect();
        let mut epilogue = vec![status];
        for (index, segment) in segments.iter().enumerate() {
            wire.extend(segment);
            if self.rev1 && index == 0 {
                wire.extend(if segment.is_empty() { vec![] } else { crcs[0].to_le_bytes().to_vec() });
            } else {
                epilogue.extend(crcs[index].to_le_bytes());
            }
        }
        if !self.rev1 || segments.len() > 1 {
            epilogue.resize(if self.rev1 { 13 } else { 17 }, 0);
            wire.extend(epilogue);
        }
        wire
    }

    fn stream(&mut self) -> Vec<u8> {
        (0..=self.random.below(4)).flat_map(|_| self.frame()).collect()
    }
}

/// The other direction: what the framer makes is what the slow way of putting a frame together makes.
#[test]
fn the_framer_writes_what_the_slow_way_writes() {
    let mut random = Random::new(seed("v2_framer"));
    for rev1 in [true, false] {
        let codec = if rev1 { Codec::CrcRev1 } else { Codec::CrcRev0 };
        let mut framer = Framer::new(&options(codec));
        for seq in 1..2000u64 {
            let mut streams = Streams { random: random.clone(), rev1, seq };
            let lens = [streams.length(), streams.length(), streams.length()];
            random = streams.random.clone();
            let [front, middle, data] = lens.map(|len| random.bytes(len));
            let mut header = Header::new(random.number() as u16);
            (header.tid, header.data_off) = (random.number(), random.number() as u16);
            (header.priority, header.version) = (random.number() as u16, random.number() as u16);
            (header.compat_version, header.reserved) = (random.number() as u16, random.number() as u16);
            let acked = random.number();
            framer.received(acked);
            let mut message = Message::new(header, front.clone().into(), &data[..]);
            message.middle = middle.clone().into();
            let got = wire(&mut framer, message);

            let decoded = msgr2::decode(&settings(rev1, seq - 1), oracle::Targets::new(), &got);
            assert_eq!(decoded.end, EOF);
            assert_eq!(
                decoded.frames,
                [self::message(seq, acked, &header, front, middle, SeenData::Bytes(data))]
            );
        }
    }
}
