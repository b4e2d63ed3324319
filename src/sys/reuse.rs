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

/// Two values in one allocation, of which the first can become one of another type in its place.
#[repr(C)]
pub(crate) struct Parts<L, O> {
    /// What is borrowed from somebody.
    pub(crate) lent: L,
    /// What is not.
    pub(crate) own: O,
}

impl<L, O> Parts<L, O> {
    /// Puts `to(lent)` where `lent` was. If `to` panics, the allocation and what is in it are leaked.
    #[allow(clippy::unnecessary_box_returns, reason = "the same box is the point")]
    #[inline]
    pub(crate) fn map<M>(self: Box<Self>, to: impl FnOnce(L) -> M) -> Box<Parts<M, O>> {
        const { assert!(size_of::<L>() == size_of::<M>() && align_of::<L>() == align_of::<M>()) };
        let memory = Box::into_raw(self);
        // SAFETY: `memory` was a `Box` a moment ago, and `lent` is at its start (the layout is C's): aligned and initialised.
        // It is moved out: a raw pointer drops nothing, until something else is written there.
        let lent = unsafe { memory.cast::<L>().read() };
        let lent = to(lent);
        // SAFETY: `M` has the size and the alignment of `L` (asserted), so that it fits where `lent` was, in memory that is
        // allocated and aligned for it. `lent` was moved out: there is nothing to be dropped.
        unsafe { memory.cast::<M>().write(lent) };
        // SAFETY: the allocation is a `Box`'s, and given up by it. Both types have one layout (C's, of parts of equal size and
        // alignment), so it is one for this type too; `lent` was just written, and `own` is where it was, untouched.
        unsafe { Box::from_raw(memory.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_elements_are_dropped_and_the_memory_is_the_same() {
        let element = std::rc::Rc::new(());
        let full = vec![element.clone(); 7];
        let memory = (full.as_ptr().addr(), full.capacity());
        let mut empty: Vec<Box<[u8; 3]>> = reuse(full);
        assert_eq!((empty.as_ptr().addr(), empty.capacity(), empty.len()), (memory.0, memory.1, 0));
        assert_eq!(std::rc::Rc::strong_count(&element), 1);
        empty.push(Box::new([1, 2, 3]));
        assert_eq!((empty.as_ptr().addr(), *empty[0]), (memory.0, [1, 2, 3]));
        let none: Vec<&str> = reuse(Vec::<&[u8]>::new());
        assert_eq!((none.capacity(), none.len()), (0, 0));
    }

    #[test]
    fn a_part_becomes_another_in_the_same_memory() {
        let (first, second) = (std::rc::Rc::new(1), std::rc::Rc::new(String::from("2")));
        let parts = Box::new(Parts { lent: first.clone(), own: vec![second.clone()] });
        let memory = (&raw const *parts).addr();
        let parts = parts.map(|lent| {
            assert_eq!((*lent, std::rc::Rc::strong_count(&first)), (1, 2));
            "ab".to_owned().into_boxed_str().into_boxed_bytes().len() // of the size of a pointer
        });
        assert_eq!(((&raw const *parts).addr(), parts.lent, parts.own.len()), (memory, 2, 1));
        assert_eq!(std::rc::Rc::strong_count(&first), 1);
        drop(parts);
        assert_eq!(std::rc::Rc::strong_count(&second), 1);
    }
}
