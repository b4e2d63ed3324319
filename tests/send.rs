//! Sending, case by case: what public reports say went wrong elsewhere, the rules of a call, and the counts to reach.

use std::io::{self, IoSlice, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use segchain::chain::{ChainBuilder, Outgoing, SegmentChain};
use segchain::checksum::Crc32c;
use segchain::send::{
    Blocked, DatagramSender, Progress, SendError, SendErrorKind, SendOptions, StreamSender,
};
use segchain::transport::{MAX_BYTES, MAX_SLICES, SendFlags, SocketRef, VectoredSend, slices_in_memory};
use segchain_testkit::naive::{Random, crc, seed};
use segchain_testkit::scripted::{ScriptedSend, SendStep, Shape, WaitStep};

use SendStep::{Accept, Again, All, Claim, Errno, FirstSlice, Interrupted, Kind, Zero};

/// Nothing here takes so long. It is the timeout of every wait on a socket.
const LONG: Duration = Duration::from_secs(60);

/// Segments that are slices of their own, whatever the copy threshold, and do not touch in memory.
fn pieces(lens: &[usize]) -> Vec<Vec<u8>> {
    let mut next = 0u32;
    let mut byte = || {
        next = next.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        (next >> 24) as u8
    };
    // The odd byte at the end keeps neighbours apart.
    lens.iter().map(|len| (0..=*len).map(|_| byte()).collect()).collect()
}

fn chain(pieces: &[Vec<u8>]) -> SegmentChain<'_> {
    let mut out = ChainBuilder::new();
    out.copy_below(0);
    for piece in pieces {
        out.push_borrowed(&piece[..piece.len() - 1]);
    }
    out.finish().expect("a chain without mistakes")
}

fn message(pieces: &[Vec<u8>]) -> Outgoing<'_> {
    Outgoing::new(chain(pieces))
}

fn wire(pieces: &[Vec<u8>]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| &piece[..piece.len() - 1]).copied().collect()
}

/// Sends pieces of these lengths by this script in one turn, and compares what arrives.
fn sent_by(lens: &[usize], steps: &[SendStep]) -> ScriptedSend {
    let pieces = pieces(lens);
    let script = ScriptedSend::new(steps.iter().copied());
    script.expect_flush(lens.iter().sum::<usize>() as u64);
    let mut sender = StreamSender::new(&script);
    assert_eq!(sender.send(&mut message(&pieces)), Ok(Progress::Done), "{lens:?} by {steps:?}");
    assert!(script.wire_is(&wire(&pieces)), "{lens:?} by {steps:?}");
    script.assert_uncorked();
    script
}

/// A header, pages and a trailer that holds a CRC-32C of the pages.
fn framed<'m>(
    mut out: ChainBuilder<'m>,
    header: usize,
    pages: &'m [Vec<u8>],
    trailer: usize,
    digest: bool,
) -> SegmentChain<'m> {
    out.put(&vec![0xa5; header]);
    let body = out.here();
    for page in pages {
        out.push_borrowed(page);
    }
    let trailer = out.put(&vec![0; trailer]);
    if digest {
        out.slot(body..trailer, Crc32c::raw(!0), trailer.at(0, 4));
    }
    out.finish().expect("a chain without mistakes")
}

fn pages(count: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(7);
    (0..count).map(|_| random.bytes(4096)).collect()
}

// ---- short writes

/// tokio 8158: the written prefix of the first remaining slice was kept, not its unwritten suffix.
#[test]
fn a_short_write_inside_or_at_the_end_of_a_segment_goes_on_with_the_next_byte() {
    sent_by(&[5, 5], &[Accept(3), All]);
    sent_by(&[2, 2], &[Accept(2), Accept(2)]);
    for first in 1..10 {
        for second in 1..10 {
            sent_by(&[5, 5], &[Accept(first), Accept(second), All]);
        }
    }
}

/// ntirpc 294: a 4-byte marker torn by two short sends was subtracted twice, and two body bytes went out again.
#[test]
fn a_marker_torn_by_two_short_writes_is_sent_once() {
    let body = pieces(&[10, 6]);
    for first in 1..4 {
        for second in 1..=4 - first {
            let script = ScriptedSend::new([Accept(first), Again, Accept(second), Again, All]);
            script.expect_flush(20);
            let mut out = ChainBuilder::new();
            out.copy_below(0);
            out.put_u32_be(0x8000_0010);
            for piece in &body {
                out.push_borrowed(&piece[..piece.len() - 1]);
            }
            let mut outgoing = Outgoing::new(out.finish().unwrap());
            let mut sender = StreamSender::new(&script);
            assert_eq!(sender.send(&mut outgoing), Ok(Progress::Blocked(Blocked::Full)));
            assert_eq!(outgoing.sent(), first as u64);
            assert_eq!(sender.send(&mut outgoing), Ok(Progress::Blocked(Blocked::Full)));
            assert_eq!(outgoing.sent(), (first + second) as u64);
            assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
            assert_eq!(script.wire(), [&[0x80, 0, 0, 16][..], &wire(&body)].concat());
        }
    }
}

/// bun 32088: after a short write over old backlog and new chunk the subtraction was reversed.
#[test]
fn backlog_and_new_chunk_keep_their_unsent_rest_wherever_a_call_ends() {
    let (old, new) = (pieces(&[7]), pieces(&[9]));
    let all = [wire(&old), wire(&new)].concat();
    for taken in 0..=16 {
        let first = if taken == 0 { Again } else { Accept(taken) };
        let script = ScriptedSend::new([first, Again, All]);
        let mut sender = StreamSender::new(&script);
        let mut batch = [message(&old), message(&new)];
        let blocked = sender.send_batch(&mut batch).unwrap();
        assert_eq!(blocked == Progress::Done, taken == 16);
        assert_eq!(script.wire(), all[..taken]);
        let left: u64 = batch.iter().map(Outgoing::remaining).sum();
        assert_eq!(left, 16 - taken as u64);
        while sender.send_batch(&mut batch).unwrap() != Progress::Done {}
        assert_eq!(script.wire(), all);
    }
}

/// seastar 2023, Mooncake 2594: pieces past the slice limit were dropped, or a short write jumped to the next chunk.
#[test]
fn a_short_write_inside_a_full_chunk_of_slices_does_not_skip_to_the_next_chunk() {
    let short = Accept(7 * 1023 + 3);
    let script = sent_by(&vec![7; 3000], &[short, All, short, All, short]);
    assert!(script.calls().iter().all(|call| call.slices.len() <= MAX_SLICES));
}

/// Watt-32 106, wasmer 3680: EAGAIN after progress lost the progress, or the loop went on to the next slice.
#[test]
fn progress_is_kept_over_any_number_of_blocked_calls() {
    let pieces = pieces(&[8, 12]);
    let script = ScriptedSend::new([Accept(5), Again, Again, Again, Accept(15)]);
    let mut sender = StreamSender::new(&script);
    let mut outgoing = message(&pieces);
    for _ in 0..3 {
        assert_eq!(sender.send(&mut outgoing), Ok(Progress::Blocked(Blocked::Full)));
        assert_eq!(outgoing.sent(), 5);
    }
    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
    assert_eq!(script.wire(), wire(&pieces));
    let offers: Vec<u64> = script.calls().iter().map(|call| call.offered).collect();
    assert_eq!(offers, [20, 15, 15, 15, 15]);
    assert_eq!((sender.stats().blocked, sender.stats().short_writes), (3, 1));
}

/// EternalTerminal 815: a write gave up after a prefix had left, and the caller sent the whole again.
#[test]
fn a_hard_error_after_progress_tells_the_count_and_the_stream_refuses_a_second_try() {
    let pieces = pieces(&[8, 12]);
    let script = ScriptedSend::new([Accept(5), Errno(libc::ETIMEDOUT)]);
    let mut sender = StreamSender::new(&script);
    let mut outgoing = message(&pieces);
    let error = sender.send(&mut outgoing).unwrap_err();
    assert_eq!((error.kind(), error.sent()), (SendErrorKind::Io(io::ErrorKind::TimedOut), 5));
    assert_eq!(outgoing.sent(), 5);
    for _ in 0..3 {
        let again = sender.send(&mut outgoing).unwrap_err();
        assert_eq!((again.kind(), again.sent()), (SendErrorKind::Dead, 5));
        assert_eq!(again.raw_os_error(), Some(libc::ETIMEDOUT));
    }
    assert_eq!(sender.send(&mut message(&pieces)).unwrap_err().kind(), SendErrorKind::Dead);
    assert_eq!(script.call_count(), 2);
}

