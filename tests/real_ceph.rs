//! The Ceph examples against Ceph itself: `ceph_sender` against an osd and a monitor, `ceph ping` against `ceph_pong`.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use segchain_testkit::peers::{Ceph, CephOptions, require};
use serde_json::Value;

/// One for all tests of this file; it ends with the process.
fn ceph() -> Option<&'static Ceph> {
    static CEPH: OnceLock<Option<Ceph>> = OnceLock::new();
    let options = CephOptions::default().conf("osd_max_object_name_len = 100");
    CEPH.get_or_init(|| require(Ceph::start(options))).as_ref()
}

/// An example, which `cargo test` builds beside the tests. (With `--test` it does not: `cargo build --examples` does.)
fn example(name: &str) -> Command {
    let mut path: PathBuf = std::env::current_exe().expect("a path of this test");
    path.pop();
    path.pop();
    path.extend(["examples", name]);
    assert!(path.exists(), "cargo test builds {}; `cargo test --test` alone does not", path.display());
    Command::new(path)
}

/// Runs `ceph_sender` against the osd.
fn sender(ceph: &Ceph, protocol: &str, nonce: u32, flags: &[&str]) -> Output {
    let osd = if protocol == "v1" { ceph.osd_v1() } else { ceph.osd_v2() };
    let mut command = example("ceph_sender");
    command.args(["--json", "--protocol", protocol, "--osd", &osd.to_string()]);
    command.args(["--nonce", &nonce.to_string(), "--epoch", &ceph.epoch().to_string()]);
    command.args(["--pool", &ceph.pool_id().to_string()]).args(flags).output().expect("the example runs")
}

/// The last line of a run that has to be good.
fn json(ceph: &Ceph, protocol: &str, flags: &[&str]) -> Value {
    let output = sender(ceph, protocol, ceph.nonce(), flags);
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{protocol} {flags:?}: {error}{text}");
    let report: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(report["protocol"], format!("ceph-{protocol}"));
    assert_eq!((&report["replies_failed"], &report["checksum_ok"]), (&0.into(), &true.into()));
    report
}

#[test]
fn a_thousand_writes_in_flight_are_answered_and_stored_over_both_versions() {
    let Some(ceph) = ceph() else { return };
    let objects = [0, 7, 500, 999].map(|number| format!("segchain-{number}"));
    let mut before: Option<Vec<Vec<u8>>> = None;
    for (protocol, size) in [("v1", 20_000), ("v2", 30_001)] {
        let report =
            json(ceph, protocol, &["--count", "1000", "--size", &size.to_string(), "--page", "4096"]);
        assert_eq!((&report["replies_ok"], &report["payload_bytes_copied"]), (&1000.into(), &0.into()));
        let stored: Vec<_> = objects.iter().map(|name| ceph.rados_get(name).unwrap()).collect();
        assert!(stored.iter().all(|object| object.len() == size), "{protocol}");
        // The first pages of an object are the same whatever its size, and no two objects are alike.
        assert!(stored[0][..4096] != stored[1][..4096]);
        if let Some(before) = &before {
            assert!(before.iter().zip(&stored).all(|(before, now)| before[..4096] == now[..4096]));
        }
        before = Some(stored);
    }
}

#[test]
fn null_operations_are_received_and_refused_over_both_versions() {
    let Some(ceph) = ceph() else { return };
    for protocol in ["v1", "v2"] {
        let report = json(ceph, protocol, &["--null", "--count", "2000", "--in-flight", "64"]);
        assert_eq!(report["replies_ok"], 2000);
    }
}

#[test]
fn a_file_goes_there_and_back_over_both_versions() {
    let Some(ceph) = ceph() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0..1_000_003u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(file.path(), &bytes).unwrap();
    for protocol in ["v1", "v2"] {
        let name = format!("file-{protocol}");
        json(ceph, protocol, &["--object", &name, "--input", file.path().to_str().unwrap()]);
        assert!(ceph.rados_get(&name).unwrap() == bytes, "{protocol}");
    }
}

