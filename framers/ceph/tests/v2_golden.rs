//! Version 2 frames captured from a real client and a real osd (16.2.15), both ways, byte for byte.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::SeenData;
use common::v2::{Seen, address, control_wire, receive, seen, wire};
use segchain_ceph::osd::{Op, Reply, Request};
use segchain_ceph::v2::{Codec, Control, Deframer, Framer, Ident, Options, Stamp};
use segchain_ceph::{AddrKind, EntityName, Message, features};
use segchain_testkit::conformance::Conformance;
use segchain_testkit::golden::ceph;

fn only(bytes: &[u8]) -> Seen {
    let mut frames = receive(&Options::new(), bytes).unwrap();
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

#[test]
fn a_write_request_of_four_segments_is_the_one_that_an_osd_has_accepted() {
    let golden = ceph::V2OSD_C_MSG_OSD_OP_4SEG.bytes();
    let Seen::Message { seq, acked, header, front, middle, data } = only(&golden) else { panic!() };
    assert_eq!((seq, acked, header.tid, header.kind, header.priority), (1, 0, 1, 42, 63));
    assert_eq!((header.version, header.compat_version, header.data_off), (8, 3, 0));
    assert_eq!((middle.len(), data), (0, SeenData::Bytes(golden[289..353].to_vec())));
    let decoded = Request::decode(&front).unwrap();
    assert_eq!((&decoded.object[..], decoded.ops.as_slice()), (&b"o64"[..], &[Op::write_full(64)][..]));

    let mut request = Request::new(1, "o64", decoded.epoch, Op::write_full(64));
    request.mtime = Duration::new(0x6b0d_e447, 0x059a_4576);
    let message = request.message(EntityName::client(4199), 1, &golden[289..353]).unwrap();
    assert_eq!(wire(&mut Framer::new(&Options::new()), message), golden);
}

#[test]
fn a_reply_of_an_osd_is_decoded_and_encoded_again() {
    let golden = ceph::V2OSD_S_MSG_OSD_OPREPLY_2SEG.bytes();
    let Seen::Message { seq, acked, header, front, data, .. } = only(&golden) else { panic!() };
    assert_eq!((seq, acked, header.tid, header.kind), (1, 1, 1, 43));
    assert_eq!(data, SeenData::Bytes(vec![]));
    let reply = Reply::decode(&front).unwrap();
    assert_eq!((&reply.object[..], reply.result, reply.epoch), (&b"o64"[..], 0, 9));

    let message: Message<()> = reply.message(EntityName::osd(0), 1, ()).unwrap();
    let mut framer = Framer::new(&Options::new());
    framer.received(1);
    assert_eq!(wire(&mut framer, message), golden);
}

#[test]
fn control_frames_are_those_of_a_client_and_an_osd() {
    let osd = address("127.0.0.1:23310", 0x18bd);
    let mut client = Ident::default();
    client.addrs = vec![address("127.0.0.1:0", 0x1f8f_b9a8).with_kind(AddrKind::Any)];
    (client.gid, client.global_seq, client.flags) = (4199, 2, 1);
    (client.features, client.required) = (features::OFFERED, 0x0800_0000_0000_1000);
    let mut server = Ident::default();
    server.addrs = vec![osd, address("127.0.0.1:23311", 0x18bd).with_kind(AddrKind::Legacy)];
    (server.gid, server.global_seq, server.flags) = (0, 0x2d, 1);
    (server.features, server.required) = (features::OFFERED, 0x0c01_0200_4204_0000);
    let stamp = Stamp::new(0x6b0d_e7e4, 5);
    let claim = Bytes::copy_from_slice(&ceph::V2OSD_C_AUTH_REQUEST.bytes()[48..70]);
    let frames = [
        (ceph::V2OSD_C_HELLO, Control::Hello { entity_type: 8, peer: osd }),
        (ceph::V2OSD_S_HELLO, Control::Hello { entity_type: 4, peer: address("127.0.0.1:39758", 0) }),
        (ceph::V2OSD_C_AUTH_REQUEST, Control::AuthRequest { method: 1, modes: vec![1], payload: claim }),
        (ceph::V2OSD_S_AUTH_DONE, Control::AuthDone { global_id: 4199, mode: 1, payload: Bytes::new() }),
        (ceph::V2OSD_C_AUTH_SIGNATURE, Control::AuthSignature([0; 32])),
        (ceph::V2OSD_S_AUTH_SIGNATURE, Control::AuthSignature([0; 32])),
        (ceph::V2OSD_C_CLIENT_IDENT, Control::ClientIdent { ident: client, target: osd }),
        (ceph::V2OSD_S_SERVER_IDENT, Control::ServerIdent(server)),
        (ceph::V2_KEEPALIVE2_SENT_BY_US, Control::Keepalive2(stamp)),
        (ceph::V2_KEEPALIVE2_ACK_FROM_OSD, Control::Keepalive2Ack(stamp)),
        (ceph::V2_ACK, Control::Ack(3)),
    ];
    for (golden, control) in frames {
        assert_eq!(only(&golden.bytes()), Seen::Control(control.clone()), "{}", golden.name);
        assert_eq!(control_wire(Codec::CrcRev1, control), golden.bytes(), "{}", golden.name);
    }
}

/// Which bytes no checksum covers: the late status' upper nibble, and the checksums of segments that are not there.
#[test]
fn every_cut_truncation_and_flipped_bit_of_the_captured_frames() {
    let op = ceph::V2OSD_C_MSG_OSD_OP_4SEG.bytes();
    let reply = ceph::V2OSD_S_MSG_OSD_OPREPLY_2SEG.bytes();
    let op_status = op.len() - 13..op.len() - 12;
    let reply_status = reply.len() - 13..reply.len() - 12;
    let absent = reply.len() - 8..reply.len();
    let frames = [
        (op, vec![op_status]),
        (reply, vec![reply_status, absent]),
        (ceph::V2_ACK.bytes(), vec![]),
        (ceph::V2OSD_C_HELLO.bytes(), vec![]),
        (ceph::V2OSD_S_SERVER_IDENT.bytes(), vec![]),
    ];
    for (bytes, uncovered) in frames {
        let make = || Deframer::new(&Options::new());
        let frames = Conformance::new(make, &[&bytes]).uncovered(&uncovered).check(seen);
        assert_eq!(frames.len(), 1);
    }
}
