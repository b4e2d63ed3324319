//! The handshake of version 2: both roles against captured bytes, against each other, and what each of them refuses.

mod common;

use std::ops::ControlFlow;

use bytes::Bytes;
use common::message;
use common::v2::{Seen, address, control_wire, controls, options, seen, wire};
use segchain::chain::{ChainBuilder, Outgoing};
use segchain::framer::{Deframer, Framer as _};
use segchain::recv::{Received, Receiver, RecvErrorKind};
use segchain::send::{Progress, StreamSender};
use segchain_ceph::osd::OP;
use segchain_ceph::v2::handshake::{
    Client, ClientOptions, Error, Refusal, Server, ServerOptions, Session, Turn,
};
use segchain_ceph::v2::{self, Codec, Control, Frame, Framer, Ident};
use segchain_ceph::{AddrKind, EntityAddr, features};
use segchain_testkit::conformance::Conformance;
use segchain_testkit::golden::ceph;
use segchain_testkit::scripted::{RecvStep, ScriptedRecv, ScriptedSend, SendStep};

/// The captured client.
fn client() -> ClientOptions {
    let mut options = ClientOptions::to_osd(address("127.0.0.1:23310", 0x18bd), "admin", 4199);
    options.own = address("127.0.0.1:0", 0x1f8f_b9a8).with_kind(AddrKind::Any);
    (options.global_seq, options.required) = (2, 0x0800_0000_0000_1000);
    options
}

/// The captured osd.
fn server() -> ServerOptions {
    let own = address("127.0.0.1:23310", 0x18bd);
    let legacy = address("127.0.0.1:23311", 0x18bd).with_kind(AddrKind::Legacy);
    let mut options = ServerOptions::new(vec![own, legacy], "127.0.0.1:39758".parse().unwrap(), 4);
    (options.global_seq, options.required) = (0x2d, features::REQUIRED_BY_OSD);
    options
}

fn client_says() -> Vec<Vec<u8>> {
    [
        ceph::V2OSD_C_BANNER,
        ceph::V2OSD_C_HELLO,
        ceph::V2OSD_C_AUTH_REQUEST,
        ceph::V2OSD_C_AUTH_SIGNATURE,
        ceph::V2OSD_C_CLIENT_IDENT,
    ]
    .map(|frame| frame.bytes())
    .to_vec()
}

