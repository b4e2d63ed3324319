//! The smallest Ceph that stores an object: one monitor and one osd with its objects in memory (memstore).
//!
//! There is no manager, no replication and no journal. The pool [`Ceph::POOL`] has one placement group, so every object is
//! in `pool.0` on the only osd and a client needs no CRUSH. Checked against Ceph 16.2.15 of Debian 12. The configuration file
//! is written by [`CephOptions`]; it keeps every daemon on loopback and every file in the peer's own directory.

use super::home::{Daemon, FreePort, Home, Identity, ToolFailed};
use super::{Unavailable, Why};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const CEPH: Identity = Identity { what: "ceph-osd", package: "ceph-mon ceph-osd ceph-common" };
/// For one command of a client.
const STEP: Duration = Duration::from_secs(30);
/// For the osd's first beacon.
const BEACON: Duration = Duration::from_secs(3);
/// How many ports the osd chooses from: it binds eight, or four for one messenger version, and skips those in use.
const OSD_PORTS: u16 = 60;

/// A running monitor and osd.
#[derive(Debug)]
pub struct Ceph {
    mon_v2: SocketAddr,
    mon_v1: SocketAddr,
    map: OsdMap,
    files: AtomicU32,
    tools: Tools,
    osd: Daemon,
    mon: Daemon,
    home: Home,
}

impl Ceph {
    /// The pool of every start: one placement group, one replica.
    pub const POOL: &'static str = "bench";

    /// Starts both daemons, makes the pool, and writes one object, so that the osd is warm and the map is settled.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if Ceph is not installed or does not start.
    pub fn start(options: CephOptions) -> Result<Self, Unavailable> {
        match Self::start_once(options.clone()) {
            // Seldom, an osd of 16.2.15 aborts as it starts, in a thread of its own `io_context_pool`.
            Err(Unavailable { why: Why::FailedToStart { step, .. }, .. }) if step.contains("(SIGABRT)") => {
                Self::start_once(options)
            }
            result => result,
        }
    }

    fn start_once(options: CephOptions) -> Result<Self, Unavailable> {
        let programs = Programs::find()?;
        let mut home = Home::new(CEPH, None)?;
        for directory in ["mon.a", "osd.0", "run"] {
            home.make_directory(directory)?;
        }
        let (fsid, osd_uuid) = (random_uuid()?, random_uuid()?);
        let (v2, v1, first) = (FreePort::choose(CEPH)?, FreePort::choose(CEPH)?, first_osd_port()?);
        let (mon_v2, mon_v1) = (v2.addr(), v1.addr());
        let mon_addrs = format!("[v2:{mon_v2},v1:{mon_v1}]");
        let text = options.configuration(&home.path(""), &fsid, &mon_addrs, first);
        let conf = home.write("ceph.conf", text)?;
        let tools = Tools { ceph: programs.ceph, rados: programs.rados, conf };

        for (name, caps) in KEYS {
            let mut command = tool(&programs.ceph_authtool);
            command.arg("keyring").args(["--gen-key", "-n", name]);
            command.args(caps.iter().flat_map(|(service, cap)| ["--cap", service, cap]));
            if *name == "mon." {
                command.arg("--create-keyring");
            }
            home.step(command, STEP)?;
        }
        let mut command = tool(&programs.monmaptool);
        command.args(["--create", "--clobber", "--fsid", &fsid, "--addv", "a", &mon_addrs, "monmap"]);
        home.step(command, STEP)?;
        let mut command = tools.daemon(&programs.ceph_mon, "a");
        command.args(["--mkfs", "--monmap", "monmap", "--keyring", "keyring"]);
        home.step(command, STEP)?;

        let mut command = tools.daemon(&programs.ceph_mon, "a");
        command.arg("-f");
        drop((v2, v1));
        let log = home.path("mon.a.log");
        let mut mon = home.daemon("mon.a", command, Some(log))?;
        mon.wait_until("listened", Duration::from_secs(20), || std::net::TcpStream::connect(mon_v2).is_ok())?;
        let ask = |command| home.run(command, STEP).map_err(|error| mon.failed(error.to_string()));
        ask(tools.ceph(&["osd", "new", &osd_uuid, "0"]))?;
        // The osd could do this by itself. But one of 16.2.15 forgets the cluster's id until the monitor's map comes, and with
        // messenger version 1 alone that may be after its first command, which ends it: "wrong fsid".
        ask(tools.ceph(&["osd", "crush", "add", "osd.0", "1", "root=default"]))?;

        let mut command = tools.daemon(&programs.ceph_osd, "0");
        command.args(["--mkfs", "--osd-uuid", &osd_uuid]);
        home.step(command, STEP)?;
        let mut command = tools.daemon(&programs.ceph_osd, "0");
        command.arg("-f");
        let log = home.path("osd.0.log");
        let mut osd = home.daemon("osd.0", command, Some(log))?;
        osd.wait_until("came up", Duration::from_secs(40), || {
            home.run(tools.ceph(&["osd", "stat", "--format", "json"]), STEP)
                .is_ok_and(|output| json(&output).is_some_and(|stat| stat["num_up_osds"] == 1))
        })?;
        let ask = |command| home.run(command, STEP).map_err(|error| mon.failed(error.to_string()));
        ask(tools.ceph(&["osd", "pool", "create", Self::POOL, "1", "1"]))?;
        let probe = home.write("probe", "probe\n")?;
        home.run(tools.rados("put", ".probe", &probe), STEP)
            .map_err(|error| osd.failed(error.to_string()))?;
        let map = OsdMap::settled(|| ask(tools.ceph(&["osd", "dump", "--format", "json"])))?;
        Ok(Self { mon_v2, mon_v1, map, files: AtomicU32::new(0), tools, osd, mon, home })
    }

