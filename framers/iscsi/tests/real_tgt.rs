//! Against a real target: tgt of Debian 12 (1.0.85), every setting of the digests.

mod common;

use bytes::Bytes;
use common::*;
use segchain::chain::{ChainBuilder, Outgoing};
use segchain::framer::Framer as _;
use segchain_iscsi::login::{self, DigestOffer, Parameters, Status};
use segchain_iscsi::scsi::{Capacity, Command, Failure, Moved, lun};
use segchain_iscsi::session::Event;
use segchain_iscsi::{Extent, Header, NO_TAG, NopOut, Pages, Pdu};
use segchain_testkit::peers::{Iscsi, require};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

const BLOCK: usize = 512;
const MIB: usize = 1 << 20;

fn digests(header: bool, data: bool) -> Parameters {
    let offer = |on| if on { DigestOffer::Require } else { DigestOffer::Off };
    Parameters::new().digests(offer(header), offer(data)).max_recv(MIB as u32)
}

fn client(tgt: &Iscsi, parameters: Parameters) -> Client {
    Client::connect(tgt.portal(), tgt.target(), parameters)
}

/// A connection whose first command has got the unit attention that every new session gets.
fn ready(tgt: &Iscsi, parameters: Parameters) -> (Client, u64) {
    let lun = lun(tgt.lun() as u16);
    let mut client = client(tgt, parameters);
    match client.run(Command::test_unit_ready(lun), 0).0 {
        Err(Failure::CheckCondition(sense)) if sense.is_unit_attention() => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(client.run(Command::test_unit_ready(lun), 0).0, Ok(Moved::default()));
    (client, lun)
}

fn on_disk(tgt: &Iscsi, lba: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(tgt.disk()).unwrap().read_exact_at(&mut bytes, u64::from(lba) * BLOCK as u64).unwrap();
    bytes
}

/// Payload in pages that do not lie side by side.
fn scattered(data: &[u8]) -> Pages {
    data.chunks(4096).map(|page| Bytes::from(page.to_vec())).collect::<Vec<_>>().into()
}

#[test]
fn tgt_echoes_1_byte_to_1_mib_with_every_setting_of_the_digests() {
    let Some(tgt) = require(Iscsi::start()) else { return };
    tgt.set("MaxRecvDataSegmentLength", &MIB.to_string()).unwrap();
    for (header, data) in DIGESTS {
        let mut client = client(&tgt, digests(header, data));
        let negotiated = &client.session.negotiated;
        assert_eq!((negotiated.header_digest, negotiated.data_digest), (header, data));
        assert_eq!(negotiated.max_send, MIB as u32);
        for len in [0, 1, 2, 3, 4, 5, 511, 512, 4095, 4096, 8191, 65_537, MIB - 1, MIB] {
            let sent = pattern(len);
            assert!(client.echo(scattered(&sent).into()) == sent, "{len} bytes");
        }
        // Only what is below the copy threshold.
        assert_eq!(client.sender.stats().copied, 1 + 2 + 3 + 4 + 5 + 511 + 512);
        client.initiator.logout();
        assert!(matches!(client.event(), Event::LoggedOut { response: 0 }));
    }
}

#[test]
fn what_is_written_is_on_the_disk_and_comes_back_with_every_setting_of_the_digests() {
    let Some(tgt) = require(Iscsi::start()) else { return };
    let mut seed = 0;
    for initial_r2t in ["Yes", "No"] {
        tgt.set("InitialR2T", initial_r2t).unwrap();
        for immediate in [true, false] {
            for (header, data) in DIGESTS {
                let parameters = digests(header, data).immediate_data(immediate);
                let (mut client, lun) = ready(&tgt, parameters);
                let negotiated = client.session.negotiated.clone();
                assert_eq!(negotiated.initial_r2t, initial_r2t == "Yes");
                assert_eq!(negotiated.immediate_data, immediate);
                let (capacity, wire) = client.run(Command::read_capacity(lun), 8);
                capacity.unwrap();
                assert_eq!(Capacity::decode(&wire).unwrap().block_len as usize, BLOCK);
                for (lba, blocks) in [(0, 1), (7, 3), (101, 17), (1000, 129), (5000, 2048), (9001, 999)] {
                    seed += 1;
                    let len = usize::from(blocks) * BLOCK;
                    let written = pattern(len + seed)[seed..].to_vec();
                    let (outcome, _) = client.run(Command::write10(lun, lba, blocks, scattered(&written)), 0);
                    assert_eq!(outcome.unwrap().sent, len as u64);
                    assert!(on_disk(&tgt, lba, len) == written, "{blocks} blocks at {lba}");
                    let (outcome, read) = client.run(Command::read10(lun, lba, blocks, BLOCK as u32), len);
                    assert_eq!(outcome.unwrap().received, len as u64);
                    assert!(read == written, "{blocks} blocks at {lba}");
                }
                // A CHECK CONDITION with its sense, and the session goes on.
                for command in [
                    Command::read10(lun, 131_072, 1, BLOCK as u32),
                    Command::write10(lun, 131_071, 2, scattered(&[1; 2 * BLOCK])),
                ] {
                    let (outcome, _) = client.run(command, BLOCK);
                    let Err(Failure::CheckCondition(sense)) = outcome else { panic!("{outcome:?}") };
                    assert_eq!((sense.key, sense.asc, sense.ascq), (5, 0x21, 0));
                }
                assert_eq!(client.run(Command::test_unit_ready(lun), 0).0, Ok(Moved::default()));
            }
        }
    }
}

#[test]
fn tgt_closes_on_a_wrong_digest_and_our_side_says_that_it_did() {
    let Some(tgt) = require(Iscsi::start()) else { return };
    for (at, cover) in [(8, "header"), (48, "header digest"), (52, "data"), (60, "data digest")] {
        let mut client = client(&tgt, digests(true, true));
        assert_eq!(client.echo(Bytes::from_static(b"ABCDE").into()), b"ABCDE");
        let ping = NopOut { itt: 99, cmd_sn: client.session.cmd_sn + 1, ..NopOut::default() };
        let pdu = Pdu::new(ping, Extent::from(Bytes::from_static(b"ABCDE")));
        let mut out = ChainBuilder::new();
        client.framer.frame(pdu, &mut out).unwrap();
        let mut bytes = out.finish().unwrap().seal_all().to_vec();
        bytes[at] ^= 1;
        let mut out = ChainBuilder::new();
        out.put(&bytes);
        let mut message = Outgoing::new(out.finish().unwrap());
        client.sender.send_blocking(&mut message, Some(deadline())).unwrap();
        // A close, or a reset if bytes of ours were left unread: either is an end that is told, never an answer.
        let ended = match client.receiver.next(&mut (), Some(deadline()), |pdu| pdu.bhs) {
            Ok(pdu) => pdu.is_none(),
            Err(error) => {
                let error = std::io::Error::from(error);
                matches!(
                    error.kind(),
                    std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::UnexpectedEof
                )
            }
        };
        assert!(ended, "a wrong {cover}");
    }
}

#[test]
fn tgt_refuses_a_login_for_a_target_that_there_is_not() {
    let Some(tgt) = require(Iscsi::start()) else { return };
    let error = login_error(tgt.portal(), "iqn.2026-01.invalid.segchain:nothing");
    assert!(matches!(error, login::Error::Refused(Status { class: 2, .. })), "{error:?}");
}

#[test]
fn many_requests_in_flight_keep_to_the_window_that_tgt_grants() {
    let Some(tgt) = require(Iscsi::start()) else { return };
    let (mut client, lun) = ready(&tgt, digests(true, true));
    let mut expected = std::collections::HashMap::new();
    for index in 0..300u32 {
        let data = pattern(BLOCK + index as usize)[index as usize..].to_vec();
        let command = Command::write10(lun, index, 1, scattered(&data));
        let write = client.initiator.command(command).unwrap();
        let ping = client.initiator.ping(Bytes::from(data.clone())).unwrap();
        expected.insert(write, Vec::new());
        expected.insert(ping, data);
    }
    while !expected.is_empty() {
        match client.event() {
            Event::Done { itt, outcome } => {
                assert_eq!(outcome.unwrap().sent, BLOCK as u64);
                assert!(expected.remove(&itt).unwrap().is_empty());
            }
            Event::Pong { itt, data } => {
                assert!(seen_data(&data) == SeenData::Bytes(expected.remove(&itt).unwrap()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(client.initiator.in_flight(), 0);
    assert_eq!(on_disk(&tgt, 299, BLOCK), pattern(BLOCK + 299)[299..]);
}

/// tgt drops an initiator that leaves two pings unanswered.
#[test]
fn pings_of_tgt_are_answered_and_the_session_lives() {
    let Some(tgt) = require(Iscsi::start()) else { return };
    tgt.set("nop_interval", "1").unwrap();
    tgt.set("nop_count", "2").unwrap();
    let mut client = client(&tgt, digests(true, true));
    for _ in 0..4 {
        let pdu = client.receiver.next(&mut (), Some(deadline()), |pdu| pdu).unwrap().unwrap();
        let Header::NopIn(ping) = pdu.header() else { panic!("{pdu:?}") };
        assert!(ping.itt == NO_TAG && ping.ttt != NO_TAG, "{ping:?}");
        assert!(client.initiator.receive(pdu).unwrap().is_none());
        let answer = client.initiator.next_pdu().unwrap();
        client.send(answer);
    }
    assert_eq!(client.echo(Bytes::from_static(b"still here").into()), b"still here");
}
