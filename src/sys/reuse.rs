//! Memory that outlives what was borrowed in it.
//!
//! A list of slices that is kept from call to call borrows something else in each, and so does a message. What is kept is
//! memory, never an element. Collecting an emptied iterator does the same for a list, but std does not promise it, and every
//! message would pay for it.

use std::mem::ManuallyDrop;

/// Drops the elements, and gives their memory to others of the same layout.
#[inline]
pub(crate) fn reuse<T, U>(mut vec: Vec<T>) -> Vec<U> {
    const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
    vec.clear();
    let mut vec = ManuallyDrop::new(vec);
    // SAFETY: pointer and capacity are a `Vec`'s, from the global allocator, and `ManuallyDrop` keeps that one from freeing
    // them. `U` has the size and the alignment of `T` (asserted), so that the capacity is as many bytes, and the dangling
    // pointer of a vector without memory is aligned for `U`. The length is 0: no `U` is claimed to be there, and no `T` is
    // left that could outlive what it borrows.
    unsafe { Vec::from_raw_parts(vec.as_mut_ptr().cast::<U>(), 0, vec.capacity()) }
}

/// Segments, which may borrow, and notes, which do not, in one allocation: the segments can become some of another lifetime
/// in their place.
#[repr(C)]
pub(crate) struct Recyclable<S, N> {
    pub(crate) segments: S,
    pub(crate) notes: N,
}

impl<S, N> Recyclable<S, N> {
    /// Puts `to(segments)` where the segments were. If `to` panics, the allocation and the notes are leaked.
    #[allow(clippy::unnecessary_box_returns, reason = "the same box is the point")]
    #[inline]
    pub(crate) fn map<T>(self: Box<Self>, to: impl FnOnce(S) -> T) -> Box<Recyclable<T, N>> {
        const { assert!(size_of::<S>() == size_of::<T>() && align_of::<S>() == align_of::<T>()) };
        let memory = Box::into_raw(self);
        // SAFETY: `memory` was a `Box` a moment ago, and the segments are at its start (the layout is C's): aligned and
        // initialised. No `Box` owns the allocation now, so that they are moved out once: they are neither read nor dropped
        // there again, not if `to` panics, and not by the write below.
        let segments = unsafe { memory.cast::<S>().read() };
        let segments = to(segments);
        // SAFETY: `T` has the size and the alignment of `S` (asserted), so that it fits where the segments were, in memory that
        // is allocated and aligned for it. `write` drops nothing.
        unsafe { memory.cast::<T>().write(segments) };
        // SAFETY: the pointer is the one that `into_raw` gave, and nobody else has it. Both types have one layout (C's, of parts
        // of equal size and alignment), so the allocation is one for this type too; the segments were just written, and the
        // notes are where they were, untouched.
        unsafe { Box::from_raw(memory.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn the_elements_are_dropped_and_the_memory_is_the_same() {
        let element = Rc::new(());
        let full = vec![element.clone(); 7];
        let memory = (full.as_ptr().addr(), full.capacity());
        let mut empty: Vec<Box<[u8; 3]>> = reuse(full);
        assert_eq!((empty.as_ptr().addr(), empty.capacity(), empty.len()), (memory.0, memory.1, 0));
        assert_eq!(Rc::strong_count(&element), 1);
        empty.push(Box::new([1, 2, 3]));
        assert_eq!((empty.as_ptr().addr(), *empty[0]), (memory.0, [1, 2, 3]));
        let none: Vec<&str> = reuse(Vec::<&[u8]>::new());
        assert_eq!((none.capacity(), none.len()), (0, 0));
    }

    #[test]
    fn segments_become_others_in_the_same_memory() {
        let (first, second) = (Rc::new(1), Rc::new(String::from("2")));
        let both = Box::new(Recyclable { segments: first.clone(), notes: vec![second.clone()] });
        let memory = (&raw const *both).addr();
        let both = both.map(|segments| {
            assert_eq!((*segments, Rc::strong_count(&first)), (1, 2));
            2usize
        });
        assert_eq!(((&raw const *both).addr(), both.segments, both.notes.len()), (memory, 2, 1));
        assert_eq!(Rc::strong_count(&first), 1);
        drop(both);
        assert_eq!(Rc::strong_count(&second), 1);
    }

    #[test]
    fn a_panic_on_the_way_drops_nothing_twice() {
        let (first, second) = (Rc::new(1), Rc::new(2));
        let both = Box::new(Recyclable { segments: first.clone(), notes: second.clone() });
        let map = || both.map(|_| -> usize { panic!("on the way") });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(map)).is_err());
        // The segments were dropped by who took them, the notes are leaked.
        assert_eq!((Rc::strong_count(&first), Rc::strong_count(&second)), (1, 2));
    }

    #[test]
    fn segments_may_have_no_size() {
        let both = Box::new(Recyclable { segments: (), notes: String::from("kept") }).map(|()| [0u8; 0]);
        assert_eq!((both.segments, &both.notes[..]), ([], "kept"));
    }
}
