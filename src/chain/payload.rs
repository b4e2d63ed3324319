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
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether there are no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pushes all of it, in order.
    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm;
}

impl Payload for () {
    fn len(&self) -> u64 {
        0
    }

    fn push_to<'m>(self, _: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
    }
}

impl Payload for Bytes {
    fn len(&self) -> u64 {
        Bytes::len(self) as u64
    }

    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        out.push(self);
    }
}

impl Payload for Vec<Bytes> {
    fn len(&self) -> u64 {
        total(self)
    }

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
    fn len(&self) -> u64 {
        total(self)
    }

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
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        out.push_borrowed(self);
    }
}

impl Payload for &[&[u8]] {
    fn len(&self) -> u64 {
        total(self)
    }

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
    fn len(&self) -> u64 {
        total(self)
    }

    fn push_to<'m>(self, out: &mut ChainBuilder<'m>)
    where
        Self: 'm,
    {
        for page in self {
            out.push_borrowed(page);
        }
    }
}

fn total(pages: &[impl AsRef<[u8]>]) -> u64 {
    pages.iter().map(|page| page.as_ref().len() as u64).sum()
}
