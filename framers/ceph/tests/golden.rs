//! Frames captured from a real client and a real osd (16.2.15), both ways, byte for byte.

mod common;

use std::time::Duration;

use common::{Seen, SeenData, control_wire, receive, seen, wire};
use segchain_ceph::osd::{Op, OpReply, Reply, Request};
use segchain_ceph::v1::{Control, Deframer, Framer, Options, Stamp};
use segchain_ceph::{EntityName, Message};
use segchain_testkit::conformance::Conformance;
use segchain_testkit::golden::ceph;

fn only_message(bytes: &[u8]) -> Seen {
    let mut frames = receive(&Options::new(), bytes).unwrap();
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

#[test]
fn a_write_request_is_the_one_that_an_osd_has_accepted() {
    let golden = ceph::V1_MSG_OSD_OP.bytes();
    let mut request = Request::new(1, "o64", 9, Op::write_full(64));
    request.mtime = Duration::new(0x6b0d_e445, 0x1cd8_d1a0);
    let message = request.message(EntityName::client(4199), 1, &golden[266..330]).unwrap();
    assert_eq!(wire(&mut Framer::new(&Options::new()), message), golden);
}

#[test]
fn the_same_request_is_decoded() {
    let golden = ceph::V1_MSG_OSD_OP.bytes();
    let Seen::Message { seq, header, front, middle, data, signature } = only_message(&golden) else {
        panic!("not a message")
    };
    assert_eq!((seq, header.tid, header.kind, header.priority), (1, 1, 42, 63));
    assert_eq!((header.version, header.compat_version, header.data_off), (8, 3, 0));
    assert_eq!((header.src, signature), (EntityName::client(4199), None));
    assert_eq!((middle.len(), data), (0, SeenData::Bytes(golden[266..330].to_vec())));
    let request = Request::decode(&front).unwrap();
    assert_eq!((request.pool, request.seed, request.epoch, request.flags), (1, 0, 9, 0));
    assert_eq!((&request.object[..], request.ops.as_slice()), (&b"o64"[..], &[Op::write_full(64)][..]));
    assert_eq!(request.front().unwrap(), front);
}

#[test]
fn a_reply_of_an_osd_is_decoded_and_encoded_again() {
    let golden = ceph::V1_MSG_OSD_OPREPLY.bytes();
    let Seen::Message { header, front, .. } = only_message(&golden) else { panic!("not a message") };
    assert_eq!((header.tid, header.kind, header.src), (1, 43, EntityName::osd(0)));
    let reply = Reply::decode(&front).unwrap();
    assert_eq!((&reply.object[..], reply.result, reply.epoch, reply.redirected), (&b"o64"[..], 0, 9, false));
    assert_eq!((reply.version.version, reply.version.epoch, reply.user_version), (8, 9, 8));
    let [OpReply { op, result: 0, .. }] = reply.ops[..] else { panic!("{reply:?}") };
    assert_eq!((op.code, op.length, op.payload_len), (segchain_ceph::osd::WRITEFULL, 64, 0));

    let message: Message<()> = reply.message(EntityName::osd(0), 1, ()).unwrap();
    assert_eq!(wire(&mut Framer::new(&Options::new()), message), golden);
}

#[test]
fn control_frames_are_those_of_an_osd() {
    let stamp = Stamp::new(0x6b0d_e16d, 0x2b24_a27c);
    let frames = [
        (ceph::V1_ACK, Control::Ack(3)),
        (ceph::V1_KEEPALIVE2, Control::Keepalive2(stamp)),
        (ceph::V1_KEEPALIVE2_ACK, Control::Keepalive2Ack(stamp)),
    ];
    for (golden, control) in frames {
        assert_eq!(control_wire(control), golden.bytes());
        assert_eq!(only_message(&golden.bytes()), Seen::Control(control));
    }
}

/// Which bytes no checksum covers: the signature and the flags of a footer (of these COMPLETE is looked at, NOCRC and SIGNED are
/// believed), and whatever follows the tag of a control frame.
#[test]
fn every_cut_truncation_and_flipped_bit_of_the_captured_frames() {
    let frames = [
        (ceph::V1_MSG_OSD_OP.bytes(), 342..351),
        (ceph::V1_MSG_OSD_OPREPLY.bytes(), 213..222),
        (ceph::V1_ACK.bytes(), 1..9),
        // The tags of both keepalives differ in one bit.
        (ceph::V1_KEEPALIVE2.bytes(), 0..9),
        (ceph::V1_KEEPALIVE2_ACK.bytes(), 0..9),
    ];
    for (bytes, uncovered) in frames {
        let make = || Deframer::new(&Options::new());
        let frames = Conformance::new(make, &[&bytes]).uncovered(&[uncovered]).check(seen);
        assert_eq!(frames.len(), 1);
    }
}
