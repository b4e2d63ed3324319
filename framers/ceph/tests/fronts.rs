//! Fronts of object operations that are short, or wrong: an error with a place, never a panic. And those of a monitor.

use segchain_ceph::mon::{AUTH_REPLY, AuthReply, auth_none};
use segchain_ceph::osd::{Error, Op, READ, Reply, Request, rjenkins};
use segchain_testkit::golden::ceph;
use segchain_testkit::naive::{Random, seed};

fn request_front() -> Vec<u8> {
    ceph::V1_MSG_OSD_OP.bytes()[54..266].to_vec()
}

fn reply_front() -> Vec<u8> {
    ceph::V1_MSG_OSD_OPREPLY.bytes()[54..201].to_vec()
}

#[test]
fn every_truncation_names_a_field_and_its_place() {
    for (front, trailing) in [(request_front(), 0), (reply_front(), 24)] {
        for end in 0..front.len() - trailing {
            let error = Request::decode(&front[..end]).err();
            let error = if trailing > 0 { Reply::decode(&front[..end]).err() } else { error };
            let Some(Error::Truncated { offset, expected, got, .. }) = error else {
                panic!("{end} bytes: {error:?}")
            };
            assert!(offset <= end && expected > got, "{end} bytes: {error:?}");
        }
    }
    let error = Request::decode(&request_front()[..3]).unwrap_err();
    assert_eq!(error.to_string(), "the front ends inside pg at 2: expected 4 bytes, got 1");
}

/// CVE-2026-22984 and its like: a length inside the front that is larger than the front.
#[test]
fn lengths_inside_a_front_are_checked() {
    let lens = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    for at in 0..request_front().len() - 4 {
        for len in lens {
            let mut front = request_front();
            front[at..at + 4].copy_from_slice(&len.to_le_bytes());
            let _ = Request::decode(&front);
        }
    }
    for at in 0..reply_front().len() - 4 {
        for len in lens {
            let mut front = reply_front();
            front[at..at + 4].copy_from_slice(&len.to_le_bytes());
            let _ = Reply::decode(&front);
        }
    }
    let mut front = reply_front();
    front[52..56].fill(0xff); // the count of operations
    let used = allocation_counter::measure(|| assert!(Reply::decode(&front).is_err()));
    assert!(used.bytes_max < 4096, "{} bytes for a count that is only claimed", used.bytes_max);
}

#[test]
fn random_fronts_do_not_panic() {
    let mut random = Random::new(seed("fronts"));
    for _ in 0..100_000 {
        let mut front = if random.below(2) == 0 { request_front() } else { reply_front() };
        for _ in 0..=random.below(4) {
            let at = random.below(front.len());
            front[at] = random.number() as u8;
        }
        let end = random.below(front.len() + 1);
        let _ = (Request::decode(&front[..end]), Reply::decode(&front));
    }
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let place = |front: Vec<u8>| match Request::decode(&front) {
        Err(Error::Value { field, offset, .. }) => (field, offset),
        other => panic!("{other:?}"),
    };
    let change = |at: usize| {
        let mut front = request_front();
        front[at] ^= 0x10;
        front
    };
    assert_eq!(place(change(6)), ("pg version", 6));
    assert_eq!(place(change(105)), ("locator pool", 105));
    assert_eq!(place(change(180)), ("snapshot", 180));
}

#[test]
fn requests_and_replies_of_several_operations_go_both_ways() {
    let mut request = Request::new(7, "a name", 3, Op::write(8192, 100));
    request.ops.push(Op::read(0, 1 << 40));
    (request.seed, request.flags) = (5, 0x8000);
    assert_eq!(Request::decode(&request.front().unwrap()).unwrap(), request);
    assert_eq!(
        request.message(segchain_ceph::EntityName::client(1), 2, ()).unwrap().header.data_off,
        8192,
        "where in a page the data belongs"
    );

    let reply = Reply::to(&request, -2, |op| if op.code == READ { 9 } else { 0 });
    let again = Reply::decode(&reply.front().unwrap()).unwrap();
    assert_eq!(again, reply);
    let results: Vec<(i32, u32)> = again.ops.iter().map(|op| (op.result, op.op.payload_len)).collect();
    assert_eq!(results, [(-2, 0), (-2, 9)]);
}

