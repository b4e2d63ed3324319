//! What framing and sending a message costs in user space: everything but the system call, on a transport that takes
//! all it is offered and does nothing.
//!
//! The target: at most 150 ns a message and 8 ns a page, without an allocation in the steady state (that part is a test).

use std::hint::black_box;
use std::io::{self, IoSlice};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use segchain::chain::{ChainBuilder, Outgoing};
use segchain::checksum::Crc32c;
use segchain::send::StreamSender;
use segchain::transport::{SendFlags, VectoredSend};

struct Nothing;

impl VectoredSend for Nothing {
    fn send_vectored(&self, bufs: &[IoSlice<'_>], _: SendFlags) -> io::Result<usize> {
        Ok(black_box(bufs).iter().map(|buf| buf.len()).sum())
    }
}

fn frame_and_send(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame_and_send");
    for count in [1, 16, 256, 1024] {
        let pages: Vec<Vec<u8>> = (0..count).map(|i| vec![i as u8; 4096]).collect();
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::new("pages", count), |bencher| {
            let mut sender = StreamSender::new(Nothing);
            let mut recycled = Some(ChainBuilder::new().finish().expect("empty"));
            bencher.iter(|| {
                let mut out = recycled.take().expect("recycled").recycle();
                out.put(&[7; 54]);
                for page in &pages {
                    out.push_borrowed(page);
                }
                out.put(&[9; 21]);
                let mut message = Outgoing::new(out.finish().expect("a good chain"));
                let progress = sender.send(&mut message).expect("sent");
                let _ = black_box(progress);
                recycled = message.into_chain();
            });
        });
    }
    group.finish();
}

/// The same with the header and footer checksums of a Ceph v1 message: what they add is what the digest costs.
fn frame_seal_and_send(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame_seal_and_send");
    for count in [1u64, 16, 256] {
        let pages: Vec<Vec<u8>> = (0..count).map(|i| vec![i as u8; 4096]).collect();
        group.throughput(Throughput::Bytes(count * 4096));
        group.bench_function(BenchmarkId::new("pages", count), |bencher| {
            let mut sender = StreamSender::new(Nothing);
            let mut recycled = Some(ChainBuilder::new().finish().expect("empty"));
            bencher.iter(|| {
                let mut out = recycled.take().expect("recycled").recycle();
                let header = out.put(&[7; 49]);
                let crc = out.put_u32_le(0);
                out.slot(header..crc, Crc32c::raw(0), crc);
                let data = out.here();
                for page in &pages {
                    out.push_borrowed(page);
                }
                let footer = out.put(&[0; 21]);
                out.slot(data..footer, Crc32c::raw(0), footer.at(8, 4));
                let mut message = Outgoing::new(out.finish().expect("a good chain"));
                let progress = sender.send(&mut message).expect("sent");
                let _ = black_box(progress);
                recycled = message.into_chain();
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(std::time::Duration::from_secs(2)).warm_up_time(std::time::Duration::from_millis(500));
    targets = frame_and_send, frame_seal_and_send
}
criterion_main!(benches);
