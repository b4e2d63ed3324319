//! An initiator's session: numbers, the data of writes and reads, pings, and what a target may not do.

mod common;

use bytes::Bytes;
use common::*;
use segchain::chain::Payload as _;
use segchain_iscsi::login::{DigestOffer, Parameters};
use segchain_iscsi::scsi::{Command, Failure, Residual, Sense, Transfer, lun};
use segchain_iscsi::session::{Event, Initiator, Violation};
use segchain_iscsi::{
    AsyncMessage, Bhs, DataIn, DataOut, Error, Extent, Field, Header, LoginResponse, LogoutRequest,
    LogoutResponse, NO_TAG, NopIn, NopOut, Pages, Pdu, R2t, Reject, ScsiCommand, ScsiResponse, TaskResponse,
};
use segchain_testkit::golden::iscsi;
use segchain_testkit::naive::{Random, seed};

const LUN: u64 = 0x0001_0000_0000_0000;

/// A session whose next status is number 3, with a window of 128 commands from number 1.
fn session(ours: Parameters, theirs: Parameters) -> Initiator {
    Initiator::new(&login(ours, theirs).0)
}

fn plain() -> Initiator {
    session(Parameters::new(), Parameters::new())
}

fn hear(
    initiator: &mut Initiator,
    header: impl Into<Header>,
    data: &[u8],
) -> Result<Option<Event>, Violation> {
    initiator.receive(incoming(&wire(&open(false, false), Pdu::new(header, data))))
}

/// Everything that has to leave now.
fn pdus(initiator: &mut Initiator) -> Vec<Pdu<Extent>> {
    std::iter::from_fn(|| initiator.next_pdu()).collect()
}

fn sense_data(key: u8, code: u8) -> Vec<u8> {
    let mut sense = vec![0; 20];
    (sense[1], sense[2], sense[4], sense[9], sense[14]) = (18, 0x70, key, 10, code);
    sense
}

