//! The example `rpc_sender` as its users run it: embedded, with wrong flags, and against real servers.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use segchain_testkit::peers::{Nfs, require};
use serde_json::Value;

const KEYS: [&str; 16] = [
    "peer",
    "protocol",
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

/// `cargo test` builds examples too, but has no variable for where they are: beside the tests. (With `--test` it does not
/// build them: `cargo build --examples` does.)
fn rpc_sender(args: &[&str]) -> Output {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.extend(["examples", "rpc_sender"]);
    Command::new(&path)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("no example {}: {error}", path.display()))
}

/// The last line of a run that has to be good.
fn json(args: &[&str]) -> Value {
    let output = rpc_sender(args);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{args:?}: {}{text}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    for key in KEYS {
        assert!(report.get(key).is_some(), "{args:?}: no {key} in {report}");
    }
    assert_eq!((&report["replies_failed"], &report["checksum_ok"]), (&0.into(), &true.into()));
    report
}

/// The one line on standard error of a run that has to fail.
fn refusal(args: &[&str]) -> String {
    let output = rpc_sender(args);
    assert!(!output.status.success(), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    text.trim_end().to_owned()
}

#[test]
fn the_embedded_peer_gets_every_record_and_no_byte_is_copied() {
    let report = json(&["--json"]);
    assert_eq!((&report["peer"], &report["protocol"]), (&"embedded".into(), &"oncrpc-tcp".into()));
    assert_eq!((&report["messages"], &report["replies_ok"]), (&1000.into(), &1000.into()));
    assert_eq!(report["payload_bytes"], 1000 * 65_536);
    assert_eq!(report["payload_bytes_copied"], 0);
    // How many depends on how full the socket's buffer was, and how many calls waited: counted on a scripted transport.
    assert!(report["send_calls"].as_u64() >= Some(1));
    assert!(report["slices_per_call"].as_f64() > Some(1.0));
}

#[test]
fn chunks_of_every_kind_of_size_arrive() {
    for (chunk, count) in [(1, 10), (4095, 10), (4096, 10), (4097, 10), ((4 << 20) + 3, 3)] {
        let report = json(&["--json", "--chunk", &chunk.to_string(), "--count", &count.to_string()]);
        assert_eq!(report["payload_bytes"], chunk * count);
    }
    assert_eq!(json(&["--json", "--count", "0"])["messages"], 0);
}

#[test]
fn without_json_a_table_is_printed() {
    let output = rpc_sender(&["--count", "10"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("sendmsg per call"), "{text}");
    assert!(output.stderr.is_empty());
}

#[test]
fn what_is_wrong_with_the_flags_is_said_in_one_line() {
    assert_eq!(refusal(&["--bogus"]), "rpc_sender: unexpected argument '--bogus' found (see --help)");
    for args in [
        &["--chunk", "x"][..],
        &["--chunk", "0"],
        &["--count", "-1"],
        &["--write", "f"],
        &["--nfs", "a:1", "--rpcbind", "b:2"],
        &["--nfs", "a:1", "--mount", "b:2", "--export", "/e"],
        &["--read", "f"],
    ] {
        assert!(refusal(args).starts_with("rpc_sender: "));
    }
    assert!(rpc_sender(&["--help"]).status.success());
}

#[test]
fn a_peer_that_cannot_be_reached_is_named_in_one_line() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = format!("rpc_sender: cannot reach {closed}: Connection refused (os error 111)");
    assert_eq!(refusal(&["--nfs", &closed]), refused);
    assert_eq!(refusal(&["--rpcbind", &closed]), refused);
    let files = ["--nfs", &closed, "--mount", &closed, "--export", "/e", "--read", "a", "--output", "b"];
    assert_eq!(refusal(&files), refused);
    assert!(
        refusal(&["--rpcbind", "/no/such/socket"]).starts_with("rpc_sender: cannot reach /no/such/socket: ")
    );
    assert!(refusal(&["--nfs", "nowhere"]).starts_with("rpc_sender: cannot reach nowhere: "));
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(refusal(&["--rpcbind", &format!("udp:{closed}")]).contains("Connection refused"));
}

/// A server that takes one connection, says so much, and closes.
fn says(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The whole call is read, so that closing does not reset the connection.
        stream.read_exact(&mut [0; 44]).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    address
}

#[test]
fn a_peer_that_closes_or_talks_something_else_is_said_so_in_one_line() {
    for (bytes, what) in [
        (&b""[..], "the peer closed the connection before it answered"),
        (b"\x80\0", "the peer closed inside record marker: expected 4 bytes, got 2"),
        (b"HTTP/1.1 400 Bad Request\r\n", "(these bytes look like HTTP)"),
        (b"\x80\0\0\x18nobody's call 7890123456", "message type at offset 8"),
        (b"\x80\0\0\x08noxi\0\0\0\x01", "no call waits for it"),
    ] {
        let text = refusal(&["--count", "1", "--nfs", &says(bytes)]);
        assert!(text.contains(what), "{text}");
    }
}

#[test]
fn a_call_that_is_refused_is_counted_and_said() {
    // A reply needs the transaction id of its call, so this server has to listen first.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for status in [0u32, 1] {
            let mut marker = [0; 4];
            stream.read_exact(&mut marker).unwrap();
            let mut call = vec![0; (u32::from_be_bytes(marker) & 0x7fff_ffff) as usize];
            stream.read_exact(&mut call).unwrap();
            let words = [1, 0, 0, 0, status].map(u32::to_be_bytes).concat();
            stream.write_all(&[&[0x80, 0, 0, 24], &call[..4], &words].concat()).unwrap();
        }
        let _ = stream.read(&mut [0]);
    });
    let output = rpc_sender(&["--json", "--count", "2", "--nfs", &address]);
    server.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["replies_ok"], &report["replies_failed"]), (&1.into(), &1.into()));
    let text =
        format!("rpc_sender: 1 of 2 calls failed: {address}: the call was answered with PROG_UNAVAIL\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), text);
}

