//! Logins of both roles: what is agreed, what is refused, texts longer than a PDU, and every byte by itself.

mod common;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use segchain::chain::{ChainBuilder, Outgoing};
use segchain::framer::{Deframer, Framer as _};
use segchain::recv::{Receiver, RecvErrorKind};
use segchain::send::StreamSender;
use segchain::transport::{Interest, SendFlags, SocketRef, VectoredRecv, VectoredSend, Wait};
use segchain_iscsi::login::{
    DigestOffer, Error, Initiator, InitiatorOptions, MAX_TEXT, MAX_TURNS, Negotiated, Parameters, Status,
    Target, TargetOptions, Turn,
};
use segchain_iscsi::session::{self, Event};
use segchain_iscsi::text::{self, pairs, put};
use segchain_iscsi::{
    Error as PduError, Field, Header, LoginRequest, LoginResponse, NopIn, NopOut, Options, Pdu, PduDeframer,
    PduFramer,
};
use segchain_testkit::conformance::Conformance;
use segchain_testkit::golden::iscsi;
use segchain_testkit::scripted::{RecvStep, ScriptedRecv};

const TARGET: &str = "iqn.target";

fn script() -> ScriptedRecv {
    ScriptedRecv::new(&[], []).end(RecvStep::Again)
}

/// What an initiator makes of the responses of a target, one after the other.
fn initiator_hears(options: InitiatorOptions, responses: &[Vec<u8>]) -> Result<Vec<Turn>, Error> {
    let script = script();
    hears(&script, Initiator::new(options), responses)
}

/// What a target makes of the requests of an initiator.
fn target_hears(options: TargetOptions, requests: &[Vec<u8>]) -> Result<Vec<Turn>, Error> {
    let script = script();
    hears(&script, Target::new(options), requests)
}

fn hears<'s, D>(script: &'s ScriptedRecv, deframer: D, pdus: &[Vec<u8>]) -> Result<Vec<Turn>, Error>
where
    D: for<'h> Deframer<Frame<'h> = Turn, Error = Error>,
{
    let mut side = Side::<'s>::new(script, deframer);
    let mut turns = Vec::new();
    for pdu in [&Vec::new()].into_iter().chain(pdus) {
        match side.hear(pdu) {
            Ok(more) => turns.extend(more),
            Err(error) => match error.into_kind() {
                RecvErrorKind::Frame(error) => return Err(error),
                other => panic!("{other:?}"),
            },
        }
    }
    Ok(turns)
}

fn options() -> InitiatorOptions {
    InitiatorOptions::new(INITIATOR, TARGET)
}

fn target_options() -> TargetOptions {
    TargetOptions::new(TARGET.to_owned())
}

fn response(stat_sn: u32, header: LoginResponse, text: &[u8]) -> Vec<u8> {
    let header = LoginResponse { itt: 0, stat_sn, exp_cmd_sn: 1, max_cmd_sn: 8, ..header };
    wire(&open(false, false), Pdu::new(header, text))
}

/// The answer in the security stage, ready for the next one.
fn security() -> Vec<u8> {
    response(
        7,
        LoginResponse { transit: true, csg: 0, nsg: 1, ..LoginResponse::default() },
        b"AuthMethod=None\0",
    )
}

/// The answer in the operational stage, which ends the login.
fn operational(text: &[u8]) -> Vec<u8> {
    response(8, LoginResponse { transit: true, csg: 1, nsg: 3, tsih: 5, ..LoginResponse::default() }, text)
}

fn request(header: LoginRequest, text: &[u8]) -> Vec<u8> {
    wire(&open(false, false), Pdu::new(LoginRequest { itt: 3, cmd_sn: 1, ..header }, text))
}

fn names(more: &str) -> Vec<u8> {
    format!("InitiatorName={INITIATOR}\0TargetName={TARGET}\0SessionType=Normal\0{more}").into_bytes()
}

/// Ready for the full feature phase, from the operational stage.
fn only_request(text: &str) -> Vec<u8> {
    request(LoginRequest { transit: true, csg: 1, nsg: 3, ..LoginRequest::default() }, &names(text))
}

fn header_and_text(pdu: &[u8]) -> (Header, Vec<u8>) {
    let pdu = &receive(&open(false, false), pdu).unwrap()[0];
    let SeenData::Bytes(text) = &pdu.data else { panic!() };
    (Header::from(&pdu.bhs), text.clone())
}

fn said(text: &[u8]) -> Vec<(String, String)> {
    pairs(text).map(|pair| pair.unwrap()).map(|pair| (pair.key.to_owned(), pair.value.to_owned())).collect()
}

#[test]
fn digests_are_on_if_one_side_wants_them_and_both_have_them() {
    use DigestOffer::{Off, Prefer, Require};
    for (ours, theirs, on) in [
        (Off, Off, false),
        (Off, Prefer, false),
        (Prefer, Off, false),
        (Prefer, Prefer, true),
        (Prefer, Require, true),
        (Require, Prefer, true),
        (Require, Require, true),
    ] {
        let wish = |offer| Parameters::new().digests(offer, Off);
        let (session, served, _) = login(wish(ours), wish(theirs));
        assert_eq!(session.negotiated.header_digest, on, "{ours:?} with {theirs:?}");
        assert_eq!(served.negotiated.header_digest, on, "{ours:?} with {theirs:?}");
        assert!(!session.negotiated.data_digest && !served.negotiated.data_digest);
    }
}