/// Values for all lengths of the tail, from the hash's definition in Bob Jenkins' evahash.c; the first is from a request that
/// ceph-osd 16.2.15 has accepted.
#[test]
fn the_hash_is_that_of_the_osd() {
    assert_eq!(rjenkins(b"o64"), 0x64eb_09f0);
    for len in 0..40 {
        let name: Vec<u8> = (0..len).map(|i: u8| b'a' + i).collect();
        assert_eq!(rjenkins(&name), evahash(&name), "{len} bytes");
    }
}

/// As its author writes it: the tail byte by byte.
fn evahash(key: &[u8]) -> u32 {
    let (mut a, mut b, mut c) = (0x9e37_79b9_u32, 0x9e37_79b9_u32, 0_u32);
    let at = |i: usize| u32::from(key[i]);
    let mut start = 0;
    while key.len() - start >= 12 {
        a = a.wrapping_add(at(start) + (at(start + 1) << 8) + (at(start + 2) << 16) + (at(start + 3) << 24));
        b = b.wrapping_add(
            at(start + 4) + (at(start + 5) << 8) + (at(start + 6) << 16) + (at(start + 7) << 24),
        );
        c = c.wrapping_add(
            at(start + 8) + (at(start + 9) << 8) + (at(start + 10) << 16) + (at(start + 11) << 24),
        );
        mix(&mut a, &mut b, &mut c);
        start += 12;
    }
    c = c.wrapping_add(key.len() as u32);
    for i in start..key.len() {
        match i - start {
            lane @ 0..=3 => a = a.wrapping_add(at(i) << (8 * lane)),
            lane @ 4..=7 => b = b.wrapping_add(at(i) << (8 * (lane - 4))),
            lane => c = c.wrapping_add(at(i) << (8 * (lane - 7))),
        }
    }
    mix(&mut a, &mut b, &mut c);
    c
}

fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
    for [x, y, z] in [[13, 8, 13], [12, 16, 5], [3, 10, 15]] {
        *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> x);
        *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << y);
        *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> z);
    }
}

/// Recorded: `ceph -n client.admin -m v1:… status` of ceph-common 16.2.15.
#[test]
fn a_claim_to_a_monitor_is_that_of_a_real_client() {
    let golden = b"\0\0\0\0\0\0\0\0\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0\x1e\0\0\0\x01\x01\0\0\0\x01\0\0\0\
        \x08\0\0\0\x05\0\0\0admin\0\0\0\0\0\0\0\0\0\0\0\0";
    let message = auth_none("admin");
    let header = message.header;
    assert_eq!(message.front, golden.as_slice());
    let rest = (header.kind, header.tid, header.priority, header.version, header.compat_version);
    assert_eq!(rest, (17, 0, 127, 1, 1));
    assert_eq!((header.src.kind, header.src.num), (8, -1));
}

/// Recorded: the answer of ceph-mon 16.2.15 to it.
#[test]
fn the_answer_of_a_monitor_has_our_number_or_names_what_is_missing() {
    let golden = b"\x01\0\0\0\0\0\0\0\x1b\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let reply = AuthReply::decode(golden).unwrap();
    assert_eq!((AUTH_REPLY, reply.method, reply.result, reply.global_id), (18, 1, 0, 4123));
    for end in 0..golden.len() {
        let error = AuthReply::decode(&golden[..end]).unwrap_err();
        assert!(matches!(error, Error::Truncated { offset, .. } if offset <= end), "{end}: {error:?}");
    }
}