/// libfabric 9349: the way of sending changed in the middle of a transfer, and its beginning was sent again. Here the
/// transport takes whole calls up to a byte, then only first slices.
#[test]
fn a_transport_may_change_its_ways_at_any_byte() {
    let lens = [3, 4, 5, 6, 2];
    for switch in 1..20 {
        let pieces = pieces(&lens);
        let script = ScriptedSend::new([Accept(switch)]).then(FirstSlice);
        let mut sender = StreamSender::new(&script);
        assert_eq!(sender.send(&mut message(&pieces)), Ok(Progress::Done));
        assert_eq!(script.wire(), wire(&pieces), "after {switch} bytes");
    }
}

/// cloud-hypervisor 6884, pushpin 48366: a writer without a vectored method of its own writes the first slice only.
#[test]
fn a_transport_that_takes_only_the_first_slice_gets_everything() {
    let pieces = pieces(&[3, 4, 5, 6, 2]);
    let script = ScriptedSend::new([]).then(FirstSlice);
    let mut sender = StreamSender::new(&script);
    assert_eq!(sender.send(&mut message(&pieces)), Ok(Progress::Done));
    assert_eq!(script.wire(), wire(&pieces));
    assert_eq!(script.call_count(), 5);
}

// ---- empty segments

/// rust 74088, futures-rs 2187: a list of only empty slices was a "write zero" error.
#[test]
fn a_message_of_empty_segments_is_complete_without_a_call() {
    let empty = pieces(&[0, 0, 0]);
    let script = ScriptedSend::new([]);
    let mut sender = StreamSender::new(&script);
    let mut outgoing = message(&empty);
    assert!(outgoing.is_complete());
    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
    assert_eq!(script.call_count(), 0);

    let (socket, _peer) = UnixStream::pair().unwrap();
    let mut sender = StreamSender::new(SocketRef::new(socket));
    sender.send_blocking(&mut message(&empty), Some(Instant::now() + LONG)).unwrap();
    assert_eq!(sender.stats().calls, 0);
}

/// rust 138879: 1024 or more empty slices in front of data gave Ok(0).
#[test]
fn thousands_of_empty_segments_before_the_data_do_not_hide_it() {
    for empty in [1023, 1024, 1025, 5000] {
        let mut lens = vec![0; empty];
        lens.extend([10, 0, 3]);
        let script = sent_by(&lens, &[]);
        assert_eq!(script.calls()[0].slices.len(), 2);
    }
}

/// seastar 3318: an empty element at the front was never popped, and the loop recursed for ever.
#[test]
fn a_short_write_right_before_empty_segments_goes_on_behind_them() {
    let mut lens = vec![4];
    lens.resize(100_001, 0);
    lens.push(4);
    sent_by(&lens, &[Accept(4), All]);
    sent_by(&lens, &[Accept(1), Accept(3), Accept(2), All]);
}

/// yrmcds 28, caladan 39: a header, no body and a trailer, on a stream that takes a byte at a time.
#[test]
fn an_empty_body_between_header_and_trailer_does_not_stop_the_message() {
    let mut out = ChainBuilder::new();
    out.put(&[1; 24]);
    out.push(Bytes::new());
    out.put(&[2; 4]);
    let script = ScriptedSend::new([]).then(Accept(1));
    let mut sender = StreamSender::new(&script);
    assert_eq!(sender.send(&mut Outgoing::new(out.finish().unwrap())), Ok(Progress::Done));
    assert_eq!(script.wire(), [[1; 24].as_slice(), &[2; 4]].concat());
    assert_eq!(script.call_count(), 28);
}

/// PhotonLibOS 1601: 100 + 0 + 50 bytes sent 100.
#[test]
fn an_empty_segment_in_the_middle_is_not_the_end() {
    sent_by(&[100, 0, 50], &[]);
    sent_by(&[100, 0, 50], &[Accept(100)]);
    sent_by(&[0, 100, 0, 0, 50, 0], &[Accept(99), Accept(1), Accept(50)]);
}

// ---- limits of a call

/// rust 68042, rustls 389, libuv 770, eio 633, iggy 2581: EINVAL or EMSGSIZE once a message has more than 1024 pieces.
#[test]
fn messages_of_any_number_of_segments_arrive_whole_over_a_real_socket() {
    for segments in [1023, 1024, 1025, 2048, 5000, 65536] {
        let pieces = pieces(&vec![1; segments]);
        let (socket, peer) = UnixStream::pair().unwrap();
        let reader = read_all(peer);
        let mut sender = StreamSender::new(SocketRef::new(socket));
        sender.send_blocking(&mut message(&pieces), Some(Instant::now() + LONG)).unwrap();
        let stats = sender.stats();
        drop(sender);
        assert_eq!(reader.join().unwrap().unwrap(), wire(&pieces), "{segments} segments");
        assert!(stats.slices <= stats.calls * MAX_SLICES as u64);
    }
}

#[test]
fn a_message_of_many_pages_arrives_whole_over_tcp() {
    let pages = pages(2500);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let reader = read_all(listener.accept().unwrap().0);
    let socket = SocketRef::new(socket);
    socket.set_nodelay(true).unwrap();
    socket.set_send_buffer(64 << 10).unwrap();
    let mut sender = StreamSender::new(socket);
    let mut outgoing = Outgoing::new(framed(ChainBuilder::new(), 77, &pages, 21, true));
    sender.send_blocking(&mut outgoing, Some(Instant::now() + LONG)).unwrap();
    let stats = sender.stats();
    drop(sender);
    let payload = pages.concat();
    let sum = crc(0x82f6_3b78, !0, &payload).to_le_bytes();
    let expected = [&[0xa5; 77][..], &payload, &sum, &[0; 17]].concat();
    assert!(reader.join().unwrap().unwrap() == expected);
    assert_eq!((stats.copied, stats.digested), (0, payload.len() as u64));
}

/// What the limit is for: one slice more than it is EMSGSIZE from sendmsg (measured on Linux 6.18; EINVAL from writev).
#[cfg(target_os = "linux")]
#[test]
fn the_kernel_itself_refuses_one_slice_more_than_the_limit() {
    let (socket, _peer) = UnixStream::pair().unwrap();
    let pieces = pieces(&[1; MAX_SLICES + 1]);
    let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(&piece[..1])).collect();
    let flags = SendFlags::DONT_WAIT | SendFlags::NO_SIGNAL;
    let socket = SocketRef::new(socket);
    assert_eq!(socket.send_vectored(&slices, flags).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
    assert_eq!(socket.send_vectored(&slices[..MAX_SLICES], flags).unwrap(), MAX_SLICES);
}

#[test]
fn segments_past_the_slice_cap_go_with_the_next_call() {
    let pieces = pieces(&[1; 257]);
    let script = ScriptedSend::new([]).caps(256, MAX_BYTES);
    script.expect_flush(257);
    let mut sender = StreamSender::with_options(&script, SendOptions::new().max_slices(256));
    assert_eq!(sender.send(&mut message(&pieces)), Ok(Progress::Done));
    let slices: Vec<usize> = script.calls().iter().map(|call| call.slices.len()).collect();
    assert_eq!(slices, [256, 1]); // payload alone: there is no trailer to keep it with
    assert_eq!(script.wire(), wire(&pieces));
}

#[test]
fn a_trailer_past_the_slice_cap_takes_the_last_page_along() {
    let pages = pages(255);
    let script = ScriptedSend::new([]).caps(256, MAX_BYTES);
    script.expect_flush(8 + 255 * 4096 + 4);
    script.expect_frames(&[Shape::new(8, 255 * 4096, 4)]);
    let mut sender = StreamSender::with_options(&script, SendOptions::new().max_slices(256));
    let mut outgoing = Outgoing::new(framed(ChainBuilder::new(), 8, &pages, 4, true));
    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
    let slices: Vec<usize> = script.calls().iter().map(|call| call.slices.len()).collect();
    assert_eq!(slices, [255, 2]);
}