#[test]
fn both_sides_come_to_the_same_numbers_by_the_rule_of_each_key() {
    let ours = Parameters::new()
        .max_recv(10_000)
        .initial_r2t(false)
        .immediate_data(true)
        .bursts(100_000, 200_000)
        .max_outstanding_r2t(4);
    let theirs = Parameters::new()
        .max_recv(20_000)
        .initial_r2t(true)
        .immediate_data(false)
        .bursts(150_000, 160_000)
        .max_outstanding_r2t(3);
    let (session, served, pdus) = login(ours, theirs);
    assert_eq!(pdus, 2);
    let Negotiated { max_send, max_recv, initial_r2t, immediate_data, .. } = session.negotiated;
    assert_eq!((max_send, max_recv, initial_r2t, immediate_data), (20_000, 10_000, true, false));
    let Negotiated { first_burst, max_burst, max_outstanding_r2t, .. } = session.negotiated;
    assert_eq!((first_burst, max_burst, max_outstanding_r2t), (100_000, 160_000, 3));
    let Negotiated { time_to_wait, time_to_retain, .. } = session.negotiated;
    assert_eq!((time_to_wait, time_to_retain), (2, 0));
    // The same on the other side, but for what each takes.
    let mut other = served.negotiated.clone();
    (other.max_send, other.max_recv) = (other.max_recv, other.max_send);
    assert_eq!(session.negotiated, other);
    assert_eq!((session.stat_sn, session.cmd_sn, session.max_cmd_sn), (3, 1, 128));
    assert_eq!((served.stat_sn, served.cmd_sn, served.max_cmd_sn), (3, 1, 128));
    assert_eq!((session.tsih, session.isid, served.isid), (1, served.isid, session.isid));
    assert_eq!((&served.initiator[..], &served.target[..]), (INITIATOR, TARGET));
}

/// What tgt 1.0.85 said in a real login.
#[test]
fn the_responses_of_a_real_target_end_in_a_session() {
    let mut options = options();
    options.parameters = Parameters::new()
        .digests(DigestOffer::Require, DigestOffer::Require)
        .max_recv(1 << 20)
        .immediate_data(false);
    let responses = [iscsi::LOGIN_RESPONSE_SECURITY.bytes(), iscsi::LOGIN_RESPONSE_OPERATIONAL.bytes()];
    let turns = initiator_hears(options, &responses).unwrap();
    assert_eq!(turns.len(), 3);
    let session = turns[2].done.as_ref().unwrap();
    let Negotiated { header_digest, data_digest, max_send, first_burst, max_burst, .. } = session.negotiated;
    assert_eq!((header_digest, data_digest, max_send), (true, true, 8192));
    assert_eq!((first_burst, max_burst), (65_536, 262_144));
    assert!(session.negotiated.initial_r2t && !session.negotiated.immediate_data);
    assert_eq!((session.cmd_sn, session.max_cmd_sn, session.stat_sn), (1, 2, 2));
}

/// Cut anywhere, cut short, and with every bit flipped: nothing covers a login, so that a flipped bit may go unnoticed, but
/// none makes it panic or stop.
#[test]
fn both_halves_of_a_login_conform() {
    let mut options = options();
    options.isid = [0x80; 6];
    let responses = [iscsi::LOGIN_RESPONSE_SECURITY.bytes(), iscsi::LOGIN_RESPONSE_OPERATIONAL.bytes()];
    let pieces: Vec<&[u8]> = responses.iter().map(Vec::as_slice).collect();
    let all = 0..responses.concat().len();
    let harness = Conformance::new(|| Initiator::new(options.clone()), &pieces);
    let turns = harness.uncovered(std::slice::from_ref(&all)).check(|turn| turn);
    assert_eq!((turns.len(), turns[2].done.is_some()), (3, true));

    let request = only_request("HeaderDigest=CRC32C,None\0MaxBurstLength=4096\0");
    let harness = Conformance::new(|| Target::new(target_options()), &[&request]);
    let all = 0..request.len();
    let turns = harness.uncovered(std::slice::from_ref(&all)).check(|turn| turn);
    assert_eq!((turns.len(), turns[0].done.is_some()), (1, true));
}

/// A discovery session is not what this target has, and libiscsi is told so.
#[test]
fn the_request_of_a_real_initiator_is_answered() {
    let turns = target_hears(TargetOptions::new(None), &[iscsi::DISCOVERY_LOGIN_REQUEST.bytes()]).unwrap();
    assert_eq!(turns.len(), 1);
    assert_eq!((turns[0].refused, turns[0].done.is_none()), (Some(Status::SESSION_TYPE), true));
    let (header, text) = header_and_text(&turns[0].send);
    let Header::LoginResponse(response) = header else { panic!("{header:?}") };
    assert_eq!((response.status_class, response.status_detail, response.itt), (2, 9, 0x2727_0e75));
    assert!(text.is_empty());
}

