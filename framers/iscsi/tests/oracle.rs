//! The second decoder of PDUs against the real one: a million random streams, valid, mutated and truncated.
//!
//! Both have to see the same PDUs, field by field, and the same end.

mod common;

use std::ops::ControlFlow;

use common::{SeenData, seen, wire};
use segchain::recv::{Received, Receiver, RecvError, RecvErrorKind, RecvOptions};
use segchain::slab::SlabPool;
use segchain_iscsi::{Bhs, Header, Options, Pdu, PduDeframer};
use segchain_testkit::conformance::TargetTable;
use segchain_testkit::naive::{Random, seed};
use segchain_testkit::oracle::iscsi::{self, OPCODES, Settings};
use segchain_testkit::oracle::{self, CUT, EOF, End, Payload, crc32c};
use segchain_testkit::scripted::{RecvStep, ScriptedRecv};

const AHS_LIMIT: u32 = 40;
const DATA_LIMIT: u32 = 2000;
/// Tasks whose data somebody waits for, and the memory there.
const TARGETS: [(u64, usize); 3] = [(0, 0), (1, 20), (2, 400)];
/// Request for SNACK, which the crate has no names for.
const SNACK: u8 = 0x10;

#[test]
fn both_decoders_see_the_same_in_a_million_random_streams() {
    let ends = oracle::run(seed("iscsi_oracle"), oracle::streams(), || {
        let (pool, script) = (SlabPool::default(), ScriptedRecv::new(&[], []));
        move |number| compare(number, &pool, &script)
    });
    let digests = [("Digest Header", 50), ("Digest Data", 50)];
    let limits = [("TooLong Ahs", 1000), ("TooLong Data", 1000)];
    oracle::assert_seen(&ends, &[&[(EOF, 4), (CUT, 10)], &digests[..], &limits].concat());
}

/// One stream: how it ended.
fn compare(number: u64, pool: &SlabPool, script: &ScriptedRecv) -> End {
    let mut random = Random::new(number);
    let (header_digest, data_digest) = (number & 1 != 0, number & 2 != 0);
    let (ahs_limit, data_limit) = (AHS_LIMIT as usize, DATA_LIMIT as usize);
    let settings = Settings { header_digest, data_digest, ahs_limit, data_limit };
    let mut stream: Vec<u8> = (0..=random.below(4)).flat_map(|_| pdu(&mut random, &settings)).collect();
    oracle::damage(&mut random, &mut stream);
    let cuts = oracle::cuts(&mut random, stream.len());
    let targets = TARGETS.iter().map(|(itt, len)| (*itt, vec![0; *len])).collect();
    let expected = iscsi::decode(&settings, targets, &stream);

    script.reset(&stream, &[], RecvStep::Eof);
    script.stop_at(&cuts, random.below(2) == 0);
    let mut targets = TargetTable::new(&TARGETS);
    let (pdus, end) = real(script, &settings, pool, &mut targets);
    let case = || format!("SEGCHAIN_SEED={number} (the first stream), cut at {cuts:?}");
    assert_eq!(pdus.len(), expected.frames.len(), "{}: {end} {}", case(), expected.end);
    for (got, expected) in pdus.iter().zip(&expected.frames) {
        assert_eq!(got.bhs.as_bytes(), &expected.bhs, "{}", case());
        assert_eq!((&got.ahs, payload(&got.data)), (&expected.ahs, expected.data.clone()), "{}", case());
        assert_fields(&got.bhs, expected, &case);
    }
    assert_eq!(end, expected.end, "{}", case());
    if end == EOF {
        for (itt, memory) in &expected.targets {
            assert_eq!(targets.get(*itt), Some(&memory[..]), "{}: task {itt}", case());
        }
    }
    end
}

fn real(
    script: &ScriptedRecv,
    settings: &Settings,
    pool: &SlabPool,
    targets: &mut TargetTable,
) -> (Vec<common::Seen>, End) {
    let options = Options::new().digests(settings.header_digest, settings.data_digest);
    let options = options.max_recv(DATA_LIMIT).ahs_limit(AHS_LIMIT);
    let limits = RecvOptions::new().read_ahead(4096);
    let mut receiver = Receiver::with_options(script, PduDeframer::new(&options), limits, pool.clone());
    let mut pdus = Vec::new();
    loop {
        let received = receiver.receive(targets, |pdu| {
            pdus.push(seen(pdu));
            ControlFlow::Continue(())
        });
        match received.map_err(RecvError::into_kind) {
            Ok(Received::Blocked) => {}
            Ok(Received::Eof) => return (pdus, EOF.into()),
            Err(RecvErrorKind::UnexpectedEof { .. }) => return (pdus, CUT.into()),
            Err(RecvErrorKind::Frame(error)) => return (pdus, oracle::name(&error)),
            other => panic!("{other:?}"),
        }
    }
}

