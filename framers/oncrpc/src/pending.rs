//! The calls that wait for a reply, and what is known of each reply before it comes.
//!
//! A reply can only land in the caller's pages if its call is found before its data is placed. So whoever sends a call
//! says here what its reply looks like, and [`RecordDeframer`](crate::RecordDeframer) asks. The pages themselves are in
//! the caller's table of targets, under the same transaction id.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Error;

/// Where the data of a reply is, seen from the start of the procedure's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataAt {
    /// So many bytes of the results are needed to tell, more than were shown; never more than come before the data.
    Need(usize),
    /// `len` bytes of data follow the first `offset` bytes of the results.
    At {
        /// Bytes before the data, the word with its length included.
        offset: usize,
        /// Bytes of data, without the pad.
        len: u64,
    },
    /// There is no data: an error status, for instance. The reply is handed out whole.
    Nowhere,
}

/// Finds the data in the results of a procedure. It is shown their first bytes, none at all at first, and more each
/// time that it asks for more.
pub type FindData = fn(results: &[u8]) -> DataAt;

/// What a reply looks like.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Layout {
    /// Handed out whole, in the receiver's memory.
    Whole,
    /// Results that hold data for the target of this call.
    Data(FindData),
}

/// The calls that wait for a reply, by transaction id. Clones share the same table: one is in the deframer, another with
/// whoever sends.
///
/// ```
/// use segchain_oncrpc::{DataAt, Layout, Pending};
///
/// /// NFSv3 READ (RFC 1813 section 3.3.6): status, attributes, count, eof, then the data as an opaque.
/// fn read_data(results: &[u8]) -> DataAt {
///     let word = |at: usize| results.get(at..at + 4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
///     let (Some(status), Some(attributes)) = (word(0), word(4)) else { return DataAt::Need(8) };
///     if status != 0 {
///         return DataAt::Nowhere;
///     }
///     let offset = 8 + 84 * (attributes as usize & 1) + 12;
///     word(offset - 4).map_or(DataAt::Need(offset), |len| DataAt::At { offset, len: len.into() })
/// }
///
/// let pending = Pending::new();
/// pending.expect(7, Layout::Data(read_data))?;
/// assert!(pending.expect(7, Layout::Whole).is_err()); // it waits already
/// assert!(pending.forget(7));
/// assert!(pending.is_empty());
/// # Ok::<(), segchain_oncrpc::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Pending(Arc<Mutex<HashMap<u32, Layout>>>);

impl Pending {
    /// No calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// A call is about to be sent: its reply will look like this. It stays in the table until the reply comes, or until
    /// [`forget`](Self::forget).
    ///
    /// # Errors
    /// [`Error::XidInUse`] if a call with this transaction id waits already.
    pub fn expect(&self, xid: u32, layout: Layout) -> Result<(), Error> {
        match self.table().entry(xid) {
            Entry::Occupied(_) => Err(Error::XidInUse { xid }),
            Entry::Vacant(entry) => {
                entry.insert(layout);
                Ok(())
            }
        }
    }

    /// Nobody waits for this reply any more: should it come, it is dropped. `false` if nobody did.
    pub fn forget(&self, xid: u32) -> bool {
        self.table().remove(&xid).is_some()
    }

    /// Calls that wait.
    pub fn len(&self) -> usize {
        self.table().len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the reply looks like; taken out of the table if it is handed out whole.
    pub(crate) fn take_whole(&self, xid: u32) -> Option<Layout> {
        match self.table().entry(xid) {
            Entry::Occupied(entry) if matches!(entry.get(), Layout::Whole) => Some(entry.remove()),
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(_) => None,
        }
    }

    pub(crate) fn take(&self, xid: u32) -> Option<Layout> {
        self.table().remove(&xid)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u32, Layout>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("calls", &self.len()).finish_non_exhaustive()
    }
}
