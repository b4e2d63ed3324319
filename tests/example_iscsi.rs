//! The example `iscsi_sender` as its users run it: embedded, with wrong flags, and against a real target.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use segchain::chain::{ChainBuilder, Payload};
use segchain::framer::Framer as _;
use segchain::recv::Receiver;
use segchain::transport::SocketRef;
use segchain_iscsi::login::{self, InitiatorOptions, Session, TargetOptions};
use segchain_iscsi::scsi::lun;
use segchain_iscsi::{DataIn, DataOut, Header, Pdu, PduDeframer, PduFramer, R2t, ScsiCommand, ScsiResponse};
use segchain_testkit::peers::{Iscsi, require};
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
/// What the example has at its root.
const MAX_RECV: u32 = (1 << 24) - 1;

#[path = "../examples/iscsi_sender/target.rs"]
#[allow(unreachable_pub, reason = "a part of a program")]
mod target;

const KEYS: [&str; 17] = [
    "peer",
    "protocol",
    "digests",
    "messages",
    "payload_bytes",
    "seconds",
    "mib_per_s",
    "send_calls",
    "send_calls_per_message",
    "slices_per_call",
    "payload_bytes_copied",
    "short_writes",
    "recv_calls",
    "recv_bytes_copied",
    "replies_ok",
    "replies_failed",
    "checksum_ok",
];
const DIGESTS: [&str; 4] = ["none", "header", "data", "both"];

/// `cargo test` builds examples too, but has no variable for where they are: beside the tests. (With `--test` it does not
/// build them: `cargo build --examples` does.)
fn iscsi_sender(args: &[&str]) -> Output {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.extend(["examples", "iscsi_sender"]);
    Command::new(&path)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("no example {}: {error}", path.display()))
}

/// The last line of a run that has to be good.
fn json(args: &[&str]) -> Value {
    let output = iscsi_sender(args);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{args:?}: {}{text}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    for key in KEYS {
        assert!(report.get(key).is_some(), "{args:?}: no {key} in {report}");
    }
    assert_eq!((&report["replies_failed"], &report["checksum_ok"]), (&0.into(), &true.into()));
    assert_eq!(report["protocol"], "iscsi");
    report
}

/// The one line on standard error of a run that has to fail.
fn refusal(args: &[&str]) -> String {
    let output = iscsi_sender(args);
    assert!(!output.status.success(), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    text.trim_end().to_owned()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 21) as u8).collect()
}

#[test]
fn the_embedded_target_echoes_every_ping_and_no_byte_is_copied() {
    for digests in DIGESTS {
        let report = json(&["--json", "--digests", digests]);
        assert_eq!((&report["peer"], &report["digests"]), (&"embedded".into(), &digests.into()));
        assert_eq!((&report["messages"], &report["replies_ok"]), (&1000.into(), &1000.into()));
        assert_eq!(report["payload_bytes"], 1000 * 65_536);
        assert_eq!(report["payload_bytes_copied"], 0);
        assert!(report["send_calls"].as_u64() >= Some(1));
    }
}

#[test]
fn pings_of_every_kind_of_size_come_back() {
    for (bytes, count) in [(0, 3), (1, 300), (4095, 10), (4096, 10), (4097, 10), ((4 << 20) + 3, 3)] {
        let (echo, count_text) = (bytes.to_string(), count.to_string());
        let report = json(&["--json", "--echo", &echo, "--count", &count_text]);
        assert_eq!(report["payload_bytes"], bytes * count);
    }
    assert_eq!(json(&["--json", "--count", "0"])["messages"], 0);
}

#[test]
fn files_go_to_the_embedded_disk_and_come_back() {
    let home = tempfile::tempdir().unwrap();
    let (input, output) = (home.path().join("in"), home.path().join("out"));
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    for digests in DIGESTS {
        for blocks in [1, 3, 2048, 4097, 10_001] {
            let data = pattern(blocks * 512);
            fs::write(input, &data).unwrap();
            let count = blocks.to_string();
            let report = json(&[
                "--json",
                "--digests",
                digests,
                "--write",
                input,
                "--lba",
                "7",
                "--read",
                &count,
                "--output",
                output,
            ]);
            assert_eq!(report["payload_bytes"], 2 * data.len());
            assert!(fs::read(output).unwrap() == data, "{blocks} blocks");
        }
    }
    // The disk is new each time: what was not written is zeros.
    json(&["--json", "--read", "3", "--lba", "5", "--output", output]);
    assert_eq!(fs::read(output).unwrap(), vec![0; 3 * 512]);
}

