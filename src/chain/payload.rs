//! What a message may carry as its payload: anything that can be pushed onto a chain.

use bytes::Bytes;

use super::ChainBuilder;

/// Bytes that a framer pushes onto a chain without looking inside: one slice, or pages in any of the usual shapes.
///
/// ```
/// use segchain::chain::{ChainBuilder, Payload};
///
/// let pages = [[1u8; 4096], [2; 4096]];
/// let slices: Vec<&[u8]> = pages.iter().map(|page| &page[..]).collect();
/// let mut out = ChainBuilder::new();
/// slices.as_slice().push_to(&mut out);
/// assert_eq!(out.len(), 8192);
/// ```
pub trait Payload {
    /// Pushes all of it, in order.
    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm;
}

impl Payload for () {
    fn push_to<'m>(self, _: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
    }
}

impl Payload for Bytes {
    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        out.push(self);
    }
}

impl Payload for Vec<Bytes> {
    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        for page in self {
            out.push(page);
        }
    }
}

impl Payload for &[Bytes] {
    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        for page in self {
            out.push_borrowed(page);
        }
    }
}

impl Payload for &[u8] {
    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        out.push_borrowed(self);
    }
}

impl Payload for &[&[u8]] {
    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        for page in self {
            out.push_borrowed(page);
        }
    }
}

impl Payload for &[Vec<u8>] {
    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        for page in self {
            out.push_borrowed(page);
        }
    }
}
