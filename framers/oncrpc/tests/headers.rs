//! Call and reply headers: golden bytes both ways, every status, and every way to be cut or wrong.

mod support;

use segchain_oncrpc::rpc::{
    AcceptStatus, Auth, AuthStatus, AuthSys, CallHeader, RejectStatus, Reply, ReplyHeader,
};
use segchain_oncrpc::xdr::{Reader, Writer};
use segchain_oncrpc::{Error, Message, RecordFramer};
use segchain_testkit::golden::oncrpc;
use support::{Wire, framed, receive, server, words};

fn encoded(encode: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::new();
    encode(&mut out);
    out.finish().unwrap()
}

#[test]
fn the_golden_null_call_and_reply_are_what_we_write_and_read() {
    let golden = oncrpc::NULL_CALL.bytes();
    let call = CallHeader::new(0x1122_3344, 100_003, 3, 0);
    assert_eq!(framed(RecordFramer::new(), Message::new(encoded(|out| call.encode(out)))), golden);
    let record = &receive(Wire::pieces([&*golden]), server(), &mut ()).records[0];
    assert_eq!(CallHeader::decode(&mut Reader::new(&record.bytes)).unwrap(), call);

    let golden = oncrpc::NULL_REPLY.bytes();
    let reply = ReplyHeader::success(0x1122_3344);
    assert_eq!(framed(RecordFramer::new(), Message::new(encoded(|out| reply.encode(out)))), golden);
    assert_eq!(ReplyHeader::decode(&mut Reader::new(&golden[4..])).unwrap(), reply);
}

#[test]
fn the_golden_nfs_write_is_what_we_write_and_read() {
    let golden = oncrpc::NFS3_WRITE.bytes();
    let handle = &golden[4 + 72..4 + 96];
    let call = CallHeader::new(0xaabb_ccdd, 100_003, 3, 7).with_credential(Auth::Sys(sys(1, "probe", 0, 0)));
    let head = encoded(|out| {
        call.encode(out);
        out.opaque("file", handle).u64(0).u32(8).u32(2);
    });
    assert_eq!(framed(RecordFramer::new(), Message::new(head).opaque(&b"ABCDEFGH"[..])), golden);

    let record = &receive(Wire::pieces([&*golden]), server(), &mut ()).records[0];
    let mut args = Reader::new(&record.bytes);
    assert_eq!(CallHeader::decode(&mut args).unwrap(), call);
    assert_eq!(args.opaque("file", 64).unwrap(), handle);
    assert_eq!((args.u64("offset"), args.u32("count"), args.u32("stable")), (Ok(0), Ok(8), Ok(2)));
    assert_eq!(args.opaque("data", 8).unwrap(), b"ABCDEFGH");
    assert!(args.rest().is_empty());
}

fn sys(stamp: u32, machine_name: &str, uid: u32, gid: u32) -> AuthSys {
    let mut sys = AuthSys::new(machine_name, uid, gid);
    sys.stamp = stamp;
    sys
}

/// The values of RFC 5531 section 9.
#[test]
fn every_status_of_a_reply_is_written_and_read() {
    use AcceptStatus as A;
    let accepted = |status| ReplyHeader::accepted(9, status);
    let denied = |status| ReplyHeader::denied(9, status);
    let mut replies = vec![
        (accepted(A::Success), vec![0, 0, 0, 0], "SUCCESS"),
        (accepted(A::ProgUnavail), vec![0, 0, 0, 1], "PROG_UNAVAIL"),
        (
            accepted(A::ProgMismatch { low: 3, high: 4 }),
            vec![0, 0, 0, 2, 3, 4],
            "PROG_MISMATCH (versions 3 to 4)",
        ),
        (accepted(A::ProcUnavail), vec![0, 0, 0, 3], "PROC_UNAVAIL"),
        (accepted(A::GarbageArgs), vec![0, 0, 0, 4], "GARBAGE_ARGS"),
        (accepted(A::SystemErr), vec![0, 0, 0, 5], "SYSTEM_ERR"),
        (
            denied(RejectStatus::RpcMismatch { low: 2, high: 2 }),
            vec![1, 0, 2, 2],
            "denied: RPC_MISMATCH (versions 2 to 2)",
        ),
        (
            denied(RejectStatus::AuthError(AuthStatus::TooWeak)),
            vec![1, 1, 5],
            "denied: AUTH_ERROR (AUTH_TOOWEAK)",
        ),
        (
            denied(RejectStatus::AuthError(AuthStatus::Other(77))),
            vec![1, 1, 77],
            "denied: AUTH_ERROR (auth_stat 77)",
        ),
    ];
    for (reply, tail, text) in replies.drain(..) {
        let bytes = encoded(|out| reply.encode(out));
        assert_eq!(bytes, [words(&[9, 1]), words(&tail)].concat(), "{text}");
        assert_eq!(ReplyHeader::decode(&mut Reader::new(&bytes)).unwrap(), reply);
        assert_eq!(reply.reply.to_string(), text);
        assert_eq!(reply.is_success(), text == "SUCCESS");
        for len in 0..bytes.len() {
            let error = ReplyHeader::decode(&mut Reader::new(&bytes[..len])).unwrap_err();
            assert!(matches!(error, Error::Cut { .. }), "{text}, {len} bytes: {error}");
        }
    }
    for word in 0..20 {
        assert_eq!(AuthStatus::from_word(word).word(), word);
    }
}

