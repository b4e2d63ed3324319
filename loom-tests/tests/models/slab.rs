//! The slab pool.

use std::ops::ControlFlow;

use bytes::Buf;
use loom::thread;
use segchain::framer::{BodyReq, Deframer, Filled, Landed, Place, Step, Targets};
use segchain::recv::{Received, Receiver, RecvOptions};
use segchain::slab::{SLAB, SlabBuf, SlabPool};
use segchain_loom_tests::{Seen, Source};

/// Bodies of one slab, and nothing else.
#[derive(Default)]
struct Bodies(Option<SlabBuf>);

impl Deframer for Bodies {
    type Frame<'h> = SlabBuf;
    type Error = std::convert::Infallible;

    fn decode(&mut self, _: &[u8], _: &mut dyn Targets) -> Result<Step<SlabBuf>, Self::Error> {
        Ok(match self.0.take() {
            Some(frame) => Step::Frame { frame, head: 0 },
            None => Step::Body { head: 0, req: BodyReq::new(SLAB as u64, Place::Slabs { offset: 0 }) },
        })
    }

    fn body(&mut self, piece: Filled) -> Result<(), Self::Error> {
        if let Landed::Slabs(body) = piece.landed {
            self.0 = Some(body);
        }
        Ok(())
    }
}

/// Two receivers share a pool that keeps one slab: neither sees the other's bytes, and one slab is kept, not two.
pub(crate) fn a_pool_keeps_what_it_may(seen: &Seen) {
    let pool = SlabPool::new(1);
    let receive = |byte: u8| {
        let (pool, seen) = (pool.clone(), seen.clone());
        move || {
            let options = RecvOptions::default().read_ahead(64);
            let mut receiver = Receiver::with_options(Source(byte), Bodies::default(), options, pool.clone());
            if pool.free() == 1 {
                seen.note("recycled");
            }
            let received = receiver.receive(&mut (), |body| {
                assert_eq!(body.len(), SLAB as u64);
                assert!(pool.live() <= 2);
                assert!(body.chunk().iter().all(|landed| *landed == byte), "another body's bytes");
                ControlFlow::Break(())
            });
            assert!(matches!(received, Ok(Received::Stopped)));
        }
    };
    let other = thread::spawn(receive(1));
    receive(2)();
    other.join().expect("a receiver");
    assert_eq!((pool.free(), pool.live()), (1, 0));
}
