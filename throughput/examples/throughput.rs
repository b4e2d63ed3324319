//! Prints the tables of `docs/performance.md` again.

fn main() {}