/// RFC 7143 section 6.2: what is offered is answered, key by key; markers are gone, and what nobody knows is NotUnderstood.
#[test]
fn a_target_answers_every_offer() {
    let offers = "HeaderDigest=None,CRC32C\0DataDigest=X-md5,None\0MaxRecvDataSegmentLength=0x2000\0\
                  InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=262144\0IFMarker=No\0OFMarkInt=1~2\0\
                  MaxConnections=8\0ErrorRecoveryLevel=2\0TaskReporting=FastAbort\0X-com.example=a\0";
    let turns = target_hears(target_options(), &[only_request(offers)]).unwrap();
    let (_, text) = header_and_text(&turns[0].send);
    let said = said(&text);
    let has = |key: &str, value: &str| assert!(said.contains(&(key.into(), value.into())), "{key}: {said:?}");
    has("HeaderDigest", "None"); // the initiator's list is in its order of preference
    has("DataDigest", "None");
    has("InitialR2T", "No");
    has("ImmediateData", "Yes");
    has("MaxBurstLength", "262144");
    has("IFMarker", "No");
    has("OFMarkInt", "Reject");
    has("MaxConnections", "1");
    has("ErrorRecoveryLevel", "0");
    has("TaskReporting", "NotUnderstood");
    has("X-com.example", "NotUnderstood");
    has("TargetPortalGroupTag", "1");
    has("MaxRecvDataSegmentLength", "262144");
    let session = turns[0].done.as_ref().unwrap();
    assert_eq!(session.negotiated.max_send, 8192);
    assert_eq!(session.negotiated.first_burst, 65_536); // nobody spoke of it
}

#[test]
fn what_a_target_does_not_take_is_refused_with_a_status() {
    let login = LoginRequest { transit: true, csg: 1, nsg: 3, ..LoginRequest::default() };
    let text = |text: &str| request(login, text.as_bytes());
    for (pdu, status) in [
        (text("TargetName=iqn.target\0"), Status::MISSING_PARAMETER),
        (text("InitiatorName=iqn.me\0"), Status::MISSING_PARAMETER),
        (text("InitiatorName=iqn.me\0TargetName=iqn.other\0"), Status::NOT_FOUND),
        (text("InitiatorName=iqn.me\0SessionType=Discovery\0"), Status::SESSION_TYPE),
        (only_request("AuthMethod=CHAP,KRB5\0"), Status::AUTHENTICATION_FAILURE),
        (request(LoginRequest { version_min: 1, ..login }, &names("")), Status::UNSUPPORTED_VERSION),
        (request(LoginRequest { tsih: 9, ..login }, &names("")), Status::NO_SUCH_SESSION),
        (request(LoginRequest { csg: 3, ..login }, &names("")), Status::INITIATOR_ERROR),
        (request(LoginRequest { nsg: 1, ..login }, &names("")), Status::INITIATOR_ERROR),
        (request(LoginRequest { nsg: 2, ..login }, &names("")), Status::INITIATOR_ERROR),
        (request(LoginRequest { more: true, ..login }, &names("")), Status::INITIATOR_ERROR),
    ] {
        let turns = target_hears(target_options(), &[pdu]).unwrap();
        assert_eq!((turns[0].refused, &turns[0].done), (Some(status), &None), "{status}");
        // And an initiator says so.
        let mut responses = vec![turns[0].send.clone()];
        responses[0][16..20].copy_from_slice(&[0; 4]);
        assert_eq!(initiator_hears(options(), &responses), Err(Error::Refused(status)));
    }
}

#[test]
fn a_redirection_names_the_other_address() {
    let header = LoginResponse { status_class: 1, status_detail: 1, ..LoginResponse::default() };
    let moved = response(0, header, b"TargetAddress=10.0.0.9:3260,1\0");
    let error = initiator_hears(options(), &[moved]).unwrap_err();
    let status = Status { class: 1, detail: 1 };
    assert_eq!(error, Error::Redirected { status, address: "10.0.0.9:3260,1".into() });
    assert_eq!(
        error.to_string(),
        "the target sends us to 10.0.0.9:3260,1: the target moved for a while (class 1, detail 1)"
    );
}

