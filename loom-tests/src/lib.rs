//! Models of the shared state of `segchain`, run under loom.
