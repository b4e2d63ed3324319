//! What a frame costs on the receiving side, without the system call: small records borrowed from the read-ahead, the same
//! through the straight-line adapter, and bodies into slabs.

use std::cell::Cell;
use std::convert::Infallible;
use std::hint::black_box;
use std::io::{self, IoSliceMut};
use std::ops::ControlFlow;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use segchain::framer::{BodyReq, Deframer, Filled, Landed, Place, Step, Targets};
use segchain::recv::Receiver;
use segchain::straight::Straight;
use segchain::transport::VectoredRecv;

/// The same records over and over, as much as is asked for, until `left` is used up.
struct Records {
    stream: Vec<u8>,
    at: Cell<usize>,
    left: Cell<usize>,
}

impl Records {
    fn new(len: u32, count: usize) -> Self {
        let record = [&len.to_be_bytes()[..], &vec![7; len as usize]].concat();
        Self { stream: record.repeat(count), at: Cell::new(0), left: Cell::new(0) }
    }
}

impl VectoredRecv for &Records {
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut filled = 0;
        for buf in bufs {
            let n = buf.len().min(self.left.get()).min(self.stream.len() - self.at.get());
            buf[..n].copy_from_slice(&self.stream[self.at.get()..self.at.get() + n]);
            self.at.set((self.at.get() + n) % self.stream.len());
            self.left.set(self.left.get() - n);
            filled += n;
            if n < buf.len() {
                break;
            }
        }
        if filled == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(filled) }
    }
}

/// A length and that many bytes, borrowed if they are short, in slabs if not.
struct Lengths(Option<Filled>);

enum Frame<'h> {
    Borrowed(&'h [u8]),
    Slabs(Filled),
}

impl Deframer for Lengths {
    type Frame<'h> = Frame<'h>;
    type Error = Infallible;

    fn decode<'h>(&mut self, head: &'h [u8], _: &mut dyn Targets) -> Result<Step<Frame<'h>>, Infallible> {
        if let Some(body) = self.0.take() {
            return Ok(Step::Frame { frame: Frame::Slabs(body), head: 0 });
        }
        let Some(len) = head.first_chunk() else { return Ok(Step::Need(4)) };
        let len = u32::from_be_bytes(*len) as usize;
        if len > 4096 {
            return Ok(Step::Body { head: 4, req: BodyReq::new(len as u64, Place::Slabs { offset: 0 }) });
        }
        Ok(match head.get(4..4 + len) {
            Some(record) => Step::Frame { frame: Frame::Borrowed(record), head: 4 + len },
            None => Step::Need(4 + len),
        })
    }

    fn body(&mut self, piece: Filled) -> Result<(), Infallible> {
        self.0 = Some(piece);
        Ok(())
    }
}

fn records(criterion: &mut Criterion) {
    const COUNT: usize = 1000;
    let mut group = criterion.benchmark_group("recv_200_byte_records");
    group.throughput(Throughput::Elements(COUNT as u64));
    let records = Records::new(200, COUNT);
    group.bench_function("borrowed", |bencher| {
        let mut receiver = Receiver::new(&records, Lengths(None));
        bencher.iter(|| {
            records.left.set(records.stream.len());
            let received = receiver.receive(&mut (), |frame| {
                if let Frame::Borrowed(record) = frame {
                    black_box(record);
                }
                ControlFlow::Continue(())
            });
            black_box(received.is_ok())
        });
    });
    group.bench_function("straight", |bencher| {
        let deframer = Straight::new(|mut wire| async move {
            let len = u32::from_be_bytes(wire.array().await);
            match wire.body(BodyReq::new(len.into(), Place::Contiguous)).await.landed {
                Landed::Contiguous(record) => Ok::<_, Infallible>(Some(record)),
                _ => Ok(None),
            }
        });
        let mut receiver = Receiver::new(&records, deframer);
        bencher.iter(|| {
            records.left.set(records.stream.len());
            let received = receiver.receive(&mut (), |record| {
                black_box(record);
                ControlFlow::Continue(())
            });
            black_box(received.is_ok())
        });
    });
    group.finish();
}

fn bodies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("recv_bodies");
    for len in [64 << 10, 1 << 20] {
        let records = Records::new(len, 4);
        group.throughput(Throughput::Bytes(4 * u64::from(len)));
        group.bench_function(format!("slabs/{}k", len >> 10), |bencher| {
            let mut receiver = Receiver::new(&records, Lengths(None));
            bencher.iter(|| {
                records.left.set(records.stream.len());
                let received = receiver.receive(&mut (), |frame| {
                    if let Frame::Slabs(body) = frame {
                        black_box(body);
                    }
                    ControlFlow::Continue(())
                });
                black_box(received.is_ok())
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(std::time::Duration::from_secs(1))
        .warm_up_time(std::time::Duration::from_millis(300));
    targets = records, bodies
}
criterion_main!(benches);