#[test]
fn an_answer_that_does_not_fit_the_offer_is_an_error_that_names_the_key() {
    let value = |text: &[u8]| match initiator_hears(options(), &[security(), operational(text)]) {
        Err(Error::Value { key, offset, expected, got }) => (key, offset, expected, got),
        other => panic!("{}: {other:?}", text.escape_ascii()),
    };
    let case = |text: &str, expected: &str| {
        let (key, got) = text.trim_end_matches('\0').split_once('=').unwrap();
        let found = value(text.as_bytes());
        assert_eq!(found, (key.into(), key.len() + 1, expected.into(), got.into()));
    };
    case("HeaderDigest=MD5\0", "CRC32C,None");
    case("HeaderDigest=None,CRC32C\0", "CRC32C,None");
    case("DataDigest=Reject\0", "CRC32C,None");
    case("MaxRecvDataSegmentLength=511\0", "512 to 16777215");
    case("MaxRecvDataSegmentLength=16777216\0", "512 to 16777215");
    case("MaxBurstLength=1048577\0", "512 to 1048576"); // more than was offered
    case("FirstBurstLength=x\0", "512 to 16777215");
    case("FirstBurstLength=+512\0", "512 to 16777215");
    case("FirstBurstLength=0x\0", "512 to 16777215");
    case("MaxConnections=2\0", "1 to 1");
    case("ErrorRecoveryLevel=1\0", "0 to 0");
    case("ErrorRecoveryLevel=3\0", "0 to 2");
    case("DefaultTime2Wait=1\0", "2 to 3600");
    case("DataPDUInOrder=No\0", "Yes");
    case("ImmediateData=maybe\0", "Yes or No");
    case("InitialR2T=yes\0", "Yes or No");

    let mut options = options();
    options.parameters = Parameters::new().digests(DigestOffer::Require, DigestOffer::Off);
    let hears = |text: &[u8]| initiator_hears(options.clone(), &[security(), operational(text)]);
    assert!(
        matches!(hears(b"HeaderDigest=None\0"), Err(Error::Value { expected, .. }) if expected == "CRC32C")
    );
    assert_eq!(hears(b"DataDigest=None\0"), Err(Error::Missing { key: "HeaderDigest" }));
    let twice = hears(b"HeaderDigest=CRC32C\0HeaderDigest=CRC32C\0");
    assert_eq!(twice, Err(Error::Repeated { key: "HeaderDigest".into(), offset: 33 }));
    let twice = hears(b"HeaderDigest=CRC32C\0MaxBurstLength=512\0MaxBurstLength=512\0");
    assert!(matches!(twice, Err(Error::Repeated { key, .. }) if key == "MaxBurstLength"));
    let auth = response(
        7,
        LoginResponse { transit: true, nsg: 1, ..LoginResponse::default() },
        b"AuthMethod=CHAP\0",
    );
    assert!(
        matches!(initiator_hears(options.clone(), &[auth]), Err(Error::Value { key, .. }) if key == "AuthMethod")
    );
}

/// RFC 7143 section 6.2: an answer may also say that there is nothing to answer, and then the default holds.
#[test]
fn an_offer_that_is_not_answered_leaves_the_default() {
    let text = b"FirstBurstLength=Irrelevant\0MaxOutstandingR2T=NotUnderstood\0X-other=NotUnderstood\0";
    let turns = initiator_hears(options(), &[security(), operational(text)]).unwrap();
    let negotiated = &turns[2].done.as_ref().unwrap().negotiated;
    assert_eq!((negotiated.first_burst, negotiated.max_outstanding_r2t), (65_536, 1));
    assert!(negotiated.initial_r2t && negotiated.immediate_data);
    assert!(!negotiated.header_digest && !negotiated.data_digest);
    assert_eq!((negotiated.max_send, negotiated.max_recv), (8192, 262_144));
}

#[test]
fn the_first_burst_is_never_longer_than_any_burst() {
    let text = b"FirstBurstLength=262144\0MaxBurstLength=1000\0";
    let turns = initiator_hears(options(), &[security(), operational(text)]).unwrap();
    let negotiated = &turns[2].done.as_ref().unwrap().negotiated;
    assert_eq!((negotiated.first_burst, negotiated.max_burst), (1000, 1000));
}

/// An initiator may leave the operational stage out: then nobody has said what it takes.
#[test]
fn a_login_without_an_operational_stage_leaves_every_default() {
    let login = LoginRequest { transit: true, csg: 0, nsg: 3, ..LoginRequest::default() };
    let turns = target_hears(target_options(), &[request(login, &names("AuthMethod=None\0"))]).unwrap();
    let negotiated = &turns[0].done.as_ref().unwrap().negotiated;
    assert_eq!((negotiated.max_send, negotiated.max_recv), (8192, 8192));
    assert!(!negotiated.header_digest && !negotiated.data_digest && negotiated.initial_r2t);
}