/// netty 3791, capnproto 1128, libuv 1215, xet-core 641: EINVAL or a short write once the sum passes 2 GiB.
#[test]
fn three_slices_of_one_gibibyte_are_counted_right_under_the_cap() {
    // Zero pages that are never read: no memory behind them.
    let gib = Bytes::from(vec![0u8; 1 << 30]);
    let mut out = ChainBuilder::new();
    out.put(b"head");
    for _ in 0..3 {
        out.push(gib.clone());
    }
    out.put(b"tail");
    let mut outgoing = Outgoing::new(out.finish().unwrap());
    let total = (3 << 30) + 8;
    assert_eq!(outgoing.len(), total);
    let script = ScriptedSend::new([]).counting_only();
    script.expect_flush(total);
    script.expect_frames(&[Shape::new(4, 3 << 30, 4)]);
    let mut sender = StreamSender::new(&script);
    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
    assert_eq!((script.taken(), sender.stats().bytes, outgoing.sent()), (total, total, total));
    assert_eq!(script.call_count(), 4);
    assert_eq!(script.calls()[0].offered, MAX_BYTES);
    // The kernel would cut a call at 0x7ffff000: one that stops short in the middle is gone on with at that byte.
    script.reset(&[Accept(0x3fff_f000), Accept(1), Accept(0x3fff_ffff)]);
    let mut out = ChainBuilder::new();
    out.push(gib.clone());
    out.push(gib.clone());
    out.push(gib);
    let mut outgoing = Outgoing::new(out.finish().unwrap());
    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
    assert_eq!(script.taken(), 3 << 30);
    let base = script.calls()[0].slices[0].0;
    assert_eq!(script.calls()[2].slices[0], (base + 0x3fff_f001, 0x0fff));
}

#[test]
fn zeros_of_many_gibibytes_are_slices_of_one_page_run() {
    let script = ScriptedSend::new([]).counting_only();
    script.expect_flush(5 << 30);
    let mut out = ChainBuilder::new();
    out.push_zeros(5 << 30);
    let mut sender = StreamSender::new(&script);
    assert_eq!(sender.send(&mut Outgoing::new(out.finish().unwrap())), Ok(Progress::Done));
    assert_eq!(script.taken(), 5 << 30);
    let addresses: std::collections::BTreeSet<usize> =
        script.calls().iter().flat_map(|call| call.slices.iter().map(|slice| slice.0)).collect();
    assert_eq!(addresses.len(), 1);
}

/// Watt-32 76, cpython bpo-33871: a sum of lengths overflowed after sending had begun.
#[test]
fn lengths_that_sum_past_the_limit_never_reach_a_transport() {
    let mut out = ChainBuilder::new();
    out.push_zeros(1 << 62);
    out.push_zeros((1 << 62) - 1);
    assert_eq!(out.check(), Ok(()));
    out.push_zeros(1);
    assert!(out.finish().is_err());
}

// ---- memory

#[test]
fn payload_leaves_from_the_callers_own_memory() {
    let pages = pages(40);
    let shared = Bytes::from(vec![3u8; 5000]);
    let script = ScriptedSend::new([Accept(10_000), Again]);
    let mut out = ChainBuilder::new();
    out.put(&[0; 31]);
    for page in &pages {
        out.push_borrowed(page);
    }
    out.push(shared.clone());
    // A short last page after other pages is not copied either.
    out.push_borrowed(&pages[0][..5]);
    out.put(&[0; 4]);
    let mut outgoing = Outgoing::new(out.finish().unwrap());
    let mut sender = StreamSender::new(&script);
    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Blocked(Blocked::Full)));
    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
    let expected: Vec<(usize, usize)> = pages
        .iter()
        .map(Vec::as_slice)
        .chain([&shared[..], &pages[0][..5]])
        .map(|slice| (slice.as_ptr() as usize, slice.len()))
        .collect();
    let calls = script.calls();
    assert_eq!(calls[0].slices[1..43], expected);
    // After the short write: the rest of the third page, then the same memory as before.
    let skipped = 10_000 - 31 - 2 * 4096;
    assert_eq!(calls[1].slices[0], (expected[2].0 + skipped, 4096 - skipped));
    assert_eq!(calls[1].slices[1..40], expected[3..]);
    assert_eq!(sender.stats().copied, 0);
}

#[test]
fn a_short_piece_behind_a_header_is_copied_and_counted() {
    let page = vec![1u8; 4096];
    let script = ScriptedSend::new([]);
    let mut sender = StreamSender::new(&script);
    let mut out = ChainBuilder::new();
    out.put(&[0; 8]);
    out.push_borrowed(&page[..ChainBuilder::COPY_BELOW - 1]);
    out.push_borrowed(&page[..ChainBuilder::COPY_BELOW]);
    assert_eq!(sender.send(&mut Outgoing::new(out.finish().unwrap())), Ok(Progress::Done));
    assert_eq!(script.calls()[0].slices.len(), 2);
    assert_eq!(sender.stats().copied, ChainBuilder::COPY_BELOW as u64 - 1);
}

#[test]
fn touching_neighbours_are_one_slice_for_the_kernel() {
    let memory = vec![9u8; 64 * 4096];
    let mut out = ChainBuilder::new();
    out.put(&[0; 16]);
    for page in memory.chunks(4096) {
        out.push_borrowed(page);
    }
    out.put(&[0; 4]);
    let chain = out.finish().unwrap();
    let mut slices = Vec::new();
    let gathered = chain.gather(0, u64::MAX, MAX_SLICES, &mut slices);
    assert_eq!((slices_in_memory(&slices), gathered.slices), (3, 3));

    let (socket, peer) = UnixStream::pair().unwrap();
    let reader = read_all(peer);
    let mut sender = StreamSender::new(SocketRef::new(socket));
    sender.send_blocking(&mut Outgoing::new(chain), Some(Instant::now() + LONG)).unwrap();
    let stats = sender.stats();
    drop(sender);
    assert!(reader.join().unwrap().unwrap() == [&[0; 16][..], &memory, &[0; 4]].concat());
    assert!(stats.slices <= 3 * stats.calls);
}

/// go 45163, getty 144: a list that was sent once was empty the second time.
#[test]
fn one_chain_is_broadcast_to_two_sockets() {
    let pieces = pieces(&[100, 70_000, 3]);
    let sealed = Arc::new(chain(&pieces).seal_all());
    for _ in 0..2 {
        let (socket, peer) = UnixStream::pair().unwrap();
        let reader = read_all(peer);
        let mut sender = StreamSender::new(SocketRef::new(&socket));
        sender.send_blocking(&mut Outgoing::shared(sealed.clone()), Some(Instant::now() + LONG)).unwrap();
        drop(socket);
        assert!(reader.join().unwrap().unwrap() == wire(&pieces));
    }
}

/// A buffer whose vectored view is wrong, as in bytes 701: the second part before all of the first is covered.
struct Liar(Bytes, Bytes);

impl Buf for Liar {
    fn remaining(&self) -> usize {
        self.0.len() + self.1.len()
    }

    fn chunk(&self) -> &[u8] {
        // Only half of what is contiguous, as some buffers do.
        let part = if self.0.is_empty() { &self.1 } else { &self.0 };
        &part[..part.len().div_ceil(2)]
    }

    fn advance(&mut self, count: usize) {
        let first = count.min(self.0.len());
        self.0.advance(first);
        self.1.advance(count - first);
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        out[0] = IoSlice::new(&self.0[..self.0.len() / 2]);
        out[1] = IoSlice::new(&self.1);
        2
    }
}

