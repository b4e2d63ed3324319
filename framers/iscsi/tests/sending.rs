//! PDUs on a scripted transport: what leaves in which call, what is copied and digested, what a revoke leaves.

mod common;

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use common::*;
use segchain::chain::{ChainBuilder, Outgoing, Revoked};
use segchain::framer::Framer as _;
use segchain::queue::SendQueue;
use segchain::recv::{Receiver, RecvErrorKind};
use segchain::send::{Progress, SendErrorKind, StreamSender};
use segchain::transport::VectoredRecv;
use segchain_iscsi::login::{DigestOffer, Parameters};
use segchain_iscsi::scsi::{Command, lun};
use segchain_iscsi::session::Initiator;
use segchain_iscsi::{
    Data, DataIn, DataOut, Header, NopOut, Options, Pages, Pdu, PduDeframer, PduFramer, R2t, ScsiCommand,
};
use segchain_testkit::conformance::TargetTable;
use segchain_testkit::scripted::{ScriptedSend, SendStep, Shape};

const MIB: usize = 1 << 20;

fn pages(count: usize) -> Vec<Vec<u8>> {
    // Never side by side in memory: each has a byte more than is used.
    (0..count).map(|i| vec![i as u8; 4097]).collect()
}

fn slices(pages: &[Vec<u8>]) -> Vec<&[u8]> {
    pages.iter().map(|page| &page[..4096]).collect()
}

#[test]
fn a_pdu_of_1_mib_with_both_digests_is_one_call_nothing_is_copied_and_each_byte_is_digested_once() {
    let pages = pages(256);
    let slices = slices(&pages);
    let script = ScriptedSend::new([]).then(SendStep::All);
    let mut sender = StreamSender::new(&script);
    let mut message = outgoing(&open(true, true), Pdu::new(NopOut::default(), &slices[..]));
    script.expect_flush(message.len());
    script.expect_frames(&[Shape::new(52, MIB as u64, 4)]);
    assert_eq!(sender.send(&mut message).unwrap(), Progress::Done);
    script.assert_uncorked();
    let calls = script.calls();
    assert_eq!((calls.len(), calls[0].slices.len()), (1, 258));
    let addresses: Vec<_> = slices.iter().map(|page| (page.as_ptr() as usize, 4096)).collect();
    assert_eq!(calls[0].slices[1..257], addresses);
    let stats = sender.stats();
    assert_eq!((stats.copied, stats.digested), (0, 48 + MIB as u64));
}

#[test]
fn a_pdu_makes_no_allocation_once_there_is_memory_to_recycle() {
    let pages = pages(8);
    let slices = slices(&pages);
    let mut framer = PduFramer::new(&open(true, true));
    let used = outgoing(&open(true, true), Pdu::new(NopOut::default(), &slices[..])).into_chain().unwrap();
    let allocated = allocation_counter::measure(|| {
        let mut out = used.recycle();
        framer.frame(Pdu::new(NopOut::default(), &slices[..]), &mut out).unwrap();
        out.finish().unwrap().seal_through(u64::MAX);
    });
    assert_eq!(allocated.count_total, 0);

    // A part of shared pages, as a write's data has them, takes none either.
    let shared = Pages::from(vec![Bytes::from(pages[0].clone()), Bytes::from(pages[1].clone())]);
    // Vectors become shared when they are first cut.
    let first = Pdu::new(NopOut::default(), shared.extent(1, shared.len() - 2).unwrap());
    let used = outgoing(&open(true, true), first).into_chain().unwrap();
    let allocated = allocation_counter::measure(|| {
        let mut out = used.recycle();
        framer.frame(Pdu::new(NopOut::default(), shared.extent(100, 5000).unwrap()), &mut out).unwrap();
        out.finish().unwrap().seal_through(u64::MAX);
    });
    assert_eq!(allocated.count_total, 0);
}

/// A stream that says the same for ever, and keeps no record of it.
struct Again<'a>(&'a [u8], Cell<usize>);

impl VectoredRecv for Again<'_> {
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        for buf in bufs {
            for byte in buf.iter_mut() {
                let at = self.1.get();
                *byte = self.0[at];
                self.1.set((at + 1) % self.0.len());
            }
            taken += buf.len();
        }
        Ok(taken)
    }
}

