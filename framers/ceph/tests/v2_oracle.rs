//! A second decoder of version 2, slow and obvious, against the real one: random streams, valid, mutated and truncated.
//!
//! It has all bytes at once, copies as it likes, and digests byte by byte. Both have to see the same frames, and the same end.

mod common;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use common::SeenData;
use common::v2::{Seen, control_wire, controls, options, seen, wire};
use segchain::recv::{Received, Receiver, RecvErrorKind};
use segchain::slab::SlabPool;
use segchain_ceph::osd::{OP, OP_REPLY};
use segchain_ceph::v2::{Codec, Control, Deframer, Framer, Ident, Options};
use segchain_ceph::{EntityAddr, Header, Message};
use segchain_testkit::conformance::TargetTable;
use segchain_testkit::naive::{Random, crc, seed};
use segchain_testkit::scripted::{RecvStep, ScriptedRecv};

const TIME: Duration = Duration::from_secs(20);
/// Of segments but the first.
const LIMIT: u32 = 1 << 16;
const CONTROL_LIMIT: u32 = 4000;
/// Tids that somebody waits for, and the memory there.
const TARGETS: [(u64, usize); 3] = [(0, 0), (1, 20), (2, 5000)];

/// Byte by byte, from what each byte gives bit by bit.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    static TABLE: LazyLock<[u32; 256]> =
        LazyLock::new(|| std::array::from_fn(|byte| crc(0x82f6_3b78, 0, &[byte as u8])));
    let table = &*TABLE;
    bytes.iter().fold(seed, |crc, byte| crc >> 8 ^ table[usize::from(crc as u8 ^ byte)])
}

/// What both decoders are compared by.
#[derive(Clone, Debug, PartialEq)]
enum Plain {
    /// Sequence number, acknowledgement, tid, type, priority, version, compat, data_off, reserved; front, middle, data.
    Message([u64; 9], Vec<u8>, Vec<u8>, SeenData),
    /// Tag and fields.
    Control(u8, Vec<u64>),
    Aborted(u8, Option<u64>),
}

/// How a stream ends: "eof", "cut", or the name of an error.
type End = String;

// ---- the slow decoder