#[test]
fn without_json_a_table_is_printed() {
    let output = iscsi_sender(&["--count", "10"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("sendmsg per PDU"), "{text}");
    assert!(output.stderr.is_empty());
}

#[test]
fn what_is_wrong_with_the_flags_is_said_in_one_line() {
    assert_eq!(refusal(&["--bogus"]), "iscsi_sender: unexpected argument '--bogus' found (see --help)");
    for args in [
        &["--echo", "x"][..],
        &["--echo", "16777216"],
        &["--count", "-1"],
        &["--digests", "md5"],
        &["--portal", "a:1"],
        &["--target", "iqn.x"],
        &["--read", "1"],
        &["--output", "f"],
        &["--lun", "65536"],
        &["--write", "/no/such/file"],
    ] {
        assert!(refusal(args).starts_with("iscsi_sender: "));
    }
    assert!(iscsi_sender(&["--help"]).status.success());
}

#[test]
fn what_the_disk_does_not_take_is_said_with_its_reason() {
    let home = tempfile::tempdir().unwrap();
    let (input, output) = (home.path().join("in"), home.path().join("out"));
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    fs::write(input, [1; 513]).unwrap();
    assert_eq!(
        refusal(&["--write", input]),
        format!("iscsi_sender: {input} has 513 bytes: no whole number of blocks of 512")
    );
    let past = iscsi_sender(&["--read", "2", "--lba", "32767", "--output", output]);
    assert_eq!(past.status.code(), Some(1));
    let text = String::from_utf8(past.stderr).unwrap();
    assert_eq!(
        text,
        "iscsi_sender: 1 of 1 requests failed: illegal request: block out of range (sense 5/21/00)\n"
    );
    // What comes behind the first one that fails is not tried.
    fs::write(input, vec![1; 20 << 20]).unwrap();
    let past = iscsi_sender(&["--write", input, "--lba", "32000", "--in-flight", "1"]);
    let text = String::from_utf8(past.stderr).unwrap();
    assert!(text.starts_with("iscsi_sender: 1 of 1 requests failed: "), "{text}");
    assert_eq!(refusal(&["--write", "/dev/null"]), "iscsi_sender: /dev/null is no file");
    let text = refusal(&["--lun", "2", "--read", "1", "--output", output]);
    assert!(
        text.ends_with("the logical unit: illegal request: no such logical unit (sense 5/25/00)"),
        "{text}"
    );
}

/// A server that takes one connection, hears a whole login request, says so much, and closes.
fn says(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut header = [0; 48];
        stream.read_exact(&mut header).unwrap();
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        stream.read_exact(&mut vec![0; len.next_multiple_of(4)]).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    address
}

#[test]
fn a_peer_that_cannot_be_reached_closes_or_talks_something_else_is_said_so_in_one_line() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = format!("iscsi_sender: cannot reach {closed}: Connection refused (os error 111)");
    assert_eq!(refusal(&["--portal", &closed, "--target", "iqn.x"]), refused);
    for (bytes, what) in [
        (&b""[..], "login: the peer closed the connection"),
        (b"\x23\0", "the peer closed inside a login response: expected 48 bytes, got 2"),
        (
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n\r\n",
            "login: additional header segments of ",
        ),
        (&[0x25; 48], "login: additional header segments of 148 bytes"),
    ] {
        let address = says(bytes);
        let text = refusal(&["--portal", &address, "--target", "iqn.x"]);
        assert!(text.contains(what) && text.contains(&address), "{text}");
    }
}

/// The PDUs of one side, their bytes.
fn bytes<D: Payload>(session: &Session, header: impl Into<Header>, data: D) -> Vec<u8> {
    let mut out = ChainBuilder::new();
    PduFramer::new(&session.options()).frame(Pdu::new(header, data), &mut out).unwrap();
    out.finish().unwrap().seal_all().to_vec()
}

/// A target with blocks of 512 bytes that moves so many of each command, and tells so or does not.
fn moves(moved: u32, told: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let login = login::Target::new(TargetOptions::new(None));
        let mut receiver = Receiver::new(SocketRef::new(socket.try_clone().unwrap()), login);
        let session = loop {
            let turn = receiver.next(&mut (), None, |turn| turn).unwrap().unwrap();
            socket.write_all(&turn.send).unwrap();
            if let Some(session) = turn.done {
                break session;
            }
        };
        let mut receiver = receiver.replace(PduDeframer::new(&session.options())).unwrap();
        let mut stat_sn = session.stat_sn;
        while let Ok(Some(pdu)) = receiver.next(&mut (), None, |pdu| pdu.header()) {
            let Header::ScsiCommand(ScsiCommand { itt, cdb, expected_len, read, write, .. }) = pdu else {
                continue;
            };
            let capacity = [0, 0, 0, 99, 0, 0, 2, 0];
            let data = if cdb[0] == 0x25 { capacity.to_vec() } else { vec![1; moved as usize] };
            if read {
                let header = DataIn { last: true, itt, ..DataIn::default() };
                socket.write_all(&bytes(&session, header, &data[..])).unwrap();
            }
            let left_out = if read || write { expected_len - data.len() as u32 } else { 0 };
            let residual = if told { left_out } else { 0 };
            let underflow = residual > 0;
            let done = ScsiResponse { itt, stat_sn, underflow, residual, ..ScsiResponse::default() };
            stat_sn += 1;
            if socket.write_all(&bytes(&session, done, ())).is_err() {
                break;
            }
        }
    });
    address
}

