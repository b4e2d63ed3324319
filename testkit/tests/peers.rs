//! Every peer starts, answers something trivial, and is gone after its drop.

use segchain_testkit::golden;
use segchain_testkit::peers::{
    Ceph, CephAuth, CephMode, CephOptions, Iscsi, Nfs, OsdProtocol, TirpcEcho, TirpcEchoOptions, require,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn an_osd_greets_with_the_banner_of_each_messenger_version_and_is_gone_after_drop() {
    let Some(ceph) = require(Ceph::start(CephOptions::default())) else { return };
    for (addr, banner) in [
        (ceph.osd_v1(), golden::ceph::V1_HELLO_SERVER.bytes()[..9].to_vec()),
        (ceph.osd_v2(), golden::ceph::V2OSD_S_BANNER.bytes()),
        (ceph.mon_v1(), b"ceph v027".to_vec()),
        (ceph.mon_v2(), b"ceph v2\n".to_vec()),
    ] {
        assert_eq!(read(connect(addr), banner.len()), banner, "{addr}");
    }
    assert!(ceph.nonce() != 0 && ceph.epoch() != 0 && ceph.pool_id() != 0, "{ceph:?}");
    assert!(ceph.conf().is_file());

    let object: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
    ceph.rados_put("an object", &object).unwrap();
    assert_eq!(ceph.rados_get("an object").unwrap(), object);
    let absent = ceph.rados_get("no object").unwrap_err().to_string();
    assert!(absent.contains("(2) No such file or directory"), "{absent}");

    let ports = [ceph.osd_v1(), ceph.osd_v2(), ceph.mon_v1(), ceph.mon_v2()];
    let (pids, conf) = (ceph.pids(), ceph.conf().to_owned());
    drop(ceph);
    assert_gone(&pids, &ports);
    assert!(!conf.exists(), "the directory is removed");
}

#[test]
fn an_osd_of_messenger_version_1_takes_extra_configuration() {
    let options = CephOptions::default().osd_protocol(OsdProtocol::V1).conf("osd_max_object_name_len = 100");
    let Some(ceph) = require(Ceph::start(options)) else { return };
    assert_eq!(read(connect(ceph.osd_v1()), 9), b"ceph v027");
    let refused = ceph.rados_put(&"n".repeat(120), b"x").unwrap_err().to_string();
    assert!(refused.contains("(36) File name too long"), "{refused}");
}

#[test]
fn an_osd_of_messenger_version_2_serves_secure_connections() {
    let options =
        CephOptions::default().osd_protocol(OsdProtocol::V2).auth(CephAuth::Cephx).mode(CephMode::Secure);
    let Some(ceph) = require(Ceph::start(options)) else { return };
    assert_eq!(read(connect(ceph.osd_v2()), 8), b"ceph v2\n");
    ceph.rados_put("secret", b"secret").unwrap();
    assert_eq!(ceph.rados_get("secret").unwrap(), b"secret");
}

/// Runs once more in a process with a temporary directory of its own, to see that nothing is left of it.
#[test]
fn a_start_that_fails_shows_the_log_and_leaves_nothing() {
    // 192.0.2.0/24 is for documentation (RFC 5737): the osd cannot bind there, while the monitor has its own address.
    let broken = || CephOptions::default().conf("public_addr = 192.0.2.1").conf("ms_bind_retry_delay = 0");
    if is_rerun() {
        let unavailable = Ceph::start(broken()).unwrap_err();
        writeln!(std::io::stdout(), "\n{unavailable}").unwrap();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let output = rerun("a_start_that_fails_shows_the_log_and_leaves_nothing", |command| {
        command.env("TMPDIR", directory.path());
    });
    if output.contains("is not installed") {
        require(Ceph::start(broken()));
        return;
    }
    let start = "ceph-osd is installed and did not start: osd.0 ended with exit status: 1 before it came up";
    assert!(output.contains(start), "{output}");
    assert!(output.contains("--- last lines of osd.0.out\n") && output.contains("192.0.2.1"), "{output}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let command_line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command_line = String::from_utf8_lossy(&command_line);
        assert!(!command_line.contains(directory.path().to_str().unwrap()), "{command_line} is left");
    }
}

#[test]
fn rpcbind_and_ganesha_answer_null_and_are_gone_after_drop() {
    let Some(nfs) = require(Nfs::start()) else { return };
    let call = golden::oncrpc::NULL_CALL.bytes();
    let reply = golden::oncrpc::NULL_REPLY.bytes();
    assert_eq!(exchange(connect(nfs.nfs_addr()), &call, reply.len()), reply);
    assert_eq!(exchange(connect(nfs.mount_addr()), &null_call(100_005, 3), reply.len()), reply);

    let call = null_call(100_000, 3);
    assert_eq!(exchange(connect(nfs.rpcbind_tcp()), &call, reply.len()), reply);
    assert_eq!(exchange(UnixStream::connect(nfs.rpcbind_unix()).unwrap(), &call, reply.len()), reply);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    udp.send_to(&call[4..], nfs.rpcbind_udp()).unwrap();
    let mut datagram = [0; 100];
    let length = udp.recv(&mut datagram).unwrap();
    assert_eq!(datagram[..length], reply[4..], "a datagram has no record marker");

    // MNT (RFC 1813 section 5.2.1) of "/export": a length, seven bytes and one of padding. Status 0, then a file handle.
    let mnt =
        rpc_call(100_005, 3, 1, &[&7_u32.to_be_bytes()[..], nfs.export_path().as_bytes(), &[0]].concat());
    assert_eq!(exchange(connect(nfs.mount_addr()), &mnt, 32)[24..28], [0; 4]);
    assert!(nfs.export_dir().is_dir());
    assert_eq!(nfs.export_path(), "/export");
    let mut ports = vec![nfs.nfs_addr(), nfs.mount_addr()];
    if nfs.owns_rpcbind() {
        ports.push(nfs.rpcbind_tcp());
    }
    let pids = nfs.pids();
    drop(nfs);
    assert_gone(&pids, &ports);
}

#[test]
fn a_second_nfs_waits_for_the_first() {
    let Some(first) = require(Nfs::start()) else { return };
    let second = std::thread::spawn(|| Nfs::start().map(|second| (second, Instant::now())));
    std::thread::sleep(Duration::from_secs(1));
    let released = Instant::now();
    drop(first);
    let (second, started) = second.join().unwrap().unwrap();
    assert!(started > released);
    assert_eq!(exchange(connect(second.nfs_addr()), &null_call(100_003, 3), 28)[24..], [0; 4]);
}

#[test]
fn an_iscsi_target_accepts_connections_and_is_gone_after_drop() {
    let Some(iscsi) = require(Iscsi::start()) else { return };
    drop(connect(iscsi.portal()));
    assert_eq!(iscsi.disk().metadata().unwrap().len(), 64 << 20);
    assert!(iscsi.target().starts_with("iqn.") && iscsi.lun() == 1);
    let (pids, portal) = (iscsi.pids(), iscsi.portal());
    let start = Instant::now();
    drop(iscsi);
    assert!(start.elapsed() < Duration::from_secs(4), "tgtd ended by itself, without SIGKILL");
    assert_gone(&pids, &[portal]);
}

#[test]
fn the_libtirpc_server_answers_null_and_is_gone_after_drop() {
    let Some(echo) = require(TirpcEcho::start()) else { return };
    let call = null_call(TirpcEcho::PROGRAM, TirpcEcho::VERSION);
    let reply = golden::oncrpc::NULL_REPLY.bytes();
    assert_eq!(exchange(connect(echo.tcp()), &call, reply.len()), reply);
    assert_eq!(exchange(UnixStream::connect(echo.unix()).unwrap(), &call, reply.len()), reply);
    let (pids, port) = (echo.pids(), echo.tcp());
    drop(echo);
    assert_gone(&pids, &[port]);
}

#[test]
fn the_libtirpc_server_sends_a_large_reply_in_many_fragments() {
    let asked = 1_u32 << 20;
    for (options, fragments) in
        [(TirpcEchoOptions::default(), 17), (TirpcEchoOptions::default().send_buffer(8996), 117)]
    {
        let Some(echo) = require(TirpcEcho::start_with(options)) else { return };
        let mut stream = connect(echo.tcp());
        stream.write_all(&rpc_call(TirpcEcho::PROGRAM, 1, TirpcEcho::SOURCE, &asked.to_be_bytes())).unwrap();
        let (mut reply, mut count, mut last) = (Vec::new(), 0, false);
        while !last {
            let mut marker = [0; 4];
            stream.read_exact(&mut marker).unwrap();
            let marker = u32::from_be_bytes(marker);
            last = marker >> 31 == 1;
            count += 1;
            let at = reply.len();
            reply.resize(at + (marker & 0x7fff_ffff) as usize, 0);
            stream.read_exact(&mut reply[at..]).unwrap();
        }
        assert_eq!(count, fragments);
        assert_eq!(reply[24..28], asked.to_be_bytes());
        assert!(reply[28..].iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8));
        assert_eq!(reply.len(), 28 + asked as usize);
    }
}

#[test]
fn a_peer_ends_with_the_process_that_started_it() {
    if is_rerun() {
        let iscsi = Iscsi::start().unwrap();
        // Past the capture of the harness.
        writeln!(std::io::stdout(), "\npid {}", iscsi.pids()[0]).unwrap();
        writeln!(std::io::stdout(), "disk {}", iscsi.disk().display()).unwrap();
        std::process::abort();
    }
    if require(Iscsi::start()).is_none() {
        return;
    }
    let output = rerun("a_peer_ends_with_the_process_that_started_it", |_| {});
    let word = |key| output.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
    let (pid, disk) = (word("pid ").parse().unwrap(), word("disk "));
    let end = Instant::now() + PATIENCE;
    while is_alive(pid) || std::path::Path::new(&disk).exists() {
        assert!(Instant::now() < end, "pid {pid} or {disk} outlived its process by {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

const RERUN: &str = "SEGCHAIN_TESTKIT_RERUN";

/// Whether this process is one that [`rerun`] started.
fn is_rerun() -> bool {
    std::env::var_os(RERUN).is_some()
}

/// Runs one test of this file in a process of its own, and returns its standard output.
fn rerun(test: &str, change: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test]).env(RERUN, "1").stderr(Stdio::null());
    change(&mut command);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

const PATIENCE: Duration = Duration::from_secs(10);

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn read(mut stream: impl Read, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn exchange(mut stream: impl Read + Write, call: &[u8], length: usize) -> Vec<u8> {
    stream.write_all(call).unwrap();
    read(stream, length)
}

/// The golden NULL call, for another program.
fn null_call(program: u32, version: u32) -> Vec<u8> {
    rpc_call(program, version, 0, &[])
}

fn rpc_call(program: u32, version: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let mut call = golden::oncrpc::NULL_CALL.bytes();
    call[16..28].copy_from_slice(&[program, version, procedure].map(u32::to_be_bytes).concat());
    call.extend_from_slice(arguments);
    let marker = 0x8000_0000 | (call.len() - 4) as u32;
    call[..4].copy_from_slice(&marker.to_be_bytes());
    call
}

fn assert_gone(pids: &[u32], ports: &[SocketAddr]) {
    for pid in pids {
        assert!(!is_alive(*pid), "pid {pid} is still there");
    }
    for port in ports {
        assert!(TcpStream::connect(port).is_err(), "somebody still listens on {port}");
    }
}

/// A zombie counts as gone: an orphan's is the business of the process that inherited it.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}