struct Slow<'a> {
    bytes: &'a [u8],
    rev1: bool,
    last_seq: u64,
    targets: BTreeMap<u64, Vec<u8>>,
    frames: Vec<Plain>,
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl<'a> Slow<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], End> {
        if self.bytes.len() < len {
            return Err("cut".into());
        }
        let (taken, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        Ok(taken)
    }

    fn run(mut self) -> (Vec<Plain>, End, BTreeMap<u64, Vec<u8>>) {
        let end = loop {
            if self.bytes.is_empty() {
                break "eof".into();
            }
            if let Err(end) = self.frame() {
                break end;
            }
        };
        (self.frames, end, self.targets)
    }

    fn frame(&mut self) -> Result<(), End> {
        let preamble = self.take(32)?;
        if le(&preamble[28..]) != u64::from(crc32c(0, &preamble[..28])) {
            return Err("Crc Preamble".into());
        }
        let (tag, count) = (preamble[0], usize::from(preamble[1]));
        if tag == 0 || tag > 20 {
            return Err("Tag".into());
        }
        if preamble[26] & 1 == 1 {
            return Err("Compressed".into());
        }
        let is_message = tag == 17;
        if !(1..=4).contains(&count) || (count > 1 && !is_message) {
            return Err("Segments".into());
        }
        let lens: Vec<usize> = (0..count).map(|i| le(&preamble[2 + 6 * i..6 + 6 * i]) as usize).collect();
        let names = [if is_message { "Header" } else { "Control" }, "Front", "Middle", "Data"];
        for (len, name) in lens.iter().zip(names) {
            let first = name == "Header" || name == "Control";
            if *len > if first { CONTROL_LIMIT } else { LIMIT } as usize {
                return Err(format!("TooLong {name}"));
            }
        }
        if count > 1 && lens[count - 1] == 0 {
            return Err("LastEmpty".into());
        }
        if is_message && lens[0] < 41 {
            return Err("HeaderTooShort".into());
        }

        let mut segments = vec![self.take(lens[0])?];
        if self.rev1 && lens[0] > 0 && le(self.take(4)?) != u64::from(crc32c(!0, segments[0])) {
            return Err(format!("Crc {}", names[0]));
        }
        for len in &lens[1..] {
            segments.push(self.take(*len)?);
        }
        let mut status = if self.rev1 { 0xe } else { 0 };
        if !self.rev1 || count > 1 {
            let epilogue = self.take(if self.rev1 { 13 } else { 17 })?;
            status = epilogue[0];
            let first = usize::from(self.rev1);
            for index in first..count {
                let at = 1 + 4 * (index - first);
                if le(&epilogue[at..at + 4]) != u64::from(crc32c(!0, segments[index])) {
                    return Err(format!("Crc {}", names[index]));
                }
            }
        }
        let aborted = match (self.rev1, status & 15) {
            (true, 0xe) => false,
            (true, 1) => true,
            (true, _) => return Err("LateStatus".into()),
            (false, status) => status & 1 == 1,
        };
        self.whole(tag, &segments, aborted)
    }

    fn whole(&mut self, tag: u8, segments: &[&[u8]], aborted: bool) -> Result<(), End> {
        if tag != 17 {
            let plain = if aborted {
                Plain::Aborted(tag, None)
            } else {
                Plain::Control(tag, fields(tag, segments[0])?)
            };
            self.frames.push(plain);
            return Ok(());
        }
        let h = segments[0];
        let (seq, tid, kind) = (le(&h[..8]), le(&h[8..16]), le(&h[16..18]));
        let part = |index: usize| segments.get(index).copied().unwrap_or_default();
        let data = part(3);
        let seen =
            match self.targets.get_mut(&tid).filter(|_| kind == u64::from(OP_REPLY) && seq > self.last_seq) {
                _ if data.is_empty() => SeenData::Bytes(vec![]),
                Some(memory) if memory.len() >= data.len() => {
                    memory[..data.len()].copy_from_slice(data);
                    SeenData::Target { len: data.len() as u64, whole: true }
                }
                Some(_) => SeenData::Discarded { len: data.len() as u64 },
                None => SeenData::Bytes(data.to_vec()),
            };
        if aborted {
            self.frames.push(Plain::Aborted(17, Some(tid)));
        } else if seq > self.last_seq {
            self.last_seq = seq;
            let at = |from, to| le(&h[from..to]);
            let header =
                [seq, at(28, 36), tid, kind, at(18, 20), at(20, 22), at(37, 39), at(26, 28), at(39, 41)];
            self.frames.push(Plain::Message(header, part(1).to_vec(), part(2).to_vec(), seen));
        }
        Ok(())
    }
}

/// The fields of a control frame: 1, 4 and 8 are numbers of so many bytes, l a list of u32, s a string, a an address, v a list of
/// addresses, h 32 bytes.
fn schema(tag: u8) -> &'static str {
    match tag {
        1 => "1a",
        2 => "4ls",
        3 => "44ll",
        4 | 5 => "s",
        6 => "84s",
        7 => "h",
        8 => "va888888",
        9 => "v888888",
        11 => "v88888",
        12 => "1",
        16 => "",
        18 | 19 => "44",
        _ => "8",
    }
}

