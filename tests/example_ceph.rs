//! The example `ceph_sender` as its users run it: embedded, and what it says when something is wrong.
//!
//! The example is built together with this test, next to it.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn run(flags: &[&str]) -> Output {
    let mut path = std::env::current_exe().expect("a path of this test");
    path.pop();
    path.pop();
    let example: PathBuf = path.join("examples/ceph_sender");
    assert!(example.exists(), "cargo test builds {}; `cargo test --test` alone does not", example.display());
    Command::new(example).args(flags).output().expect("the example runs")
}

/// The last line of standard output.
fn json(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// One line on standard error, and nothing on standard output.
fn complaint(flags: &[&str]) -> String {
    let output = run(flags);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{flags:?}");
    assert_eq!((text.lines().count(), output.stdout.as_slice()), (1, &b""[..]), "{flags:?}: {text}");
    assert!(text.starts_with("error: ") && !text.contains("panicked"), "{text}");
    text
}

#[test]
fn an_embedded_run_tells_what_it_took() {
    for (protocol, flags) in
        [("ceph-v1", &[][..]), ("ceph-v1", &["--protocol", "v1"]), ("ceph-v2", &["--protocol", "v2"])]
    {
        told(protocol, &run(&[&["--json", "--count", "200"], flags].concat()));
    }
}

fn told(protocol: &str, output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "no progress bar off a terminal");
    let report = json(output);
    for (key, expected) in [
        ("peer", "embedded".into()),
        ("protocol", protocol.into()),
        ("messages", 200.into()),
        ("payload_bytes", (200 * 65536).into()),
        ("payload_bytes_copied", 0.into()),
        ("replies_ok", 200.into()),
        ("replies_failed", 0.into()),
        ("checksum_ok", true.into()),
    ] as [(&str, Value); 8]
    {
        assert_eq!(report[key], expected, "{key}");
    }
    let measured = [
        "seconds",
        "mib_per_s",
        "send_calls",
        "send_calls_per_message",
        "slices_per_call",
        "short_writes",
        "recv_calls",
        "recv_bytes_copied",
    ];
    for key in measured {
        assert!(report[key].is_number(), "{key}: {report}");
    }
}

#[test]
fn other_sizes_and_settings_arrive_as_well() {
    let cases: [&[&str]; 9] = [
        &["--size", "0"],
        &["--size", "1", "--page", "1"],
        &["--size", "4097", "--page", "1000", "--no-crc"],
        &["--size", "3000000", "--page", "100"],
        &["--null"],
        &["--protocol", "v2", "--size", "0"],
        &["--protocol", "v2", "--size", "1", "--page", "1"],
        &["--protocol", "v2", "--size", "3000000", "--page", "100"],
        &["--protocol", "v2", "--null"],
    ];
    for flags in cases {
        let output = run(&[flags, &["--json", "--count", "20"]].concat());
        assert!(output.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(json(&output)["checksum_ok"], true, "{flags:?}");
    }
    assert!(String::from_utf8(run(&["--count", "3"]).stdout).unwrap().contains("payload bytes copied  0\n"));
}

#[test]
fn a_file_is_written_and_read_back() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (len, protocol) in [0, 1, 4096, 100_001].into_iter().flat_map(|len| [(len, "v1"), (len, "v2")]) {
        std::fs::write(file.path(), vec![7; len]).unwrap();
        let path = file.path().to_str().unwrap();
        let output = run(&["--object", "name", "--input", path, "--json", "--protocol", protocol]);
        assert!(output.status.success(), "{len}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(json(&output)["payload_bytes"], 2 * len, "written and read");
    }
}

#[test]
fn what_goes_wrong_is_one_line() {
    assert!(complaint(&["--sise", "3"]).contains("--sise"));
    assert!(complaint(&["--count", "0"]).contains("--count"));
    assert!(complaint(&["--osd", "127.0.0.1:1"]).contains("--epoch"));
    assert!(complaint(&["--object", "name", "--input", "/no/such/file"]).contains("/no/such/file"));
    assert!(complaint(&["--protocol", "v2", "--no-crc"]).contains("--no-crc"));
    assert!(
        complaint(&["--protocol", "v2", "--osd", "h:1", "--pool", "1", "--epoch", "1"]).contains("--nonce")
    );

    let (pool, epoch) = ("--pool=1", "--epoch=1");
    let huge = tempfile::NamedTempFile::new().unwrap();
    huge.as_file().set_len(1 << 40).unwrap();
    let huge = complaint(&["--object", "a", "--input", huge.path().to_str().unwrap()]);
    assert!(huge.contains("has more than 67108864 bytes"), "{huge}");
    // Bound and not listening: nobody else can have the port.
    let taken = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    taken.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    let address = taken.local_addr().unwrap().as_socket().unwrap().to_string();
    assert!(complaint(&["--osd", &address, epoch, pool]).contains("cannot reach"));

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let peer = std::thread::spawn(move || {
        use std::io::Write;
        let (first, _) = listener.accept().unwrap();
        drop(first);
        let (mut second, _) = listener.accept().unwrap();
        second.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
    });
    assert!(complaint(&["--osd", &address, epoch, pool]).contains("closed the connection"));
    assert!(complaint(&["--osd", &address, epoch, pool]).contains("banner"));
    peer.join().unwrap();
}

/// An osd that shakes hands, and has nothing else to say than these bytes and farewell.
fn osd_that_says(last_words: &'static [u8]) -> (String, std::thread::JoinHandle<()>) {
    use segchain::recv::Receiver;
    use segchain::transport::SocketRef;
    use segchain_ceph::EntityAddr;
    use segchain_ceph::v1::handshake::{OSD_PROTOCOL, Server, ServerOptions};
    use std::io::{Read, Write};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, client) = listener.accept().unwrap();
        let server = Server::new(ServerOptions::new(EntityAddr::new(own, 7), client, OSD_PROTOCOL));
        let mut receiver = Receiver::new(SocketRef::new(stream.try_clone().unwrap()), server);
        loop {
            let turn = receiver.next(&mut (), None, |turn| turn).unwrap().unwrap();
            stream.write_all(&turn.send).unwrap();
            if turn.done.is_some() {
                break;
            }
        }
        // Behind a request, so that the client has one that is not answered.
        stream.read_exact(&mut [0; 54]).unwrap();
        stream.write_all(last_words).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (own.to_string(), thread)
}

/// An acknowledgement of what was never sent, and a farewell: the connection is over, and what is unanswered fails.
#[test]
fn what_a_peer_says_between_messages_is_heeded() {
    for (last_words, said) in [
        (&b"\x08\0\0\0\0\0\0\0\x01"[..], "acknowledges message 72057594037927936"),
        (b"\x06", "the peer closed the connection, 1 requests unanswered"),
    ] {
        let (osd, thread) = osd_that_says(last_words);
        let text = complaint(&["--osd", &osd, "--pool=1", "--epoch=1", "--count=1"]);
        assert!(text.contains(said), "{text}");
        thread.join().unwrap();
    }
}