#[test]
fn credentials_are_written_and_read_up_to_their_limits() {
    let mut largest = sys(u32::MAX, &"m".repeat(255), 1, 2);
    largest.gids = (0..16).collect();
    let other = Auth::Other { flavor: 6, body: vec![7; 400] };
    for credential in [Auth::None, Auth::Sys(sys(0, "", 0, 0)), Auth::Sys(largest.clone()), other] {
        let mut call = CallHeader::new(1, 2, 3, 4).with_credential(credential);
        call.verifier = Auth::Other { flavor: 3, body: vec![1, 2, 3] };
        let bytes = encoded(|out| call.encode(out));
        let mut reader = Reader::new(&bytes);
        assert_eq!(CallHeader::decode(&mut reader).unwrap(), call);
        assert!(reader.rest().is_empty());
        for len in 0..bytes.len() {
            assert!(CallHeader::decode(&mut Reader::new(&bytes[..len])).is_err());
        }
    }

    let refused = |credential| {
        let mut out = Writer::new();
        CallHeader::new(1, 2, 3, 4).with_credential(credential).encode(&mut out);
        out.finish().unwrap_err().to_string()
    };
    let mut name = largest.clone();
    name.machine_name.push(0);
    assert_eq!(refused(Auth::Sys(name)), "machine name at offset 36: 256 bytes, the limit is 255");
    largest.gids.push(16);
    assert_eq!(refused(Auth::Sys(largest)), "gids at offset 304: expected at most 16, got 17");
    let long = Auth::Other { flavor: 6, body: vec![0; 401] };
    assert_eq!(refused(long), "authentication at offset 28: 401 bytes, the limit is 400");
}

#[test]
fn a_verifier_that_calls_itself_auth_sys_is_not_looked_into() {
    let reply = words(&[9, 1, 0, 1, 0, 0]);
    let header = ReplyHeader::decode(&mut Reader::new(&reply)).unwrap();
    assert!(header.is_success());
}

#[test]
fn values_that_a_header_cannot_have_are_named() {
    let call = |at: usize, word| {
        let mut call = [1, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
        call[at] = word;
        CallHeader::decode(&mut Reader::new(&words(&call))).unwrap_err().to_string()
    };
    assert_eq!(call(1, 1), "message type at offset 4: expected 0 (call), got 1");
    assert_eq!(call(2, 3), "rpc version at offset 8: expected 2, got 3");
    assert_eq!(call(7, 401), "credential at offset 28: 401 bytes, the limit is 400");
    assert_eq!(call(7, 400), "credential at offset 32: expected 400 bytes, got 8");
    assert_eq!(call(9, u32::MAX), "verifier at offset 36: 4294967295 bytes, the limit is 400");

    let reply = |tail: &[u32]| {
        let reply = [&[1, 1], tail].concat();
        ReplyHeader::decode(&mut Reader::new(&words(&reply))).unwrap_err().to_string()
    };
    assert_eq!(reply(&[2]), "reply_stat at offset 8: expected 0 or 1, got 2");
    assert_eq!(reply(&[0, 0, 0, 6]), "accept_stat at offset 20: expected 0 to 5, got 6");
    assert_eq!(reply(&[1, 2]), "reject_stat at offset 12: expected 0 or 1, got 2");
    assert_eq!(reply(&[0, 0, 401]), "verifier at offset 16: 401 bytes, the limit is 400");
}

/// suricata issues 6992, 7049 and 7089: panics on indexes and underflows, found by fuzzing.
#[test]
fn no_header_makes_a_decoder_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..200_000 {
        let len = next() as usize % 80;
        // Mostly small words, so that decoders come far.
        let bytes: Vec<u8> = (0..len)
            .map(|at| {
                if at % 4 == 3 {
                    next() as u8 % 8
                } else if next() % 16 == 0 {
                    next() as u8
                } else {
                    0
                }
            })
            .collect();
        let _ = CallHeader::decode(&mut Reader::new(&bytes));
        let reply = ReplyHeader::decode(&mut Reader::new(&bytes));
        if let Ok(ReplyHeader { reply: Reply::Accepted { verifier, .. }, .. }) = reply {
            assert!(matches!(verifier, Auth::None | Auth::Sys(_) | Auth::Other { .. }));
        }
    }
}
