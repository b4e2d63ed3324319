//! An emptied vector's memory for elements of another lifetime.
//!
//! A list of slices that is kept from call to call borrows something else in each. What is kept is memory, never an element.
//! Collecting an emptied iterator does the same, but std does not promise it, and every message would pay for it.

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
}
