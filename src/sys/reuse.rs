//! An emptied vector's memory for elements of another lifetime.

use std::mem::ManuallyDrop;

/// Drops the elements, and gives their memory to others of the same layout. Collecting an emptied iterator does the same,
/// but std does not promise it, and it takes some 70 instructions a message.
#[inline]
pub(crate) fn reuse<T, U>(mut vec: Vec<T>) -> Vec<U> {
    const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
    vec.clear();
    let mut vec = ManuallyDrop::new(vec);
    // SAFETY: the memory is a `Vec`'s, which nobody else frees; its capacity in bytes and its alignment are the same in
    // elements of `U`, as asserted; and none of them is claimed to be initialised.
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
        let empty: Vec<Box<[u8; 3]>> = reuse(full);
        assert_eq!((empty.as_ptr().addr(), empty.capacity(), empty.len()), (memory.0, memory.1, 0));
        assert_eq!(std::rc::Rc::strong_count(&element), 1);
        let none: Vec<&str> = reuse(Vec::<&[u8]>::new());
        assert_eq!((none.capacity(), none.len()), (0, 0));
    }
}
