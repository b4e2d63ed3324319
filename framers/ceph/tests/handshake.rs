//! The handshake: both roles against captured bytes, against each other, and what each of them refuses.

use std::net::SocketAddr;
use std::ops::ControlFlow;

use segchain::framer::Deframer;
use segchain::recv::{Received, Receiver, RecvErrorKind};
use segchain_ceph::v1::handshake::{
    Authorizer, Client, ClientOptions, Error, OSD_PROTOCOL, Refusal, Server, ServerOptions, Session, Turn,
};
use segchain_ceph::v1::{self, Frame};
use segchain_ceph::{EntityAddr, features};
use segchain_testkit::conformance::Conformance;
use segchain_testkit::golden::ceph;
use segchain_testkit::scripted::{RecvStep, ScriptedRecv};

/// The captured client.
fn client() -> ClientOptions {
    let mut options = ClientOptions::new(OSD_PROTOCOL, Authorizer::none("admin", 4199));
    options.own = EntityAddr::new("127.0.0.1:0".parse::<SocketAddr>().unwrap(), 0x2ed4_a361);
    options.global_seq = 2;
    options
}

/// The captured osd.
fn server() -> ServerOptions {
    let own = EntityAddr::new("127.0.0.1:23410".parse::<SocketAddr>().unwrap(), 0x1a6b);
    let mut options = ServerOptions::new(own, "127.0.0.1:54334".parse().unwrap(), OSD_PROTOCOL);
    options.global_seq = 0x2d;
    options.claim_required = true;
    options
}

/// What a side sends, its session, and whom it refused.
type Outcome = (Vec<u8>, Option<Session>, Vec<Refusal>);

