//! Our target half against a real initiator: the commands of libiscsi-bin.

mod common;

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use common::deadline;
use segchain::chain::{ChainBuilder, Outgoing, Payload};
use segchain::framer::Framer as _;
use segchain::recv::Receiver;
use segchain::send::StreamSender;
use segchain::transport::SocketRef;
use segchain_iscsi::login::{DigestOffer, Parameters, Session, Target, TargetOptions};
use segchain_iscsi::{
    DataIn, Header, LogoutResponse, Pdu, PduDeframer, PduFramer, ScsiCommand, ScsiResponse,
};

const TARGET: &str = "iqn.2026-01.invalid.segchain:ours";
/// Standard INQUIRY data of a disk (SPC-4 section 6.4.2).
const INQUIRY: &[u8; 36] = b"\0\0\x05\x02\x1f\0\0\0segchainspoken to by its0001";

/// What a connection came to: the login, and the operation codes of the commands.
type Seen = Arc<Mutex<Vec<(Session, Vec<u8>)>>>;

/// Serves INQUIRY and TEST UNIT READY until the initiator logs out or goes.
fn serve(stream: &TcpStream, parameters: Parameters, seen: &Seen) -> Option<()> {
    let mut sender = StreamSender::new(SocketRef::new(stream));
    let mut options = TargetOptions::new(TARGET.to_owned());
    options.parameters = parameters;
    let mut receiver = Receiver::new(SocketRef::new(stream), Target::new(options));
    let session = loop {
        let turn = receiver.next(&mut (), Some(deadline()), |turn| turn).ok()??;
        let mut out = ChainBuilder::new();
        out.put(&turn.send);
        sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(deadline())).ok()?;
        if turn.refused.is_some() {
            return None;
        }
        if let Some(session) = turn.done {
            break session;
        }
    };
    let mut receiver = receiver.replace(PduDeframer::new(&session.options())).unwrap();
    let mut framer = PduFramer::new(&session.options());
    let (mut stat_sn, mut exp_cmd_sn, mut operations) = (session.stat_sn, session.cmd_sn, Vec::new());
    let last = loop {
        let pdu = receiver.next(&mut (), Some(deadline()), |pdu| pdu).ok()??;
        exp_cmd_sn += u32::from(!pdu.bhs.is_immediate());
        let max_cmd_sn = exp_cmd_sn + 31;
        match pdu.header() {
            Header::ScsiCommand(ScsiCommand { itt, cdb, expected_len, .. }) => {
                operations.push(cdb[0]);
                let len = INQUIRY.len().min(expected_len as usize);
                match (cdb[0], cdb[1]) {
                    (0x12, 0) => {
                        let underflow = expected_len as usize > len;
                        let residual = expected_len - len as u32;
                        let data = DataIn {
                            last: true,
                            has_status: true,
                            underflow,
                            residual,
                            itt,
                            stat_sn,
                            exp_cmd_sn,
                            max_cmd_sn,
                            ..DataIn::default()
                        };
                        send(&mut sender, &mut framer, Pdu::new(data, &INQUIRY[..len]))?;
                    }
                    (operation, _) => {
                        let mut sense = vec![0; 20];
                        (sense[1], sense[2], sense[4], sense[9], sense[14]) = (18, 0x70, 5, 10, 0x20);
                        let ready = operation == 0;
                        let status = if ready { 0 } else { 2 };
                        let response = ScsiResponse {
                            status,
                            itt,
                            stat_sn,
                            exp_cmd_sn,
                            max_cmd_sn,
                            ..ScsiResponse::default()
                        };
                        let data = if ready { &[][..] } else { &sense };
                        send(&mut sender, &mut framer, Pdu::new(response, data))?;
                    }
                }
            }
            Header::LogoutRequest(logout) => break logout,
            other => panic!("{other:?}"),
        }
        stat_sn += 1;
    };
    let max_cmd_sn = exp_cmd_sn + 31;
    let bye = LogoutResponse { itt: last.itt, stat_sn, exp_cmd_sn, max_cmd_sn, ..LogoutResponse::default() };
    seen.lock().unwrap().push((session, operations));
    send(&mut sender, &mut framer, Pdu::new(bye, ()))
}

fn send<D: Payload>(
    sender: &mut StreamSender<SocketRef<&TcpStream>>,
    framer: &mut PduFramer,
    pdu: Pdu<D>,
) -> Option<()> {
    let mut out = ChainBuilder::new();
    framer.frame(pdu, &mut out).unwrap();
    sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(deadline())).ok()
}

/// Whether `iscsi-inq` is here. With `SEGCHAIN_REQUIRE_PEERS` set it has to be.
fn installed() -> bool {
    let found = Command::new("iscsi-inq").arg("--help").output().is_ok();
    let required = std::env::var_os("SEGCHAIN_REQUIRE_PEERS").is_some_and(|v| !v.is_empty() && v != "0");
    assert!(
        found || !required,
        "SEGCHAIN_REQUIRE_PEERS is set, but iscsi-inq is not installed (Debian: libiscsi-bin)"
    );
    if !found {
        eprintln!("skipped: iscsi-inq is not installed (Debian: libiscsi-bin)");
    }
    found
}

/// `iscsi-inq` with our server as its target; it is served in another thread.
fn inquire(target: &str, parameters: Parameters) -> (Output, Vec<(Session, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let portal = listener.local_addr().unwrap();
    let seen = Seen::default();
    let shared = seen.clone();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            serve(&stream, parameters.clone(), &shared);
        }
    });
    let output = Command::new("timeout")
        .args(["20", "iscsi-inq", &format!("iscsi://{portal}/{target}/1")])
        .output()
        .unwrap();
    let seen = seen.lock().unwrap().clone();
    (output, seen)
}

#[test]
fn a_real_initiator_logs_in_and_reads_our_inquiry_data_with_and_without_header_digests() {
    if !installed() {
        return;
    }
    // libiscsi offers None and CRC32C, in this order, and has no data digests.
    for (offer, header_digest) in [(DigestOffer::Require, true), (DigestOffer::Off, false)] {
        let parameters = Parameters::new().digests(offer, DigestOffer::Prefer);
        let (output, seen) = inquire(TARGET, parameters);
        let text = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("segchain"), "{}: {text}{error}", output.status);
        let [(session, operations)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(session.negotiated.header_digest, header_digest);
        assert!(!session.negotiated.data_digest && session.initiator.contains("libiscsi"));
        assert!(operations.contains(&0x12), "{operations:x?}");
    }
}

#[test]
fn a_real_initiator_is_told_that_there_is_no_such_target() {
    if !installed() {
        return;
    }
    let (output, seen) = inquire("iqn.2026-01.invalid.segchain:nothing", Parameters::new());
    assert!(!output.status.success() && seen.is_empty());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("Target not found"), "{error}");
}