#[test]
fn a_login_pdu_with_another_value_than_the_login_has_it_names_the_field() {
    let of = |header: LoginResponse| {
        let header = LoginResponse { exp_cmd_sn: 1, ..header };
        let pdu = wire(&open(false, false), Pdu::new(header, ()));
        match initiator_hears(options(), &[security(), pdu]) {
            Err(Error::Header { field, offset, expected, got }) => (field, offset, expected, got),
            other => panic!("{other:?}"),
        }
    };
    let good =
        LoginResponse { transit: true, csg: 1, nsg: 3, itt: 0, stat_sn: 8, ..LoginResponse::default() };
    assert_eq!(of(LoginResponse { itt: 4, ..good }), ("initiator task tag", 16, 0, 4));
    assert_eq!(of(LoginResponse { version_active: 1, ..good }), ("active version", 3, 0, 1));
    assert_eq!(of(LoginResponse { csg: 0, ..good }), ("current stage", 1, 1, 0));
    assert_eq!(of(LoginResponse { stat_sn: 9, ..good }), ("status number", 24, 8, 9));
    assert_eq!(of(LoginResponse { nsg: 1, ..good }), ("next stage", 1, 3, 1));
    assert_eq!(of(LoginResponse { more: true, ..good }), ("transit bit", 1, 0, 1));
    let ping = wire(&open(false, false), Pdu::new(NopIn::default(), ()));
    let error = initiator_hears(options(), &[ping]).unwrap_err();
    assert_eq!(error, Error::Unexpected { pdu: "NOP-In", opcode: 0x20 });

    let first = request(LoginRequest::default(), &names("AuthMethod=None\0"));
    let second = |header| match refusal(&[first.clone(), request(header, b"")]) {
        (Status::INITIATOR_ERROR, Error::Header { field, offset, expected, got }) => {
            (field, offset, expected, got)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(second(LoginRequest { cid: 1, ..LoginRequest::default() }), ("connection number", 20, 0, 1));
    assert_eq!(second(LoginRequest { csg: 1, ..LoginRequest::default() }), ("current stage", 1, 0, 1));
    let command = wire(&open(false, false), Pdu::new(NopOut::default(), ()));
    let error = target_hears(target_options(), &[command]).unwrap_err();
    assert_eq!(error, Error::Unexpected { pdu: "NOP-Out", opcode: 0 });
}

/// An alias that no target has, to make a text that takes several PDUs.
#[test]
fn a_text_longer_than_a_pdu_goes_out_in_parts() {
    let mut options = options();
    options.parameters = Parameters::new().digests(DigestOffer::Require, DigestOffer::Require);
    let mut target_options = TargetOptions::new(None);
    target_options.alias = Some("y".repeat(8190));
    let scripts = [script(), script()];
    let mut initiator = Side::new(&scripts[0], Initiator::new(options));
    let mut target = Side::new(&scripts[1], Target::new(target_options));
    let (mut wire, mut flags, mut done) = (Vec::new(), Vec::new(), (None, None));
    for _ in 0..20 {
        for turn in initiator.hear(&wire).unwrap() {
            done.0 = turn.done.or(done.0);
            wire = turn.send;
        }
        if done.0.is_some() {
            break;
        }
        flags.push((wire[0] & 0x3f, wire[1]));
        for turn in target.hear(&wire).unwrap() {
            assert_eq!(turn.refused, None);
            done.1 = turn.done.or(done.1);
            wire = turn.send;
        }
        flags.push((wire[0] & 0x3f, wire[1]));
    }
    let (session, served) = (done.0.unwrap(), done.1.unwrap());
    assert_eq!(session.initiator, served.initiator);
    assert!(session.negotiated.header_digest && served.negotiated.data_digest);
    assert_eq!(
        flags,
        [
            (0x03, 0x81), // ready for the operational stage
            (0x23, 0x40), // more to come
            (0x03, 0x81),
            (0x23, 0x81), // the rest, and the stage begins
            (0x03, 0x87),
            (0x23, 0x87),
        ]
    );
}

/// A target that asks for 1360 things that nobody knows.
#[test]
fn answers_longer_than_a_pdu_go_out_in_parts() {
    let keys: Vec<_> = (0..1360).map(|key| format!("{key:04}")).collect();
    let offers = keys.join("=\0") + "=\0";
    let empty = |stat_sn| response(stat_sn, LoginResponse::default(), b"");
    let responses = [response(7, LoginResponse::default(), offers.as_bytes()), empty(8), empty(9), empty(10)];
    let (mut text, mut flags) = (Vec::new(), Vec::new());
    for turn in &initiator_hears(options(), &responses).unwrap()[1..] {
        flags.push(turn.send[1]);
        text.extend(header_and_text(&turn.send).1);
    }
    assert_eq!(flags, [0x40, 0x40, 0x40, 0x81]);
    let expected: Vec<_> = keys.into_iter().map(|key| (key, "NotUnderstood".to_owned())).collect();
    assert_eq!(said(&text), expected);
}

/// RFC 7143 section 6.3: the initiator is told why, and the target's own side knows it in full.
#[test]
fn a_request_that_is_wrong_is_answered_with_a_status_and_the_error_is_kept() {
    let error = |text: &str| {
        let (status, error) = refusal(&[only_request(text)]);
        assert_eq!(status, Status::INITIATOR_ERROR);
        error
    };
    let offset = names("").len();
    let value = |key: &str, expected: &str, got: &str| Error::Value {
        key: key.into(),
        offset: offset + key.len() + 1,
        expected: expected.into(),
        got: got.into(),
    };
    assert_eq!(error("HeaderDigest=MD5\0"), value("HeaderDigest", "CRC32C,None", "MD5"));
    assert_eq!(error("MaxBurstLength=1\0"), value("MaxBurstLength", "512 to 16777215", "1"));
    let twice = error("MaxBurstLength=512\0MaxBurstLength=512\0");
    assert_eq!(twice, Error::Repeated { key: "MaxBurstLength".into(), offset: offset + 34 });
    assert_eq!(error("none"), Error::Text(text::Error::Unterminated { offset }));
    // A digest that has to be there, and nobody offers.
    let mut strict = target_options();
    strict.parameters = Parameters::new().digests(DigestOffer::Require, DigestOffer::Off);
    let turns = target_hears(strict, &[only_request("")]).unwrap();
    assert_eq!(turns[0].refused, Some(Status::MISSING_PARAMETER));
    assert_eq!(turns[0].error, Some(Error::Missing { key: "HeaderDigest" }));
    assert_eq!(turns[0].done, None);
    let (Header::LoginResponse(response), _) = header_and_text(&turns[0].send) else { panic!() };
    assert_eq!(response.stat_sn, 1); // no number is left out
    // What we would say ourselves is not the initiator's fault.
    let mut wrong = target_options();
    wrong.alias = Some("a\0InitialR2T=No".into());
    let turns = target_hears(wrong, &[only_request("")]).unwrap();
    assert_eq!(turns[0].refused, Some(Status::TARGET_ERROR));
    assert!(matches!(turns[0].error, Some(Error::Text(text::Error::Nul { .. }))));
}

/// The last turn of a target: the status that it sends, and what was wrong.
fn refusal(requests: &[Vec<u8>]) -> (Status, Error) {
    let turn = target_hears(target_options(), requests).unwrap().pop().unwrap();
    let (header, text) = header_and_text(&turn.send);
    let Header::LoginResponse(response) = header else { panic!("{header:?}") };
    let status = Status { class: response.status_class, detail: response.status_detail };
    assert_eq!((turn.refused, turn.done, &text[..]), (Some(status), None, &b""[..]));
    (status, turn.error.unwrap())
}

#[test]
fn a_status_is_seen_whatever_the_text_beside_it() {
    for text in [&b"no text"[..], b"AuthMethod=CHAP\0", b"InitialR2T=maybe\0", b"a=\xff\0"] {
        let header = LoginResponse { status_class: 2, status_detail: 1, ..LoginResponse::default() };
        let refused = initiator_hears(options(), &[response(7, header, text)]);
        assert_eq!(refused, Err(Error::Refused(Status::AUTHENTICATION_FAILURE)));
        let header = LoginResponse { status_class: 1, status_detail: 2, ..header };
        let text = [b"TargetAddress=[::1]:3260\0", text].concat();
        let address = "[::1]:3260".to_owned();
        let moved = initiator_hears(options(), &[response(7, header, &text)]);
        assert_eq!(moved, Err(Error::Redirected { status: Status { class: 1, detail: 2 }, address }));
    }
}

/// RFC 7143 section 6.3: a key is negotiated once.
#[test]
fn what_a_target_has_offered_is_answered_and_not_offered_again() {
    let header = LoginResponse { transit: true, csg: 0, nsg: 1, ..LoginResponse::default() };
    let offers = b"AuthMethod=None\0MaxBurstLength=4096\0HeaderDigest=None\0InitialR2T=Yes\0";
    let turns = initiator_hears(options(), &[response(7, header, offers)]).unwrap();
    let mut keys: Vec<_> = said(&header_and_text(&turns[1].send).1).into_iter().map(|(key, _)| key).collect();
    let len = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), len), (14, 14));
    // And the target's answers to the rest end the login.
    let responses = [response(7, header, offers), operational(b"DataDigest=None\0")];
    let done = initiator_hears(options(), &responses).unwrap().pop().unwrap().done.unwrap();
    let Negotiated { max_burst, header_digest, initial_r2t, .. } = done.negotiated;
    assert_eq!((max_burst, header_digest, initial_r2t), (4096, false, true));
}

