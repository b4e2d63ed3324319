//! The built-in checksums against the crates beneath them, on pages scattered in memory and on one short
//! header; `concat` against the crates' own combine.
//!
//! `cargo bench --bench checksum`; with `-- crc32c` or `-- concat`, a part of it.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use segchain::checksum::{Checksum, Crc32, Crc32c, Digest};

const PAGE: usize = 4096;

/// Pages of one arena in an order that no prefetcher follows.
struct Scattered {
    arena: Vec<u8>,
    order: Vec<usize>,
}

impl Scattered {
    fn new(pages: usize) -> Self {
        let arena = (0..pages * PAGE).map(|i| (i * 31 + i / 251) as u8).collect();
        // 7919 is prime, so every page comes once as long as their number is not a multiple of it.
        let order = (0..pages).map(|i| i * 7919 % pages).collect();
        Self { arena, order }
    }

    fn pages(&self) -> impl Iterator<Item = &[u8]> {
        self.order.iter().map(|&page| &self.arena[page * PAGE..][..PAGE])
    }
}

fn scattered_pages(c: &mut Criterion) {
    for pages in [1, 16, 64, 256] {
        let memory = Scattered::new(pages);
        let bytes = (pages * PAGE) as u64;

        let mut group = c.benchmark_group("crc32c_pages");
        group.throughput(Throughput::Bytes(bytes));
        group.bench_function(BenchmarkId::new("segchain", pages), |b| {
            b.iter(|| {
                let mut crc = Crc32c::raw(black_box(!0));
                memory.pages().for_each(|page| crc.update(page));
                crc.value()
            });
        });
        group.bench_function(BenchmarkId::new("segchain_digest", pages), |b| {
            b.iter(|| {
                let mut crc = Digest::new(Crc32c::raw(black_box(!0)));
                memory.pages().for_each(|page| crc.update(page));
                crc.value()
            });
        });
        group.bench_function(BenchmarkId::new("crc_fast", pages), |b| {
            b.iter(|| {
                let seed = black_box(0xffff_ffff);
                let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
                let mut crc = crc_fast::Digest::new_with_init_state(algorithm, seed);
                memory.pages().for_each(|page| crc.update(page));
                crc.get_state()
            });
        });
        group.bench_function(BenchmarkId::new("crc32c", pages), |b| {
            b.iter(|| memory.pages().fold(black_box(0), crc32c::crc32c_append));
        });
        group.finish();

        let mut group = c.benchmark_group("crc32_pages");
        group.throughput(Throughput::Bytes(bytes));
        group.bench_function(BenchmarkId::new("segchain", pages), |b| {
            b.iter(|| {
                let mut crc = Crc32::raw(black_box(!0));
                memory.pages().for_each(|page| crc.update(page));
                crc.value()
            });
        });
        group.bench_function(BenchmarkId::new("crc32fast", pages), |b| {
            b.iter(|| {
                let mut crc = crc32fast::Hasher::new_with_initial(black_box(0));
                memory.pages().for_each(|page| crc.update(page));
                crc.finalize()
            });
        });
        group.finish();
    }
}

fn short_header(c: &mut Criterion) {
    let header = [0x5a; 128];
    let mut group = c.benchmark_group("short");
    for len in [8, 50, 128] {
        let bytes = &header[..len];
        group.bench_function(BenchmarkId::new("segchain_crc32c", len), |b| {
            b.iter(|| {
                let mut crc = Crc32c::raw(black_box(!0));
                crc.update(black_box(bytes));
                crc.value()
            });
        });
        // Its digest is kept, so this is without the cost of making one.
        let mut kept = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        group.bench_function(BenchmarkId::new("crc_fast", len), |b| {
            b.iter(|| {
                kept.update(black_box(bytes));
                kept.get_state()
            });
        });
        group.bench_function(BenchmarkId::new("crc32c", len), |b| {
            b.iter(|| crc32c::crc32c_append(black_box(0), black_box(bytes)));
        });
        group.bench_function(BenchmarkId::new("segchain_crc32", len), |b| {
            b.iter(|| {
                let mut crc = Crc32::raw(black_box(!0));
                crc.update(black_box(bytes));
                crc.value()
            });
        });
    }
    group.finish();
}

fn concat(c: &mut Criterion) {
    let mut group = c.benchmark_group("concat");
    for len in [1 << 20, 1_000_003, u64::MAX] {
        let next = Crc32c::raw(0x1234_5678);
        group.bench_function(BenchmarkId::new("segchain", len), |b| {
            b.iter_batched_ref(
                || Crc32c::raw(0x8765_4321),
                |crc| crc.concat(black_box(&next), black_box(len)),
                BatchSize::SmallInput,
            );
        });
        group.bench_function(BenchmarkId::new("crc_fast", len), |b| {
            b.iter(|| {
                let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
                crc_fast::checksum_combine(algorithm, black_box(1), black_box(2), black_box(len))
            });
        });
        group.bench_function(BenchmarkId::new("crc32c", len), |b| {
            b.iter(|| crc32c::crc32c_combine(black_box(1), black_box(2), black_box(len) as usize));
        });
    }
    group.finish();
}

fn briefly() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(30)
}

criterion_group! {
    name = benches;
    config = briefly();
    targets = scattered_pages, short_header, concat
}
criterion_main!(benches);
