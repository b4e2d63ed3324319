//! A message that can wait in a [`SendQueue`](segchain::queue::SendQueue), and how it is framed there.

use std::sync::Arc;

use bytes::Bytes;
use segchain::chain::{ChainBuilder, ChainError};
use segchain::framer::Framer;
use segchain::queue::Queued;

/// Head, pages and footer, shared by all clones; each page has memory of its own.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    head: Vec<u8>,
    pages: Vec<Bytes>,
    foot: Vec<u8>,
}

impl Shared {
    /// A copy of these bytes.
    pub fn new<'p>(head: &[u8], pages: impl IntoIterator<Item = &'p [u8]>, foot: &[u8]) -> Self {
        let pages = pages.into_iter().map(Bytes::copy_from_slice).collect();
        Self(Arc::new(Parts { head: head.to_vec(), pages, foot: foot.to_vec() }))
    }

    /// Bytes in the pages.
    pub fn payload(&self) -> u64 {
        self.0.pages.iter().map(|page| page.len() as u64).sum()
    }
}

impl Queued for Shared {
    fn bytes(&self) -> u64 {
        self.payload() + (self.0.head.len() + self.0.foot.len()) as u64
    }
}

/// Puts them on the wire as they are: head and footer copied, the pages where they are.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Framing;

impl Framer<Shared> for Framing {
    type Error = ChainError;

    fn overhead(&self, _: u64) -> u64 {
        0
    }

    fn frame<'m>(&mut self, message: Shared, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
    where
        Shared: 'm,
    {
        let Parts { head, pages, foot } = &*message.0;
        out.put(head);
        for page in pages {
            out.push(page.clone());
        }
        out.put(foot);
        out.check()
    }
}