fn fields(tag: u8, segment: &[u8]) -> Result<Vec<u64>, End> {
    fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], End> {
        let (taken, after) = rest.split_at_checked(len).ok_or("Short")?;
        *rest = after;
        Ok(taken)
    }
    fn string<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], End> {
        let len = le(take(rest, 4)?) as usize;
        take(rest, len)
    }
    fn address(rest: &mut &[u8], out: &mut Vec<u64>) -> Result<(), End> {
        if take(rest, 1)?[0] != 1 {
            return Err("Value".into());
        }
        take(rest, 2)?;
        let mut body = string(rest)?;
        let kind = le(take(&mut body, 4)?);
        if kind > 3 {
            return Err("Value".into());
        }
        out.extend([kind, le(take(&mut body, 4)?)]);
        let mut socket = string(&mut body)?;
        if socket.is_empty() {
            return Ok(());
        }
        let (family, port) = (le(take(&mut socket, 2)?), take(&mut socket, 2)?);
        let port = u64::from(port[0]) << 8 | u64::from(port[1]);
        match family {
            0 => {}
            2 => out.extend([port, le(take(&mut socket, 4)?)]),
            10 => out.extend([
                port,
                le(take(&mut socket, 4)?),
                le(take(&mut socket, 8)?),
                le(take(&mut socket, 8)?),
                le(take(&mut socket, 4)?),
            ]),
            _ => return Err("Value".into()),
        }
        Ok(())
    }
    let mut rest = segment;
    let mut out = Vec::new();
    for (index, field) in schema(tag).chars().enumerate() {
        match field {
            '1' | '4' | '8' => out.push(le(take(&mut rest, field as usize - '0' as usize)?)),
            'h' => out.extend(take(&mut rest, 32)?.iter().map(|byte| u64::from(*byte))),
            's' => out.extend(string(&mut rest)?.iter().map(|byte| u64::from(*byte))),
            'l' => {
                for _ in 0..le(take(&mut rest, 4)?) {
                    out.push(le(take(&mut rest, 4)?));
                }
            }
            'a' => address(&mut rest, &mut out)?,
            _ => {
                if take(&mut rest, 1)?[0] != 2 {
                    return Err("Value".into());
                }
                for _ in 0..le(take(&mut rest, 4)?) {
                    address(&mut rest, &mut out)?;
                }
            }
        }
        if (tag, index) == (12, 0) {
            out[0] = u64::from(out[0] != 0);
        }
    }
    Ok(out)
}

// ---- what the real one says, in the same words