/// bytes 701, hyper 3650 and 4132: a vectored view missed bytes of a part, and later ones appeared early.
#[test]
fn a_buffer_whose_vectored_view_is_wrong_is_sent_in_order() {
    let script = ScriptedSend::new([]).then(Accept(3));
    let mut out = ChainBuilder::new();
    out.push_buf(
        Liar(Bytes::from_static(b"the first part"), Bytes::from_static(b", the second")).chain(&b"!"[..]),
    );
    let mut sender = StreamSender::new(&script);
    assert_eq!(sender.send(&mut Outgoing::new(out.finish().unwrap())), Ok(Progress::Done));
    assert_eq!(script.wire(), b"the first part, the second!");
}

/// opendal 8063: the vectored view of a truncated buffer of many parts showed what was cut off.
#[test]
fn a_truncated_buffer_sends_nothing_of_what_was_cut_off() {
    let parts =
        Bytes::from_static(b"aaaa").chain(Bytes::from_static(b"bbbb")).chain(Bytes::from_static(b"cccc"));
    let script = ScriptedSend::new([]);
    let mut out = ChainBuilder::new();
    let mark = out.push_buf(parts.take(6));
    assert_eq!(mark.len(), 6);
    let mut sender = StreamSender::new(&script);
    assert_eq!(sender.send(&mut Outgoing::new(out.finish().unwrap())), Ok(Progress::Done));
    assert_eq!(script.wire(), b"aaaabb");
}

// ---- errors

/// helio 363: EAGAIN was fatal. What becomes of each error, before and after progress.
#[test]
fn each_error_has_its_outcome_before_and_after_progress() {
    use io::ErrorKind as K;
    enum Outcome {
        Retried,
        Blocked(Blocked),
        Final(K),
    }
    use Outcome::{Final, Retried};
    let full = || Outcome::Blocked(Blocked::Full);
    let memory = || Outcome::Blocked(Blocked::Memory);
    let uncategorized = io::Error::from_raw_os_error(libc::EIO).kind();
    let table = [
        (Errno(libc::EAGAIN), full()),
        (Errno(libc::EWOULDBLOCK), full()),
        (Kind(K::WouldBlock), full()),
        (Errno(libc::EINTR), Retried),
        (Kind(K::Interrupted), Retried),
        (Errno(libc::ENOBUFS), memory()),
        (Errno(libc::ENOMEM), memory()),
        (Kind(K::OutOfMemory), memory()),
        (Errno(libc::EPIPE), Final(K::BrokenPipe)),
        (Errno(libc::ECONNRESET), Final(K::ConnectionReset)),
        (Errno(libc::ECONNREFUSED), Final(K::ConnectionRefused)),
        (Errno(libc::ECONNABORTED), Final(K::ConnectionAborted)),
        (Errno(libc::ETIMEDOUT), Final(K::TimedOut)),
        (Errno(libc::ENOTCONN), Final(K::NotConnected)),
        (Errno(libc::EHOSTUNREACH), Final(K::HostUnreachable)),
        (Errno(libc::ENETDOWN), Final(K::NetworkDown)),
        (Errno(libc::ENETUNREACH), Final(K::NetworkUnreachable)),
        (Errno(libc::EMSGSIZE), Final(io::Error::from_raw_os_error(libc::EMSGSIZE).kind())),
        (Errno(libc::EINVAL), Final(K::InvalidInput)),
        (Errno(libc::EACCES), Final(K::PermissionDenied)),
        (Errno(libc::EPERM), Final(K::PermissionDenied)),
        (Errno(libc::EBADF), Final(io::Error::from_raw_os_error(libc::EBADF).kind())),
        (Errno(libc::EFAULT), Final(io::Error::from_raw_os_error(libc::EFAULT).kind())),
        (Errno(libc::EIO), Final(uncategorized)),
        (Errno(libc::ENOTSOCK), Final(io::Error::from_raw_os_error(libc::ENOTSOCK).kind())),
        (Errno(libc::EOPNOTSUPP), Final(io::Error::from_raw_os_error(libc::EOPNOTSUPP).kind())),
        (Errno(libc::ESHUTDOWN), Final(io::Error::from_raw_os_error(libc::ESHUTDOWN).kind())),
        (Kind(K::UnexpectedEof), Final(K::UnexpectedEof)),
    ];
    let pieces = pieces(&[8, 12]);
    for (step, outcome) in table {
        for before in [0, 1, 8, 19] {
            let mut steps = vec![step];
            if before > 0 {
                steps.insert(0, Accept(before));
            }
            let script = ScriptedSend::new(steps);
            let mut sender = StreamSender::new(&script);
            let mut outgoing = message(&pieces);
            let result = sender.send(&mut outgoing);
            match &outcome {
                Retried => assert_eq!(result, Ok(Progress::Done), "{step:?} after {before}"),
                Outcome::Blocked(reason) => {
                    assert_eq!(result, Ok(Progress::Blocked(*reason)), "{step:?} after {before}");
                    assert_eq!(outgoing.sent(), before as u64);
                    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
                }
                Final(kind) => {
                    let error = result.expect_err("a final error");
                    assert_eq!(error.kind(), SendErrorKind::Io(*kind), "{step:?} after {before}");
                    assert_eq!(error.sent(), before as u64, "{step:?} after {before}");
                    let errno = if let Errno(errno) = step { Some(errno) } else { None };
                    assert_eq!(error.raw_os_error(), errno);
                    assert_eq!(outgoing.sent(), before as u64);
                    assert_eq!(sender.death(), Some(&error));
                    assert_eq!(io::Error::from(error).kind(), *kind);
                    let refused = sender.send(&mut outgoing).expect_err("the stream is dead");
                    assert_eq!(refused.kind(), SendErrorKind::Dead);
                    assert_eq!(sender.send(&mut message(&pieces)).unwrap_err().kind(), SendErrorKind::Dead);
                    assert_eq!(script.wire(), wire(&pieces)[..before]);
                    continue;
                }
            }
            assert_eq!(script.wire(), wire(&pieces), "{step:?} after {before}");
            assert_eq!(sender.death(), None);
        }
    }
}

#[test]
fn nothing_taken_is_an_error_at_once_and_more_than_offered_is_not_believed() {
    for before in [0, 7] {
        for (step, kind) in [
            (Zero, SendErrorKind::WriteZero),
            (Claim(21), SendErrorKind::Overrun),
            (Claim(usize::MAX), SendErrorKind::Overrun),
        ] {
            let pieces = pieces(&[8, 12]);
            let script = ScriptedSend::new([Accept(before), step].into_iter().skip(usize::from(before == 0)));
            let mut sender = StreamSender::new(&script);
            let mut outgoing = message(&pieces);
            let error = sender.send(&mut outgoing).unwrap_err();
            assert_eq!((error.kind(), error.sent()), (kind, before as u64));
            assert_eq!(outgoing.sent(), before as u64);
            assert_eq!(sender.send(&mut outgoing).unwrap_err().kind(), SendErrorKind::Dead);
            let calls = 1 + usize::from(before > 0);
            assert_eq!(script.call_count(), calls);
        }
    }
}

/// tinyfugue 62, criu 2975, libphoenix 100: EINTR ended the transfer.
#[test]
fn a_thousand_interruptions_before_every_byte_change_nothing() {
    let pieces = pieces(&[3, 4, 2]);
    let steps: Vec<SendStep> =
        (0..9).flat_map(|_| [Interrupted; 1000].into_iter().chain([Accept(1)])).collect();
    let script = ScriptedSend::new(steps);
    let mut sender = StreamSender::new(&script);
    assert_eq!(sender.send(&mut message(&pieces)), Ok(Progress::Done));
    assert_eq!(script.wire(), wire(&pieces));
    assert_eq!(script.call_count(), 9 * 1001); // and not one more
}

#[test]
fn a_peer_that_closes_at_any_byte_leaves_the_count_and_a_dead_stream() {
    let pages = [vec![1; 40], vec![2; 50]];
    for errno in [libc::EPIPE, libc::ECONNRESET] {
        for at in 0..=115 {
            let mut outgoing = Outgoing::new(framed(ChainBuilder::new(), 4, &pages, 21, true));
            assert_eq!(outgoing.len(), 115);
            let script = ScriptedSend::new([Accept(at), Errno(errno)].into_iter().skip(usize::from(at == 0)));
            let mut sender = StreamSender::new(&script);
            let result = sender.send(&mut outgoing);
            if at == 115 {
                assert_eq!(result, Ok(Progress::Done));
                continue;
            }
            let error = result.unwrap_err();
            assert_eq!((error.sent(), error.raw_os_error()), (at as u64, Some(errno)));
            assert_eq!(sender.send(&mut outgoing).unwrap_err().kind(), SendErrorKind::Dead);
        }
    }
}

