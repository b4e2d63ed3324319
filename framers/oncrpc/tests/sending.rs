//! Records on a scripted transport: what leaves in which call, and how it resumes.

use segchain::chain::{ChainBuilder, Outgoing};
use segchain::framer::Framer;
use segchain::send::{Progress, StreamSender};
use segchain_oncrpc::{Message, RecordFramer};
use segchain_testkit::scripted::{ScriptedSend, SendStep, Shape};

const HEAD: usize = 120;

fn pages(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| vec![i as u8; 4096]).collect()
}

fn outgoing<'p>(framer: &mut RecordFramer, pages: &'p [Vec<u8>]) -> Outgoing<'p> {
    let mut out = ChainBuilder::new();
    framer.frame(Message::new(vec![7; HEAD]).opaque(pages), &mut out).unwrap();
    Outgoing::new(out.finish().unwrap())
}

/// apache/nuttx issue 3707: no answer to a marker that came in a segment of its own.
#[test]
fn marker_head_and_1_mib_of_pages_leave_in_one_call_and_none_is_copied() {
    let pages = pages(256);
    let script = ScriptedSend::new([]).then(SendStep::All);
    let mut sender = StreamSender::new(&script);
    let mut message = outgoing(&mut RecordFramer::new(), &pages);
    script.expect_flush(message.len());
    assert_eq!(sender.send(&mut message).unwrap(), Progress::Done);
    script.assert_uncorked();
    let calls = script.calls();
    assert_eq!(calls.len(), 1);
    let slices = &calls[0].slices;
    assert_eq!(slices[0].1, 4 + HEAD + 4); // the marker is in the head's own slice
    let addresses: Vec<_> = pages.iter().map(|page| page.as_ptr() as usize).collect();
    assert!(
        slices[1..]
            .iter()
            .all(|(address, _)| addresses.iter().any(|page| (*page..*page + 4096).contains(address)))
    );
    assert_eq!((sender.stats().copied, sender.stats().messages), (0, 1));
}

#[test]
fn a_record_of_4_mib_takes_two_calls_and_no_bare_pad() {
    let mut pages = pages(1024);
    pages.push(vec![1; 4093]); // three bytes of pad
    let script = ScriptedSend::new([]).then(SendStep::All);
    let mut message = outgoing(&mut RecordFramer::new(), &pages);
    script.expect_flush(message.len());
    script.expect_frames(&[Shape::new(4 + HEAD as u64 + 4, 4 * (1 << 20) + 4093, 3)]);
    let mut sender = StreamSender::new(&script);
    assert_eq!(sender.send(&mut message).unwrap(), Progress::Done);
    assert_eq!((script.call_count(), sender.stats().copied), (2, 0));
}

/// nfs-ganesha/ntirpc issue 294: a marker torn by two short sends was counted twice, and NFS clients hung.
#[test]
fn a_short_write_inside_the_marker_resumes_at_the_next_byte() {
    let pages = pages(2);
    let whole = ScriptedSend::new([]).then(SendStep::All);
    let _ = StreamSender::new(&whole).send(&mut outgoing(&mut RecordFramer::new(), &pages)).unwrap();
    for first in 1..8 {
        for second in 1..8 {
            let steps = [SendStep::Accept(first), SendStep::Accept(second), SendStep::Again];
            let script = ScriptedSend::new(steps).then(SendStep::All);
            let mut sender = StreamSender::new(&script);
            let mut message = outgoing(&mut RecordFramer::new(), &pages);
            while sender.send(&mut message).unwrap() != Progress::Done {}
            assert!(script.wire_is(&whole.wire()), "{first} bytes, then {second}");
        }
    }
}

#[test]
fn a_record_in_fragments_leaves_in_one_call_too() {
    let pages = pages(64);
    let script = ScriptedSend::new([]).then(SendStep::All);
    let mut sender = StreamSender::new(&script);
    let mut message = outgoing(&mut RecordFramer::fragments_of(8996), &pages);
    script.expect_flush(message.len());
    assert_eq!(sender.send(&mut message).unwrap(), Progress::Done);
    assert_eq!((script.call_count(), sender.stats().copied), (1, 0));
    let wire = script.wire();
    let (mut at, mut fragments) = (0, Vec::new());
    while at < wire.len() {
        let word = u32::from_be_bytes(wire[at..at + 4].try_into().unwrap());
        fragments.push(word);
        at += 4 + (word & 0x7fff_ffff) as usize;
    }
    let total = HEAD + 4 + 64 * 4096;
    assert_eq!(fragments.len(), total.div_ceil(8996));
    assert_eq!(fragments.pop(), Some(0x8000_0000 | (total % 8996) as u32));
    assert!(fragments.iter().all(|word| *word == 8996));
}

#[test]
fn small_calls_share_a_call_and_the_framer_allocates_nothing_for_them() {
    let mut framer = RecordFramer::new();
    let head = [7; 40];
    let mut batch: Vec<_> = (0..100)
        .map(|_| {
            let mut out = ChainBuilder::new();
            framer.frame(Message::new(&head[..]), &mut out).unwrap();
            Outgoing::new(out.finish().unwrap())
        })
        .collect();
    let script = ScriptedSend::new([]).then(SendStep::All);
    assert_eq!(StreamSender::new(&script).send_batch(&mut batch).unwrap(), Progress::Done);
    assert_eq!(script.call_count(), 1);

    let pages = pages(8);
    let page = pages.as_slice();
    let used = batch.pop().and_then(Outgoing::into_chain).unwrap();
    let allocated = allocation_counter::measure(|| {
        let mut out = used.recycle();
        framer.frame(Message::new(&head[..]).opaque(page), &mut out).unwrap();
        assert_eq!(out.finish().unwrap().len(), 4 + 40 + 4 + 8 * 4096);
    });
    assert_eq!(allocated.count_total, 0);
}