/// Or a name could say things that its owner did not mean.
#[test]
fn a_name_with_a_nul_in_it_or_too_long_is_an_error_and_nothing_is_sent() {
    let error =
        |name: &str, target: &str| initiator_hears(InitiatorOptions::new(name, target), &[]).unwrap_err();
    let nul = error("iqn.me\0SessionType=Discovery", "iqn.target");
    assert_eq!(nul, Error::Text(text::Error::Nul { offset: 20 }));
    assert!(matches!(error("iqn.me", "a\0"), Error::Text(text::Error::Nul { .. })));
    let long = "n".repeat(text::MAX_NAME + 1);
    let limit = Error::Text(text::Error::Value { offset: 14, len: 224, limit: 223 });
    assert_eq!(error(&long, "iqn.target"), limit);
    assert!(initiator_hears(InitiatorOptions::new(&long[1..], &long[1..]), &[]).is_ok());
    let name = format!("InitiatorName={long}\0TargetName=iqn.target\0");
    assert_eq!(
        refusal(&[request(LoginRequest::default(), name.as_bytes())]),
        (Status::INITIATOR_ERROR, limit)
    );
}

#[test]
fn a_pair_that_would_be_read_as_another_is_not_put() {
    let mut text = b"a=1\0".to_vec();
    assert_eq!(put(&mut text, "b", "1\0c=2"), Err(text::Error::Nul { offset: 7 }));
    assert_eq!(put(&mut text, "b\0", 1), Err(text::Error::Nul { offset: 5 }));
    assert_eq!(put(&mut text, "b=c", 1), Err(text::Error::Key { offset: 4, len: 3 }));
    assert_eq!(put(&mut text, "", 1), Err(text::Error::Key { offset: 4, len: 0 }));
    assert_eq!(text, b"a=1\0");
    put(&mut text, "b", "2=3").unwrap();
    assert_eq!(text, b"a=1\0b=2=3\0");
}