    /// The configuration file, for any Ceph client.
    pub fn conf(&self) -> &Path {
        &self.tools.conf
    }

    /// Where the osd speaks messenger version 1.
    ///
    /// # Panics
    ///
    /// If it was started with [`OsdProtocol::V2`].
    pub fn osd_v1(&self) -> SocketAddr {
        self.map.v1.expect("this osd was started without messenger version 1")
    }

    /// Where the osd speaks messenger version 2.
    ///
    /// # Panics
    ///
    /// If it was started with [`OsdProtocol::V1`].
    pub fn osd_v2(&self) -> SocketAddr {
        self.map.v2.expect("this osd was started without messenger version 2")
    }

    /// Where the monitor speaks messenger version 1.
    pub fn mon_v1(&self) -> SocketAddr {
        self.mon_v1
    }

    /// Where the monitor speaks messenger version 2.
    pub fn mon_v2(&self) -> SocketAddr {
        self.mon_v2
    }

    /// The nonce of the osd's addresses. The monitor's is 0.
    pub fn nonce(&self) -> u32 {
        self.map.nonce
    }

    /// The epoch of the osd map, which no longer changes by itself once the start is done.
    pub fn epoch(&self) -> u32 {
        self.map.epoch
    }

    /// The number of [`Ceph::POOL`].
    pub fn pool_id(&self) -> u64 {
        self.map.pool
    }

    /// Reads a whole object with the `rados` tool.
    ///
    /// # Errors
    ///
    /// [`ToolFailed`] if there is no such object or the osd does not answer within 30 s.
    pub fn rados_get(&self, name: &str) -> Result<Vec<u8>, ToolFailed> {
        let file = self.object_file();
        self.home.run(self.tools.rados("get", name, &file), STEP)?;
        let bytes = fs::read(&file).map_err(ToolFailed::no_file(&file));
        let _ = fs::remove_file(&file);
        bytes
    }

    /// Writes a whole object with the `rados` tool.
    ///
    /// # Errors
    ///
    /// [`ToolFailed`] if the osd refuses or does not answer within 30 s.
    pub fn rados_put(&self, name: &str, bytes: &[u8]) -> Result<(), ToolFailed> {
        let file = self.object_file();
        fs::write(&file, bytes).map_err(ToolFailed::no_file(&file))?;
        let put = self.home.run(self.tools.rados("put", name, &file), STEP);
        let _ = fs::remove_file(&file);
        put.map(drop)
    }