#[test]
fn a_monitor_gives_a_new_global_id_each_time_over_both_versions() {
    let Some(ceph) = ceph() else { return };
    let mut given = Vec::new();
    for (protocol, mon) in [("v1", ceph.mon_v1()), ("v2", ceph.mon_v2())] {
        for _ in 0..2 {
            let report = json(ceph, protocol, &["--mon", &mon.to_string(), "--null", "--count", "3"]);
            given.push(report["global_id"].as_u64().unwrap());
        }
    }
    // Made up, it would be the time; a young monitor's numbers are small.
    assert!(
        given.is_sorted_by(|a, b| a < b) && given.iter().all(|id| (1..1 << 32).contains(id)),
        "{given:?}"
    );
}

#[test]
fn another_osd_at_the_same_address_and_an_osd_for_a_monitor_are_one_line() {
    let Some(ceph) = ceph() else { return };
    let complaint = |protocol, nonce, flags: &[&str]| {
        let output = sender(ceph, protocol, nonce, flags);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.lines().count() == 1, "{protocol} {flags:?}: {text}");
        text
    };
    let said = complaint("v1", ceph.nonce() ^ 1, &[]);
    assert!(said.contains(&format!("/{}", ceph.nonce())), "{said}");
    let said = complaint("v2", ceph.nonce() ^ 1, &[]);
    assert!(said.contains("no handshake with"), "{said}");
    let said = complaint("v1", ceph.nonce(), &["--mon", &ceph.osd_v1().to_string()]);
    assert!(said.contains("the monitor") && said.contains("BADPROTOVER"), "{said}");
    let said = complaint("v2", ceph.nonce(), &["--mon", &ceph.osd_v2().to_string()]);
    assert!(said.contains("the monitor"), "{said}");
}

/// A running `ceph_pong`.
struct Pong {
    child: Child,
    /// What it listens at, as `ceph -m` wants it.
    address: String,
}

impl Pong {
    fn start(flags: &[&str]) -> Self {
        let mut command = example("ceph_pong");
        command.args(flags).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the example runs");
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().into() }
    }

    /// What it said, when it has ended.
    fn finish(&mut self) -> String {
        assert!(self.child.wait().unwrap().success());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Pong {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `ceph ping`, which has to print our pong. `false` if ceph is not installed; with `SEGCHAIN_REQUIRE_PEERS` set it has to be.
fn ping(address: &str) -> bool {
    let installed =
        Command::new("ceph").arg("--version").output().is_ok_and(|output| output.status.success());
    let required = std::env::var_os("SEGCHAIN_REQUIRE_PEERS").is_some_and(|v| !v.is_empty() && v != "0");
    if !installed {
        assert!(!required, "SEGCHAIN_REQUIRE_PEERS is set, but ceph is not installed (Debian: ceph-common)");
        eprintln!("skipped: ceph is not installed (Debian: ceph-common)");
        return false;
    }
    let mut ping = Command::new("timeout");
    ping.args(["30", "ceph", "-c", "/dev/null", "--auth_client_required", "none"]);
    ping.args(["--ms_mon_client_mode", "crc", "-m", address, "ping", "mon.noname-a"]);
    let output = ping.env_remove("CEPH_ARGS").env_remove("CEPH_CONF").output().unwrap();
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{address}: {}: {text}{error}", output.status);
    assert!(text.contains("it is segchain that answers"), "{text}{error}");
    true
}

#[test]
fn ceph_ping_prints_our_pong_over_both_versions_and_both_revisions() {
    let flags: [&[&str]; 3] =
        [&["--protocol", "v1"], &["--protocol", "v2"], &["--protocol", "v2", "--revision", "0"]];
    for flags in flags {
        let mut pong = Pong::start(&[flags, &["--once"]].concat());
        if ping(&pong.address) {
            assert!(pong.finish().contains("ping, answered"));
        }
    }
}

#[test]
fn bad_clients_end_their_connections_and_not_the_server() {
    use std::io::Write;
    for protocol in ["v1", "v2"] {
        let mut pong = Pong::start(&["--protocol", protocol, "--once"]);
        let address = pong.address.split_once(':').unwrap().1;
        let connect = || std::net::TcpStream::connect(address).unwrap();
        // One that is silent for as long as the others take, one that says nonsense, one that leaves at once.
        let silent = connect();
        let mut loud = connect();
        loud.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut rest = Vec::new();
        let _ = loud.read_to_end(&mut rest);
        drop(connect());
        if ping(&pong.address) {
            let said = pong.finish();
            assert!(said.contains("banner") && said.contains("ping, answered"), "{said}");
        }
        drop(silent);
    }
}