#[test]
fn a_peer_that_has_always_more_to_say_is_cut_off() {
    let more = |stat_sn, len: usize| {
        let header = LoginResponse { more: true, ..LoginResponse::default() };
        response(stat_sn, header, &vec![b'x'; len])
    };
    let long: Vec<_> = (0..20).map(|stat_sn| more(stat_sn, 8192)).collect();
    assert_eq!(initiator_hears(options(), &long), Err(Error::TextTooLong { limit: MAX_TEXT }));
    let empty: Vec<_> = (0..100).map(|stat_sn| more(stat_sn, 0)).collect();
    assert_eq!(initiator_hears(options(), &empty), Err(Error::TooManyTurns { limit: MAX_TURNS }));
    let header = LoginRequest { more: true, ..LoginRequest::default() };
    let long: Vec<_> = (0..9).map(|_| request(header, &[b'x'; 8192])).collect();
    assert_eq!(refusal(&long), (Status::INITIATOR_ERROR, Error::TextTooLong { limit: MAX_TEXT }));
    // Texts that are all complete count as well.
    let text = [&b"X-long="[..], &[b'x'; 8184], b"\0"].concat();
    let whole = |stat_sn| response(stat_sn, LoginResponse::default(), &text);
    let texts: Vec<_> = (0..20).map(whole).collect();
    assert_eq!(initiator_hears(options(), &texts[..8]).unwrap().len(), 9);
    assert_eq!(initiator_hears(options(), &texts), Err(Error::TextTooLong { limit: MAX_TEXT }));
    let texts: Vec<_> = [names("")]
        .into_iter()
        .chain((0..8).map(|_| text.clone()))
        .map(|text| request(LoginRequest::default(), &text))
        .collect();
    assert_eq!(refusal(&texts), (Status::INITIATOR_ERROR, Error::TextTooLong { limit: MAX_TEXT }));
    // Never ready for the next stage.
    let stay: Vec<_> = (0..100).map(|_| request(LoginRequest::default(), b"")).collect();
    let first = request(LoginRequest::default(), &names(""));
    let stay = [&[first], &stay[..]].concat();
    assert_eq!(refusal(&stay), (Status::INITIATOR_ERROR, Error::TooManyTurns { limit: MAX_TURNS }));
    // A PDU of the login has at most 8 KiB of text, and nothing besides.
    let mut huge = vec![0; 48];
    huge[..8].copy_from_slice(&[0x23, 0, 0, 0, 0, 0, 0x20, 1]);
    let error = PduError::TooLong { field: Field::Data, offset: 5, len: 8193, limit: 8192 };
    assert_eq!(initiator_hears(options(), std::slice::from_ref(&huge)), Err(Error::Pdu(error)));
    huge[4..8].copy_from_slice(&[1, 0, 0, 0]);
    huge.extend([0; 4]);
    let error = PduError::TooLong { field: Field::Ahs, offset: 4, len: 4, limit: 0 };
    assert_eq!(initiator_hears(options(), &[huge]), Err(Error::Pdu(error)));
}

#[test]
fn a_text_that_is_none_says_where() {
    let error = |text: &[u8]| pairs(text).find_map(Result::err);
    assert_eq!(error(b"a=1\0b=2\0"), None);
    assert_eq!(error(b""), None);
    assert_eq!(error(b"a=1\0b=2"), Some(text::Error::Unterminated { offset: 4 }));
    assert_eq!(error(b"a=1\0\0"), Some(text::Error::NoEquals { offset: 4 }));
    assert_eq!(error(b"a=1\0b\0"), Some(text::Error::NoEquals { offset: 4 }));
    assert_eq!(error(b"=1\0"), Some(text::Error::Key { offset: 0, len: 0 }));
    assert_eq!(error(b"a=1\0b=\xff\0"), Some(text::Error::NotText { offset: 6 }));
    let mut long = Vec::new();
    put(&mut long, &"k".repeat(63), "v".repeat(text::MAX_VALUE)).unwrap();
    assert_eq!(error(&long), None);
    long.insert(70, b'v');
    assert_eq!(error(&long), Some(text::Error::TooLong { offset: 0, limit: 8256 }));
    // A short key is no room for a longer value.
    let long = [b"k=", &[b'v'; text::MAX_VALUE + 1][..], b"\0"].concat();
    assert_eq!(error(&long), Some(text::Error::Value { offset: 2, len: 8193, limit: 8192 }));
    let long = [&[b'k'; 64][..], b"=1\0"].concat();
    assert_eq!(error(&long), Some(text::Error::Key { offset: 0, len: 64 }));
    // After the first mistake nothing more comes.
    assert_eq!(pairs(b"a\0b\0c=1\0").count(), 1);
    assert_eq!(pairs(b"empty=\0").next().unwrap().unwrap().value, "");
    let in_login = initiator_hears(options(), &[response(7, LoginResponse::default(), b"a")]);
    assert_eq!(in_login, Err(Error::Text(text::Error::Unterminated { offset: 0 })));
}

