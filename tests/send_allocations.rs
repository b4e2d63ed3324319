//! How often building and sending a message allocates. A binary of its own: its allocator counts.

use allocation_counter::measure;
use bytes::Bytes;
use segchain::chain::{ChainBuilder, Outgoing, SegmentChain};
use segchain::checksum::{Crc32, Crc32c};
use segchain::send::{Progress, SendOptions, StreamSender};
use segchain_testkit::scripted::{ScriptedSend, SendStep};

/// Header, pages and a trailer with a CRC of the pages: `segments` in all.
fn framed<'m>(mut out: ChainBuilder<'m>, pages: &'m [[u8; 64]], segments: usize) -> SegmentChain<'m> {
    out.copy_below(0);
    let head = out.put(&[1; 53]);
    let body = out.here();
    for page in &pages[..segments - 2] {
        // Every other one, so that no two touch.
        out.push_borrowed(&page[..63]);
    }
    let trailer = out.put(&[0; 21]);
    out.slot(body..trailer, Crc32c::raw(0), trailer.at(4, 4));
    out.slot(head..trailer, Crc32::new(), trailer.at(8, 4));
    out.finish().expect("a chain without mistakes")
}

#[test]
fn below_17_segments_a_fresh_message_has_its_memory_from_the_start_and_a_recycled_one_allocates_nothing() {
    let pages = [[7; 64]; 15];
    let script = ScriptedSend::new([]);
    let mut sender = StreamSender::new(&script);
    // The transport and the sender have their memory already.
    assert_eq!(sender.send(&mut Outgoing::new(framed(ChainBuilder::new(), &pages, 16))), Ok(Progress::Done));
    let fresh = measure(|| drop(ChainBuilder::new())).count_total;
    assert_eq!(fresh, 3, "segments, scratch, and the rest");
    let mut memory = Some(framed(ChainBuilder::new(), &pages, 2));
    for segments in 2..=16 {
        script.reset(&[]);
        let allocated = measure(|| {
            let mut message = Outgoing::new(framed(ChainBuilder::new(), &pages, segments));
            assert_eq!(sender.send(&mut message), Ok(Progress::Done));
        });
        assert_eq!(allocated.count_total, fresh, "{segments} segments");
        script.reset(&[]);
        let builder = memory.take().expect("recycled").recycle();
        let allocated = measure(|| {
            let mut message = Outgoing::new(framed(builder, &pages, segments));
            assert_eq!(sender.send(&mut message), Ok(Progress::Done));
            memory = message.into_chain();
        });
        assert_eq!(allocated.count_total, 0, "{segments} segments, recycled");
    }
    // The measure measures: 17 take one more.
    let allocated = measure(|| drop(framed(ChainBuilder::new(), &pages, 17)));
    assert_eq!(allocated.count_total, fresh + 1);
}

#[test]
fn a_recycled_message_of_one_fragment_allocates_nothing() {
    static PAGE: [u8; 4096] = [7; 4096];
    let marked = |mut out: ChainBuilder<'static>| {
        out.fragment(1 << 20, |fragment| {
            (fragment.len as u32 | u32::from(fragment.last) << 31).to_be_bytes()
        });
        out.put(&[1; 40]);
        out.push(Bytes::from_static(&PAGE));
        out.finish().expect("a chain without mistakes")
    };
    let mut memory = Some(marked(ChainBuilder::new()));
    let allocated = measure(|| memory = memory.take().map(|chain| marked(chain.recycle())));
    assert_eq!(allocated.count_total, 0);
    let sealed = memory.expect("recycled").seal_all().to_vec();
    assert_eq!(sealed, [&[0x80, 0, 0x10, 0x28][..], &[1; 40], &PAGE].concat()); // 4136 bytes, the last fragment
}

/// The memory of a sent chain is the memory of the next one.
fn steady_state(segments: usize, steps: &[SendStep], options: SendOptions) {
    let pages = vec![[7; 64]; segments];
    let script = ScriptedSend::new([]);
    let mut sender = StreamSender::with_options(&script, options);
    let mut memory = Some(framed(ChainBuilder::new(), &pages, segments));
    let mut round = || {
        script.reset(steps);
        let chain = framed(memory.take().map(SegmentChain::recycle).unwrap_or_default(), &pages, segments);
        let mut message = Outgoing::new(chain);
        while sender.send(&mut message).expect("a good transport") != Progress::Done {}
        memory = message.into_chain();
    };
    for _ in 0..3 {
        round();
    }
    let allocated = measure(|| {
        for _ in 0..100 {
            round();
        }
    });
    assert_eq!(allocated.count_total, 0, "{segments} segments by {steps:?}");
}

#[test]
fn messages_in_a_row_do_not_allocate_whatever_their_number_of_segments() {
    for segments in [2, 16, 17, 257, 1024, 5000] {
        steady_state(segments, &[], SendOptions::new());
        steady_state(
            segments,
            &[SendStep::Accept(77), SendStep::Again, SendStep::Accept(1000)],
            SendOptions::new(),
        );
        steady_state(segments, &[], SendOptions::new().max_slices(3).seal_window(100));
    }
}

#[test]
fn a_chain_changes_its_lifetime_with_its_memory() {
    let mut memory = Some(ChainBuilder::new());
    for round in 0..10 {
        // Pages that live for one round only.
        let pages = vec![[round; 64]; 300];
        let mut chain = None;
        let allocated = measure(|| {
            // A builder is made for one lifetime; an emptied chain is good for any.
            let empty = memory.take().expect("recycled").finish().expect("nothing is no mistake");
            chain = Some(framed(empty.recycle(), &pages, 300));
        });
        if round > 1 {
            assert_eq!(allocated.count_total, 0, "round {round}");
        }
        memory = chain.map(SegmentChain::recycle);
    }
}

#[test]
fn shared_pages_and_a_batch_do_not_allocate_in_steady_state() {
    let page = Bytes::from(vec![3; 4096]);
    let script = ScriptedSend::new([]);
    let mut sender = StreamSender::new(&script);
    let mut batch: Vec<Outgoing<'static>> = Vec::with_capacity(8);
    let mut builders: Vec<ChainBuilder<'static>> = (0..8).map(|_| ChainBuilder::new()).collect();
    let mut round = || {
        script.reset(&[]);
        for mut out in builders.drain(..) {
            out.put(&[1; 24]);
            for _ in 0..20 {
                out.push(page.clone());
            }
            batch.push(Outgoing::new(out.finish().expect("a chain without mistakes")));
        }
        assert_eq!(sender.send_batch(&mut batch), Ok(Progress::Done));
        builders.extend(batch.drain(..).filter_map(Outgoing::into_chain).map(SegmentChain::recycle));
    };
    for _ in 0..3 {
        round();
    }
    assert_eq!(measure(|| (0..100).for_each(|_| round())).count_total, 0);
}