fn server_says() -> Vec<Vec<u8>> {
    [
        ceph::V2OSD_S_BANNER,
        ceph::V2OSD_S_HELLO,
        ceph::V2OSD_S_AUTH_DONE,
        ceph::V2OSD_S_AUTH_SIGNATURE,
        ceph::V2OSD_S_SERVER_IDENT,
    ]
    .map(|frame| frame.bytes())
    .to_vec()
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

/// The first `n` things that the other side says, and then another frame.
fn then(said: &[Vec<u8>], n: usize, control: Control) -> Vec<u8> {
    [said[..n].concat(), control_wire(Codec::CrcRev1, control)].concat()
}

#[test]
fn the_client_says_what_a_real_client_says() {
    let (sent, session, _) = run(Client::new(client()), &server_says().concat()).unwrap();
    assert_eq!(sent, client_says().concat());
    let session = session.unwrap();
    assert_eq!(
        (session.codec, session.features, session.global_id),
        (Codec::CrcRev1, features::OFFERED, 4199)
    );
    assert_eq!((session.entity_type, session.peer.gid, session.peer.global_seq), (4, 0, 0x2d));
    assert_eq!((session.peer.addrs, session.own, session.lossy), (server().own, vec![client().own], true));
}

#[test]
fn the_server_says_what_a_real_osd_says() {
    let (sent, session, refused) = run(Server::new(server()), &client_says().concat()).unwrap();
    assert_eq!((sent, refused), (server_says().concat(), vec![]));
    let session = session.unwrap();
    assert_eq!(
        (session.codec, session.features, session.global_id),
        (Codec::CrcRev1, features::OFFERED, 4199)
    );
    assert_eq!((session.entity_type, session.peer.gid, session.peer.global_seq), (8, 4199, 2));
    assert_eq!(
        (session.peer.addrs, &session.name[..], session.lossy),
        (vec![client().own], &b"admin"[..], true)
    );
}

#[test]
fn a_client_without_an_address_uses_the_one_that_the_server_sees() {
    let mut options = client();
    options.own = EntityAddr::new(None, 0x1f8f_b9a8).with_kind(AddrKind::Any);
    let (sent, ..) = run(Client::new(options), &server_says().concat()).unwrap();
    assert_eq!(sent, client_says().concat());
}

/// All of a frame is covered; of a banner, only what it begins with.
#[test]
fn both_roles_at_every_cut_truncation_and_flipped_bit() {
    let fields = [10..18, 18..26];
    // A server says nothing to HELLO and AUTH_SIGNATURE, so that a stream that ends behind them ends too soon.
    let pieces = server_says();
    let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    let check = Conformance::new(|| Client::new(client()), &pieces).uncovered(&fields);
    assert_eq!(check.check(|turn| turn).len(), 1 + 5);

    let [banner, hello, auth, signature, ident] = &client_says()[..] else { panic!() };
    let (first, second) = ([&hello[..], auth].concat(), [&signature[..], ident].concat());
    let check = Conformance::new(|| Server::new(server()), &[banner, &first, &second]).uncovered(&fields);
    assert_eq!(check.check(|turn| turn).len(), 1 + 3);
}

fn again() -> ScriptedRecv {
    ScriptedRecv::new(&[], []).end(RecvStep::Again)
}

fn step<D>(side: &mut Receiver<&ScriptedRecv, D>, peer: &ScriptedRecv, done: &mut Option<Session>)
where
    D: for<'h> Deframer<Frame<'h> = Turn, Error = Error>,
{
    let received = side.receive(&mut (), |turn| {
        *done = done.take().or(turn.done);
        // One byte a write, and so one byte a read.
        let cut = ScriptedSend::new([]).then(SendStep::Accept(1));
        let mut out = ChainBuilder::new();
        out.put(&turn.send);
        assert_eq!(
            StreamSender::new(&cut).send(&mut Outgoing::new(out.finish().unwrap())),
            Ok(Progress::Done)
        );
        peer.feed(&cut.wire());
        ControlFlow::Continue(())
    });
    assert_eq!(received.unwrap(), Received::Blocked);
}

fn one_byte_a_call(script: &ScriptedRecv) {
    script.stop_at(&(1..100_000).collect::<Vec<_>>(), false);
}

/// ceph PR 4311: what was read ahead belongs to the frames that follow.
#[test]
fn both_roles_and_100_messages_with_every_read_and_write_cut_to_one_byte() {
    for (client_has, server_has) in [(true, true), (true, false), (false, true), (false, false)] {
        let (to_client, to_server) = (again(), again());
        one_byte_a_call(&to_client);
        one_byte_a_call(&to_server);
        let (mut ours, mut theirs) = (client(), server());
        (ours.revision_1, theirs.revision_1) = (client_has, server_has);
        let mut client = Receiver::new(&to_client, Client::new(ours));
        let mut server = Receiver::new(&to_server, Server::new(theirs));
        let (mut client_done, mut server_done) = (None, None);
        for _ in 0..5 {
            step(&mut server, &to_client, &mut server_done);
            step(&mut client, &to_server, &mut client_done);
        }
        let (a, b) = (client_done.unwrap(), server_done.unwrap());
        let codec = if client_has && server_has { Codec::CrcRev1 } else { Codec::CrcRev0 };
        assert_eq!((a.codec, b.codec, a.features), (codec, codec, b.features));

        let mut framer = Framer::new(&a.options());
        for tid in 0..100 {
            let cut = ScriptedSend::new([]).then(SendStep::Accept(1));
            let mut sender = StreamSender::new(&cut);
            let data = vec![tid as u8; tid as usize];
            let mut out = ChainBuilder::new();
            framer.frame(message(OP, tid, &data), &mut out).unwrap();
            assert_eq!(sender.send(&mut Outgoing::new(out.finish().unwrap())), Ok(Progress::Done));
            to_server.feed(&cut.wire());
        }
        let mut frames = server.replace(v2::Deframer::new(&b.options())).unwrap();
        let mut count = 0;
        let received = frames.receive(&mut (), |frame| {
            let Seen::Message { seq, header, .. } = seen(frame) else { panic!() };
            assert_eq!((seq, header.tid), (count + 1, count));
            count += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((received.unwrap(), count), (Received::Blocked, 100));
    }
}

#[test]
fn a_message_directly_behind_the_handshake_is_read_in_the_same_call() {
    let both = [server_says().concat(), ceph::V2OSD_S_MSG_OSD_OPREPLY_2SEG.bytes()].concat();
    let script = ScriptedRecv::new(&both, []);
    let mut client = Receiver::new(&script, Client::new(client()));
    let session = loop {
        let turn = client.next(&mut (), None, |turn| turn).unwrap().unwrap();
        if let Some(session) = turn.done {
            break session;
        }
    };
    let mut frames = client.replace(v2::Deframer::new(&session.options())).unwrap();
    let frame = frames.next(&mut (), None, |frame| frame).unwrap();
    assert!(matches!(frame, Some(Frame::Message(_))));
    assert_eq!(script.call_count(), 1);
}

#[test]
fn a_monitor_gives_a_number_to_a_client_that_has_none() {
    let monitor = address("127.0.0.1:3300", 0);
    let mut theirs = ServerOptions::new(vec![monitor], "127.0.0.1:5".parse().unwrap(), 1);
    theirs.next_global_id = 4201;
    let ours = ClientOptions::to_monitor(monitor, "admin");
    let (mut to_client, mut done) = (Vec::new(), None);
    let mut client_done = None;
    for _ in 0..6 {
        let (to_server, session, _) = run(Client::new(ours.clone()), &to_client).unwrap();
        client_done = session;
        (to_client, done, _) = run(Server::new(theirs.clone()), &to_server).unwrap();
    }
    let (client, server) = (client_done.unwrap(), done.unwrap());
    assert_eq!((client.global_id, server.global_id, server.peer.gid), (4201, 4201, -1));
    assert_eq!((client.entity_type, &server.name[..]), (1, &b"admin"[..]));
}

/// What a server refuses, its client understands. The refused client may try again on the same connection.
#[test]
fn each_refusal_of_a_server_reaches_the_client_as_what_it_is() {
    let says = client_says();
    let bad = |method, result| Refusal::BadMethod { method, result, methods: vec![1], modes: vec![1] };
    let request = |method, modes: &[u32], payload: &'static [u8]| Control::AuthRequest {
        method,
        modes: modes.to_vec(),
        payload: Bytes::from_static(payload),
    };
    let cases = [
        (request(2, &[1], b""), bad(2, -95)),
        (request(1, &[2], b""), bad(1, -95)),
        (request(1, &[], b""), bad(1, -95)),
        (request(1, &[2, 1], b""), bad(1, -13)),
        (request(1, &[1], b"\x07\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), bad(1, -13)),
    ];
    for (control, refusal) in cases {
        let again = [then(&says, 2, control.clone()), control_wire(Codec::CrcRev1, control)].concat();
        let (sent, done, refused) = run(Server::new(server()), &again).unwrap();
        assert_eq!((done, refused), (None, vec![refusal.clone(); 2]));
        assert_eq!(run(Client::new(client()), &sent).unwrap_err(), Error::Refused(refusal));
    }

    let missing = 1 << 62;
    let mut demanding = server();
    demanding.required = missing;
    let twice = [says.concat(), says[4].clone()].concat();
    let (sent, done, refused) = run(Server::new(demanding), &twice).unwrap();
    assert_eq!((done, refused), (None, vec![Refusal::Features { missing }; 2]));
    let error = run(Client::new(client()), &sent).unwrap_err();
    assert_eq!(error, Error::Refused(Refusal::Features { missing }));
    assert_eq!(
        error.to_string(),
        "the connection is refused: features 0x4000000000000000 are missing (IDENT_MISSING_FEATURES)"
    );
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::ConnectionRefused);

    let reconnect = controls().remove(10);
    assert_eq!(reconnect.tag(), 11);
    let (sent, _, refused) = run(Server::new(server()), &then(&says, 4, reconnect)).unwrap();
    assert_eq!(refused, [Refusal::ResetSession]);
    assert_eq!(run(Client::new(client()), &sent).unwrap_err(), Error::Refused(Refusal::ResetSession));
}

#[test]
fn what_else_a_server_may_say_to_an_ident() {
    let says = server_says();
    let cases = [
        (Control::Wait, Refusal::Wait),
        (Control::SessionRetryGlobal(9), Refusal::RetryGlobal { global_seq: 9 }),
    ];
    for (control, refusal) in cases {
        let error = run(Client::new(client()), &then(&says, 4, control)).unwrap_err();
        assert_eq!(error, Error::Refused(refusal));
    }
    let mut lacking = Ident::default();
    lacking.addrs = server().own;
    lacking.features = features::OFFERED & !(1 << 12);
    let error =
        run(Client::new(client()), &then(&says, 4, Control::ServerIdent(lacking.clone()))).unwrap_err();
    assert_eq!(error, Error::Refused(Refusal::Features { missing: 1 << 12 }));

    (lacking.features, lacking.addrs) = (features::OFFERED, vec![address("127.0.0.1:23310", 1)]);
    let error = run(Client::new(client()), &then(&says, 4, Control::ServerIdent(lacking))).unwrap_err();
    let (expected, got) = (address("127.0.0.1:23310", 0x18bd), address("127.0.0.1:23310", 1));
    assert_eq!(error, Error::WrongPeer { expected, got });
    assert_eq!(error.to_string(), "expected the peer v2:127.0.0.1:23310/6333, got v2:127.0.0.1:23310/1");
}

/// A daemon that a client does not mean closes (measured against ceph-osd 16.2.15).
#[test]
fn a_client_that_means_another_daemon_is_an_error() {
    for text in ["127.0.0.1:1", "127.0.0.2:23310", "127.0.0.1:23310"] {
        let mut other = client();
        other.target = address(text, 0x18bd);
        if text == "127.0.0.1:23310" {
            other.target.nonce = 1;
        }
        let target = other.target;
        let (sent, ..) = run(Client::new(other), &server_says()[..4].concat()).unwrap();
        let error = run(Server::new(server()), &sent).unwrap_err();
        assert_eq!(error, Error::WrongPeer { expected: address("127.0.0.1:23310", 0x18bd), got: target });
    }
}

#[test]
fn secure_mode_and_a_signature_without_a_key_are_errors() {
    let secure = Control::AuthDone { global_id: 4199, mode: 2, payload: Bytes::new() };
    let error = run(Client::new(client()), &then(&server_says(), 2, secure)).unwrap_err();
    assert_eq!(error, Error::Mode { got: 2 });
    for at in 0..32 {
        let mut signature = [0; 32];
        signature[at] = 1;
        let control = Control::AuthSignature(signature);
        let error = run(Client::new(client()), &then(&server_says(), 3, control.clone())).unwrap_err();
        assert_eq!(error, Error::Signature);
        assert_eq!(
            run(Server::new(server()), &then(&client_says(), 3, control)).unwrap_err(),
            Error::Signature
        );
    }
}

/// At every step, every tag that does not belong there.
#[test]
fn a_frame_that_does_not_come_now_is_an_error() {
    let client_takes: [&[u8]; 4] = [&[1], &[3, 6], &[7], &[9, 10, 12, 14, 16]];
    let server_takes: [&[u8]; 4] = [&[1], &[2], &[7], &[8, 11]];
    let awaits = [
        ["HELLO", "AUTH_DONE", "AUTH_SIGNATURE", "SERVER_IDENT"],
        ["HELLO", "AUTH_REQUEST", "AUTH_SIGNATURE", "CLIENT_IDENT"],
    ];
    for done in 0..4 {
        for control in controls() {
            let tag = control.tag();
            let unexpected = |awaiting| Error::Unexpected { awaiting, tag };
            let to_client = then(&server_says(), done + 1, control.clone());
            if !client_takes[done].contains(&tag) {
                assert_eq!(run(Client::new(client()), &to_client).unwrap_err(), unexpected(awaits[0][done]));
            }
            let to_server = then(&client_says(), done + 1, control);
            if !server_takes[done].contains(&tag) {
                assert_eq!(run(Server::new(server()), &to_server).unwrap_err(), unexpected(awaits[1][done]));
            }
        }
        let early = wire(&mut Framer::new(&options(Codec::CrcRev1)), message(OP, 1, b"data"));
        let to_client = [server_says()[..=done].concat(), early].concat();
        let expected = Error::Unexpected { awaiting: awaits[0][done], tag: 17 };
        assert_eq!(run(Client::new(client()), &to_client).unwrap_err(), expected);
    }
}

#[test]
fn banners_that_are_wrong_short_or_demanding_are_errors_and_longer_ones_are_not() {
    let error = run(Client::new(client()), b"ceph v027").unwrap_err();
    assert_eq!(error, Error::Banner { got: *b"ceph v02" });
    assert!(error.to_string().ends_with("(that port speaks messenger version 1)"));
    assert_eq!(run(Server::new(server()), b"GET / HT").unwrap_err(), Error::Banner { got: *b"GET / HT" });

    let golden = ceph::V2OSD_S_BANNER.bytes();
    for len in [0u16, 15, 1025, u16::MAX] {
        let bytes = [&golden[..8], &len.to_le_bytes()].concat();
        let expected = Error::BannerLen { offset: 8, got: len.into() };
        assert_eq!(run(Client::new(client()), &bytes).unwrap_err(), expected);
    }
    let mut longer = [&golden[..], b"of a newer version"].concat();
    longer[8] += 18;
    let bytes = [longer, server_says()[1..].concat()].concat();
    assert!(run(Client::new(client()), &bytes).unwrap().1.is_some());

    let mut demanding = golden;
    demanding[18] = 3;
    let error = run(Client::new(client()), &demanding).unwrap_err();
    assert_eq!(error, Error::Refused(Refusal::Banner { missing: 2 }));
}

/// In revision 0 even a frame of the handshake can be given up.
#[test]
fn a_frame_of_the_handshake_that_its_sender_gave_up_is_passed_over() {
    let mut banner = ceph::V2OSD_S_BANNER.bytes();
    banner[10] = 0;
    let hello = Control::Hello { entity_type: 4, peer: address("127.0.0.1:39758", 0) };
    let good = control_wire(Codec::CrcRev0, hello);
    let mut aborted = good.clone();
    let status = aborted.len() - 17;
    aborted[status] = 1;
    let (once, ..) = run(Client::new(client()), &[banner.clone(), good.clone()].concat()).unwrap();
    let (twice, ..) = run(Client::new(client()), &[banner, aborted, good].concat()).unwrap();
    assert_eq!(once, twice);
}

#[test]
fn errors_of_frames_come_through_with_their_place() {
    let mut bytes = server_says().concat();
    bytes[40] ^= 1;
    let error = run(Client::new(client()), &bytes).unwrap_err();
    assert!(matches!(error, Error::Frame(v2::Error::Crc { field: v2::Field::Preamble, offset: 28, .. })));
    assert!(error.to_string().starts_with("wrong crc of the preamble"));
}