fn cdb(operation: u8) -> [u8; 10] {
    [operation, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

fn write(initiator: &mut Initiator, len: usize) -> u32 {
    initiator
        .command(Command::new(LUN, cdb(0x2a), Transfer::Write(Bytes::from(pattern(len)).into())))
        .unwrap()
}

fn read(initiator: &mut Initiator, len: u32) -> u32 {
    let itt = initiator.command(Command::new(LUN, cdb(0x28), Transfer::Read(len))).unwrap();
    assert_eq!(pdus(initiator).len(), 1);
    itt
}

#[test]
fn a_read_and_a_write_are_the_commands_that_sbc_has() {
    let mut initiator = plain();
    initiator.command(Command::read10(lun(1), 0x0102_0304, 0x0506, 512)).unwrap();
    initiator.command(Command::write10(lun(1), 7, 1, Bytes::from(vec![1; 512]))).unwrap();
    initiator.command(Command::test_unit_ready(lun(2))).unwrap();
    let pdus = pdus(&mut initiator);
    let headers: Vec<_> = pdus.iter().map(|pdu| pdu.header).collect();
    let [Header::ScsiCommand(read), Header::ScsiCommand(write), Header::ScsiCommand(ready)] = headers[..]
    else {
        panic!("{headers:?}")
    };
    assert_eq!(read.cdb, *b"\x28\0\x01\x02\x03\x04\0\x05\x06\0\0\0\0\0\0\0");
    assert_eq!((read.lun, read.expected_len, read.last), (LUN, 0x0506 * 512, true));
    assert_eq!((read.read, read.write, read.attribute), (true, false, 1));
    assert_eq!(write.cdb, *b"\x2a\0\0\0\0\x07\0\0\x01\0\0\0\0\0\0\0");
    assert_eq!((write.expected_len, write.read, write.write, write.last), (512, false, true, true));
    assert_eq!((ready.cdb, ready.expected_len, ready.lun), ([0; 16], 0, 2 * LUN));
    assert_eq!([read.cmd_sn, write.cmd_sn, ready.cmd_sn], [1, 2, 3]);
    assert_eq!([read.exp_stat_sn; 3], [write.exp_stat_sn, ready.exp_stat_sn, 3]);
    assert!(read.itt != write.itt && write.itt != ready.itt);
}

/// RFC 7143 section 4.2.2.1: no command beyond MaxCmdSN; what waits gets its number when it leaves.
#[test]
fn requests_wait_for_the_window() {
    let mut initiator = plain();
    for _ in 0..130 {
        initiator.ping(Extent::default()).unwrap();
    }
    let first = pdus(&mut initiator);
    assert_eq!((first.len(), initiator.in_flight()), (128, 130));
    let pong = |itt, stat_sn, exp_cmd_sn, max_cmd_sn| NopIn {
        itt,
        stat_sn,
        exp_cmd_sn,
        max_cmd_sn,
        ..NopIn::default()
    };
    let itt = Bhs::from(first[0].header).itt();
    assert!(matches!(hear(&mut initiator, pong(itt, 3, 2, 129), b""), Ok(Some(Event::Pong { .. }))));
    let more = pdus(&mut initiator);
    let [Header::NopOut(ping)] = more.iter().map(|pdu| pdu.header).collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!((ping.cmd_sn, ping.exp_stat_sn), (129, 4));
    // An older view of the window does not close it.
    let itt = Bhs::from(first[1].header).itt();
    hear(&mut initiator, pong(itt, 4, 2, 100), b"").unwrap();
    let itt = Bhs::from(first[2].header).itt();
    hear(&mut initiator, pong(itt, 5, 4, 131), b"").unwrap();
    assert_eq!(pdus(&mut initiator).len(), 1);
    assert_eq!(initiator.in_flight(), 127);
}

/// Tags can be guessed. Nothing goes out for a request that has not left, and nothing ends it.
#[test]
fn a_request_that_waits_for_the_window_is_no_task_yet() {
    let waiting = || {
        let mut initiator = plain();
        for _ in 0..128 {
            initiator.ping(Extent::default()).unwrap();
        }
        assert_eq!(pdus(&mut initiator).len(), 128);
        let itt = write(&mut initiator, 20_000);
        assert!(initiator.next_pdu().is_none());
        (initiator, itt)
    };
    let itt = waiting().1;
    for (header, pdu) in [
        (Header::from(R2t { itt, ttt: 1, desired_len: 512, ..R2t::default() }), "R2T"),
        (ScsiResponse { itt, stat_sn: 3, ..ScsiResponse::default() }.into(), "SCSI Response"),
        (DataIn { itt, ..DataIn::default() }.into(), "SCSI Data-In"),
    ] {
        let answer = hear(&mut waiting().0, header, b"").unwrap_err();
        assert_eq!(answer, Violation::UnknownTask { pdu, itt, offset: 16 });
    }
    let mut initiator = waiting().0;
    let reject = Reject { reason: 4, stat_sn: 3, ..Reject::default() };
    let rejected = Bhs::from(Header::from(ScsiCommand { itt, ..ScsiCommand::default() }));
    hear(&mut initiator, reject, rejected.as_bytes()).unwrap();
    assert!(initiator.next_pdu().is_none());
    assert_eq!(initiator.in_flight(), 129);
}

/// RFC 7143 sections 13.10 to 13.14: the four ways in which data of a write may go out unasked.
#[test]
fn data_goes_out_unasked_as_was_negotiated() {
    let len = 20_000;
    for (immediate, initial_r2t, first_burst, expected) in [
        (true, true, 10_000, vec![(true, 0, 4096)]),
        (true, false, 10_000, vec![(false, 0, 4096), (false, 4096, 4096), (true, 8192, 1808)]),
        (true, false, 4096, vec![(true, 0, 4096)]),
        (
            true,
            false,
            100_000,
            vec![
                (false, 0, 4096),
                (false, 4096, 4096),
                (false, 8192, 4096),
                (false, 12_288, 4096),
                (true, 16_384, 3616),
            ],
        ),
        (true, true, 1000, vec![(true, 0, 1000)]),
        (false, true, 10_000, vec![(true, 0, 0)]),
        (false, false, 5000, vec![(false, 0, 0), (false, 0, 4096), (true, 4096, 904)]),
    ] {
        let ours =
            Parameters::new().immediate_data(immediate).initial_r2t(initial_r2t).bursts(first_burst, 1 << 20);
        let mut initiator = session(ours, Parameters::new().max_recv(4096).bursts(1 << 20, 1 << 20));
        let task = write(&mut initiator, len);
        let mut sent = Vec::new();
        for (index, pdu) in pdus(&mut initiator).into_iter().enumerate() {
            let bytes = pdu.data.len();
            match pdu.header {
                Header::ScsiCommand(ScsiCommand { last, itt, expected_len, .. }) if index == 0 => {
                    assert_eq!((itt, expected_len), (task, len as u32));
                    sent.push((last, 0, bytes));
                }
                Header::DataOut(DataOut { last, itt, ttt, data_sn, offset, .. }) => {
                    assert_eq!((itt, ttt, data_sn as usize), (task, NO_TAG, index - 1));
                    let data = wire(&open(false, false), Pdu::new(NopOut::default(), pdu.data));
                    assert_eq!(
                        data[48..][..bytes as usize],
                        pattern(len)[offset as usize..][..bytes as usize]
                    );
                    sent.push((last, offset, bytes));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(sent, expected, "immediate {immediate}, InitialR2T {initial_r2t}, {first_burst}");
    }
}

#[test]
fn an_r2t_is_answered_with_the_data_that_it_asks_for() {
    let mut initiator =
        session(Parameters::new().immediate_data(false), Parameters::new().initial_r2t(true).max_recv(4096));
    let task = write(&mut initiator, 30_000);
    assert_eq!(pdus(&mut initiator).len(), 1);
    let other = write(&mut initiator, 10);
    assert_eq!(pdus(&mut initiator).len(), 1);
    for (r2t_sn, (offset, desired_len, ttt)) in
        [(0, 10_000, 77), (10_000, 20_000, 78)].into_iter().enumerate()
    {
        let r2t_sn = r2t_sn as u32;
        let r2t = R2t { lun: LUN, itt: task, ttt, stat_sn: 3, r2t_sn, offset, desired_len, ..R2t::default() };
        assert!(hear(&mut initiator, r2t, b"").unwrap().is_none());
        let mut at = offset;
        for (data_sn, pdu) in pdus(&mut initiator).into_iter().enumerate() {
            let Header::DataOut(header) = pdu.header else { panic!("{pdu:?}") };
            let end = at + pdu.data.len() as u32;
            let expected = DataOut {
                last: end == offset + desired_len,
                lun: LUN,
                itt: task,
                ttt,
                exp_stat_sn: 3,
                data_sn: data_sn as u32,
                offset: at,
            };
            assert_eq!(header, expected);
            assert!(end - at <= 4096);
            at = end;
        }
        assert_eq!(at, offset + desired_len);
    }
    let done = |itt, stat_sn| ScsiResponse { itt, stat_sn, ..ScsiResponse::default() };
    match hear(&mut initiator, done(task, 3), b"").unwrap() {
        Some(Event::Done { itt, outcome: Ok(moved) }) => {
            assert_eq!((itt, moved.sent, moved.residual), (task, 30_000, Residual::None));
        }
        event => panic!("{event:?}"),
    }
    let none = ScsiResponse { underflow: true, residual: 10, ..done(other, 4) };
    match hear(&mut initiator, none, b"").unwrap() {
        Some(Event::Done { outcome: Ok(moved), .. }) => {
            assert_eq!((moved.sent, moved.residual), (0, Residual::Under(10)));
        }
        event => panic!("{event:?}"),
    }
    assert_eq!(initiator.in_flight(), 0);
}

/// A target that ends a write early gets no more of it, and the others go on.
#[test]
fn data_that_has_not_left_when_its_command_ends_stays() {
    let mut initiator = session(Parameters::new(), Parameters::new().max_recv(4096));
    let (first, second) = (write(&mut initiator, 20_000), write(&mut initiator, 9000));
    let command = initiator.next_pdu().unwrap();
    assert!(matches!(command.header, Header::ScsiCommand(ScsiCommand { last: false, .. })));
    initiator.next_pdu().unwrap();
    let failed = ScsiResponse { status: 2, itt: first, stat_sn: 3, ..ScsiResponse::default() };
    let event = hear(&mut initiator, failed, &sense_data(7, 0x27)).unwrap();
    assert!(matches!(event, Some(Event::Done { outcome: Err(Failure::CheckCondition(_)), .. })));
    let rest = pdus(&mut initiator);
    assert_eq!(rest.len(), 3);
    assert!(rest.iter().all(|pdu| Bhs::from(pdu.header).itt() == second));
}

#[test]
fn an_r2t_that_does_not_fit_its_write_is_a_violation_that_names_the_field() {
    let start = || {
        let mut initiator =
            session(Parameters::new(), Parameters::new().initial_r2t(true).bursts(1000, 5000));
        let task = write(&mut initiator, 10_000);
        pdus(&mut initiator);
        (initiator, task)
    };
    let (mut initiator, task) = start();
    let good = R2t { itt: task, ttt: 9, offset: 1000, desired_len: 5000, ..R2t::default() };
    assert!(hear(&mut initiator, good, b"").is_ok());
    let case = |r2t: R2t, field: &'static str, offset: u64, least: u64, most: u64, got: u64| {
        let violation = hear(&mut start().0, r2t, b"").unwrap_err();
        assert_eq!(violation, Violation::Field { pdu: "R2T", field, offset, least, most, got });
    };
    let length = "desired data transfer length";
    case(R2t { desired_len: 5001, ..good }, length, 44, 1, 5000, 5001);
    case(R2t { desired_len: 0, ..good }, length, 44, 1, 5000, 0);
    case(R2t { offset: 9999, desired_len: 2, ..good }, length, 44, 1, 1, 2);
    case(R2t { offset: 10_000, ..good }, "buffer offset", 40, 0, 9999, 10_000);
    case(R2t { offset: u32::MAX, ..good }, "buffer offset", 40, 0, 9999, u32::MAX.into());
    case(R2t { r2t_sn: 1, ..good }, "R2T number", 36, 0, 0, 1);
    case(R2t { ttt: NO_TAG, ..good }, "target transfer tag", 20, 0, 0xffff_fffe, NO_TAG.into());
    // One at a time was negotiated, and the data of the first has not left.
    let second = R2t { r2t_sn: 1, ttt: 10, offset: 6000, desired_len: 1000, ..good };
    let violation = hear(&mut initiator, second, b"").unwrap_err();
    assert_eq!(violation, Violation::TooMany { what: "outstanding R2Ts of a write", limit: 1 });
    // A write of nothing has nothing to be asked for.
    let mut initiator = plain();
    let itt = write(&mut initiator, 0);
    pdus(&mut initiator);
    let violation = hear(&mut initiator, R2t { itt, offset: 0, ..good }, b"").unwrap_err();
    assert_eq!(violation, Violation::Unexpected { pdu: "R2T", opcode: 0x31 });

    let (mut initiator, task) = start();
    let unknown = |itt| Err(Violation::UnknownTask { pdu: "R2T", itt, offset: 16 });
    let r2t = |itt| R2t { itt, ..good };
    assert_eq!(hear(&mut initiator, r2t(task + 7), b"").map(drop), unknown(task + 7));
    let mut initiator = plain();
    let reading = read(&mut initiator, 10);
    assert_eq!(hear(&mut initiator, r2t(reading), b"").map(drop), unknown(reading));
}

#[test]
fn data_of_a_read_comes_in_order_and_its_status_may_come_with_the_last_of_it() {
    let mut initiator = plain();
    let task = read(&mut initiator, 10);
    let first = DataIn { itt: task, max_cmd_sn: 500, ..DataIn::default() };
    match hear(&mut initiator, first, b"hello").unwrap() {
        Some(Event::Data { itt, offset, data, done }) => {
            assert_eq!((itt, offset, done), (task, 0, None));
            assert_eq!(seen_data(&data), bytes(b"hello"));
        }
        event => panic!("{event:?}"),
    }
    let last = DataIn {
        last: true,
        has_status: true,
        underflow: true,
        residual: 2,
        stat_sn: 3,
        data_sn: 1,
        offset: 5,
        ..first
    };
    match hear(&mut initiator, last, b"you").unwrap() {
        Some(Event::Data { offset: 5, data, done: Some(Ok(moved)), .. }) => {
            assert_eq!(seen_data(&data), bytes(b"you"));
            assert_eq!((moved.received, moved.residual), (8, Residual::Under(2)));
        }
        event => panic!("{event:?}"),
    }
    assert_eq!(initiator.in_flight(), 0);
    // The next status is the one after that.
    let ping = initiator.ping(Extent::default()).unwrap();
    let [Header::NopOut(header)] = pdus(&mut initiator).iter().map(|pdu| pdu.header).collect::<Vec<_>>()[..]
    else {
        panic!()
    };
    assert_eq!((header.itt, header.exp_stat_sn), (ping, 4));
}

#[test]
fn data_of_a_read_that_does_not_fit_is_a_violation_that_names_the_field() {
    let case = |header: DataIn, data: &[u8], expected: (&'static str, u64, u64, u64, u64)| {
        let mut initiator = plain();
        let itt = read(&mut initiator, 10);
        hear(&mut initiator, DataIn { itt, ..DataIn::default() }, b"hello").unwrap();
        let violation = hear(&mut initiator, DataIn { itt, ..header }, data).unwrap_err();
        let (field, offset, least, most, got) = expected;
        assert_eq!(violation, Violation::Field { pdu: "SCSI Data-In", field, offset, least, most, got });
    };
    let good = DataIn { data_sn: 1, offset: 5, ..DataIn::default() };
    case(DataIn { data_sn: 0, ..good }, b"x", ("data number", 36, 1, 1, 0));
    case(DataIn { offset: 4, ..good }, b"x", ("buffer offset", 40, 5, 5, 4));
    case(DataIn { offset: u32::MAX, ..good }, b"x", ("buffer offset", 40, 5, 5, u32::MAX.into()));
    case(good, b"123456", ("data length", 5, 0, 5, 6));
    let with_status = DataIn { has_status: true, stat_sn: 4, ..good };
    let mut initiator = plain();
    let itt = read(&mut initiator, 10);
    let violation = hear(&mut initiator, DataIn { itt, ..with_status }, b"x").unwrap_err();
    let text = "SCSI Data-In: status number at 24: expected 3, got 4";
    assert_eq!(violation.to_string(), text);
    let mut initiator = plain();
    let itt = write(&mut initiator, 10);
    pdus(&mut initiator);
    let violation = hear(&mut initiator, DataIn { itt, ..DataIn::default() }, b"x").unwrap_err();
    assert_eq!(violation, Violation::UnknownTask { pdu: "SCSI Data-In", itt, offset: 16 });
}

#[test]
fn a_command_ends_with_what_the_target_makes_of_it() {
    let outcome = |response: ScsiResponse, data: &[u8]| {
        let mut initiator = plain();
        let itt = read(&mut initiator, 512);
        match hear(&mut initiator, ScsiResponse { itt, stat_sn: 3, ..response }, data) {
            Ok(Some(Event::Done { itt: got, outcome })) if got == itt => Ok(outcome),
            Err(violation) => Err(violation),
            other => panic!("{other:?}"),
        }
    };
    let ok = ScsiResponse::default();
    let under = ScsiResponse { underflow: true, residual: 512, ..ok };
    assert_eq!(outcome(under, b"").unwrap().unwrap().residual, Residual::Under(512));
    assert_eq!(outcome(ScsiResponse { status: 8, ..ok }, b"").unwrap(), Err(Failure::Status(8)));
    assert_eq!(outcome(ScsiResponse { response: 1, ..ok }, b"").unwrap(), Err(Failure::Response(1)));

    let check = ScsiResponse { status: 2, ..ok };
    let Ok(Err(Failure::CheckCondition(sense))) = outcome(check, &sense_data(5, 0x21)) else { panic!() };
    assert_eq!((sense.key, sense.asc, sense.ascq, sense.bytes.len()), (5, 0x21, 0, 18));
    assert_eq!(sense.to_string(), "illegal request: block out of range (sense 5/21/00)");
    let Ok(Err(Failure::CheckCondition(sense))) = outcome(check, &[0, 4, 0x72, 6, 0x29, 1]) else { panic!() };
    assert_eq!((sense.key, sense.asc, sense.ascq, sense.is_unit_attention()), (6, 0x29, 1, true));
    assert_eq!(outcome(check, b"").unwrap(), Err(Failure::CheckCondition(Sense::default())));
}

/// Behind the header there may be segments and a digest.
#[test]
fn a_sense_length_that_does_not_fit_is_said_where_it_is() {
    for (digest, ahs, at) in [(false, 0, 48), (true, 0, 52), (false, 8, 56), (true, 8, 60)] {
        let mut initiator = plain();
        let itt = read(&mut initiator, 512);
        let header = ScsiResponse { status: 2, itt, stat_sn: 3, ..ScsiResponse::default() };
        let mut pdu = Pdu::new(header, &[0, 9, 0x70][..]);
        pdu.ahs = vec![0; ahs].into();
        let options = open(digest, false);
        let stream = wire(&options, pdu);
        assert_eq!(stream[at + 1], 9);
        let script = segchain_testkit::scripted::ScriptedRecv::new(&stream, []);
        let mut receiver = segchain::recv::Receiver::new(&script, segchain_iscsi::PduDeframer::new(&options));
        let pdu = receiver.next(&mut (), None, |pdu| pdu).unwrap().unwrap();
        let violation = initiator.receive(pdu).unwrap_err();
        let (offset, pdu, field) = (at as u64, "SCSI Response", "sense length");
        assert_eq!(violation, Violation::Field { pdu, field, offset, least: 0, most: 1, got: 9 });
    }
}

/// RFC 7143 section 11.4.5: what was not moved is counted. A target that moved less and does not say so has lost data.
#[test]
fn a_command_that_went_well_has_moved_what_was_expected_less_the_residual() {
    let residual = |pdu, least: u64, most: u64, got: u64| Violation::Field {
        pdu,
        field: "residual count",
        offset: 44,
        least,
        most,
        got,
    };
    // Of 10 bytes so many came, and the target says that so many are left out.
    let mut full = Vec::new();
    for (came, under, over, good) in [
        (10, None, None, true),
        (10, None, Some(7), true),
        (7, Some(3), None, true),
        (0, Some(10), None, true),
        (7, None, None, false),
        (0, None, None, false),
        (7, Some(2), None, false),
        (7, Some(4), None, false),
        (7, None, Some(3), false),
        (10, Some(1), None, false),
    ] {
        for collapsed in [false, true] {
            let mut initiator = plain();
            let itt = read(&mut initiator, 10);
            let (underflow, overflow) = (under.is_some(), over.is_some());
            let left_out = under.or(over).unwrap_or(0);
            let mut data = DataIn { last: true, itt, ..DataIn::default() };
            let event = if collapsed {
                data =
                    DataIn { has_status: true, underflow, overflow, residual: left_out, stat_sn: 3, ..data };
                hear(&mut initiator, data, &pattern(came))
            } else {
                hear(&mut initiator, data, &pattern(came)).unwrap();
                let response = ScsiResponse {
                    itt,
                    stat_sn: 3,
                    underflow,
                    overflow,
                    residual: left_out,
                    ..Default::default()
                };
                hear(&mut initiator, response, b"")
            };
            match event {
                Ok(Some(
                    Event::Done { outcome: Ok(moved), .. } | Event::Data { done: Some(Ok(moved)), .. },
                )) if good => {
                    assert_eq!(moved.received, came as u64);
                    full.push(moved.residual);
                }
                Err(violation) if !good => {
                    let pdu = if collapsed { "SCSI Data-In" } else { "SCSI Response" };
                    let (short, got) = (10 - came as u64, under.unwrap_or(0).into());
                    assert_eq!(violation, residual(pdu, short, short, got));
                }
                other => panic!("{came} {under:?} {over:?}: {other:?}"),
            }
        }
    }
    assert_eq!(full[2..4], [Residual::Over(7); 2]);
    // A write: 4096 of 10,000 bytes have left, and the target has not asked for more.
    for (under, good) in [(None, false), (Some(5903), false), (Some(5904), true), (Some(10_001), false)] {
        let mut initiator = session(Parameters::new(), Parameters::new().max_recv(4096).initial_r2t(true));
        let itt = write(&mut initiator, 10_000);
        pdus(&mut initiator);
        let left_out = under.unwrap_or(0);
        let response = ScsiResponse {
            itt,
            stat_sn: 3,
            underflow: under.is_some(),
            residual: left_out,
            ..ScsiResponse::default()
        };
        match hear(&mut initiator, response, b"") {
            Ok(Some(Event::Done { outcome: Ok(moved), .. })) if good => assert_eq!(moved.sent, 4096),
            Err(violation) if !good => {
                assert_eq!(violation, residual("SCSI Response", 5904, 10_000, left_out.into()));
            }
            other => panic!("{under:?}: {other:?}"),
        }
    }
}

/// What tgt 1.0.85 sent on a real session.
#[test]
fn sense_data_of_a_real_target_is_a_unit_attention() {
    let pdu = iscsi::SCSI_RESPONSE_CHECK_CONDITION.bytes();
    let seen = receive(&open(true, true), &pdu).unwrap();
    let SeenData::Bytes(data) = &seen[0].data else { panic!() };
    let sense = Sense::decode(Bytes::copy_from_slice(&data[2..]));
    assert_eq!((sense.key, sense.asc, sense.ascq), (6, 0x29, 0));
}

#[test]
fn a_ping_of_the_target_is_answered_before_all_else_and_takes_no_number() {
    let mut initiator = plain();
    let own = initiator.ping(Extent::default()).unwrap();
    let ping = NopIn { lun: LUN, ttt: 42, stat_sn: 3, exp_cmd_sn: 1, max_cmd_sn: 200, ..NopIn::default() };
    assert!(hear(&mut initiator, ping, b"").unwrap().is_none());
    let headers: Vec<_> = pdus(&mut initiator).iter().map(|pdu| pdu.header).collect();
    let answer = NopOut { immediate: true, lun: LUN, itt: NO_TAG, ttt: 42, cmd_sn: 1, exp_stat_sn: 3 };
    let request = NopOut { itt: own, cmd_sn: 1, exp_stat_sn: 3, ..NopOut::default() };
    assert_eq!(headers, [answer.into(), request.into()]);
    // One that only tells the numbers asks for nothing.
    let tells = NopIn { stat_sn: 3, exp_cmd_sn: 2, max_cmd_sn: 300, ..NopIn::default() };
    assert!(hear(&mut initiator, tells, b"").unwrap().is_none());
    assert!(initiator.next_pdu().is_none());
}

/// A target that pings and takes no answer does not get memory for it.
#[test]
fn pings_of_the_target_that_are_not_answered_have_a_limit() {
    let mut initiator = plain();
    let ping = NopIn { ttt: 42, stat_sn: 3, ..NopIn::default() };
    for _ in 0..1024 {
        assert!(hear(&mut initiator, ping, b"").unwrap().is_none());
    }
    let violation = hear(&mut initiator, ping, b"").unwrap_err();
    assert_eq!(violation, Violation::TooMany { what: "unanswered pings", limit: 1024 });
    assert_eq!(violation.to_string(), "more than 1024 unanswered pings at a time");
    // With an answer in between there is room for one more.
    let mut initiator = plain();
    for _ in 0..2048 {
        assert!(hear(&mut initiator, ping, b"").unwrap().is_none());
        assert!(initiator.next_pdu().is_some());
    }
}

/// At error recovery level 0 there is nothing to go on with.
#[test]
fn after_a_violation_the_session_only_says_what_it_was() {
    let mut initiator = plain();
    let itt = initiator.ping(Extent::default()).unwrap();
    let wrong = NopIn { itt, stat_sn: 9, ..NopIn::default() };
    let violation = hear(&mut initiator, wrong, b"").unwrap_err();
    assert!(initiator.next_pdu().is_none());
    let right = NopIn { itt, stat_sn: 3, ..NopIn::default() };
    assert_eq!(hear(&mut initiator, right, b"").map(drop), Err(violation));
    assert_eq!(initiator.ping(Extent::default()), Err(Error::Closing));
    assert_eq!(initiator.command(Command::test_unit_ready(LUN)), Err(Error::Closing));
    assert!(initiator.next_pdu().is_none());
}

/// RFC 7143 section 11.14: no new request after the logout, which ends what is not answered.
#[test]
fn a_logout_is_the_last_request_and_leaves_when_all_others_are_answered() {
    let mut initiator = session(Parameters::new().immediate_data(false), Parameters::new().initial_r2t(true));
    let task = write(&mut initiator, 100);
    initiator.logout();
    initiator.logout();
    assert_eq!(initiator.ping(Extent::default()), Err(Error::Closing));
    assert_eq!(initiator.command(Command::test_unit_ready(LUN)), Err(Error::Closing));
    assert_eq!(initiator.in_flight(), 2);
    let sent = |initiator: &mut Initiator| -> Vec<_> {
        pdus(initiator).iter().map(|pdu| Bhs::from(pdu.header).opcode()).collect()
    };
    assert_eq!(sent(&mut initiator), [ScsiCommand::OPCODE]);
    let r2t = R2t { itt: task, ttt: 9, desired_len: 100, ..R2t::default() };
    hear(&mut initiator, r2t, b"").unwrap();
    assert_eq!(sent(&mut initiator), [DataOut::OPCODE]);
    // Pings of the target are answered all the while.
    let ping = NopIn { ttt: 42, stat_sn: 3, ..NopIn::default() };
    hear(&mut initiator, ping, b"").unwrap();
    assert_eq!(sent(&mut initiator), [NopOut::OPCODE]);
    let done = ScsiResponse { itt: task, stat_sn: 3, ..ScsiResponse::default() };
    assert!(matches!(hear(&mut initiator, done, b""), Ok(Some(Event::Done { outcome: Ok(_), .. }))));
    assert_eq!(sent(&mut initiator), [LogoutRequest::OPCODE]);
}

/// Every number has an address of its own (SAM-5 section 4.7), and numbers do not wrap.
#[test]
fn no_two_logical_units_have_one_lun() {
    assert_eq!(lun(255), 0x00ff_0000_0000_0000);
    assert_eq!(lun(256), 0x4100_0000_0000_0000);
    assert_eq!(lun(16_383), 0x7fff_0000_0000_0000);
    assert_eq!(lun(16_384), 0xd200_4000_0000_0000);
    assert_eq!(lun(u16::MAX), 0xd200_ffff_0000_0000);
    let all: std::collections::HashSet<_> = (0..=u16::MAX).map(lun).collect();
    assert_eq!(all.len(), 1 << 16);
}

#[test]
fn a_command_descriptor_block_of_each_length_is_whole() {
    let block = |command: Command| command.cdb.to_vec();
    let of = |bytes: &[u8]| [bytes, &[0; 16][bytes.len()..]].concat();
    assert_eq!(block(Command::new(LUN, [1; 6], Transfer::None)), of(&[1; 6]));
    assert_eq!(block(Command::new(LUN, [2; 10], Transfer::None)), of(&[2; 10]));
    assert_eq!(block(Command::new(LUN, [3; 12], Transfer::None)), of(&[3; 12]));
    assert_eq!(block(Command::new(LUN, [4; 16], Transfer::None)), of(&[4; 16]));
}

/// What is received may be anything, digests or not: an event, nothing, or a violation.
#[test]
fn no_pdu_makes_a_session_panic() {
    let mut random = Random::new(seed("session"));
    for _ in 0..300 {
        let mut initiator = plain();
        let mut itts = vec![read(&mut initiator, 10), write(&mut initiator, 5000)];
        itts.push(initiator.ping(Extent::default()).unwrap());
        itts.push(NO_TAG);
        for _ in 0..100 {
            pdus(&mut initiator);
            let mut bhs = [0; 48];
            for byte in &mut bhs {
                *byte = if random.below(3) == 0 { random.below(256) as u8 } else { 0 };
            }
            let opcodes = [0x20, 0x21, 0x22, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f, 0x10];
            bhs[0] = opcodes[random.below(opcodes.len())];
            bhs[16..20].copy_from_slice(&itts[random.below(itts.len())].to_be_bytes());
            bhs[24..28].copy_from_slice(&3u32.to_be_bytes());
            if random.below(2) == 0 {
                bhs[32..44].fill(0);
            }
            let data = pattern(random.below(60));
            let pdu = wire(&open(false, false), Pdu::new(Header::Other(Bhs::from(bhs)), &data[..]));
            if initiator.receive(incoming(&pdu)).is_err() {
                break;
            }
        }
    }
}

#[test]
fn a_ping_longer_than_the_target_takes_is_refused_before_it_has_a_number() {
    let mut initiator = session(Parameters::new(), Parameters::new().max_recv(4096));
    let error = initiator.ping(Bytes::from(vec![1; 4097])).unwrap_err();
    assert_eq!(error, Error::TooLong { field: Field::Data, offset: 5, len: 4097, limit: 4096 });
    assert_eq!(initiator.in_flight(), 0);
    initiator.ping(Bytes::from(vec![1; 4096])).unwrap();
    let [Header::NopOut(ping)] = pdus(&mut initiator).iter().map(|pdu| pdu.header).collect::<Vec<_>>()[..]
    else {
        panic!()
    };
    assert_eq!(ping.cmd_sn, 1);
}

#[test]
fn a_rejected_request_ends_and_the_header_comes_back() {
    let mut initiator = plain();
    let itt = initiator.ping(Extent::default()).unwrap();
    let sent = Bhs::from(pdus(&mut initiator)[0].header);
    let reject = Reject { reason: 5, stat_sn: 3, ..Reject::default() };
    match hear(&mut initiator, reject, sent.as_bytes()).unwrap() {
        Some(Event::Rejected { reason: 5, header: Some(header) }) => assert_eq!(header.itt(), itt),
        event => panic!("{event:?}"),
    }
    assert_eq!(initiator.in_flight(), 0);
    // Rejected data of a write is not the end of the write: its response is.
    let task = write(&mut initiator, 10);
    let out = Bhs::from(Header::from(DataOut { itt: task, ..DataOut::default() }));
    let reject = Reject { stat_sn: 4, ..reject };
    assert!(matches!(hear(&mut initiator, reject, out.as_bytes()), Ok(Some(Event::Rejected { .. }))));
    assert_eq!(initiator.in_flight(), 1);
    let reject = Reject { stat_sn: 5, ..reject };
    let event = hear(&mut initiator, reject, b"short").unwrap();
    assert!(matches!(event, Some(Event::Rejected { header: None, .. })));
}

#[test]
fn messages_and_the_end_of_the_session_are_told() {
    let mut initiator = plain();
    let message = AsyncMessage { event: 1, parameter3: 5, stat_sn: 3, ..AsyncMessage::default() };
    let event = hear(&mut initiator, message, b"").unwrap();
    assert!(matches!(event, Some(Event::Async(got)) if got == message));
    initiator.logout();
    let [Header::LogoutRequest(logout)] =
        pdus(&mut initiator).iter().map(|pdu| pdu.header).collect::<Vec<_>>()[..]
    else {
        panic!()
    };
    assert_eq!(
        logout,
        LogoutRequest { itt: logout.itt, cmd_sn: 1, exp_stat_sn: 4, ..LogoutRequest::default() }
    );
    let response = LogoutResponse { itt: logout.itt, stat_sn: 4, response: 2, ..LogoutResponse::default() };
    let event = hear(&mut initiator, response, b"").unwrap();
    assert!(matches!(event, Some(Event::LoggedOut { response: 2 })));
    assert_eq!(initiator.in_flight(), 0);
}

#[test]
fn what_nobody_asked_for_is_a_violation() {
    let mut initiator = plain();
    let ping = initiator.ping(Extent::default()).unwrap();
    pdus(&mut initiator);
    let unexpected = |header: Header| {
        let bhs = Bhs::from(header);
        let violation = Violation::Unexpected { pdu: bhs.name(), opcode: bhs.opcode() };
        assert_eq!(hear(&mut plain(), header, b"").unwrap_err(), violation);
    };
    unexpected(LoginResponse::default().into());
    unexpected(NopOut::default().into());
    unexpected(TaskResponse { stat_sn: 3, ..TaskResponse::default() }.into());
    let mut raw = [0; 48];
    raw[0] = 0x3c;
    unexpected(Header::Other(raw.into()));
    // An answer of another kind than the request.
    let response = ScsiResponse { itt: ping, stat_sn: 3, ..ScsiResponse::default() };
    let violation = hear(&mut initiator, response, b"").unwrap_err();
    assert_eq!(violation, Violation::UnknownTask { pdu: "SCSI Response", itt: ping, offset: 16 });
    let text = format!("SCSI Response for task {ping:#x} (at 16), which there is not");
    assert_eq!(violation.to_string(), text);
    let mut initiator = plain();
    let pong = NopIn { itt: 5, stat_sn: 3, ..NopIn::default() };
    assert!(matches!(hear(&mut initiator, pong, b""), Err(Violation::UnknownTask { itt: 5, .. })));
}

#[test]
fn parts_of_a_payload_are_its_bytes_wherever_they_are_cut() {
    let data = pattern(40);
    let pieces = [0usize, 0, 1, 7, 0, 20, 12, 0];
    let mut at = 0;
    let pages: Vec<Bytes> = pieces
        .iter()
        .map(|len| {
            at += len;
            Bytes::copy_from_slice(&data[at - len..at])
        })
        .collect();
    let pages = Pages::from(pages);
    assert_eq!(pages.len(), 40);
    for start in 0..=40 {
        for end in start..=40 {
            let extent = pages.extent(start, end - start).unwrap();
            assert_eq!(extent.len(), end - start);
            let sent = wire(&open(false, false), Pdu::new(NopOut::default(), extent));
            assert_eq!(sent[48..][..(end - start) as usize], data[start as usize..end as usize]);
        }
    }
    assert!(pages.extent(1, 40).is_none() && pages.extent(41, 0).is_none());
    assert!(pages.extent(u64::MAX, 2).is_none());
    assert!(Pages::default().is_empty() && Pages::from(Bytes::new()).is_empty());
}

/// A peer whose digest is wrong, as the session sees it: it never sees the PDU.
#[test]
fn a_wrong_digest_of_the_peer_ends_the_stream_before_the_session_sees_the_pdu() {
    use segchain::recv::{Receiver, RecvErrorKind};
    use segchain_testkit::scripted::ScriptedRecv;
    let digests = Parameters::new().digests(DigestOffer::Require, DigestOffer::Require);
    let (session, ..) = login(digests.clone(), digests);
    for (at, field) in [(20, Field::Header), (49, Field::Header), (53, Field::Data), (61, Field::Data)] {
        let mut initiator = Initiator::new(&session);
        let itt = initiator.ping(Bytes::from_static(b"ABCDE")).unwrap();
        pdus(&mut initiator);
        let pong = NopIn { itt, stat_sn: 3, ..NopIn::default() };
        let mut stream = wire(&session.options(), Pdu::new(pong, &b"ABCDE"[..]));
        stream[at] ^= 0x10;
        let script = ScriptedRecv::new(&stream, []);
        let mut receiver = Receiver::new(&script, segchain_iscsi::PduDeframer::new(&session.options()));
        let error = receiver.next(&mut (), None, |pdu| initiator.receive(pdu).unwrap()).unwrap_err();
        assert!(
            matches!(error.kind(), RecvErrorKind::Frame(Error::Digest { field: got, .. }) if *got == field),
            "{error}"
        );
        assert!(matches!(receiver.next(&mut (), None, |_| ()).unwrap_err().kind(), RecvErrorKind::Dead));
        assert_eq!(initiator.in_flight(), 1);
    }
}
