//! Our server half against a real client: the command `ceph ping` of ceph-common, over both versions of the messenger.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Outgoing};
use segchain::framer::{Deframer, Framer};
use segchain::recv::Receiver;
use segchain::send::StreamSender;
use segchain::transport::SocketRef;
use segchain_ceph::{EntityAddr, EntityName, Header, Incoming, Message, v1, v2};

/// Message type of MPing (Ceph `src/include/msgr.h`), both ways; the pong's front is a string.
const PING: u16 = 2;
const PONG: &[u8] = br#"{"health":"it is segchain that answers"}"#;

type Socket = SocketRef<Arc<TcpStream>>;

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn pong() -> Message<()> {
    let mut front = (PONG.len() as u32).to_le_bytes().to_vec();
    front.extend_from_slice(PONG);
    let mut header = Header::new(PING);
    (header.version, header.compat_version, header.priority) = (1, 1, 127);
    header.src = EntityName::new(1, 0);
    Message::new(header, Bytes::from(front), ())
}

fn put<M, F>(sender: &mut StreamSender<Socket>, framer: &mut F, message: M)
where
    F: Framer<M, Error: std::fmt::Debug>,
{
    let mut out = ChainBuilder::new();
    framer.frame(message, &mut out).unwrap();
    sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(deadline())).unwrap();
}

fn say(sender: &mut StreamSender<Socket>, bytes: &[u8]) {
    let mut out = ChainBuilder::new();
    out.put(bytes);
    sender.send_blocking(&mut Outgoing::new(out.finish().unwrap()), Some(deadline())).unwrap();
}

/// What the client sends until it closes; an error of the transport is such an end.
fn next<D, F>(receiver: &mut Receiver<Socket, D>) -> Option<F>
where
    D: for<'h> Deframer<Frame<'h> = F>,
{
    receiver.next(&mut (), Some(deadline()), |frame| frame).ok().flatten()
}

fn serve_v1(socket: &Socket, own: EntityAddr, client: std::net::SocketAddr) {
    use v1::handshake::{MON_PROTOCOL, Server, ServerOptions};
    let mut sender = StreamSender::new(socket.clone());
    let server = Server::new(ServerOptions::new(own, client, MON_PROTOCOL));
    let mut receiver = Receiver::new(socket.clone(), server);
    let session = loop {
        let Some(turn) = next(&mut receiver) else { return };
        say(&mut sender, &turn.send);
        if let Some(session) = turn.done {
            break session;
        }
    };
    let mut receiver = receiver.replace(v1::Deframer::new(&session.options())).unwrap();
    let mut framer = v1::Framer::new(&session.options());
    while let Some(frame) = next(&mut receiver) {
        match frame {
            v1::Frame::Message(Incoming { header, .. }) if header.kind == PING => {
                put(&mut sender, &mut framer, pong());
            }
            v1::Frame::Control(v1::Control::Keepalive2(stamp)) => {
                put(&mut sender, &mut framer, v1::Control::Keepalive2Ack(stamp));
            }
            _ => {}
        }
    }
}

fn serve_v2(socket: &Socket, own: EntityAddr, client: std::net::SocketAddr, revision_1: bool) {
    use v2::handshake::{Server, ServerOptions};
    let mut sender = StreamSender::new(socket.clone());
    let mut options = ServerOptions::new(vec![own], client, 1);
    (options.next_global_id, options.revision_1) = (4201, revision_1);
    let mut receiver = Receiver::new(socket.clone(), Server::new(options));
    let session = loop {
        let Some(turn) = next(&mut receiver) else { return };
        assert_eq!(turn.refused, None);
        say(&mut sender, &turn.send);
        if let Some(session) = turn.done {
            break session;
        }
    };
    let codec = if revision_1 { v2::Codec::CrcRev1 } else { v2::Codec::CrcRev0 };
    assert_eq!((session.codec, session.entity_type, &session.name[..]), (codec, 8, &b"admin"[..]));
    let mut receiver = receiver.replace(v2::Deframer::new(&session.options())).unwrap();
    let mut framer = v2::Framer::new(&session.options());
    while let Some(frame) = next(&mut receiver) {
        match frame {
            v2::Frame::Message(Incoming { header, seq, .. }) if header.kind == PING => {
                framer.received(seq);
                put(&mut sender, &mut framer, pong());
            }
            v2::Frame::Control(v2::Control::Keepalive2(stamp)) => {
                put(&mut sender, &mut framer, v2::Control::Keepalive2Ack(stamp));
            }
            _ => {}
        }
    }
}

/// Whether `ceph` is here. With `SEGCHAIN_REQUIRE_PEERS` set it has to be.
fn installed() -> bool {
    let found = Command::new("ceph").arg("--version").output().is_ok_and(|output| output.status.success());
    let required = std::env::var_os("SEGCHAIN_REQUIRE_PEERS").is_some_and(|v| !v.is_empty() && v != "0");
    assert!(
        found || !required,
        "SEGCHAIN_REQUIRE_PEERS is set, but ceph is not installed (Debian: ceph-common)"
    );
    if !found {
        eprintln!("skipped: ceph is not installed (Debian: ceph-common)");
    }
    found
}

/// `ceph ping` with our server as its monitor; it is served in another thread.
fn ping(
    version: &str,
    serve: impl Fn(&Socket, std::net::SocketAddr, std::net::SocketAddr) + Send + 'static,
) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, client)) = listener.accept() {
            let socket = SocketRef::new(Arc::new(stream));
            serve(&socket, own, client);
        }
    });
    Command::new("timeout")
        .args(["30", "ceph", "-c", "/dev/null", "--auth_client_required", "none"])
        .args(["--ms_mon_client_mode", "crc", "-m", &format!("{version}:{own}")])
        .args(["ping", "mon.noname-a"])
        .env_remove("CEPH_ARGS")
        .env_remove("CEPH_CONF")
        .output()
        .unwrap()
}

fn assert_pong(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{error}", output.status);
    assert!(text.contains("it is segchain that answers"), "{text}{error}");
}

#[test]
fn ceph_ping_prints_our_pong_over_version_1() {
    if installed() {
        assert_pong(&ping("v1", |socket, own, client| serve_v1(socket, EntityAddr::new(own, 0), client)));
    }
}

#[test]
fn ceph_ping_prints_our_pong_over_version_2_in_both_revisions() {
    if installed() {
        for revision_1 in [true, false] {
            let serve = move |socket: &Socket, own, client| {
                serve_v2(socket, EntityAddr::msgr2(own, 0), client, revision_1);
            };
            assert_pong(&ping("v2", serve));
        }
    }
}