/// A signal would end the test process.
#[test]
fn a_closed_peer_is_an_error_and_not_a_signal() {
    let (socket, peer) = UnixStream::pair().unwrap();
    drop(peer);
    let mut sender = StreamSender::new(SocketRef::new(socket));
    let pieces = pieces(&[10]);
    let error = sender.send_blocking(&mut message(&pieces), Some(Instant::now() + LONG)).unwrap_err();
    assert_eq!(error.kind(), SendErrorKind::Io(io::ErrorKind::BrokenPipe));
    assert_eq!(error.to_string(), "Broken pipe (os error 32) (0 bytes of the message had left)");
}

#[test]
fn errors_can_be_cloned_to_everybody_and_become_io_errors() {
    let pieces = pieces(&[8]);
    let script = ScriptedSend::new([Accept(3), Errno(libc::ECONNRESET)]);
    let mut sender = StreamSender::new(&script);
    let mut outgoing = message(&pieces);
    let error: SendError = sender.send(&mut outgoing).unwrap_err();
    let copy = error.clone();
    assert_eq!(io::Error::from(copy).kind(), io::ErrorKind::ConnectionReset);
    let dead = sender.send(&mut outgoing).unwrap_err();
    assert_eq!(io::Error::from(dead).kind(), io::ErrorKind::BrokenPipe);
    assert!(error.to_string().ends_with("(3 bytes of the message had left)"), "{error}");
}

// ---- deadlines

#[test]
fn a_deadline_in_the_middle_of_a_message_tells_the_count_and_kills_the_stream() {
    let pieces = pieces(&[8, 12]);
    for before in [1, 8, 19] {
        let script = ScriptedSend::new([Accept(before)]).then(Again).waits([], WaitStep::Late);
        let mut sender = StreamSender::new(&script);
        let mut outgoing = message(&pieces);
        let start = Instant::now();
        let deadline = start + Duration::from_millis(20);
        let error = sender.send_blocking(&mut outgoing, Some(deadline)).unwrap_err();
        assert_eq!((error.kind(), error.sent()), (SendErrorKind::Deadline, before as u64));
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert!(start.elapsed() < LONG);
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
        assert_eq!(sender.send(&mut outgoing).unwrap_err().kind(), SendErrorKind::Dead);
    }
}

#[test]
fn a_deadline_between_two_messages_leaves_the_stream_alive() {
    let (first, second) = (pieces(&[8]), pieces(&[5]));
    let script = ScriptedSend::new([Accept(8), Again, Again]).waits([WaitStep::Late], WaitStep::Ready);
    let mut sender = StreamSender::new(&script);
    let mut batch = [message(&first), message(&second)];
    let deadline = Instant::now() + Duration::from_millis(10);
    let error = sender.send_batch_blocking(&mut batch, Some(deadline)).unwrap_err();
    assert_eq!((error.kind(), error.sent()), (SendErrorKind::Deadline, 0));
    assert!(batch[0].is_complete());
    assert_eq!((sender.death(), sender.open_message()), (None, None));
    sender.send_batch_blocking(&mut batch, Some(Instant::now() + LONG)).unwrap();
    assert_eq!(script.wire(), [wire(&first), wire(&second)].concat());
}

#[test]
fn a_deadline_that_has_passed_still_sends_what_the_transport_takes() {
    let pieces = pieces(&[8]);
    let script = ScriptedSend::new([Accept(3), Interrupted, All]);
    let mut sender = StreamSender::new(&script);
    sender.send_blocking(&mut message(&pieces), Some(Instant::now())).unwrap();
    assert_eq!(script.wire(), wire(&pieces));
    assert!(script.wait_calls().is_empty());
}

#[test]
fn only_a_deadline_cuts_a_call_to_look_at_the_clock() {
    let page = vec![7; 1 << 20];
    let mut out = ChainBuilder::new();
    for _ in 0..40 {
        out.put(b"head");
        out.push_borrowed(&page);
    }
    let sealed = Arc::new(out.finish().expect("a chain without mistakes").seal_all());
    for (deadline, calls) in [(None, 1), (Some(Instant::now() + LONG), 3)] {
        let mut sender = StreamSender::new(ScriptedSend::new([]));
        sender.send_blocking(&mut Outgoing::shared(sealed.clone()), deadline).unwrap();
        assert_eq!(sender.stats().calls, calls);
    }
}

#[test]
fn waits_that_come_back_early_are_repeated_with_what_is_left_of_the_time() {
    let pieces = pieces(&[8]);
    let script =
        ScriptedSend::new([Again, Accept(2), Again, Again]).waits([WaitStep::Early; 2], WaitStep::Ready);
    let mut sender = StreamSender::new(&script);
    sender.send_blocking(&mut message(&pieces), Some(Instant::now() + LONG)).unwrap();
    let waits = script.wait_calls();
    assert_eq!(waits.len(), 3);
    assert!(waits.is_sorted_by(|a, b| a >= b) && waits[0] <= Some(LONG));
    assert_eq!(script.wire(), wire(&pieces));
}

#[test]
fn lack_of_memory_is_slept_over_and_not_polled() {
    let pieces = pieces(&[8, 12]);
    let script = ScriptedSend::new([
        Errno(libc::ENOBUFS),
        Accept(3),
        Errno(libc::ENOMEM),
        Kind(io::ErrorKind::OutOfMemory),
    ]);
    let mut sender = StreamSender::new(&script);
    let start = Instant::now();
    sender.send_blocking(&mut message(&pieces), Some(start + LONG)).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(1 + 1 + 2)); // progress starts the pauses again from 1 ms
    assert!(script.wait_calls().is_empty());
    assert_eq!(script.wire(), wire(&pieces));

    let script = ScriptedSend::new([Accept(3)]).then(Errno(libc::ENOBUFS));
    let mut sender = StreamSender::new(&script);
    let deadline = Instant::now() + Duration::from_millis(30);
    let error = sender.send_blocking(&mut message(&pieces), Some(deadline)).unwrap_err();
    assert_eq!((error.kind(), error.sent()), (SendErrorKind::Deadline, 3));
    // 1 + 2 + 4 + 8 + the rest of 30 ms: no busy waiting.
    assert!(script.call_count() <= 8, "{} calls", script.call_count());
}

#[test]
fn a_wait_that_fails_ends_the_stream() {
    let pieces = pieces(&[8]);
    let script = ScriptedSend::new([Accept(3)]).then(Again).waits([], WaitStep::Errno(libc::EBADF));
    let mut sender = StreamSender::new(&script);
    let error = sender.send_blocking(&mut message(&pieces), None).unwrap_err();
    assert_eq!((error.raw_os_error(), error.sent()), (Some(libc::EBADF), 3));
    assert!(sender.death().is_some());
}

/// mojito-async 182: whether a socket blocks is the kernel's business, so this one is filled until it does.
#[test]
fn a_full_socket_blocks_and_goes_on_when_it_is_read() {
    let pieces = pieces(&[1 << 20; 8]);
    let (socket, peer) = UnixStream::pair().unwrap();
    let socket = SocketRef::new(socket);
    socket.set_send_buffer(32 << 10).unwrap();
    let mut sender = StreamSender::new(socket);
    let mut outgoing = message(&pieces);
    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Blocked(Blocked::Full)));
    let sent = outgoing.sent();
    let late = sender.send_blocking(&mut message(&pieces), Some(Instant::now())).unwrap_err();
    assert_eq!(late.kind(), SendErrorKind::AnotherOpen);
    let reader = read_all(peer);
    sender.send_blocking(&mut outgoing, Some(Instant::now() + LONG)).unwrap();
    drop(sender);
    assert!(sent < 8 << 20);
    assert!(reader.join().unwrap().unwrap() == wire(&pieces));
}

