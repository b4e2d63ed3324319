//! Where an object is placed.

/// The hash that places an object: Robert Jenkins' hash of 1996 (burtleburtle.net/bob/hash/evahash.html), from 0.
///
/// ```
/// assert_eq!(segchain_ceph::osd::rjenkins(b"o64"), 0x64eb_09f0); // seen in a request to ceph-osd 16.2.15
/// ```
pub fn rjenkins(name: &[u8]) -> u32 {
    const GOLDEN: u32 = 0x9e37_79b9;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
    let mut state = [GOLDEN, GOLDEN, 0];
    let (blocks, tail) = name.as_chunks::<12>();
    for block in blocks {
        for (lane, bytes) in state.iter_mut().zip(block.chunks(4)) {
            *lane = lane.wrapping_add(word(bytes));
        }
        mix(&mut state);
    }
    // The tail fills the lanes from below, but the lowest byte of the last one is kept for the length.
    state[2] = state[2].wrapping_add(name.len() as u32);
    let mut padded = [0; 12];
    let (low, high) = tail.split_at(tail.len().min(8));
    padded[..low.len()].copy_from_slice(low);
    padded[9..9 + high.len()].copy_from_slice(high);
    for (lane, bytes) in state.iter_mut().zip(padded.chunks(4)) {
        *lane = lane.wrapping_add(word(bytes));
    }
    mix(&mut state);
    state[2]
}

fn mix([a, b, c]: &mut [u32; 3]) {
    let step = |to: &mut u32, x: u32, y: u32, shifted: fn(u32) -> u32| {
        *to = to.wrapping_sub(x).wrapping_sub(y) ^ shifted(y);
    };
    step(a, *b, *c, |c| c >> 13);
    step(b, *c, *a, |a| a << 8);
    step(c, *a, *b, |b| b >> 13);
    step(a, *b, *c, |c| c >> 12);
    step(b, *c, *a, |a| a << 16);
    step(c, *a, *b, |b| b >> 5);
    step(a, *b, *c, |c| c >> 3);
    step(b, *c, *a, |a| a << 10);
    step(c, *a, *b, |b| b >> 15);
}
