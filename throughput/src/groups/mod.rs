//! The groups, one file each. What a group's baseline is, and what was reported of it, stands at the top of its file.
//!
//! *Reported for Linux* are figures from descriptions of kernel patches (libceph, sunrpc, `CephFS` `copy_file_range`). They were
//! handed on without a stable address and were not checked against one; they are shown beside what is measured here, and
//! nothing is judged by them. The change of libceph that whole-write and whole-read follow is "libceph: messenger: send/recv
//! data at one go" (Roman Penyaev, 21 April 2020),
//! <https://patchwork.kernel.org/project/ceph-devel/cover/20200421131850.443228-1-rpenyaev@suse.de>.

pub mod ceph;
pub mod checksum;
pub mod growth;
pub mod in_flight;
pub mod marker;
pub mod packets;
pub mod peers;
pub mod small;
pub mod whole_read;
pub mod whole_write;

use std::io;

use crate::bench::Bench;
use crate::report::Report;

/// A group: what it is called, what it compares with what, and how it is run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Group {
    /// Its name on the command line and in JSON.
    pub name: &'static str,
    /// One sentence under its heading: the baseline, and what is stated of it.
    pub about: &'static str,
    /// Adds sections, targets and charts to its report, or says why it was skipped.
    pub run: fn(&Bench, &mut Report) -> io::Result<()>,
}

/// All of them, in the order in which they run.
pub const ALL: &[Group] = &[
    whole_write::GROUP,
    whole_read::GROUP,
    marker::GROUP,
    packets::GROUP,
    in_flight::GROUP,
    peers::GROUP,
    small::GROUP,
    growth::GROUP,
    checksum::GROUP,
    ceph::GROUP,
];

/// Those that were asked for; all if none.
///
/// # Errors
/// A name that no group has.
pub fn chosen(only: &[String]) -> io::Result<Vec<&'static Group>> {
    let unknown = only.iter().find(|name| ALL.iter().all(|group| group.name != **name));
    if let Some(name) = unknown {
        let names: Vec<_> = ALL.iter().map(|group| group.name).collect();
        return Err(io::Error::other(format!("no group {name:?}; there are {}", names.join(", "))));
    }
    Ok(ALL.iter().filter(|group| only.is_empty() || only.iter().any(|name| name == group.name)).collect())
}
