//! The standard library's locks, or loom's under `--cfg loom`: what models and crate share.

#[cfg(all(loom, feature = "loom"))]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(all(loom, feature = "loom")))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

/// Locks, whoever panicked before: what the locks here guard is whole between any two of its statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
