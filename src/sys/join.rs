//! Neighbouring slices whose memory touches are one iovec.
//!
//! Only the kernel is given joined memory: a Rust slice must not span two allocations, even if they touch, and whether
//! they are two cannot be known. An iovec is an address and a length and has no such rule.

use std::cell::Cell;
use std::io::IoSlice;

thread_local! {
    /// Room for joined iovecs, kept from call to call.
    static JOINED: Cell<Vec<libc::iovec>> = const { Cell::new(Vec::new()) };
}

/// How many pieces of memory the slices are, touching neighbours counted as one: what the kernel is given.
#[inline]
pub(crate) fn slices_in_memory(bufs: &[IoSlice<'_>]) -> usize {
    bufs.len() - bufs.windows(2).filter(|pair| touch(&pair[0], &pair[1])).count()
}

/// Calls `f` with the iovecs of `bufs`: each is memory that `bufs` borrows, in the same order.
#[inline]
pub(super) fn with_iovecs<R>(bufs: &[IoSlice<'_>], f: impl FnOnce(&[libc::iovec]) -> R) -> R {
    let joined = bufs.windows(2).any(|pair| touch(&pair[0], &pair[1])).then(|| join(bufs));
    let iovecs: &[libc::iovec] = if let Some(joined) = &joined {
        joined
    } else {
        let iovecs = bufs.as_ptr().cast::<libc::iovec>();
        // SAFETY: `IoSlice` has the layout of `iovec` on Unix (std guarantees it), so these are `bufs.len()` initialised
        // iovecs that live as long as `bufs`, which nobody changes meanwhile.
        unsafe { std::slice::from_raw_parts(iovecs, bufs.len()) }
    };
    let result = f(iovecs);
    if let Some(joined) = joined {
        JOINED.set(joined);
    }
    result
}

/// The iovecs of slices some of which touch.
#[cold]
fn join(bufs: &[IoSlice<'_>]) -> Vec<libc::iovec> {
    let mut joined = JOINED.take();
    joined.clear();
    for (index, buf) in bufs.iter().enumerate() {
        match joined.last_mut() {
            Some(last) if touch(&bufs[index - 1], buf) => last.iov_len += buf.len(),
            _ => {
                joined.push(libc::iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() });
            }
        }
    }
    joined
}

#[inline]
fn touch(left: &IoSlice<'_>, right: &IoSlice<'_>) -> bool {
    left.as_ptr_range().end == right.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_slices_are_one_iovec_and_others_are_not() {
        let memory = [0u8; 100];
        let other = [1u8; 10];
        let bufs = [&memory[..40], &memory[40..60], &other, &memory[60..70], &memory[80..], &memory[70..80]];
        let bufs = bufs.map(IoSlice::new);
        assert_eq!(slices_in_memory(&bufs), 5);
        with_iovecs(&bufs, |iovecs| {
            let shapes: Vec<_> =
                iovecs.iter().map(|iovec| (iovec.iov_base.cast_const().cast(), iovec.iov_len)).collect();
            let base = memory.as_ptr();
            assert_eq!(shapes[0], (base, 60));
            assert_eq!(shapes[1], (other.as_ptr(), 10));
            assert_eq!(shapes[2], (base.wrapping_add(60), 10));
            assert_eq!(shapes[4], (base.wrapping_add(70), 10));
        });
    }
}
