//! The measurements behind `docs/performance.md`.