/// The other direction: what the framer makes of a header that it knows is read back field by field, and what is reserved
/// is 0.
#[test]
fn the_framer_writes_what_the_oracle_reads() {
    let mut random = Random::new(seed("iscsi_framer"));
    for number in 0..20_000 {
        let opcode = OPCODES[random.below(OPCODES.len())];
        if opcode == SNACK {
            continue;
        }
        let (header_digest, data_digest) = (number & 1 != 0, number & 2 != 0);
        let settings = Settings { header_digest, data_digest, ahs_limit: 1020, data_limit: 1 << 24 };
        let mut bhs: [u8; 48] = *random.bytes(48).first_chunk().unwrap();
        // Requests alone are immediate (RFC 7143 section 11.2.1.1).
        bhs[0] = opcode | if opcode < 0x20 && opcode != 0x05 { bhs[0] & 0x40 } else { 0 };
        let header = Header::from(&Bhs::from(bhs));
        let (words, len) = (random.below(4), random.below(300));
        let (ahs, data) = (random.bytes(4 * words), random.bytes(len));
        let mut pdu = Pdu::new(header, &data[..]);
        pdu.ahs = ahs.clone().into();
        let bytes = wire(&common::open(header_digest, data_digest), pdu);

        let decoded = iscsi::decode(&settings, oracle::Targets::new(), &bytes);
        let [got] = &decoded.frames[..] else { panic!("{header:?}: {decoded:?}") };
        assert_eq!(decoded.end, EOF, "{header:?}");
        assert_eq!((&got.ahs, &got.data), (&ahs, &Payload::Bytes(data)), "{header:?}");
        assert_eq!(got.immediate, bhs[0] & 0x40 != 0, "{header:?}");
        assert_eq!(got.fields, fields(&header).unwrap(), "{header:?}: {:?}", iscsi::names(opcode));
    }
}

/// A PDU with right digests, though it may be too long or of no known opcode.
fn pdu(random: &mut Random, settings: &Settings) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..6).flat_map(|_| random.number().to_le_bytes()).collect();
    if random.below(12) > 0 {
        bytes[0] = OPCODES[random.below(OPCODES.len())] | bytes[0] & 0xc0;
    }
    let words = match random.below(16) {
        0 => 1 + random.below(10),
        1 if random.below(8) == 0 => random.below(256),
        _ => 0,
    };
    let len = match random.below(8) {
        0..3 => 0,
        3..7 => random.below(40),
        _ if random.below(4) == 0 => random.below(2100),
        _ => random.below(300),
    };
    bytes[4] = words as u8;
    bytes[5..8].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
    bytes[16..20].copy_from_slice(&(random.below(4) as u32).to_be_bytes());
    if random.below(8) > 0 {
        bytes[40..44].copy_from_slice(&(random.below(30) as u32).to_be_bytes());
    }
    bytes.extend((0..words).flat_map(|_| (random.number() as u32).to_le_bytes()));
    let digest = |covered: &[u8]| (!crc32c(!0, covered)).to_le_bytes();
    if settings.header_digest {
        bytes.extend(digest(&bytes));
    }
    let data: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.number().to_le_bytes()).take(len).collect();
    let start = bytes.len();
    bytes.extend(data);
    // The RFC wants zeros and nobody checks.
    let pad = if random.below(4) == 0 { random.number() as u8 } else { 0 };
    bytes.resize(start + len.next_multiple_of(4), pad);
    if settings.data_digest && len > 0 {
        bytes.extend(digest(&bytes[start..]));
    }
    bytes
}

// ---- what the real one says, in the oracle's words

fn payload(data: &SeenData) -> Payload {
    match data {
        SeenData::Bytes(bytes) => Payload::Bytes(bytes.clone()),
        SeenData::Target { len, whole: true } => Payload::Target(*len),
        SeenData::Discarded { len } => Payload::Discarded(*len),
        SeenData::Target { .. } => panic!("nobody takes a target back"),
    }
}

