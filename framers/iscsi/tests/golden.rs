//! PDUs that real peers sent, both ways: taken apart field by field, and put together again byte for byte.

mod common;

use common::{open, pattern, receive, wire};
use segchain_iscsi::text::pairs;
use segchain_iscsi::{
    DataIn, Header, LoginRequest, LoginResponse, LogoutRequest, LogoutResponse, NO_TAG, NopIn, NopOut, Pdu,
    R2t, ScsiResponse, TaskResponse, TextRequest, TextResponse,
};
use segchain_testkit::golden::{Frame, iscsi};

const LUN_1: u64 = 0x0001_0000_0000_0000;

/// Takes a frame apart and puts it together again; its header and data.
fn both_ways(frame: Frame, digests: (bool, bool)) -> (Header, Vec<u8>) {
    let options = open(digests.0, digests.1);
    let golden = frame.bytes();
    let pdus = receive(&options, &golden).unwrap();
    let [pdu] = &pdus[..] else { panic!("{}: {pdus:?}", frame.name) };
    let common::SeenData::Bytes(data) = &pdu.data else { panic!("{}", frame.name) };
    let header = Header::from(&pdu.bhs);
    assert!(!matches!(header, Header::Other(_)), "{}", frame.name);
    assert_eq!(wire(&options, Pdu::new(header, &data[..])), golden, "{}", frame.name);
    (header, data.clone())
}

#[test]
fn a_nop_out_and_the_answer_to_it() {
    let ping = NopOut { immediate: true, lun: 0, itt: 3, ttt: NO_TAG, cmd_sn: 1, exp_stat_sn: 3 };
    assert_eq!(both_ways(iscsi::NOP_OUT, (true, true)), (ping.into(), b"ABCDE".to_vec()));
    // The same, made from nothing but its fields.
    assert_eq!(wire(&open(true, true), Pdu::new(ping, &b"ABCDE"[..])), iscsi::NOP_OUT.bytes());

    let (header, data) = both_ways(iscsi::NOP_IN, (true, true));
    let pong = NopIn { lun: 0, itt: 2, ttt: NO_TAG, stat_sn: 3, exp_cmd_sn: 3, max_cmd_sn: 131 };
    assert_eq!((header, &data[..]), (pong.into(), &b"ABCDE"[..]));
}

#[test]
fn commands_and_their_data() {
    let (header, _) = both_ways(iscsi::SCSI_COMMAND_INQUIRY, (true, false));
    let Header::ScsiCommand(command) = header else { panic!("{header:?}") };
    assert_eq!((command.lun, command.last, command.read, command.write), (LUN_1, true, true, false));
    assert_eq!((command.cdb[0], command.expected_len), (0x12, u32::from(command.cdb[4])));

    let (header, data) = both_ways(iscsi::DATA_IN, (true, true));
    let expected = DataIn {
        last: true,
        has_status: true,
        itt: 4,
        stat_sn: 5,
        exp_cmd_sn: 5,
        max_cmd_sn: 133,
        ..DataIn::default()
    };
    let Header::DataIn(got) = header else { panic!("{header:?}") };
    assert_eq!(got, DataIn { lun: got.lun, ttt: got.ttt, ..expected });
    assert_eq!(data, pattern(512));

    let (header, _) = both_ways(iscsi::R2T, (true, true));
    let Header::R2t(r2t) = header else { panic!("{header:?}") };
    assert_eq!((r2t.lun, r2t.itt, r2t.ttt), (LUN_1, 3, 0xb004_dd7d));
    assert_eq!((r2t.stat_sn, r2t.r2t_sn, r2t.offset, r2t.desired_len), (4, 0, 0, 512));
    assert_eq!(r2t, R2t { exp_cmd_sn: 4, max_cmd_sn: 132, ..r2t });
}

