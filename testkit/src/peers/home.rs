//! Where a peer lives: its directory, the programs it runs, and the guard that outlives this process.
//!
//! A [`Home`] is made first and dropped last. Daemons are [`Daemon`]s: children in their own process group, with a log
//! file, stopped on drop. Short commands run through [`Home::run`], which has a deadline as well. The peers themselves, in
//! the modules beside, know only which programs to start and when a server counts as answering.

use super::{Unavailable, Why};
use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, thread};
use tempfile::TempDir;

/// How long a daemon has between SIGTERM and SIGKILL.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads pids from the test process until that ends, then stops them and removes the directory.
///
/// The daemons are orphans by then, and in a container nobody may be there to reap them: a zombie is gone.
const GUARD: &str = r#"
pids=
while read -r pid; do pids="$pids $pid"; done
alive() { read -r stat 2>/dev/null <"/proc/$1/stat" && case ${stat##*) } in Z*) false ;; esac; }
left() { for p in $pids; do alive "$p" && return 0; done; return 1; }
for p in $pids; do kill -TERM "$p" 2>/dev/null; done
n=0
while [ "$n" -lt 50 ] && left; do sleep 0.1; n=$((n + 1)); done
for p in $pids; do kill -KILL "$p" 2>/dev/null; done
rm -rf -- "$1"
"#;

/// Who a peer is, for its errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) what: &'static str,
    pub(super) package: &'static str,
}

impl Identity {
    /// The path of `program` in `PATH`.
    pub(super) fn program(self, program: &str) -> Result<PathBuf, Unavailable> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|directory| directory.join(program))
            .find(|file| file.is_file())
            .ok_or_else(|| self.missing(program))
    }

    pub(super) fn require_root(self) -> Result<(), Unavailable> {
        if rustix::process::geteuid().is_root() { Ok(()) } else { Err(self.unavailable(Why::NotRoot)) }
    }

    pub(super) fn missing(self, missing: impl Into<String>) -> Unavailable {
        self.unavailable(Why::NotInstalled { missing: missing.into() })
    }

    pub(super) fn failed(self, step: impl Into<String>, log: impl Into<String>) -> Unavailable {
        self.unavailable(Why::FailedToStart { step: step.into(), log: log.into() })
    }

    /// For `map_err`: an operation of the machine that failed on the way.
    pub(super) fn io(self, step: impl fmt::Display) -> impl FnOnce(io::Error) -> Unavailable {
        move |error| self.failed(format!("{step}: {error}"), "")
    }

    fn unavailable(self, why: Why) -> Unavailable {
        Unavailable { what: self.what, package: self.package, why }
    }
}

/// A temporary directory, the pids started from it, and the shell that ends both when this process does.
#[derive(Debug)]
pub(super) struct Home {
    identity: Identity,
    guard: Child,
    pids: ChildStdin,
    runs: AtomicU32,
    dir: TempDir,
}

impl Home {
    /// A new directory. The guard keeps `lock`, if there is one, until it is done.
    pub(super) fn new(identity: Identity, lock: Option<&File>) -> Result<Self, Unavailable> {
        let dir = tempfile::Builder::new()
            .prefix("segchain-")
            .tempdir()
            .map_err(identity.io("making a temporary directory"))?;
        let lock = match lock {
            Some(lock) => lock.try_clone().map_err(identity.io("duplicating the lock"))?.into(),
            None => Stdio::null(),
        };
        let mut guard = Command::new("/bin/sh")
            .args(["-c", GUARD, "segchain-guard"])
            .arg(dir.path())
            .env("PATH", "/usr/bin:/bin")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(lock)
            .stderr(Stdio::null())
            .spawn()
            .map_err(identity.io("starting /bin/sh"))?;
        let pids = guard.stdin.take().expect("the guard's standard input is a pipe");
        Ok(Self { identity, guard, pids, runs: AtomicU32::new(0), dir })
    }

    pub(super) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> Result<PathBuf, Unavailable> {
        let path = self.path(name);
        fs::write(&path, contents).map_err(self.identity.io(format_args!("writing {}", path.display())))?;
        Ok(path)
    }

    pub(super) fn make_directory(&self, name: &str) -> Result<PathBuf, Unavailable> {
        let path = self.path(name);
        fs::create_dir(&path).map_err(self.identity.io(format_args!("making {}", path.display())))?;
        Ok(path)
    }