fn assert_fields(bhs: &Bhs, expected: &iscsi::Pdu, case: &impl Fn() -> String) {
    assert_eq!((bhs.opcode(), bhs.is_immediate()), (expected.opcode, expected.immediate), "{}", case());
    match fields(&Header::from(bhs)) {
        Some(fields) => {
            assert_eq!(fields, expected.fields, "{}: {:?}", case(), iscsi::names(expected.opcode));
        }
        None => assert!(expected.opcode == SNACK || !OPCODES.contains(&expected.opcode), "{}", case()),
    }
}

/// Fields in the oracle's order.
macro_rules! numbers {
    ($header:ident: $($field:ident)+) => {{
        let mut out = Vec::new();
        $($header.$field.push_to(&mut out);)+
        out
    }};
}

/// `None` of an opcode that has no fields.
fn fields(header: &Header) -> Option<Vec<u64>> {
    Some(match header {
        Header::NopOut(h) => numbers!(h: lun itt ttt cmd_sn exp_stat_sn),
        Header::ScsiCommand(h) => {
            numbers!(h: last read write attribute lun itt expected_len cmd_sn exp_stat_sn cdb)
        }
        Header::TaskRequest(h) => {
            numbers!(h: function lun itt referenced_itt cmd_sn exp_stat_sn ref_cmd_sn exp_data_sn)
        }
        Header::LoginRequest(h) => {
            numbers!(h: transit more csg nsg version_max version_min isid tsih itt cid cmd_sn exp_stat_sn)
        }
        Header::TextRequest(h) => numbers!(h: last more lun itt ttt cmd_sn exp_stat_sn),
        Header::DataOut(h) => numbers!(h: last lun itt ttt exp_stat_sn data_sn offset),
        Header::LogoutRequest(h) => numbers!(h: reason itt cid cmd_sn exp_stat_sn),
        Header::NopIn(h) => numbers!(h: lun itt ttt stat_sn exp_cmd_sn max_cmd_sn),
        Header::ScsiResponse(h) => numbers!(h:
            bidi_overflow bidi_underflow overflow underflow response status itt snack_tag
            stat_sn exp_cmd_sn max_cmd_sn exp_data_sn bidi_residual residual),
        Header::TaskResponse(h) => numbers!(h: response itt stat_sn exp_cmd_sn max_cmd_sn),
        Header::LoginResponse(h) => numbers!(h:
            transit more csg nsg version_max version_active isid tsih itt
            stat_sn exp_cmd_sn max_cmd_sn status_class status_detail),
        Header::TextResponse(h) => {
            numbers!(h: last more lun itt ttt stat_sn exp_cmd_sn max_cmd_sn)
        }
        Header::DataIn(h) => numbers!(h:
            last acknowledge overflow underflow has_status status lun itt ttt
            stat_sn exp_cmd_sn max_cmd_sn data_sn offset residual),
        Header::LogoutResponse(h) => {
            numbers!(h: response itt stat_sn exp_cmd_sn max_cmd_sn time_to_wait time_to_retain)
        }
        Header::R2t(h) => {
            numbers!(h: lun itt ttt stat_sn exp_cmd_sn max_cmd_sn r2t_sn offset desired_len)
        }
        Header::AsyncMessage(h) => numbers!(h:
            lun stat_sn exp_cmd_sn max_cmd_sn event vendor_code parameter1 parameter2 parameter3),
        Header::Reject(h) => numbers!(h: reason stat_sn exp_cmd_sn max_cmd_sn data_sn),
        _ => return None,
    })
}

/// What a field is as the oracle's numbers, of eight bytes at most.
trait Numbers {
    fn push_to(&self, out: &mut Vec<u64>);
}

macro_rules! one_number {
    ($($type:ty)+) => {
        $(impl Numbers for $type {
            fn push_to(&self, out: &mut Vec<u64>) {
                out.push(u64::from(*self));
            }
        })+
    };
}
one_number!(bool u8 u16 u32 u64);

impl<const N: usize> Numbers for [u8; N] {
    fn push_to(&self, out: &mut Vec<u64>) {
        out.extend(self.chunks(8).map(oracle::be));
    }
}
