//! rpcbind and nfs-ganesha: ONC RPC servers of two families, libtirpc and ntirpc.
//!
//! rpcbind has the well-known port 111, which is one for the whole machine: a lock file makes every [`Nfs`] of the machine
//! wait for the one before. An rpcbind that already answers is used and left alone. Ours takes its sockets by the
//! convention of socket activation (`sd_listen_fds(3)`), because `rpcbind -h 127.0.0.1` restricts UDP only.

use super::Unavailable;
use super::home::{Daemon, FreePort, Home, Identity};
use command_fds::{CommandFdExt as _, FdMapping};
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const NFS: Identity = Identity { what: "nfs-ganesha", package: "rpcbind nfs-ganesha nfs-ganesha-vfs" };
const RPCBIND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 111);
/// libtirpc and ntirpc look for rpcbind here before they try the network.
const RPCBIND_SOCKET: &str = "/run/rpcbind.sock";
/// How long to wait for the [`Nfs`] of another process or test.
const TURN: Duration = Duration::from_secs(300);

/// rpcbind on TCP and UDP port 111 and a unix socket, and nfs-ganesha with NFS 3 and 4 and MOUNT 3 over TCP.
#[derive(Debug)]
pub struct Nfs {
    tcp: SocketAddr,
    mount: SocketAddr,
    export_dir: PathBuf,
    ganesha: Daemon,
    rpcbind: Option<Rpcbind>,
    _home: Home,
    _turn: File,
}

impl Nfs {
    /// Waits for its turn at port 111, then starts both servers, or ganesha alone beside an rpcbind that already answers.
    ///
    /// Only one value exists on a machine at a time; a second start waits up to five minutes for the first to be dropped,
    /// also when the same thread holds it.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if a package is missing, this process is not root, or a server does not start.
    pub fn start() -> Result<Self, Unavailable> {
        let ganesha = NFS.program("ganesha.nfsd")?;
        let rpcbind = NFS.program("rpcbind")?;
        if !file_system_module_is_installed() {
            return Err(NFS.missing("libfsalvfs.so"));
        }
        NFS.require_root()?;
        let turn = take_turn()?;
        let mut home = Home::new(NFS, Some(&turn))?;
        let rpcbind = Rpcbind::start_unless_running(&rpcbind, &mut home)?;

        let export_dir = home.make_directory("export")?;
        fs::set_permissions(&export_dir, Permissions::from_mode(0o777))
            .map_err(NFS.io("opening the export"))?;
        let recovery = home.make_directory("recovery")?;
        // ganesha does not start without it and does not make it.
        fs::create_dir_all("/var/run/ganesha").map_err(NFS.io("making /var/run/ganesha"))?;
        let (nfs_port, mount_port) = (FreePort::choose(NFS)?, FreePort::choose(NFS)?);
        let (nfs, mount) = (nfs_port.addr(), mount_port.addr());
        let conf = home.write("ganesha.conf", configuration(nfs, mount, &export_dir, &recovery))?;
        let log = home.write("ganesha.log", "")?;
        let mut command = Command::new(ganesha);
        command.arg("-F").arg("-f").arg(conf).arg("-L").arg(&log).arg("-p").arg(home.path("ganesha.pid"));
        drop((nfs_port, mount_port));
        let mut ganesha = home.daemon("ganesha", command, Some(log))?;
        ganesha.wait_until("answered NFS and MOUNT", Duration::from_secs(30), || {
            null(|| connect(nfs), 100_003, 3).is_ok() && null(|| connect(mount), 100_005, 3).is_ok()
        })?;
        Ok(Self { tcp: nfs, mount, export_dir, ganesha, rpcbind, _home: home, _turn: turn })
    }

    /// Where NFS (program 100003, versions 3 and 4) answers, on TCP.
    pub fn nfs_addr(&self) -> SocketAddr {
        self.tcp
    }

    /// Where MOUNT (program 100005, version 3) answers, on TCP.
    pub fn mount_addr(&self) -> SocketAddr {
        self.mount
    }

    /// The path to mount.
    pub fn export_path(&self) -> &'static str {
        "/export"
    }

    /// The directory behind [`Nfs::export_path`].
    pub fn export_dir(&self) -> &Path {
        &self.export_dir
    }

    /// rpcbind's TCP address.
    pub fn rpcbind_tcp(&self) -> SocketAddr {
        RPCBIND
    }

    /// rpcbind's UDP address.
    pub fn rpcbind_udp(&self) -> SocketAddr {
        RPCBIND
    }

    /// rpcbind's unix socket.
    pub fn rpcbind_unix(&self) -> &'static Path {
        Path::new(RPCBIND_SOCKET)
    }

    /// Whether the rpcbind is this value's own, and not one that was running before.
    pub fn owns_rpcbind(&self) -> bool {
        self.rpcbind.is_some()
    }

    /// The pids of its daemons: ganesha's, and rpcbind's if it is our own.
    pub fn pids(&self) -> Vec<u32> {
        std::iter::once(&self.ganesha)
            .chain(self.rpcbind.iter().map(|r| &r.daemon))
            .map(Daemon::pid)
            .collect()
    }
}

/// An rpcbind of ours, with the unix socket that has to go with it.
#[derive(Debug)]
struct Rpcbind {
    daemon: Daemon,
}