    /// The pids of its daemons: the osd's, then the monitor's.
    pub fn pids(&self) -> Vec<u32> {
        vec![self.osd.pid(), self.mon.pid()]
    }

    fn object_file(&self) -> PathBuf {
        self.home.path(format!("object-{}", self.files.fetch_add(1, Ordering::Relaxed)))
    }
}

/// How to start a [`Ceph`]: by default with both messenger versions, no authentication, and any connection mode.
#[derive(Clone, Debug, Default)]
pub struct CephOptions {
    osd_protocol: OsdProtocol,
    auth: CephAuth,
    mode: CephMode,
    extra: String,
}

impl CephOptions {
    /// The messenger versions the osd listens with.
    #[must_use]
    pub fn osd_protocol(self, osd_protocol: OsdProtocol) -> Self {
        Self { osd_protocol, ..self }
    }

    /// The authentication that every connection needs.
    #[must_use]
    pub fn auth(self, auth: CephAuth) -> Self {
        Self { auth, ..self }
    }

    /// The mode of messenger version 2's connections.
    #[must_use]
    pub fn mode(self, mode: CephMode) -> Self {
        Self { mode, ..self }
    }

    /// A line for the `[global]` section, such as `osd_max_object_name_len = 100`.
    #[must_use]
    pub fn conf(mut self, line: &str) -> Self {
        self.extra.push_str(line);
        self.extra.push('\n');
        self
    }

    fn configuration(self, dir: &Path, fsid: &str, mon_addrs: &str, first_port: u16) -> String {
        let dir = dir.display().to_string();
        let dir = dir.trim_end_matches('/');
        let (v1, v2) = match self.osd_protocol {
            OsdProtocol::Both => (true, true),
            OsdProtocol::V1 => (true, false),
            OsdProtocol::V2 => (false, true),
        };
        let auth = match self.auth {
            CephAuth::None => "none",
            CephAuth::Cephx => "cephx",
        };
        let mut extra = String::new();
        let mode = match self.mode {
            CephMode::Any => None,
            CephMode::Crc => Some("crc"),
            CephMode::Secure => Some("secure"),
        };
        if let Some(mode) = mode {
            for connection in ["cluster", "service", "client", "mon_cluster", "mon_service", "mon_client"] {
                let _ = writeln!(extra, "ms_{connection}_mode = {mode}");
            }
        }
        extra.push_str(&self.extra);
        let last_port = first_port + OSD_PORTS - 1;
        format!(
            "\
[global]
fsid = {fsid}
mon_host = {mon_addrs}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
osd_heartbeat_addr = 127.0.0.1
auth_cluster_required = {auth}
auth_service_required = {auth}
auth_client_required = {auth}
keyring = {dir}/keyring
run_dir = {dir}/run
admin_socket =
log_file =
log_to_stderr = false
err_to_stderr = true
log_flush_on_exit = true
mon_cluster_log_file = {dir}/cluster.log
crash_dir = {dir}/run
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_allow_pool_delete = true
mon_data_avail_crit = 1
mon_max_pg_per_osd = 1000
auth_allow_insecure_global_id_reclaim = false
osd_crush_chooseleaf_type = 0
ms_bind_port_min = {first_port}
ms_bind_port_max = {last_port}
{extra}
[mon]
admin_socket = {dir}/run/$name.asok
log_file = {dir}/$name.log
mon_data = {dir}/mon.a
paxos_propose_interval = 0.05
mon_tick_interval = 2
[osd]
admin_socket = {dir}/run/$name.asok
log_file = {dir}/$name.log
osd_data = {dir}/osd.0
osd_objectstore = memstore
memstore_device_bytes = 8G
osd_journal = {dir}/osd.0/journal
ms_bind_msgr1 = {v1}
ms_bind_msgr2 = {v2}
osd_crush_update_on_start = false
osd_class_update_on_start = false
osd_beacon_report_interval = 30
"
        )
    }
}