#[test]
fn a_datagram_that_is_not_answered_is_sent_again() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp:{}", server.local_addr().unwrap());
    let server = thread::spawn(move || {
        let mut calls = Vec::new();
        let mut call = [0; 1500];
        for _ in 0..3 {
            let (len, client) = server.recv_from(&mut call).unwrap();
            calls.push(call[..len].to_vec());
            // To an earlier call, then to this one, twice; the first call gets no answer at all.
            for xid in [[0; 4], call[..4].try_into().unwrap(), call[..4].try_into().unwrap()] {
                if calls.len() > 1 {
                    let words = [1u32, 0, 0, 0, 0, 4, 0x3a3a_3a3a].map(u32::to_be_bytes).concat();
                    server.send_to(&[&xid[..], &words].concat(), client).unwrap();
                }
            }
        }
        calls
    });
    let report = json(&["--json", "--count", "2", "--rpcbind", &address]);
    let calls = server.join().unwrap();
    assert!(calls[0] == calls[1] && calls[1] != calls[2]);
    assert_eq!((&report["messages"], &report["replies_ok"]), (&3.into(), &2.into()));
}

#[test]
fn files_go_to_an_nfs_server_and_come_back() {
    let Some(nfs) = require(Nfs::start()) else { return };
    let (server, mount) = (nfs.nfs_addr().to_string(), nfs.mount_addr().to_string());
    let home = tempfile::tempdir().unwrap();
    let (input, output) = (home.path().join("in"), home.path().join("out"));
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let base = ["--json", "--nfs", &server, "--mount", &mount, "--export", nfs.export_path()];
    let with = |more: &[&str]| json(&[&base[..], more].concat());
    // Large ones first: each later one has to truncate.
    for (size, chunk) in [
        ((4 << 20) + 3, 65_536),
        ((4 << 20) + 3, 1 << 20),
        (65_536, 4000),
        (4096, 4096),
        (4095, 9),
        (1, 1),
        (0, 1),
    ] {
        let data: Vec<u8> = (0..size).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        fs::write(input, &data).unwrap();
        let chunk = chunk.to_string();
        let report = with(&["--chunk", &chunk, "--write", input, "--as", "file"]);
        assert_eq!((&report["payload_bytes"], &report["protocol"]), (&size.into(), &"oncrpc-tcp".into()));
        assert!(
            fs::read(nfs.export_dir().join("file")).unwrap() == data,
            "{size} bytes on the server's disk"
        );
        let report = with(&["--chunk", &chunk, "--read", "file", "--output", output]);
        assert_eq!((&report["payload_bytes"], &report["peer"]), (&size.into(), &server.as_str().into()));
        assert!(fs::read(output).unwrap() == data, "{size} bytes back");
    }
    let report = with(&["--write", input, "--as", "both", "--read", "both", "--output", output]);
    assert_eq!(report["checksum_ok"], true);
    assert_eq!(json(&["--json", "--nfs", &server, "--count", "2000"])["replies_ok"], 2000);

    let refused = |export, read| {
        refusal(&[
            "--nfs", &server, "--mount", &mount, "--export", export, "--read", read, "--output", output,
        ])
    };
    assert_eq!(refused("/nowhere", "file"), format!("rpc_sender: {mount}: mount of /nowhere refused: ACCES"));
    assert_eq!(refused("/export", "nothing"), format!("rpc_sender: {server}: there is no nothing"));
    assert!(
        refusal(&[&base[..], &["--write", "/no/such/file", "--as", "x"]].concat()).contains("cannot open")
    );
}

#[test]
fn rpcbind_answers_over_tcp_af_local_and_udp() {
    let Some(nfs) = require(Nfs::start()) else { return };
    let (tcp, udp) = (nfs.rpcbind_tcp().to_string(), nfs.rpcbind_udp());
    let unix = nfs.rpcbind_unix().to_str().unwrap();
    for (peer, protocol) in
        [(&*tcp, "oncrpc-tcp"), (unix, "oncrpc-unix"), (&format!("udp:{udp}"), "oncrpc-udp")]
    {
        for count in ["1", "100"] {
            let report = json(&["--json", "--rpcbind", peer, "--count", count]);
            assert_eq!(report["protocol"], protocol);
            assert_eq!(report["replies_ok"].to_string(), count);
            assert!(report["payload_bytes"].as_u64() > Some(0));
        }
    }
}