// ---- whole message or dead stream

/// vstest 16445, vm0 12205: a send was given up in the middle, and the stream was used again.
#[test]
fn a_stream_whose_open_message_is_dropped_refuses_everything_for_ever() {
    let pieces = pieces(&[8, 12]);
    let script = ScriptedSend::new([Accept(5), Again]);
    let mut sender = StreamSender::new(&script);
    {
        let mut outgoing = message(&pieces);
        assert_eq!(sender.send(&mut outgoing), Ok(Progress::Blocked(Blocked::Full)));
        assert_eq!(sender.open_message(), Some(outgoing.id()));
    }
    for _ in 0..3 {
        let error = sender.send(&mut message(&pieces)).unwrap_err();
        assert_eq!((error.kind(), error.sent()), (SendErrorKind::AnotherOpen, 0));
    }
    assert_eq!(script.call_count(), 2);
    // Nor is a complete or an empty message a way around it.
    assert_eq!(sender.send(&mut message(&[])), Ok(Progress::Done));
    assert!(sender.send_batch(&mut [message(&[]), message(&pieces)]).is_err());
    assert_eq!(script.taken(), 5);
}

#[test]
fn a_half_sent_message_in_the_back_of_a_batch_is_refused_before_any_call() {
    let pieces = pieces(&[8]);
    let elsewhere = ScriptedSend::new([Accept(3), Again]);
    let mut half_sent = message(&pieces);
    assert_eq!(StreamSender::new(&elsewhere).send(&mut half_sent), Ok(Progress::Blocked(Blocked::Full)));
    let script = ScriptedSend::new([]);
    let mut sender = StreamSender::new(&script);
    let error = sender.send_batch(&mut [message(&pieces), half_sent]).unwrap_err();
    assert_eq!((error.kind(), error.sent()), (SendErrorKind::HalfSentElsewhere, 3));
    assert_eq!((script.call_count(), sender.death()), (0, None));
}

/// tokio 3900, 6877: progress that a future keeps is lost with it. Here the message keeps it.
#[test]
fn a_blocking_send_that_was_given_up_is_gone_on_with_by_the_message_itself() {
    let pieces = pieces(&[8, 12]);
    let script = ScriptedSend::new([Accept(5), Again, Accept(5), Again]);
    let mut sender = StreamSender::new(&script);
    let mut outgoing = message(&pieces);
    let mut turns = 0;
    while sender.send(&mut outgoing).unwrap() != Progress::Done {
        turns += 1;
    }
    assert_eq!((turns, script.wire()), (2, wire(&pieces)));
}

/// hyper 4143: bytes were queued and nobody was told to flush. After each turn every byte is on the wire, or the transport
/// has said that it takes no more.
#[test]
fn a_turn_ends_done_or_with_a_transport_that_has_blocked() {
    let mut random = Random::new(seed("a_turn_ends_done_or_with_a_transport_that_has_blocked"));
    for _ in 0..20_000 {
        let lens: Vec<usize> = (0..=random.below(9)).map(|_| random.below(40)).collect();
        let pieces = pieces(&lens);
        let steps: Vec<SendStep> = (0..random.below(12))
            .map(|_| match random.below(6) {
                0 => Again,
                1 => Interrupted,
                2 => Errno(libc::ENOBUFS),
                3 => FirstSlice,
                _ => Accept(1 + random.below(60)),
            })
            .collect();
        let slices = 1 + random.below(5);
        let script = ScriptedSend::new(steps.iter().copied()).caps(slices, MAX_BYTES);
        let mut sender = StreamSender::with_options(&script, SendOptions::new().max_slices(slices));
        let mut outgoing = message(&pieces);
        script.expect_flush(outgoing.len());
        loop {
            let progress = sender.send(&mut outgoing).unwrap();
            assert_eq!(outgoing.sent(), script.taken());
            script.assert_uncorked();
            if progress == Progress::Done {
                break;
            }
            let last = script.calls().pop().unwrap();
            assert!(last.result.is_err(), "{lens:?} by {steps:?}");
        }
        assert!(script.wire_is(&wire(&pieces)), "{lens:?} by {steps:?}");
    }
}

// ---- MSG_MORE

/// uWebSockets 639, falcore 35: a flag left on by one way out held the end of a message back for 200 ms.
#[test]
fn more_is_said_if_and_only_if_bytes_of_the_flush_remain_unoffered() {
    let pieces = pieces(&[5, 5, 5, 5, 5]);
    let more = |options: SendOptions, steps: &[SendStep]| {
        let script = ScriptedSend::new(steps.iter().copied());
        script.expect_flush(25);
        let mut sender = StreamSender::with_options(&script, options);
        let mut outgoing = message(&pieces);
        while sender.send(&mut outgoing).unwrap() != Progress::Done {}
        script.assert_uncorked();
        script.calls().iter().map(segchain_testkit::scripted::SendCall::more).collect::<Vec<_>>()
    };
    assert_eq!(more(SendOptions::new(), &[]), [false]);
    assert_eq!(more(SendOptions::new(), &[Accept(7), Again, Accept(3)]), [false; 4]);
    assert_eq!(more(SendOptions::new().max_slices(2), &[]), [true, true, false]);
    assert_eq!(more(SendOptions::new().max_bytes(10), &[]), [true, true, false]);
    // The third call offers the last bytes, the fourth too: after the short write they are what is left.
    assert_eq!(more(SendOptions::new().max_slices(2), &[All, All, Accept(1)]), [true, true, false, false]);
    assert_eq!(more(SendOptions::new().max_slices(2), &[Accept(3), Again]), [true, true, true, true, false]);
}

#[test]
fn the_last_call_of_a_turn_says_that_nothing_follows() {
    let pieces = pieces(&[5; 10]);
    let script = ScriptedSend::new([]);
    let options = SendOptions::new().max_slices(2).turn_bytes(20);
    let mut sender = StreamSender::with_options(&script, options);
    let mut outgoing = message(&pieces);
    for (turn, progress) in [(20, Progress::Budget), (20, Progress::Budget), (10, Progress::Done)] {
        script.expect_flush(turn);
        assert_eq!(sender.send(&mut outgoing), Ok(progress));
        script.assert_uncorked();
    }
    assert_eq!(script.wire(), wire(&pieces));
    // The blocking form is not stopped by its own turns.
    let script = ScriptedSend::new([]);
    let mut sender = StreamSender::with_options(&script, SendOptions::new().turn_bytes(7));
    sender.send_blocking(&mut message(&pieces), None).unwrap();
    assert_eq!((script.wire(), script.call_count()), (wire(&pieces), 8));
}

#[test]
fn more_covers_the_whole_batch() {
    let pieces = pieces(&[5, 5]);
    let script = ScriptedSend::new([]);
    script.expect_flush(30);
    let mut sender = StreamSender::with_options(&script, SendOptions::new().max_slices(3));
    assert_eq!(
        sender.send_batch(&mut [message(&pieces), message(&pieces), message(&pieces)]),
        Ok(Progress::Done)
    );
    let calls = script.calls();
    assert_eq!(calls.iter().map(|call| call.slices.len()).collect::<Vec<_>>(), [3, 3]);
    assert_eq!(sender.stats().messages, 3);
}

/// The symptom of uWebSockets 639 over a real connection: the last byte of a message that took several calls comes late.
#[test]
fn the_tail_of_a_message_of_several_calls_is_not_held_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(LONG)).unwrap();
    let pieces = pieces(&[100, 100, 1]);
    let socket = SocketRef::new(client);
    socket.set_nodelay(true).unwrap();
    let mut sender = StreamSender::with_options(socket, SendOptions::new().max_slices(1));
    let mut times: Vec<Duration> = (0..50)
        .map(|_| {
            let start = Instant::now();
            sender.send_blocking(&mut message(&pieces), Some(start + LONG)).unwrap();
            let mut arrived = [0; 201];
            server.read_exact(&mut arrived).unwrap();
            assert_eq!(arrived, *wire(&pieces));
            start.elapsed()
        })
        .collect();
    times.sort();
    assert!(times[25] < Duration::from_millis(100), "the median is {:?}", times[25]);
}