/// The messenger versions an osd listens with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OsdProtocol {
    /// Versions 1 and 2.
    #[default]
    Both,
    /// Version 1 only.
    V1,
    /// Version 2 only.
    V2,
}

/// The authentication of every connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CephAuth {
    /// `auth none`.
    #[default]
    None,
    /// Shared keys. Only this permits [`CephMode::Secure`].
    Cephx,
}

/// The mode of messenger version 2's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CephMode {
    /// Ceph's own preference: crc, or secure when a client asks for it.
    #[default]
    Any,
    /// Plain, with checksums.
    Crc,
    /// Encrypted.
    Secure,
}

#[derive(Debug)]
struct Programs {
    ceph: PathBuf,
    ceph_mon: PathBuf,
    ceph_osd: PathBuf,
    ceph_authtool: PathBuf,
    monmaptool: PathBuf,
    rados: PathBuf,
}

impl Programs {
    fn find() -> Result<Self, Unavailable> {
        Ok(Self {
            ceph_osd: CEPH.program("ceph-osd")?,
            ceph_mon: CEPH.program("ceph-mon")?,
            ceph: CEPH.program("ceph")?,
            ceph_authtool: CEPH.program("ceph-authtool")?,
            monmaptool: CEPH.program("monmaptool")?,
            rados: CEPH.program("rados")?,
        })
    }
}

/// The commands of a running cluster.
#[derive(Debug)]
struct Tools {
    ceph: PathBuf,
    rados: PathBuf,
    conf: PathBuf,
}

impl Tools {
    fn daemon(&self, program: &Path, id: &str) -> Command {
        let mut command = tool(program);
        command.arg("-c").arg(&self.conf).args(["-i", id]);
        // Debian 12 links ceph-osd to glibc's malloc: without these, every receive buffer of 1 to 4 MiB is mapped, faulted
        // in and unmapped again.
        command.envs([
            ("MALLOC_MMAP_THRESHOLD_", "268435456"),
            ("MALLOC_TRIM_THRESHOLD_", "2147483648"),
            ("MALLOC_TOP_PAD_", "67108864"),
        ]);
        command
    }

    fn ceph(&self, arguments: &[&str]) -> Command {
        let mut command = tool(&self.ceph);
        command.arg("-c").arg(&self.conf).args(["--connect-timeout", "10"]).args(arguments);
        command
    }

    fn rados(&self, verb: &str, object: &str, file: &Path) -> Command {
        let mut command = tool(&self.rados);
        command.arg("-c").arg(&self.conf).args(["-p", Ceph::POOL, verb, object]).arg(file);
        command
    }
}

fn tool(program: &Path) -> Command {
    let mut command = Command::new(program);
    // They would add to the configuration.
    command.env_remove("CEPH_ARGS").env_remove("CEPH_CONF");
    command
}

type Caps = &'static [(&'static str, &'static str)];

const KEYS: &[(&str, Caps)] = &[
    ("mon.", &[("mon", "allow *")]),
    ("client.admin", &[("mon", "allow *"), ("osd", "allow *"), ("mgr", "allow *"), ("mds", "allow *")]),
    ("osd.0", &[("mon", "allow profile osd"), ("osd", "allow *"), ("mgr", "allow profile osd")]),
];

/// What a client has to know from `ceph osd dump`.
#[derive(Debug, PartialEq)]
struct OsdMap {
    v1: Option<SocketAddr>,
    v2: Option<SocketAddr>,
    nonce: u32,
    epoch: u32,
    pool: u64,
}