impl Rpcbind {
    fn start_unless_running(program: &Path, home: &mut Home) -> Result<Option<Self>, Unavailable> {
        let answers = || null(|| connect(RPCBIND), 100_000, 3).and_then(|()| null(connect_unix, 100_000, 3));
        if answers().is_ok() {
            return Ok(None);
        }
        let sockets =
            listeners().map_err(NFS.io("binding port 111 and the unix socket of rpcbind on loopback"))?;
        // The variable has to hold the pid of the process that becomes rpcbind: the shell's own.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", r#"LISTEN_PID=$$ exec "$0" -f"#]).arg(program);
        command.env("LISTEN_FDS", sockets.len().to_string()).env_remove("LISTEN_FDNAMES");
        let mappings =
            sockets.into_iter().zip(3..).map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
        command.fd_mappings(mappings.collect()).expect("the numbers from 3 on differ");
        let mut this = Self { daemon: home.daemon("rpcbind", command, None)? };
        this.daemon.wait_until("answered", Duration::from_secs(10), || answers().is_ok())?;
        Ok(Some(this))
    }
}

impl Drop for Rpcbind {
    fn drop(&mut self) {
        let _ = fs::remove_file(RPCBIND_SOCKET);
    }
}

/// rpcbind's sockets, all on loopback. Without one for IPv6 it would open `[::]:111` by itself.
fn listeners() -> io::Result<Vec<OwnedFd>> {
    let tcp = TcpListener::bind(RPCBIND)?;
    let udp = UdpSocket::bind(RPCBIND)?;
    // Port 111 is ours now, so whatever is left at that path belongs to nobody.
    match fs::remove_file(RPCBIND_SOCKET) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let unix = UnixListener::bind(RPCBIND_SOCKET)?;
    fs::set_permissions(RPCBIND_SOCKET, Permissions::from_mode(0o666))?;
    let mut sockets = vec![OwnedFd::from(unix), OwnedFd::from(tcp), OwnedFd::from(udp)];
    let v6 = (Ipv6Addr::LOCALHOST, RPCBIND.port());
    sockets.extend(TcpListener::bind(v6).ok().map(OwnedFd::from));
    sockets.extend(UdpSocket::bind(v6).ok().map(OwnedFd::from));
    Ok(sockets)
}

/// The lock on port 111. The file stays: to remove it would let two hold it.
fn take_turn() -> Result<File, Unavailable> {
    let path = std::env::temp_dir().join("segchain-rpcbind-111.lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(NFS.io(format_args!("opening {}", path.display())))?;
    let end = Instant::now() + TURN;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if Instant::now() >= end => {
                return Err(NFS.failed(format!("{} is still locked after {TURN:?}", path.display()), ""));
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(NFS.io("locking")(error)),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn configuration(nfs: SocketAddr, mount: SocketAddr, export: &Path, recovery: &Path) -> String {
    let (nfs_port, mount_port) = (nfs.port(), mount.port());
    let (export, recovery) = (export.display(), recovery.display());
    format!(
        "\
NFS_CORE_PARAM {{
  NFS_Port = {nfs_port}; MNT_Port = {mount_port}; Bind_addr = 127.0.0.1;
  Protocols = 3,4; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;
  mount_path_pseudo = true;
}}
NFSv4 {{ Graceless = true; Minor_Versions = 0,1,2; RecoveryRoot = {recovery}; }}
LOG {{ Default_Log_Level = EVENT; }}
EXPORT {{
  Export_Id = 1; Path = {export}; Pseudo = /export;
  Access_Type = RW; Squash = None; SecType = none, sys; Protocols = 3,4; Transports = TCP;
  FSAL {{ Name = VFS; }}
}}
"
    )
}

/// nfs-ganesha-vfs is a package of its own.
fn file_system_module_is_installed() -> bool {
    let architectures = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    architectures
        .chain(["/usr/lib".into(), "/usr/lib64".into()])
        .any(|lib| lib.join("ganesha/libfsalvfs.so").is_file())
}

const PATIENCE: Option<Duration> = Some(Duration::from_secs(2));

fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(PATIENCE)?;
    Ok(stream)
}

fn connect_unix() -> io::Result<UnixStream> {
    let stream = UnixStream::connect(RPCBIND_SOCKET)?;
    stream.set_read_timeout(PATIENCE)?;
    Ok(stream)
}

/// Calls procedure 0 (RFC 5531 section 9, record marking of section 11) and wants SUCCESS.
fn null<S: Read + Write>(
    connect: impl FnOnce() -> io::Result<S>,
    program: u32,
    version: u32,
) -> io::Result<()> {
    const XID: u32 = 0x4e55_4c4c;
    let mut stream = connect()?;
    let call = [0x8000_0028, XID, 0, 2, program, version, 0, 0, 0, 0, 0];
    stream.write_all(&call.map(u32::to_be_bytes).concat())?;
    let mut reply = [0; 28];
    stream.read_exact(&mut reply)?;
    let expected = [0x8000_0018, XID, 1, 0, 0, 0, 0];
    if reply[..] == expected.map(u32::to_be_bytes).concat() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "the reply to NULL is not SUCCESS"))
    }
}
