//! Starts one peer by hand, prints where it answers and how long that took, and stops it at end of input.
//!
//! ```text
//! cargo run -p segchain-testkit --example peer -- ceph|nfs|iscsi|tirpc
//! ```

use segchain_testkit::peers::{Ceph, CephOptions, Iscsi, Nfs, TirpcEcho, Unavailable};
use std::fmt::Debug;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let shown = match std::env::args().nth(1).as_deref() {
        Some("ceph") => show(|| Ceph::start(CephOptions::default())),
        Some("nfs") => show(Nfs::start),
        Some("iscsi") => show(Iscsi::start),
        Some("tirpc") => show(TirpcEcho::start),
        _ => {
            eprintln!("usage: peer ceph|nfs|iscsi|tirpc");
            return ExitCode::from(2);
        }
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(unavailable) => {
            eprintln!("{unavailable}");
            ExitCode::FAILURE
        }
    }
}

fn show<T: Debug>(start: impl FnOnce() -> Result<T, Unavailable>) -> Result<(), Unavailable> {
    let begin = Instant::now();
    let peer = start()?;
    println!("{peer:#?}\nstarted in {:.2?}; end of input stops it", begin.elapsed());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    let begin = Instant::now();
    drop(peer);
    println!("stopped in {:.2?}", begin.elapsed());
    Ok(())
}
