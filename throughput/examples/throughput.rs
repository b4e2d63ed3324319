//! Prints the tables of `docs/performance.md` again: `cargo run --release --example throughput -- --help`.

use std::process::ExitCode;

use clap::Parser;
use segchain_throughput::args::Args;

fn main() -> ExitCode {
    match segchain_throughput::run(Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("throughput: a count does not hold, see above");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("throughput: {error}");
            ExitCode::FAILURE
        }
    }
}