    /// Starts a daemon whose output goes to `NAME.out`; `log` is a further file it writes.
    ///
    /// Takes the command by value: with it go the descriptors it would pass on, so that the daemon is their only owner.
    pub(super) fn daemon(
        &mut self,
        name: &'static str,
        mut command: Command,
        log: Option<PathBuf>,
    ) -> Result<Daemon, Unavailable> {
        let step = format!("starting {name}");
        let path = self.path(format!("{name}.out"));
        let out = File::create(&path).map_err(self.identity.io(&step))?;
        let err = out.try_clone().map_err(self.identity.io(&step))?;
        let child = command
            .current_dir(self.dir.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(self.identity.io(&step))?;
        let logs = std::iter::once(path).chain(log).collect();
        let daemon = Daemon { identity: self.identity, name, child, logs };
        writeln!(self.pids, "{}", daemon.pid()).map_err(self.identity.io("telling the guard"))?;
        Ok(daemon)
    }

    /// Runs a command to its end and returns its standard output.
    pub(super) fn run(&self, mut command: Command, limit: Duration) -> Result<Vec<u8>, ToolFailed> {
        let mut shown =
            Path::new(command.get_program()).file_name().unwrap_or(OsStr::new("?")).to_os_string();
        for argument in command.get_args() {
            shown.push(" ");
            shown.push(argument);
        }
        let failed = |ended: Ended| ToolFailed { command: shown.to_string_lossy().into_owned(), ended };
        // Files and not pipes: nothing has to be read while the command runs.
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let (out, err) = (self.path(format!("run-{run}.out")), self.path(format!("run-{run}.err")));
        let attempt = || -> io::Result<Option<ExitStatus>> {
            let mut child = command
                .current_dir(self.dir.path())
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(File::create(&out)?)
                .stderr(File::create(&err)?)
                .spawn()?;
            let status = wait_for(&mut child, limit);
            if !matches!(status, Ok(Some(_))) {
                let _ = child.kill();
                let _ = child.wait();
            }
            status
        };
        let status = { attempt }().map_err(|error| failed(Ended::NotRun(error)))?;
        let (output, complaint) = (fs::read(&out).unwrap_or_default(), last_lines(&err, 8));
        let _ = fs::remove_file(&out);
        let _ = fs::remove_file(&err);
        match status {
            Some(status) if status.success() => Ok(output),
            Some(status) => Err(failed(Ended::Status { status, stderr: complaint })),
            None => Err(failed(Ended::Deadline { limit, stderr: complaint })),
        }
    }

    /// [`Home::run`] as a step of a start.
    pub(super) fn step(&self, command: Command, limit: Duration) -> Result<Vec<u8>, Unavailable> {
        self.run(command, limit).map_err(|error| self.identity.failed(error.to_string(), ""))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // The daemons are gone by now: a `Home` is the last field of a peer.
        let _ = self.guard.kill();
        let _ = self.guard.wait();
    }
}

/// A running server, stopped on drop.
#[derive(Debug)]
pub(super) struct Daemon {
    identity: Identity,
    name: &'static str,
    child: Child,
    logs: Vec<PathBuf>,
}

impl Daemon {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `answers` is true, trying every 10 ms.
    pub(super) fn wait_until(
        &mut self,
        event: &str,
        limit: Duration,
        mut answers: impl FnMut() -> bool,
    ) -> Result<(), Unavailable> {
        let end = Instant::now() + limit;
        loop {
            let answered = answers();
            // Asked after the answer: on a stolen port somebody else answers while our daemon gives up.
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.failed(format!("{} ended with {status} before it {event}", self.name)));
            }
            if answered {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(self.failed(format!("{} has not {event} within {limit:?}", self.name)));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The error of this step, with the last lines of the daemon's logs.
    pub(super) fn failed(&self, step: impl Into<String>) -> Unavailable {
        let mut log = String::new();
        for path in &self.logs {
            let lines = last_lines(path, 10);
            if !lines.is_empty() {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let _ = write!(log, "--- last lines of {name}\n{lines}");
            }
        }
        self.identity.failed(step, log)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM);
        if !matches!(wait_for(&mut self.child, PATIENCE), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A command of a peer that did not succeed.
#[derive(Debug)]
pub struct ToolFailed {
    command: String,
    ended: Ended,
}

#[derive(Debug)]
enum Ended {
    NotRun(io::Error),
    Status { status: ExitStatus, stderr: String },
    Deadline { limit: Duration, stderr: String },
}

impl ToolFailed {
    /// For `map_err`: the file it leaves or takes.
    pub(super) fn no_file(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self { command: file.display().to_string(), ended: Ended::NotRun(error) }
    }
}

impl fmt::Display for ToolFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = &self.command;
        match &self.ended {
            Ended::NotRun(error) => write!(f, "{command}: {error}"),
            Ended::Status { status, stderr } => {
                write!(f, "`{command}` ended with {status}\n{}", stderr.trim_end())
            }
            Ended::Deadline { limit, stderr } => {
                write!(f, "`{command}` was not done within {limit:?}\n{}", stderr.trim_end())
            }
        }
    }
}

impl std::error::Error for ToolFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.ended {
            Ended::NotRun(error) => Some(error),
            Ended::Status { .. } | Ended::Deadline { .. } => None,
        }
    }
}

/// A TCP port of loopback that is free now, kept from others until it is dropped.
#[derive(Debug)]
pub(super) struct FreePort(TcpListener);

impl FreePort {
    pub(super) fn choose(identity: Identity) -> Result<Self, Unavailable> {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map(Self).map_err(identity.io("choosing a free port"))
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.0.local_addr().expect("a bound socket has an address")
    }
}

fn wait_for(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        match child.try_wait()? {
            None if Instant::now() < end => thread::sleep(Duration::from_millis(5)),
            status => return Ok(status),
        }
    }
}

fn last_lines(path: &Path, count: usize) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].iter().flat_map(|line| [line, "\n"]).collect()
}
