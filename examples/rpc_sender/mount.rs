//! The MOUNT protocol, version 3 (RFC 1813 appendix I): a path becomes a file handle.

use segchain::window::Window;
use segchain_oncrpc::xdr::Reader;

use crate::Result;
use crate::client::Client;
use crate::nfs3::{Handle, MAX_HANDLE, status_name};

const PROGRAM: u32 = 100_005;
const VERSION: u32 = 3;
const MNT: u32 = 1;

/// Mounts `export`: the handle of its root.
pub fn mnt(peer: &str, export: &str) -> Result<Handle> {
    let mut client = Client::tcp(peer, PROGRAM, VERSION, Window::new(1, 1))?;
    let results = client.call(MNT, |args| {
        args.opaque_within("dirpath", 1024, export.as_bytes());
    })?;
    let mut results = Reader::new(&results);
    match results.u32("mountstat3")? {
        // The error numbers are those of NFS.
        0 => Ok(Handle(results.opaque("fhandle3", MAX_HANDLE)?.to_vec())),
        status => Err(format!("{peer}: mount of {export} refused: {}", status_name(status)).into()),
    }
}
