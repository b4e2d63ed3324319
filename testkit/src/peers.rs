//! Real servers, started on loopback for one test and gone when the value is dropped.
//!
//! Each peer is a value: [`Ceph`], [`Nfs`], [`Iscsi`], [`TirpcEcho`]. Its `start` chooses free ports, writes its files into
//! a temporary directory, waits until the server answers, and gives up at a deadline with the last lines of the server's
//! log. Dropping the value stops the daemons by the pids it started: SIGTERM, five seconds, SIGKILL.
//!
//! ```text
//!   test process ──spawns──> daemon, daemon      each in its own process group
//!        │                       ▲
//!        └──pipe──> /bin/sh ─────┘               at end of file: stops the daemons, removes the directory
//! ```
//!
//! The shell stops the daemons when the test process ends without dropping its values (a kill, an abort, a `static`).
//! A signal by `PR_SET_PDEATHSIG` would not do: it comes when the *thread* that started the child ends, and rpcbind loses it
//! as it changes its user. Bytes recorded from these servers are in [`golden`](crate::golden).

use std::fmt;
use std::io::Write as _;

mod ceph;
mod home;
mod iscsi;
mod nfs;
mod tirpc;

pub use ceph::{Ceph, CephAuth, CephMode, CephOptions, OsdProtocol};
pub use home::ToolFailed;
pub use iscsi::Iscsi;
pub use nfs::Nfs;
pub use tirpc::{TirpcEcho, TirpcEchoOptions};

/// The peer, or `None` when this machine cannot run it and does not have to. What is no peer of this module (a tool, a
/// header) can say in words why it is not there.
///
/// With `SEGCHAIN_REQUIRE_PEERS` set (not empty, not `0`) every peer has to start. Without it an absent peer is a skipped
/// test: the reason is printed to standard error past the capture of the test harness, and to standard output.
///
/// ```no_run
/// use segchain_testkit::peers::{Iscsi, require};
///
/// let Some(target) = require(Iscsi::start()) else { return };
/// println!("{} at {}", target.target(), target.portal());
/// ```
///
/// # Panics
///
/// If the peer is unavailable and `SEGCHAIN_REQUIRE_PEERS` is set.
pub fn require<T>(peer: Result<T, impl fmt::Display>) -> Option<T> {
    let unavailable = match peer {
        Ok(peer) => return Some(peer),
        Err(unavailable) => unavailable,
    };
    let required = std::env::var_os("SEGCHAIN_REQUIRE_PEERS").is_some_and(|v| !v.is_empty() && v != "0");
    assert!(!required, "SEGCHAIN_REQUIRE_PEERS is set, but {unavailable}");
    println!("skipped: {unavailable}");
    // The harness captures the macros only, so this line is seen for a passing test too.
    let _ = writeln!(std::io::stderr(), "skipped: {unavailable}");
    None
}

/// A peer that did not start.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unavailable {
    /// The server, such as `nfs-ganesha`.
    pub what: &'static str,
    /// The Debian packages that hold it.
    pub package: &'static str,
    /// What stood in the way.
    pub why: Why,
}

/// What stood in the way of a peer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Why {
    /// A program or file it needs is not on this machine.
    NotInstalled {
        /// The program, or the path of the file.
        missing: String,
    },
    /// It runs as root only, and this process does not.
    NotRoot,
    /// It is installed and did not start: a fault of the machine or of this crate.
    FailedToStart {
        /// The step that went wrong.
        step: String,
        /// The last lines of its logs.
        log: String,
    },
}

impl Unavailable {
    /// Whether the peer is installed and permitted, and yet did not start.
    pub fn is_failure(&self) -> bool {
        matches!(self.why, Why::FailedToStart { .. })
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, package, why } = self;
        match why {
            Why::NotInstalled { missing } => {
                if missing != what {
                    write!(f, "{what} cannot start: ")?;
                }
                write!(
                    f,
                    "{missing} is not installed (Debian: apt-get install --no-install-recommends {package})"
                )
            }
            Why::NotRoot => write!(f, "{what} needs root"),
            Why::FailedToStart { step, log } => {
                write!(f, "{what} is installed and did not start: {step}")?;
                if log.is_empty() { Ok(()) } else { write!(f, "\n{}", log.trim_end()) }
            }
        }
    }
}

impl std::error::Error for Unavailable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_reported_with_the_packages_that_hold_it() {
        let ceph = Unavailable {
            what: "ceph-osd",
            package: "ceph-mon ceph-osd ceph-common",
            why: Why::NotInstalled { missing: "ceph-osd".into() },
        };
        assert_eq!(
            ceph.to_string(),
            "ceph-osd is not installed (Debian: apt-get install --no-install-recommends \
             ceph-mon ceph-osd ceph-common)"
        );
        assert!(!ceph.is_failure());
    }

    #[test]
    fn a_failed_start_shows_the_step_and_the_log() {
        let why =
            Why::FailedToStart { step: "it ended with exit status: 1".into(), log: "bind: in use\n".into() };
        let tgt = Unavailable { what: "tgtd", package: "tgt", why };
        assert_eq!(
            tgt.to_string(),
            "tgtd is installed and did not start: it ended with exit status: 1\nbind: in use"
        );
        assert!(tgt.is_failure());
    }
}