impl OsdMap {
    /// Dumps until the map has stopped changing by itself, because an osd may drop operations of an old epoch.
    ///
    /// Two changes follow the first write: the pool loses its flag `creating`, and the osd's first beacon, half a second
    /// later, brings the time of its snapshot scrub (`ceph osd dump 8` against `9`, Ceph 16.2.15). The second may be absent
    /// in other releases, so it has [`BEACON`] to come.
    fn settled(mut dump: impl FnMut() -> Result<Vec<u8>, Unavailable>) -> Result<Self, Unavailable> {
        let begin = Instant::now();
        loop {
            let output = dump()?;
            let map = json(&output).as_ref().and_then(Self::of_dump);
            let (map, settling) = map.ok_or_else(|| {
                CEPH.failed("`ceph osd dump` has an unknown form", String::from_utf8_lossy(&output))
            })?;
            match settling {
                None => return Ok(map),
                Some(Settling::Beacon) if begin.elapsed() >= BEACON => return Ok(map),
                Some(Settling::Pool) if begin.elapsed() >= STEP => {
                    return Err(CEPH.failed(format!("the pool is still being created after {STEP:?}"), ""));
                }
                Some(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// The map, and what is still to change in it.
    fn of_dump(dump: &Value) -> Option<(Self, Option<Settling>)> {
        let addrs = dump["osds"][0]["public_addrs"]["addrvec"].as_array()?;
        let addr_of = |kind: &str| {
            let addr = addrs.iter().find(|addr| addr["type"] == kind)?;
            addr["addr"].as_str()?.parse().ok()
        };
        let pool = dump["pools"].as_array()?.iter().find(|pool| pool["pool_name"] == Ceph::POOL)?;
        let map = Self {
            v1: addr_of("v1"),
            v2: addr_of("v2"),
            nonce: addrs.first()?["nonce"].as_u64()?.try_into().ok()?,
            epoch: dump["epoch"].as_u64()?.try_into().ok()?,
            pool: pool["pool"].as_u64()?,
        };
        let settling = if pool["flags_names"].as_str()?.contains("creating") {
            Some(Settling::Pool)
        } else if dump["osd_xinfo"][0]["last_purged_snaps_scrub"] == "0.000000" {
            Some(Settling::Beacon)
        } else {
            None
        };
        Some((map, settling))
    }
}

/// The change that a new osd map still expects.
#[derive(Debug, PartialEq)]
enum Settling {
    /// The pool is being created.
    Pool,
    /// The osd has not sent its first beacon.
    Beacon,
}

fn json(output: &[u8]) -> Option<Value> {
    serde_json::from_slice(output).ok()
}

/// Below it all the osd's ports fit.
fn first_osd_port() -> Result<u16, Unavailable> {
    let port = FreePort::choose(CEPH)?.addr().port();
    Ok(port.min(u16::MAX - OSD_PORTS))
}

fn random_uuid() -> Result<String, Unavailable> {
    let uuid =
        fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(CEPH.io("reading a random uuid"))?;
    Ok(uuid.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_nonce_epoch_and_pool_are_read_from_a_dump() {
        let dump = br#"{"epoch":9,"fsid":"0","osds":[{"osd":0,"public_addrs":{"addrvec":[
            {"type":"v2","addr":"127.0.0.1:23311","nonce":4123456789},
            {"type":"v1","addr":"127.0.0.1:23312","nonce":4123456789}]}}],
            "pools":[{"pool":3,"pool_name":"bench","flags_names":"hashpspool,creating"}]}"#;
        let (map, settling) = OsdMap::of_dump(&json(dump).unwrap()).unwrap();
        let v1 = "127.0.0.1:23312".parse().ok();
        let v2 = "127.0.0.1:23311".parse().ok();
        assert_eq!(map, OsdMap { v1, v2, nonce: 4_123_456_789, epoch: 9, pool: 3 });
        assert_eq!(settling, Some(Settling::Pool));
    }

    #[test]
    fn extra_lines_belong_to_the_global_section() {
        let options = CephOptions::default().mode(CephMode::Crc).conf("osd_max_object_name_len = 100");
        let text = options.configuration(Path::new("/x/"), "f", "m", 1000);
        let global = text.split("[mon]").next().unwrap();
        assert!(global.contains("\nosd_max_object_name_len = 100\n"));
        assert!(global.contains("\nms_mon_client_mode = crc\n"));
        assert!(global.contains("keyring = /x/keyring\n"));
    }
}