fn plain(seen: Seen) -> Plain {
    match seen {
        Seen::Message { seq, acked, header, front, middle, data } => {
            let Header { tid, kind, priority, version, compat_version, data_off, reserved, .. } = header;
            let rest = [kind, priority, version, compat_version, data_off, reserved].map(u64::from);
            let [kind, priority, version, compat, data_off, reserved] = rest;
            let header = [seq, acked, tid, kind, priority, version, compat, data_off, reserved];
            Plain::Message(header, front.to_vec(), middle.to_vec(), data)
        }
        Seen::Control(control) => Plain::Control(control.tag(), numbers(&control)),
        Seen::Aborted { tag, tid } => Plain::Aborted(tag, tid),
    }
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

/// The name of an error, with the part that it is about.
fn name(error: &impl Debug) -> String {
    let text = format!("{error:?}");
    let (name, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let field = rest.strip_prefix("{ field: ").and_then(|rest| rest.split(',').next());
    field.map_or(name.into(), |field| format!("{name} {field}"))
}

// ---- streams

struct Streams {
    random: Random,
    rev1: bool,
    seq: u64,
}

impl Streams {
    fn one_in(&mut self, n: usize) -> bool {
        self.random.below(n) == 0
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
            header.extend(self.random.bytes(23));
            let mut all = vec![header];
            for _ in 0..3 {
                let len = self.length();
                all.push(self.random.bytes(len));
            }
            while all.len() > 1 && all.last().is_some_and(Vec::is_empty) {
                all.pop();
            }
            all
        } else {
            let control = controls().into_iter().find(|control| control.tag() == tag);
            let whole = control_wire(Codec::CrcRev0, control.unwrap());
            vec![whole[32..whole.len() - 17].to_vec()]
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
        self.seq = 0;
        let mut stream: Vec<u8> = (0..=self.random.below(4)).flat_map(|_| self.frame()).collect();
        if self.one_in(3) {
            for _ in 0..=self.random.below(3) {
                let at = self.random.below(stream.len());
                stream[at] ^= 1 << self.random.below(8);
            }
        }
        if self.one_in(3) {
            stream.truncate(self.random.below(stream.len() + 1));
        }
        stream
    }

    fn cuts(&mut self, len: usize) -> Vec<usize> {
        let mut cuts: Vec<usize> =
            (0..self.random.below(6)).map(|_| 1 + self.random.below(len.max(1))).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }
}

fn real(
    script: &ScriptedRecv,
    options: &Options,
    pool: &SlabPool,
    targets: &mut TargetTable,
) -> (Vec<Plain>, End) {
    let limits = segchain::recv::RecvOptions::new().contiguous(LIMIT.into()).read_ahead(4096);
    let mut receiver = Receiver::with_options(script, Deframer::new(options), limits, pool.clone());
    let mut frames = Vec::new();
    loop {
        let received = receiver.receive(targets, |frame| {
            frames.push(plain(seen(frame)));
            ControlFlow::Continue(())
        });
        match received.map_err(segchain::recv::RecvError::into_kind) {
            Ok(Received::Blocked) => {}
            Ok(Received::Eof) => return (frames, "eof".into()),
            Err(RecvErrorKind::UnexpectedEof { .. }) => return (frames, "cut".into()),
            Err(RecvErrorKind::Frame(error)) => return (frames, name(&error)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn both_decoders_see_the_same_in_random_streams() {
    let seed = seed("v2_oracle");
    let start = Instant::now();
    let pool = SlabPool::default();
    let script = ScriptedRecv::new(&[], []);
    let (mut count, mut frames) = (0u64, 0);
    let mut ends: BTreeMap<End, u64> = BTreeMap::new();
    while start.elapsed() < TIME && count < 1_000_000 {
        for rev1 in [true, false] {
            let random = Random::new(seed.wrapping_add(count));
            count += 1;
            let mut streams = Streams { random, rev1, seq: 0 };
            let stream = streams.stream();
            let cuts = streams.cuts(stream.len());
            let targets = TARGETS.iter().map(|(tid, len)| (*tid, vec![0; *len])).collect();
            let slow = Slow { bytes: &stream, rev1, last_seq: 0, targets, frames: Vec::new() };
            let (expected, end, expected_targets) = slow.run();

            script.reset(&stream, &[], RecvStep::Eof);
            script.stop_at(&cuts, streams.one_in(2));
            let options = options(if rev1 { Codec::CrcRev1 } else { Codec::CrcRev0 });
            let options = options.control_limit(CONTROL_LIMIT).front_limit(LIMIT).middle_limit(LIMIT);
            let options = options.data_limit(LIMIT);
            let mut targets = TargetTable::new(&TARGETS);
            let got = real(&script, &options, &pool, &mut targets);
            let case = format!(
                "SEGCHAIN_SEED={} rev1={rev1} cuts={cuts:?}",
                seed.wrapping_add(count - if rev1 { 1 } else { 2 })
            );
            assert_eq!(got.0, expected, "{case}");
            assert_eq!(got.1, end, "{case}");
            if end == "eof" {
                for (tid, memory) in expected_targets {
                    assert_eq!(targets.get(tid), Some(&memory[..]), "{case}: target {tid}");
                }
            }
            frames += expected.len();
            *ends.entry(end).or_default() += 1;
        }
    }
    println!("{count} streams, {frames} frames: {ends:?}");
    for end in
        ["eof", "cut", "Crc Preamble", "Crc Control", "Crc Header", "Crc Front", "Crc Middle", "Crc Data"]
    {
        assert!(ends.contains_key(end), "no stream ended with {end}");
    }
    for end in
        ["Tag", "Segments", "LastEmpty", "HeaderTooShort", "LateStatus", "Compressed", "Short", "Value"]
    {
        assert!(ends.contains_key(end), "no stream ended with {end}");
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

            let slow =
                Slow { bytes: &got, rev1, last_seq: seq - 1, targets: BTreeMap::new(), frames: Vec::new() };
            let (frames, end, _) = slow.run();
            let [kind, priority, version, compat, data_off, reserved] = [
                header.kind,
                header.priority,
                header.version,
                header.compat_version,
                header.data_off,
                header.reserved,
            ]
            .map(u64::from);
            let header = [seq, acked, header.tid, kind, priority, version, compat, data_off, reserved];
            assert_eq!(end, "eof");
            assert_eq!(frames, [Plain::Message(header, front, middle, SeenData::Bytes(data))]);
        }
    }
}