// ---- counts

#[test]
fn a_mebibyte_of_pages_is_one_call() {
    let pages = pages(256);
    let script = ScriptedSend::new([]);
    script.expect_flush(77 + (1 << 20) + 21);
    let mut sender = StreamSender::new(&script);
    let mut outgoing = Outgoing::new(framed(ChainBuilder::new(), 77, &pages, 21, true));
    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
    let stats = sender.stats();
    assert_eq!((stats.calls, stats.slices), (1, 258));
    assert_eq!((stats.copied, stats.digested), (0, 1 << 20));
    let sum = crc(0x82f6_3b78, !0, &pages.concat()).to_le_bytes();
    let wire = script.wire();
    assert_eq!(wire[wire.len() - 21..][..4], sum);
}

#[test]
fn four_mebibytes_of_pages_are_two_calls_and_at_most_four_if_sealed_by_windows() {
    let pages = pages(1024);
    let total = 77 + (4 << 20) + 21;
    let run = |outgoing: &mut Outgoing<'_>| {
        let script = ScriptedSend::new([]);
        script.expect_flush(total);
        script.expect_frames(&[Shape::new(77, 4 << 20, 21)]);
        let mut sender = StreamSender::new(&script);
        assert_eq!(sender.send(outgoing), Ok(Progress::Done));
        assert_eq!(sender.stats().copied, 0);
        (script.wire(), sender.stats())
    };
    let (_, plain) = run(&mut Outgoing::new(framed(ChainBuilder::new(), 77, &pages, 21, false)));
    assert_eq!((plain.calls, plain.digested), (2, 0));
    let sealed = framed(ChainBuilder::new(), 77, &pages, 21, true).seal_all();
    let (wire, sealed) = run(&mut Outgoing::shared(Arc::new(sealed)));
    assert_eq!((sealed.calls, sealed.digested), (2, 0));
    let (windows_wire, windows) = run(&mut Outgoing::new(framed(ChainBuilder::new(), 77, &pages, 21, true)));
    assert!(windows.calls <= 4, "{} calls", windows.calls);
    assert_eq!(windows.digested, 4 << 20);
    assert!(windows_wire == wire);
    let sum = crc(0x82f6_3b78, !0, &pages.concat()).to_le_bytes();
    assert_eq!(wire[wire.len() - 21..][..4], sum);
}

#[test]
fn after_four_short_calls_in_a_row_one_is_offered_256_slices_and_after_a_full_one_1024() {
    let pages = pages(2048);
    let total = (8 << 20) + 98;
    let steps = [
        Accept(5000),
        Accept(5000),
        Again, // is no short call
        Accept(5000),
        Accept(5000),
        Accept(5000), // 256 from here on,
        Again,        // also after a wait;
        All,          // all of them are taken:
        Accept(1),    // 1024 again,
        All,          // and one short call changes nothing
    ];
    let script = ScriptedSend::new(steps);
    script.expect_flush(total);
    script.expect_frames(&[Shape::new(77, 8 << 20, 21)]);
    let mut sender = StreamSender::new(&script);
    let mut outgoing = Outgoing::new(framed(ChainBuilder::new(), 77, &pages, 21, false));
    for _ in 0..2 {
        assert_eq!(sender.send(&mut outgoing), Ok(Progress::Blocked(Blocked::Full)));
    }
    assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
    let offered: Vec<usize> = script.calls().iter().map(|call| call.slices.len()).collect();
    assert_eq!(offered[..9], [1024, 1024, 1024, 1024, 1024, 256, 256, 256, 1024]);
    assert_eq!(offered[9], 1024);
    assert_eq!(sender.stats().copied, 0);
}

/// The same with small messages behind a large one, wherever in them the limit falls.
#[test]
fn a_call_after_short_ones_leaves_no_bare_header_or_trailer_in_a_batch() {
    let few = pages(4);
    for first in 230..270 {
        let large = pages(first);
        let script = ScriptedSend::new([Accept(100); 4]);
        script.expect_flush(((first << 12) + 3 * (77 + (4 << 12) + 21)) as u64);
        let shape = Shape::new(77, 4 << 12, 21);
        script.expect_frames(&[Shape::new(0, (first as u64) << 12, 0), shape, shape, shape]);
        let mut out = ChainBuilder::new();
        for page in &large {
            out.push_borrowed(page);
        }
        let mut batch = vec![Outgoing::new(out.finish().unwrap())];
        batch.extend((0..3).map(|_| Outgoing::new(framed(ChainBuilder::new(), 77, &few, 21, true))));
        let mut sender = StreamSender::new(&script);
        assert_eq!(sender.send_batch(&mut batch), Ok(Progress::Done));
        let slices: Vec<usize> = script.calls()[4..].iter().map(|call| call.slices.len()).collect();
        assert!(slices.iter().all(|slices| *slices <= 256), "{slices:?}");
        assert_eq!(sender.stats().messages, 4);
        script.assert_uncorked();
    }
}

/// nuttx 3707: a server did not answer to a marker that came in a segment of its own.
#[test]
fn a_marker_or_header_or_trailer_never_leaves_alone() {
    for count in [1u64, 2, 3, 7, 300, 1022, 1023, 1024, 1025, 2046, 2047, 2048, 2049] {
        let pages: Vec<Vec<u8>> = (0..count).map(|_| vec![1; 1500]).collect();
        for max_slices in [3, 4, 16, MAX_SLICES] {
            for digest in [false, true] {
                let script = ScriptedSend::new([]).caps(max_slices, MAX_BYTES);
                let payload = 1500 * count;
                script.expect_flush(4 + payload + 4);
                script.expect_frames(&[Shape::new(4, payload, 4)]);
                let mut sender =
                    StreamSender::with_options(&script, SendOptions::new().max_slices(max_slices));
                let mut outgoing = Outgoing::new(framed(ChainBuilder::new(), 4, &pages, 4, digest));
                assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
                let least = (count + 2).div_ceil(max_slices as u64);
                let calls = sender.stats().calls;
                assert!(
                    calls <= least + 1 + u64::from(digest) * payload.div_ceil(1 << 19),
                    "{count} {max_slices}: {calls}"
                );
            }
        }
    }
}

/// Where the payload ends is further back by the markers in front of it.
#[test]
fn a_trailer_behind_fragments_never_leaves_alone() {
    let pages = vec![vec![1u8; 1500]; 5];
    for max in [1000, 1504, 4000, 7000] {
        for max_slices in 4..=12 {
            let script = ScriptedSend::new([]).caps(max_slices, MAX_BYTES);
            let options = SendOptions::new().max_slices(max_slices);
            let mut sender = StreamSender::with_options(&script, options);
            let mut out = ChainBuilder::new();
            out.fragment(max, |f| (f.len as u32).to_be_bytes());
            let mut outgoing = Outgoing::new(framed(out, 4, &pages, 4, false));
            assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
            let last = script.calls().last().map(|call| call.slices.iter().map(|slice| slice.1).sum());
            assert!(last > Some(4usize), "{last:?} bytes: fragments of {max}, {max_slices} slices a call");
        }
    }
}

/// The payload is one slice here: it is cut in two, so that the trailer has company.
#[test]
fn a_byte_limit_at_or_inside_the_trailer_leaves_payload_with_it() {
    let page = vec![vec![1u8; 10]];
    for max_bytes in 9..=18 {
        for digest in [false, true] {
            let script = ScriptedSend::new([]).caps(MAX_SLICES, max_bytes);
            script.expect_flush(18);
            script.expect_frames(&[Shape::new(4, 10, 4)]);
            let options = SendOptions::new().max_bytes(max_bytes);
            let mut sender = StreamSender::with_options(&script, options);
            let mut out = ChainBuilder::new();
            out.copy_below(0);
            let mut outgoing = Outgoing::new(framed(out, 4, &page, 4, digest));
            assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done), "{max_bytes} bytes a call");
        }
    }
}