#[test]
fn a_read_into_lent_memory_makes_no_allocation() {
    let options = open(true, true);
    let data = pattern(100_001);
    let pdu = wire(&options, Pdu::new(DataIn { itt: 1, last: true, ..DataIn::default() }, &data[..]));
    let stream = Again(&pdu, Cell::new(0));
    let mut receiver = Receiver::new(&stream, PduDeframer::new(&options));
    let mut targets = TargetTable::new(&[(1, data.len())]);
    let mut read = |count: usize| {
        let mut left = count;
        let _ = receiver
            .receive(&mut targets, |pdu| {
                assert!(matches!(pdu.data, Data::Target { len: 100_001, whole: true }));
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
    };
    read(3);
    assert_eq!(allocation_counter::measure(|| read(20)).count_total, 0);
    assert_eq!(targets.get(1), Some(&data[..]));
}

/// What is not there is not sent: no digest without data, no pad for whole words.
#[test]
fn a_pdu_has_the_length_that_the_rfc_gives_it() {
    for (header, data) in DIGESTS {
        for len in [0, 1, 3, 4, 5, 4096] {
            let body = pattern(len);
            let pdu = wire(&open(header, data), Pdu::new(NopOut::default(), &body[..]));
            let digests = 4 * usize::from(header) + 4 * usize::from(data && len > 0);
            assert_eq!(pdu.len(), 48 + len.next_multiple_of(4) + digests);
        }
    }
}

#[test]
fn small_pdus_share_a_call() {
    let options = open(true, true);
    let mut batch: Vec<_> = (0..100)
        .map(|itt| outgoing(&options, Pdu::new(NopOut { itt, ..NopOut::default() }, &b"ABCDE"[..])))
        .collect();
    let script = ScriptedSend::new([]).then(SendStep::All);
    assert_eq!(StreamSender::new(&script).send_batch(&mut batch).unwrap(), Progress::Done);
    assert_eq!(script.call_count(), 1);
    assert_eq!(receive(&options, &script.wire()).unwrap().len(), 100);
}

/// PDUs of a session may wait in a queue that many threads push into, as long as they are pushed in their order.
#[test]
fn pdus_go_through_a_send_queue() {
    let (session, ..) = login(Parameters::new(), Parameters::new());
    let mut initiator = Initiator::new(&session);
    let script = Arc::new(ScriptedSend::new([]).then(SendStep::All));
    let queue = SendQueue::new(PduFramer::new(&session.options()), script.clone());
    for len in 0..10 {
        initiator.ping(Bytes::from(pattern(len))).unwrap();
        let ticket = queue.push(initiator.next_pdu().unwrap()).unwrap();
        assert!(matches!(ticket.result(), Some(Ok(()))));
    }
    let pdus = receive(&session.options(), &script.wire()).unwrap();
    let numbers: Vec<_> = pdus.iter().map(|pdu| Header::from(&pdu.bhs)).collect();
    for (index, header) in numbers.iter().enumerate() {
        let Header::NopOut(ping) = header else { panic!("{header:?}") };
        assert_eq!(ping.cmd_sn, 1 + index as u32);
        assert_eq!(pdus[index].data, bytes(&pattern(index)));
    }
    assert_eq!(numbers.len(), 10);
}

/// iSCSI has no mark for a PDU that is given up: with data unsent the stream has to close, and what came after it never does.
#[test]
fn a_revoked_pdu_is_finished_once_its_data_has_left_and_else_closes_the_stream() {
    let data = pattern(1997); // above the copy threshold, three bytes of pad
    for (header, digest) in DIGESTS {
        let options = open(header, digest);
        let ping = |itt| Pdu::new(NopOut { itt, ..NopOut::default() }, &data[..]);
        let whole = wire(&options, ping(1));
        let head = if header { 52 } else { 48 };
        for cut in 0..=whole.len() {
            let steps = match cut {
                0 => vec![SendStep::Again],
                _ if cut == whole.len() => vec![],
                _ => vec![SendStep::Accept(cut), SendStep::Again],
            };
            let script = ScriptedSend::new(steps).then(SendStep::All);
            let mut sender = StreamSender::new(&script);
            let mut half = outgoing(&options, ping(1));
            let _ = sender.send(&mut half).unwrap();
            let mut second = outgoing(&options, ping(2));
            let mut first_arrives = true;
            match half.revoke() {
                Revoked::NotStarted(unsent) if cut == 0 => {
                    assert!(unsent.into_aborted().is_none());
                    first_arrives = false;
                }
                Revoked::MustClose { sent } if (1..head + data.len()).contains(&cut) => {
                    assert_eq!(sent, cut as u64);
                    let error = sender.send(&mut second).unwrap_err();
                    assert_eq!(error.kind(), SendErrorKind::AnotherOpen);
                    sender.abandon();
                    assert_eq!(sender.send(&mut second).unwrap_err().kind(), SendErrorKind::Dead);
                    let error = receive(&options, &script.wire()).unwrap_err();
                    assert!(matches!(error.kind(), RecvErrorKind::UnexpectedEof { .. }), "{error}");
                    continue;
                }
                Revoked::Finishing(mut rest) if (head + data.len()..whole.len()).contains(&cut) => {
                    assert_eq!(sender.send(&mut rest).unwrap(), Progress::Done);
                }
                Revoked::AlreadyComplete if cut == whole.len() => {}
                other => panic!("cut at {cut}: {other:?}"),
            }
            assert_eq!(sender.send(&mut second).unwrap(), Progress::Done, "cut at {cut}");
            let pdus = receive(&options, &script.wire()).unwrap();
            let itts: Vec<_> = pdus.iter().map(|pdu| pdu.bhs.itt()).collect();
            assert_eq!(itts, if first_arrives { vec![1, 2] } else { vec![2] }, "cut at {cut}");
            assert!(pdus.iter().all(|pdu| pdu.data == bytes(&data)));
        }
    }
}

/// Nothing of the caller's is in it: it is finished wherever it was cut.
#[test]
fn a_revoked_pdu_without_data_is_finished_wherever_it_was_cut() {
    for (header, digest) in DIGESTS {
        let options = open(header, digest);
        let pdu = || outgoing(&options, Pdu::new(NopOut { itt: 1, ..NopOut::default() }, ()));
        for cut in 1..pdu().len() {
            let steps = [SendStep::Accept(cut as usize), SendStep::Again];
            let script = ScriptedSend::new(steps).then(SendStep::All);
            let mut sender = StreamSender::new(&script);
            let mut half = pdu();
            let _ = sender.send(&mut half).unwrap();
            let Revoked::Finishing(mut rest) = half.revoke() else { panic!("cut at {cut}") };
            assert_eq!(sender.send(&mut rest).unwrap(), Progress::Done);
            assert_eq!(sender.send(&mut pdu()).unwrap(), Progress::Done);
            assert_eq!(receive(&options, &script.wire()).unwrap().len(), 2);
        }
    }
}

/// Every PDU of a write is a part of the one payload: by pointer identity.
#[test]
fn a_large_write_is_many_pdus_over_one_payload_and_no_byte_is_copied() {
    let pages: Vec<Bytes> = pages(256).into_iter().map(|page| Bytes::from(page).slice(..4096)).collect();
    let digests = Parameters::new().digests(DigestOffer::Require, DigestOffer::Require);
    let theirs = Parameters::new().max_recv(12_000).bursts(24_000, 100_000);
    let (session, ..) = login(digests, theirs);
    let mut initiator = Initiator::new(&session);
    let task = initiator.command(Command::write10(lun(1), 0, 2048, pages.clone())).unwrap();

    let mut framer = PduFramer::new(&session.options());
    let script = ScriptedSend::new([]).then(SendStep::All);
    let mut sender = StreamSender::new(&script);
    let (mut sent, mut r2t_sn, mut pdus) = (0u64, 0, 0u64);
    while sent < MIB as u64 {
        while let Some(pdu) = initiator.next_pdu() {
            let (last, len) = match pdu.header {
                Header::ScsiCommand(ScsiCommand { last, itt, expected_len, .. }) => {
                    assert_eq!((itt, expected_len), (task, MIB as u32));
                    (last, 12_000)
                }
                Header::DataOut(DataOut { last, itt, offset, .. }) => {
                    assert_eq!((itt, u64::from(offset)), (task, sent));
                    (last, segchain::chain::Payload::len(&pdu.data))
                }
                other => panic!("{other:?}"),
            };
            let mut out = ChainBuilder::new();
            out.copy_below(0); // PDUs begin and end inside of pages, close to their borders too
            framer.frame(pdu, &mut out).unwrap();
            let mut message = Outgoing::new(out.finish().unwrap());
            assert_eq!(sender.send(&mut message).unwrap(), Progress::Done);
            (sent, pdus) = (sent + len, pdus + 1);
            assert_eq!(
                last,
                sent == 24_000
                    || (sent > 24_000 && (sent - 24_000).is_multiple_of(100_000))
                    || sent == MIB as u64
            );
        }
        if sent < MIB as u64 {
            let desired_len = (MIB as u64 - sent).min(100_000) as u32;
            let r2t =
                R2t { itt: task, ttt: r2t_sn, r2t_sn, offset: sent as u32, desired_len, ..R2t::default() };
            let r2t = R2t { max_cmd_sn: 100, exp_cmd_sn: 2, ..r2t };
            assert!(
                initiator.receive(incoming(&wire(&Options::new(), Pdu::new(r2t, ())))).unwrap().is_none()
            );
            r2t_sn += 1;
        }
    }
    let stats = sender.stats();
    assert_eq!((stats.copied, stats.messages, stats.calls), (0, pdus, pdus));
    assert_eq!(stats.digested, pdus * 48 + MIB as u64);
    // What left came out of the pages themselves.
    let inside = |at: usize, len: usize| {
        pages.iter().any(|page| {
            let start = page.as_ptr() as usize;
            at >= start && at + len <= start + 4096
        })
    };
    let payload: usize = script
        .calls()
        .iter()
        .flat_map(|call| &call.slices)
        .filter(|(at, len)| inside(*at, *len))
        .map(|(_, len)| len)
        .sum();
    assert_eq!(payload, MIB);
    assert_eq!(receive(&session.options(), &script.wire()).unwrap().len() as u64, pdus);
}