/// A socket that moves one byte a call, in both directions.
#[derive(Clone, Debug)]
struct OneByte(SocketRef<Arc<UnixStream>>);

impl VectoredSend for OneByte {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        self.0.send_vectored(&[IoSlice::new(&bufs[0][..1])], flags)
    }
}

impl VectoredRecv for OneByte {
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.recv_vectored(&mut [IoSliceMut::new(&mut bufs[0][..1])])
    }
}

impl Wait for OneByte {
    fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<bool> {
        self.0.wait(interest, timeout)
    }
}

fn say(sender: &mut StreamSender<OneByte>, bytes: &[u8]) {
    let mut out = ChainBuilder::new();
    out.put(bytes);
    sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(deadline())).unwrap();
}

/// Answers pings until the initiator closes; returns how many.
fn echo(socket: &OneByte) -> usize {
    let mut sender = StreamSender::new(socket.clone());
    let mut receiver = Receiver::new(socket.clone(), Target::new(target_options()));
    let session = loop {
        let turn = receiver.next(&mut (), Some(deadline()), |turn| turn).unwrap().unwrap();
        say(&mut sender, &turn.send);
        if let Some(session) = turn.done {
            break session;
        }
    };
    let mut receiver = receiver.replace(PduDeframer::new(&session.options())).unwrap();
    let mut framer = PduFramer::new(&session.options());
    let mut served = 0;
    while let Some(pdu) = receiver.next(&mut (), Some(deadline()), |pdu| pdu).unwrap() {
        let Header::NopOut(ping) = pdu.header() else { panic!("{pdu:?}") };
        let (stat_sn, exp_cmd_sn) = (session.stat_sn + served, ping.cmd_sn + 1);
        let pong =
            NopIn { itt: ping.itt, stat_sn, exp_cmd_sn, max_cmd_sn: exp_cmd_sn + 9, ..NopIn::default() };
        let mut out = ChainBuilder::new();
        framer.frame(Pdu::new(pong, pdu.data.into_parts()), &mut out).unwrap();
        sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(deadline())).unwrap();
        served += 1;
    }
    served as usize
}

#[test]
fn a_login_and_100_pings_go_through_a_socket_that_moves_one_byte_a_call() {
    for (header, data) in DIGESTS {
        let (here, there) = UnixStream::pair().unwrap();
        let there = OneByte(SocketRef::new(Arc::new(there)));
        let target = std::thread::spawn(move || echo(&there));
        let here = OneByte(SocketRef::new(Arc::new(here)));
        let mut sender = StreamSender::new(here.clone());
        let mut options = options();
        let offer = |on| if on { DigestOffer::Require } else { DigestOffer::Off };
        options.parameters = Parameters::new().digests(offer(header), offer(data));
        let mut receiver = Receiver::new(here, Initiator::new(options));
        let session = loop {
            let turn = receiver.next(&mut (), Some(deadline()), |turn| turn).unwrap().unwrap();
            say(&mut sender, &turn.send);
            if let Some(session) = turn.done {
                break session;
            }
        };
        assert_eq!((session.negotiated.header_digest, session.negotiated.data_digest), (header, data));
        let mut receiver = receiver.replace(PduDeframer::new(&session.options())).unwrap();
        let mut framer = PduFramer::new(&session.options());
        let mut initiator = session::Initiator::new(&session);
        for len in 0..100 {
            let sent = pattern(len);
            let itt = initiator.ping(Bytes::from(sent.clone())).unwrap();
            let mut out = ChainBuilder::new();
            framer.frame(initiator.next_pdu().unwrap(), &mut out).unwrap();
            sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(deadline())).unwrap();
            let pdu = receiver.next(&mut (), Some(deadline()), |pdu| pdu).unwrap().unwrap();
            match initiator.receive(pdu).unwrap() {
                Some(Event::Pong { itt: got, data }) if got == itt => {
                    assert_eq!(seen_data(&data), SeenData::Bytes(sent));
                }
                other => panic!("{other:?}"),
            }
        }
        drop((sender, receiver));
        assert_eq!(target.join().unwrap(), 100);
    }
}

#[test]
fn options_before_the_login_s_end_have_no_digests() {
    assert_eq!(Options::new(), Options::new().digests(false, false).max_send(8192).max_recv(8192));
    let (session, ..) = login(Parameters::new(), Parameters::new());
    assert_eq!(session.options(), Options::new().digests(true, true).max_send(262_144).max_recv(262_144));
}