#[test]
fn sealing_window_by_window_never_leaves_header_or_trailer_alone() {
    for kib in [1, 2047, 2048, 2049, 2560, 3000, 3071, 3072, 3073, 5000, 16384] {
        for page in [512, 4096, 65536] {
            let count = (kib << 10) / page + 1;
            let pages: Vec<Vec<u8>> = (0..count).map(|_| vec![1; page]).collect();
            let payload = (count * page) as u64;
            let script = ScriptedSend::new([]).counting_only();
            script.expect_flush(payload + 8);
            script.expect_frames(&[Shape::new(4, payload, 4)]);
            let mut sender = StreamSender::new(&script);
            let mut outgoing = Outgoing::new(framed(ChainBuilder::new(), 4, &pages, 4, true));
            assert_eq!(sender.send(&mut outgoing), Ok(Progress::Done));
            assert_eq!(sender.stats().digested, payload);
        }
    }
}

#[test]
fn small_messages_share_a_call() {
    let body = vec![7u8; 200];
    let script = ScriptedSend::new([]);
    let mut sender = StreamSender::new(&script);
    let mut batch: Vec<Outgoing<'_>> = (0..1000)
        .map(|_| Outgoing::new(framed(ChainBuilder::new(), 16, std::slice::from_ref(&body), 4, true)))
        .collect();
    script.expect_flush(220_000);
    assert_eq!(sender.send_batch(&mut batch), Ok(Progress::Done));
    // Each is one slice: the body is below the copy threshold.
    assert_eq!((sender.stats().calls, sender.stats().slices), (1, 1000));
    assert_eq!((sender.stats().messages, sender.stats().copied), (1000, 200_000));
    assert_eq!(script.taken(), 220_000);
}

// ---- datagrams

fn datagram(segments: usize) -> Vec<Vec<u8>> {
    pieces(&vec![3; segments])
}

#[test]
fn a_datagram_of_more_slices_than_a_call_takes_is_a_typed_error_before_any_call() {
    let script = ScriptedSend::new([]);
    let mut sender = DatagramSender::new(&script);
    let (many, most) = (datagram(MAX_SLICES + 1), datagram(MAX_SLICES));
    let error = sender.send(&mut chain(&many), None).unwrap_err();
    assert_eq!((error.kind(), error.sent()), (SendErrorKind::TooManySlices, 0));
    assert_eq!(script.call_count(), 0);
    assert_eq!(sender.send(&mut chain(&most), None), Ok(Progress::Done));
    assert_eq!(script.datagrams(), [(wire(&most), None)]);
}

#[test]
fn a_datagram_is_sent_whole_or_not_at_all_and_its_errors_end_nothing() {
    let to: SocketAddr = "192.0.2.1:111".parse().unwrap();
    let pieces = datagram(5);
    let script = ScriptedSend::new([
        Errno(libc::EMSGSIZE),
        Again,
        Errno(libc::ENOBUFS),
        Errno(libc::ECONNREFUSED),
        Accept(7),
        Interrupted,
        Interrupted,
        All,
    ]);
    let mut sender = DatagramSender::new(&script);
    let mut chain = chain(&pieces);
    let too_long = sender.send(&mut chain, Some(to)).unwrap_err();
    assert_eq!((too_long.kind(), too_long.raw_os_error()), (SendErrorKind::TooLong, Some(libc::EMSGSIZE)));
    assert_eq!(sender.send(&mut chain, Some(to)), Ok(Progress::Blocked(Blocked::Full)));
    assert_eq!(sender.send(&mut chain, Some(to)), Ok(Progress::Blocked(Blocked::Memory)));
    let refused = sender.send(&mut chain, Some(to)).unwrap_err();
    assert_eq!(refused.kind(), SendErrorKind::Io(io::ErrorKind::ConnectionRefused));
    let cut = sender.send(&mut chain, Some(to)).unwrap_err();
    assert_eq!((cut.kind(), cut.sent()), (SendErrorKind::Truncated, 7));
    assert_eq!(sender.send(&mut chain, Some(to)), Ok(Progress::Done));
    assert_eq!(script.datagrams().pop(), Some((wire(&pieces), Some(to))));
    // Each try offers all of it.
    assert!(script.calls().iter().all(|call| call.offered == 15));
    assert_eq!((sender.stats().messages, sender.stats().blocked), (1, 2));
}

#[test]
fn an_empty_datagram_chain_makes_no_call() {
    let script = ScriptedSend::new([]);
    let mut sender = DatagramSender::new(&script);
    assert_eq!(sender.send(&mut chain(&pieces(&[0, 0])), None), Ok(Progress::Done));
    assert_eq!(script.call_count(), 0);
}

#[test]
fn datagrams_arrive_over_udp_each_by_itself() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(LONG)).unwrap();
    let to = peer.local_addr().unwrap();
    let mut sender = DatagramSender::new(SocketRef::new(UdpSocket::bind("127.0.0.1:0").unwrap()));
    let pages = [vec![1; 300], vec![2; 1200]];
    for _ in 0..3 {
        let mut chain = framed(ChainBuilder::new(), 20, &pages, 4, true);
        assert_eq!(sender.send(&mut chain, Some(to)), Ok(Progress::Done));
        let mut arrived = [0; 4096];
        let len = peer.recv(&mut arrived).unwrap();
        let payload = pages.concat();
        let sum = crc(0x82f6_3b78, !0, &payload).to_le_bytes();
        assert_eq!(arrived[..len], [&[0xa5; 20][..], &payload, &sum].concat());
    }
    // Longer than any UDP datagram.
    let mut out = ChainBuilder::new();
    out.push_zeros(70_000);
    let error = sender.send(&mut out.finish().unwrap(), Some(to)).unwrap_err();
    assert_eq!(error.kind(), SendErrorKind::TooLong);
    // A connected one needs no address.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(to).unwrap();
    let pieces = datagram(2);
    assert_eq!(
        DatagramSender::new(SocketRef::new(socket)).send(&mut chain(&pieces), None),
        Ok(Progress::Done)
    );
    let mut arrived = [0; 16];
    assert_eq!(peer.recv(&mut arrived).unwrap(), 6);
    assert_eq!(arrived[..6], wire(&pieces));
}

/// Reads to the end of the stream, with a timeout, in another thread.
fn read_all<S: Read + Timeout + Send + 'static>(mut stream: S) -> JoinHandle<io::Result<Vec<u8>>> {
    thread::spawn(move || {
        stream.set_timeout(LONG)?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

trait Timeout {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
}

impl Timeout for UnixStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))
    }
}

impl Timeout for TcpStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))
    }
}

#[test]
fn only_messages_whose_last_byte_left_are_counted() {
    let script = ScriptedSend::new([All]); // in one call, with the empty ones among them
    let mut sender = StreamSender::new(&script);
    let message = |bytes: &[u8]| {
        let mut out = ChainBuilder::new();
        out.put(bytes);
        Outgoing::new(out.finish().expect("a good chain"))
    };
    let mut batch = [message(b"a"), message(b""), message(b"bc"), message(b"")];
    assert_eq!(sender.send_batch(&mut batch), Ok(Progress::Done));
    assert_eq!(sender.send_batch(&mut batch), Ok(Progress::Done));
    assert_eq!(sender.stats().messages, 2);
}

#[test]
fn a_stream_whose_open_message_was_dropped_can_be_given_up_and_says_so() {
    let script = ScriptedSend::new([Accept(3), Again]);
    let mut sender = StreamSender::new(&script);
    sender.abandon();
    assert_eq!(sender.death(), None, "nothing was open");
    let mut out = ChainBuilder::new();
    out.put(b"dropped");
    let mut message = Outgoing::new(out.finish().expect("a good chain"));
    assert!(matches!(sender.send(&mut message), Ok(Progress::Blocked(_))));
    drop(message);
    sender.abandon();
    let death = sender.death().expect("it was open");
    assert_eq!((death.kind(), death.sent()), (SendErrorKind::Revoked, 3));
    let mut other = Outgoing::new(ChainBuilder::new().finish().expect("a good chain"));
    assert_eq!(sender.send(&mut other).map_err(|error| error.kind()), Err(SendErrorKind::Dead));
}
