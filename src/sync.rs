//! The standard library's locks, or loom's under `--cfg loom`: what models and crate share.

use std::time::Duration;

#[cfg(all(loom, feature = "loom"))]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(all(loom, feature = "loom")))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

#[cfg(all(loom, feature = "loom"))]
pub(crate) use loom::thread_local;
#[cfg(not(all(loom, feature = "loom")))]
pub(crate) use std::thread_local;

/// Locks, whoever panicked before: what the locks here guard is whole between any two of its statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits for a notification, at most for `timeout`. loom knows no time: there it always waits for the notification.
pub(crate) fn wait<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Option<Duration>,
) -> MutexGuard<'a, T> {
    match timeout {
        Some(timeout) if !cfg!(all(loom, feature = "loom")) => {
            condition.wait_timeout(guard, timeout).unwrap_or_else(std::sync::PoisonError::into_inner).0
        }
        _ => condition.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner),
    }
}

/// Whether a model asked for this fault, by `SEGCHAIN_PLANTED_FAULT`: it has to catch it. Never outside of models.
#[cfg(all(loom, feature = "loom"))]
pub(crate) fn planted(fault: &str) -> bool {
    static PLANTED: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("SEGCHAIN_PLANTED_FAULT").ok());
    PLANTED.as_deref() == Some(fault)
}

#[cfg(not(all(loom, feature = "loom")))]
#[inline]
pub(crate) const fn planted(_: &str) -> bool {
    false
}