#[test]
fn responses() {
    let (header, data) = both_ways(iscsi::SCSI_RESPONSE_CHECK_CONDITION, (true, true));
    let Header::ScsiResponse(response) = header else { panic!("{header:?}") };
    assert_eq!((response.response, response.status, response.itt, response.stat_sn), (0, 2, 1, 2));
    assert_eq!((data.len(), &data[..5]), (20, &[0, 18, 0x70, 0, 6][..]));

    let (header, data) = both_ways(iscsi::SCSI_RESPONSE_GOOD, (true, true));
    let Header::ScsiResponse(response) = header else { panic!("{header:?}") };
    let expected =
        ScsiResponse { itt: 3, stat_sn: 4, exp_cmd_sn: 4, max_cmd_sn: 132, ..ScsiResponse::default() };
    assert_eq!(response, ScsiResponse { exp_data_sn: response.exp_data_sn, ..expected });
    assert!(data.is_empty());

    let expected = TaskResponse { response: 0, itt: 101, stat_sn: 6, exp_cmd_sn: 5, max_cmd_sn: 133 };
    assert_eq!(both_ways(iscsi::TASK_RESPONSE, (true, true)).0, expected.into());
    let expected =
        LogoutResponse { itt: 102, stat_sn: 7, exp_cmd_sn: 6, max_cmd_sn: 134, ..LogoutResponse::default() };
    assert_eq!(both_ways(iscsi::LOGOUT_RESPONSE, (true, true)).0, expected.into());
    let (header, _) = both_ways(iscsi::LOGOUT_REQUEST, (true, false));
    let Header::LogoutRequest(logout) = header else { panic!("{header:?}") };
    assert_eq!(logout, LogoutRequest { reason: 0, cid: 0, ..logout });
}

#[test]
fn logins_and_text() {
    let (header, text) = both_ways(iscsi::DISCOVERY_LOGIN_REQUEST, (false, false));
    let Header::LoginRequest(login) = header else { panic!("{header:?}") };
    assert_eq!((login.transit, login.more, login.csg, login.nsg), (true, false, 1, 3));
    assert_eq!(login, LoginRequest { immediate: true, version_max: 0, tsih: 0, ..login });
    let keys: Vec<_> = pairs(&text).map(|pair| pair.unwrap().key).collect();
    assert_eq!(keys[..2], ["InitiatorName", "SessionType"]);

    let (header, text) = both_ways(iscsi::LOGIN_RESPONSE_SECURITY, (false, false));
    let Header::LoginResponse(login) = header else { panic!("{header:?}") };
    let at = |nsg, csg| LoginResponse { transit: true, csg, nsg, ..login };
    assert_eq!(login, LoginResponse { itt: 0, stat_sn: 0, exp_cmd_sn: 1, ..at(1, 0) });
    let said: Vec<_> = pairs(&text).map(|pair| pair.unwrap()).map(|pair| (pair.key, pair.value)).collect();
    assert_eq!(said, [("TargetPortalGroupTag", "1"), ("AuthMethod", "None")]);

    let (header, text) = both_ways(iscsi::LOGIN_RESPONSE_OPERATIONAL, (false, false));
    let Header::LoginResponse(login) = header else { panic!("{header:?}") };
    assert_eq!((login.csg, login.nsg, login.stat_sn, login.status_class), (1, 3, 1, 0));
    assert_ne!(login.tsih, 0);
    let said: Vec<_> = pairs(&text).map(|pair| pair.unwrap()).map(|pair| (pair.key, pair.value)).collect();
    assert!(said.contains(&("HeaderDigest", "CRC32C")) && said.contains(&("DataDigest", "CRC32C")));

    let (header, text) = both_ways(iscsi::DISCOVERY_TEXT_REQUEST, (false, false));
    let Header::TextRequest(request) = header else { panic!("{header:?}") };
    assert_eq!(request, TextRequest { last: true, more: false, lun: 0, ttt: NO_TAG, ..request });
    assert_eq!(text, b"SendTargets=All\0");
    let (header, text) = both_ways(iscsi::DISCOVERY_TEXT_RESPONSE, (false, false));
    let Header::TextResponse(response) = header else { panic!("{header:?}") };
    assert_eq!(response, TextResponse { last: true, itt: request.itt, ttt: NO_TAG, ..response });
    assert_eq!(
        pairs(&text).map(|pair| pair.unwrap().key).collect::<Vec<_>>(),
        ["TargetName", "TargetAddress"]
    );
}