#[test]
fn a_command_that_moves_less_than_it_was_to_is_an_error_that_names_the_block() {
    let home = tempfile::tempdir().unwrap();
    let (input, output) = (home.path().join("in"), home.path().join("out"));
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    fs::write(input, [1; 1024]).unwrap();
    let run = |moved, told, args: &[&str]| {
        let portal = moves(moved, told);
        let base = ["--portal", &portal, "--target", "iqn.x", "--digests", "none", "--lba", "7"];
        refusal(&[&base[..], args].concat())
    };
    for moved in [0, 512, 1023] {
        let text = run(moved, true, &["--read", "2", "--output", output]);
        let expected = format!("read of 2 blocks at block 7: {moved} of 1024 bytes were moved");
        assert_eq!(text, format!("iscsi_sender: {expected}"));
        assert!(fs::read(output).unwrap().is_empty());
        let text = run(moved, false, &["--read", "2", "--output", output]);
        let expected = format!("residual count at 44: expected {}, got 0", 1024 - moved);
        assert!(text.ends_with(&expected), "{text}");
    }
    let text = run(512, true, &["--write", input]);
    assert_eq!(text, "iscsi_sender: write of 2 blocks at block 7: 512 of 1024 bytes were moved");
}

/// Against the embedded target: what an initiator may not do.
#[test]
fn data_of_a_write_that_comes_twice_or_out_of_order_ends_the_embedded_target_with_an_error() {
    for offsets in [&[0, 0][..], &[0, 0, 0], &[512], &[0, 1024]] {
        let embedded = target::Embedded::start().unwrap();
        let mut socket = std::net::TcpStream::connect(embedded.portal()).unwrap();
        let login = login::Initiator::new(InitiatorOptions::new("iqn.x", target::NAME));
        let mut receiver = Receiver::new(SocketRef::new(socket.try_clone().unwrap()), login);
        let session = loop {
            let turn = receiver.next(&mut (), None, |turn| turn).unwrap().unwrap();
            socket.write_all(&turn.send).unwrap();
            if let Some(session) = turn.done {
                break session;
            }
        };
        let mut receiver = receiver.replace(PduDeframer::new(&session.options())).unwrap();
        let mut cdb = [0; 16];
        (cdb[0], cdb[8]) = (0x2a, 2);
        let command = ScsiCommand {
            last: true,
            write: true,
            lun: lun(1),
            itt: 1,
            cmd_sn: 1,
            expected_len: 1024,
            cdb,
            ..ScsiCommand::default()
        };
        socket.write_all(&bytes(&session, command, ())).unwrap();
        let asked = receiver.next(&mut (), None, |pdu| pdu.header()).unwrap();
        let Some(Header::R2t(R2t { ttt, offset: 0, desired_len: 1024, .. })) = asked else {
            panic!("{asked:?}")
        };
        for (data_sn, &offset) in offsets.iter().enumerate() {
            let out =
                DataOut { itt: 1, ttt, lun: lun(1), data_sn: data_sn as u32, offset, ..DataOut::default() };
            if socket.write_all(&bytes(&session, out, &[7; 512][..])).is_err() {
                break; // it has seen enough
            }
        }
        // It may be gone already; if it is not, this is the end of what it waits for.
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let error = embedded.end().unwrap_err().to_string();
        let (expected, got) = if offsets[0] == 512 { (0, 512) } else { (512, offsets[1]) };
        assert_eq!(
            error,
            format!(
                "the embedded target: SCSI Data-Out: buffer offset at 40: expected {expected}, got {got}"
            )
        );
    }
}

#[test]
fn a_real_target_echoes_and_keeps_what_is_written() {
    let Some(tgt) = require(Iscsi::start()) else { return };
    let (portal, lun) = (tgt.portal().to_string(), tgt.lun().to_string());
    let home = tempfile::tempdir().unwrap();
    let (input, output) = (home.path().join("in"), home.path().join("out"));
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let base = ["--json", "--portal", &portal, "--target", tgt.target(), "--lun", &lun];
    for digests in DIGESTS {
        let with = |more: &[&str]| json(&[&base[..], &["--digests", digests], more].concat());
        for echo in ["1", "4097", "8192"] {
            let report = with(&["--echo", echo, "--count", "100"]);
            assert_eq!((&report["replies_ok"], &report["peer"]), (&100.into(), &portal.as_str().into()));
        }
        for (lba, blocks) in [(0, 1), (9, 4097)] {
            let data = pattern(blocks * 512);
            fs::write(input, &data).unwrap();
            let (lba_text, count) = (lba.to_string(), blocks.to_string());
            with(&["--write", input, "--lba", &lba_text, "--read", &count, "--output", output]);
            let disk = fs::read(tgt.disk()).unwrap();
            assert!(disk[lba * 512..][..data.len()] == data, "{blocks} blocks on the target's disk");
            assert!(fs::read(output).unwrap() == data, "{blocks} blocks back");
        }
    }
    let text = refusal(&[&base[..], &["--echo", "8193"]].concat());
    assert!(text.contains("a ping's data of 8193 bytes") && text.contains("the limit is 8192"), "{text}");
    let nobody = ["--portal", &portal, "--target", "iqn.2026-01.invalid.segchain:nothing"];
    assert!(refusal(&nobody).contains("login: the target refuses the login: there is no such target"));
}