/// Feeds `bytes`, all of them at once.
fn run<D>(deframer: D, bytes: &[u8]) -> Result<Outcome, Error>
where
    D: for<'h> Deframer<Frame<'h> = Turn, Error = Error>,
{
    let script = ScriptedRecv::new(bytes, []).end(RecvStep::Again);
    let (mut sent, mut done, mut refused) = (Vec::new(), None, Vec::new());
    let received = Receiver::new(&script, deframer).receive(&mut (), |turn| {
        sent.extend(turn.send);
        refused.extend(turn.refused);
        done = done.take().or(turn.done);
        ControlFlow::Continue(())
    });
    match received.map_err(segchain::recv::RecvError::into_kind) {
        Ok(_) => Ok((sent, done, refused)),
        Err(RecvErrorKind::Frame(error)) => Err(error),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn the_client_says_what_a_real_client_says() {
    let (sent, session, _) = run(Client::new(client()), &ceph::V1_HELLO_SERVER.bytes()).unwrap();
    assert_eq!(sent, ceph::V1_HELLO_CLIENT.bytes());
    let session = session.unwrap();
    assert_eq!((session.features, session.peer), (features::OFFERED, server().own));
    assert_eq!((session.global_seq, session.connect_seq, session.received), (0x2d, 1, 0));
    assert!(session.lossy);
}

#[test]
fn the_server_says_what_a_real_osd_says() {
    let (sent, session, refused) = run(Server::new(server()), &ceph::V1_HELLO_CLIENT.bytes()).unwrap();
    assert_eq!((sent, refused), (ceph::V1_HELLO_SERVER.bytes(), vec![]));
    let session = session.unwrap();
    assert_eq!((session.features, session.peer, session.host_type), (features::OFFERED, client().own, 8));
    assert_eq!((session.authorizer.global_id(), session.global_seq), (Some(4199), 2));
}

#[test]
fn a_client_without_an_address_uses_the_one_that_the_server_sees() {
    let mut options = client();
    options.own = EntityAddr::new(None, 0x2ed4_a361);
    let (sent, ..) = run(Client::new(options), &ceph::V1_HELLO_SERVER.bytes()).unwrap();
    assert_eq!(sent, ceph::V1_HELLO_CLIENT.bytes());
}

/// Nothing covers a handshake but its banner: the rest of the bytes is believed, or refused by what it says.
#[test]
fn both_roles_at_every_cut_and_truncation() {
    let bytes = ceph::V1_HELLO_SERVER.bytes();
    let (hello, reply) = bytes.split_at(281);
    let check = Conformance::new(|| Client::new(client()), &[hello, reply]).uncovered(&[9..200, 200..315]);
    assert_eq!(check.check(|turn| turn).len(), 2);

    let bytes = ceph::V1_HELLO_CLIENT.bytes();
    let (hello, seq) = bytes.split_at(200);
    let check = Conformance::new(|| Server::new(server()), &[hello, seq]).uncovered(&[9..200, 200..208]);
    assert_eq!(check.check(|turn| turn).len(), 3);
}

/// All of both sides' bytes one at a time, and a frame directly behind the handshake (ceph PR 4311: what was read ahead
/// belongs to the frames that follow).
#[test]
fn both_roles_shake_hands_and_what_follows_is_a_frame() {
    let (to_client, to_server) = (again(), again());
    let mut client = Receiver::new(&to_client, Client::new(client()));
    let mut server = Receiver::new(&to_server, Server::new(server()));
    let (mut client_done, mut server_done) = (None, None);
    for _ in 0..3 {
        step(&mut server, &to_client, &mut server_done);
        step(&mut client, &to_server, &mut client_done);
    }
    let (a, b) = (client_done.unwrap(), server_done.unwrap());
    assert_eq!((a.peer, b.peer), (b.own, a.own));
    assert_eq!((a.features, a.connect_seq, a.lossy), (b.features, b.connect_seq, b.lossy));

    to_client.feed(&ceph::V1_MSG_OSD_OPREPLY.bytes());
    let mut frames = client.replace(v1::Deframer::new(&a.options())).unwrap();
    let frame = frames.next(&mut (), None, |frame| frame).unwrap();
    assert!(matches!(frame, Some(Frame::Message(_))));

    // And all of it in one call.
    let both = [ceph::V1_HELLO_SERVER.bytes(), ceph::V1_MSG_OSD_OPREPLY.bytes()].concat();
    let script = ScriptedRecv::new(&both, []);
    let mut client = Receiver::new(&script, Client::new(self::client()));
    let session = loop {
        let turn = client.next(&mut (), None, |turn| turn).unwrap().unwrap();
        if let Some(session) = turn.done {
            break session;
        }
    };
    assert_eq!(script.call_count(), 1);
    let mut frames = client.replace(v1::Deframer::new(&session.options())).unwrap();
    let frame = frames.next(&mut (), None, |frame| frame).unwrap();
    assert!(matches!(frame, Some(Frame::Message(_))));
    assert_eq!(script.call_count(), 1);
}

fn again() -> ScriptedRecv {
    ScriptedRecv::new(&[], []).end(RecvStep::Again)
}

fn step<D>(side: &mut Receiver<&ScriptedRecv, D>, peer: &ScriptedRecv, done: &mut Option<Session>)
where
    D: for<'h> Deframer<Frame<'h> = Turn, Error = Error>,
{
    let received = side.receive(&mut (), |turn| {
        turn.send.iter().for_each(|byte| peer.feed(&[*byte]));
        *done = done.take().or(turn.done);
        ControlFlow::Continue(())
    });
    assert_eq!(received.unwrap(), Received::Blocked);
}

#[test]
fn a_server_without_reconnect_seq_says_ready() {
    let mut options = server();
    options.features &= !features::RECONNECT_SEQ;
    let golden = ceph::V1_HELLO_CLIENT.bytes();
    let (sent, session, _) = run(Server::new(options), &golden[..200]).unwrap();
    assert_eq!((sent.len(), sent[281]), (281 + 26, 1));
    assert!(session.is_some());
    let (sent, session, _) = run(Client::new(client()), &sent).unwrap();
    assert_eq!(sent.len(), 200);
    assert_eq!(session.unwrap().features, features::OFFERED & !features::RECONNECT_SEQ);
}

#[test]
fn sequence_numbers_are_exchanged() {
    let (mut ours, mut theirs) = (client(), server());
    (ours.last_seq, theirs.last_seq) = (0x1_0000_0001, 0x2_0000_0002);
    let (hello, ..) = run(Server::new(theirs.clone()), &ceph::V1_HELLO_CLIENT.bytes()[..200]).unwrap();
    let (answer, session, _) = run(Client::new(ours), &hello).unwrap();
    assert_eq!(session.unwrap().received, 0x2_0000_0002);
    let (_, session, _) = run(Server::new(theirs), &answer).unwrap();
    assert_eq!(session.unwrap().received, 0x1_0000_0001);
}

/// What a server refuses, its client understands. The refused client may try again on the same connection.
#[test]
fn each_refusal_reaches_the_client_as_what_it_is() {
    let missing = 1 << 62;
    let mut nobody = client();
    nobody.authorizer = Authorizer::absent();
    let mut for_a_monitor = client();
    for_a_monitor.protocol_version = 15;
    let mut demanding = server();
    demanding.required = missing;
    let version = |ours, theirs| Refusal::BadProtocolVersion { ours, theirs };
    let cases = [
        (nobody, server(), Refusal::BadAuthorizer, Refusal::BadAuthorizer),
        (for_a_monitor, server(), version(24, 15), version(15, 24)),
        (client(), demanding, Refusal::Features { missing }, Refusal::Features { missing }),
    ];
    for (client, server, server_says, client_hears) in cases {
        let (hello, ..) = run(Server::new(server.clone()), &[]).unwrap();
        let (connect, ..) = run(Client::new(client.clone()), &hello).unwrap();
        // Refused, and tried again, without banner and address.
        let twice = [&connect[..], &connect[145..]].concat();
        let (sent, session, refused) = run(Server::new(server), &twice).unwrap();
        assert_eq!((session, refused), (None, vec![server_says; 2]));
        assert_eq!(sent.len(), 281 + 2 * 26);
        assert_eq!(run(Client::new(client), &sent).unwrap_err(), Error::Refused(client_hears));
    }
}

#[test]
fn each_reply_tag_is_an_error_of_its_own() {
    let mut bytes = ceph::V1_HELLO_SERVER.bytes();
    let expected = |tag: u8| match tag {
        1 | 13 => None,
        2 => Some(Error::Refused(Refusal::ResetSession)),
        3 => Some(Error::Refused(Refusal::Wait)),
        4 => Some(Error::Refused(Refusal::RetrySession { connect_seq: 1 })),
        5 => Some(Error::Refused(Refusal::RetryGlobal { global_seq: 0x2d })),
        10 => Some(Error::Refused(Refusal::BadProtocolVersion { ours: 24, theirs: 24 })),
        11 => Some(Error::Refused(Refusal::BadAuthorizer)),
        12 => Some(Error::Refused(Refusal::Features { missing: 0 })),
        16 => Some(Error::Refused(Refusal::Challenge)),
        got => Some(Error::Tag { got }),
    };
    for tag in 0..=255 {
        bytes[281] = tag;
        let result = run(Client::new(client()), &bytes);
        assert_eq!(result.as_ref().err(), expected(tag).as_ref(), "tag {tag}");
        if let Err(error) = result {
            assert!(!error.to_string().is_empty());
        }
    }
    let mut options = client();
    options.required = 1 << 62;
    let missing = Refusal::Features { missing: 1 << 62 };
    let error = run(Client::new(options), &ceph::V1_HELLO_SERVER.bytes()).unwrap_err();
    assert_eq!(error, Error::Refused(missing));
    assert_eq!(
        error.to_string(),
        "the server refuses the connection: features 0x4000000000000000 are missing (FEATURES)"
    );
}

#[test]
fn a_wrong_banner_is_found_with_its_ninth_byte() {
    let error = run(Client::new(client()), b"SSH-2.0-O").unwrap_err();
    assert_eq!(error, Error::Banner { got: *b"SSH-2.0-O" });
    assert_eq!(error.to_string(), "expected banner \"ceph v027\", got \"SSH-2.0-O\"");
    let v2 = run(Client::new(client()), b"ceph v2\n\x10\0").unwrap_err();
    assert!(v2.to_string().ends_with("(that port speaks messenger version 2)"));
    assert_eq!(run(Server::new(server()), b"GET / HTT").unwrap_err(), Error::Banner { got: *b"GET / HTT" });
}

#[test]
fn another_daemon_at_the_same_address_is_refused() {
    let mut options = client();
    let meant = EntityAddr::new("127.0.0.1:23410".parse::<SocketAddr>().unwrap(), 0x1a6b);
    for (peer, right) in [
        (meant, true),
        (EntityAddr::new(meant.socket, 1), false),
        (EntityAddr::new("127.0.0.1:1".parse::<SocketAddr>().unwrap(), 0x1a6b), false),
        (EntityAddr::new("127.0.0.2:23410".parse::<SocketAddr>().unwrap(), 0x1a6b), false),
    ] {
        options.peer = Some(peer);
        let result = run(Client::new(options.clone()), &ceph::V1_HELLO_SERVER.bytes());
        match result {
            Ok(_) => assert!(right),
            Err(error) => {
                assert_eq!((error, right), (Error::WrongPeer { expected: peer, got: meant }, false));
            }
        }
    }
}

#[test]
fn an_authorizer_of_4_gib_is_refused_before_it_is_waited_for() {
    for len in [i32::MAX as u32, u32::MAX, 16_385] {
        let mut bytes = ceph::V1_HELLO_SERVER.bytes();
        bytes[302..306].copy_from_slice(&len.to_le_bytes());
        let too_long = |offset| Error::AuthorizerTooLong { offset, len, limit: 16_384 };
        assert_eq!(run(Client::new(client()), &bytes).unwrap_err(), too_long(21));
        let mut bytes = ceph::V1_HELLO_CLIENT.bytes();
        bytes[173..177].copy_from_slice(&len.to_le_bytes());
        assert_eq!(run(Server::new(server()), &bytes).unwrap_err(), too_long(28));
    }
}

#[test]
fn addresses_of_another_family_are_refused() {
    let mut bytes = ceph::V1_HELLO_SERVER.bytes();
    bytes[18] = 9;
    assert_eq!(run(Client::new(client()), &bytes).unwrap_err(), Error::Address { offset: 9 });
    let six = EntityAddr::new("[2001:db8::1]:6789".parse::<SocketAddr>().unwrap(), 3);
    assert_eq!(EntityAddr::from_legacy(&six.to_legacy()), Some(six));
    let blank = EntityAddr::default();
    assert_eq!(EntityAddr::from_legacy(&blank.to_legacy()), Some(blank));
}
