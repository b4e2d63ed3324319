//! Receiving through the public interface.

use std::convert::Infallible;

use bytes::Bytes;
use segchain::framer::{BodyReq, Deframer, Filled, Landed, Place, Step, Targets};
use segchain_testkit::conformance::Conformance;

#[derive(Debug, Default)]
struct Lengths(Option<Bytes>);

impl Deframer for Lengths {
    type Frame<'h> = Bytes;
    type Error = Infallible;

    fn decode<'h>(&mut self, head: &'h [u8], _: &mut dyn Targets) -> Result<Step<Bytes>, Infallible> {
        if let Some(frame) = self.0.take() {
            return Ok(Step::Frame { frame, head: 0 });
        }
        let Some(len) = head.first_chunk() else { return Ok(Step::Need(4)) };
        let req = BodyReq::new(u32::from_be_bytes(*len).into(), Place::Contiguous);
        Ok(Step::Body { head: 4, req })
    }

    fn body(&mut self, piece: Filled) -> Result<(), Infallible> {
        if let Landed::Contiguous(bytes) = piece.landed {
            self.0 = Some(bytes);
        }
        Ok(())
    }
}

#[test]
fn contiguous_bodies_arrive_however_the_stream_is_cut() {
    let frames: [&[u8]; 3] = [b"\0\0\0\x05hello", b"\0\0\0\0", b"\0\0\0\x01!"];
    let conformance = Conformance::new(Lengths::default, &frames).uncovered(&[0..frames.concat().len()]);
    let values = conformance.check(|frame| frame.to_vec());
    assert_eq!(values, [b"hello".to_vec(), Vec::new(), b"!".to_vec()]);
    let heads = [(1u32 << 31) - 1, u32::MAX].map(|len| len.to_be_bytes().to_vec());
    conformance.check_memory(&heads, |run| allocation_counter::measure(run).bytes_max);
}
