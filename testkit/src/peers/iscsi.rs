//! tgtd of Debian's tgt: an iSCSI target in user space, with header and data digests negotiable.
//!
//! tgtd takes its configuration over a control socket, by `tgtadm`. It does not end on SIGTERM alone, so a drop deletes the
//! target and the system first (tgt 1.0.85).

use super::Unavailable;
use super::home::{Daemon, FreePort, Home, Identity};
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TGT: Identity = Identity { what: "tgtd", package: "tgt" };
const TARGET: &str = "iqn.2026-01.invalid.segchain:disk";
const LUN: u32 = 1;
const DISK_BYTES: u64 = 64 << 20;

/// A tgtd with one target of one disk of 64 MiB, open to every initiator.
#[derive(Debug)]
pub struct Iscsi {
    portal: SocketAddr,
    disk: PathBuf,
    adm: Adm,
    tgtd: Daemon,
    home: Home,
}

impl Iscsi {
    /// Starts tgtd and configures its target.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if tgt is not installed, this process is not root, or tgtd does not start.
    pub fn start() -> Result<Self, Unavailable> {
        let program = TGT.program("tgtd")?;
        let adm = TGT.program("tgtadm")?;
        TGT.require_root()?;
        let mut home = Home::new(TGT, None)?;
        let adm = Adm { program: adm, socket: home.path("ctl") };
        let disk = home.path("disk.img");
        File::create(&disk).and_then(|file| file.set_len(DISK_BYTES)).map_err(TGT.io("making the disk"))?;

        let port = FreePort::choose(TGT)?;
        let portal = port.addr();
        let mut command = Command::new(program);
        command.args(["-f", "-C", CONTROL, "--iscsi"]).arg(format!("portal={portal}"));
        command.env("TGT_IPC_SOCKET", &adm.socket);
        drop(port);
        let mut tgtd = home.daemon("tgtd", command, None)?;
        tgtd.wait_until("answered on its control socket", Duration::from_secs(10), || {
            home.run(adm.command("--op show --mode sys"), STEP).is_ok()
        })?;
        let this = Self { portal, disk, adm, tgtd, home };
        this.configure()?;
        Ok(this)
    }

    /// Where the target listens.
    pub fn portal(&self) -> SocketAddr {
        self.portal
    }

    /// The target's iSCSI qualified name.
    pub fn target(&self) -> &'static str {
        TARGET
    }

    /// The logical unit that is the disk.
    pub fn lun(&self) -> u32 {
        LUN
    }

    /// The file behind the disk.
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// The pids of its daemons.
    pub fn pids(&self) -> Vec<u32> {
        vec![self.tgtd.pid()]
    }

    /// Sets a parameter of the target, such as `MaxRecvDataSegmentLength`, for logins to come.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if tgtadm refuses.
    pub fn set(&self, key: &str, value: &str) -> Result<(), Unavailable> {
        let command = format!("--lld iscsi --op update --mode target --tid 1 -n {key} -v {value}");
        let result = self.home.run(self.adm.command(&command), STEP);
        result.map(drop).map_err(|error| self.tgtd.failed(error.to_string()))
    }

    fn configure(&self) -> Result<(), Unavailable> {
        let mut unit =
            self.adm.command(&format!("--lld iscsi --op new --mode logicalunit --tid 1 --lun {LUN} -b"));
        unit.arg(&self.disk);
        for command in [
            self.adm.command(&format!("--lld iscsi --op new --mode target --tid 1 -T {TARGET}")),
            unit,
            self.adm.command("--lld iscsi --op bind --mode target --tid 1 -I ALL"),
        ] {
            self.home.run(command, STEP).map_err(|error| self.tgtd.failed(error.to_string()))?;
        }
        self.set("HeaderDigest", "CRC32C,None")?;
        self.set("DataDigest", "CRC32C,None")
    }
}

impl Drop for Iscsi {
    fn drop(&mut self) {
        let _ =
            self.home.run(self.adm.command("--lld iscsi --op delete --mode target --force --tid 1"), STEP);
        let _ = self.home.run(self.adm.command("--op delete --mode system"), STEP);
    }
}

/// Names tgtd's control socket together with `TGT_IPC_SOCKET`, which is a path of ours.
const CONTROL: &str = "7";
const STEP: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Adm {
    program: PathBuf,
    socket: PathBuf,
}

impl Adm {
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-C", CONTROL]).args(arguments.split(' ')).env("TGT_IPC_SOCKET", &self.socket);
        command
    }
}
