//! What the run depends on: kernel, CPU, cores to pin to, and the clock of a thread's CPU time.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The machine, as it is stated in the head of the output.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Machine {
    /// Kernel name and release.
    pub kernel: String,
    /// CPU model.
    pub cpu: String,
    /// Cores that this process may run on.
    pub cores: Vec<usize>,
}

/// Which of the two cores a thread is pinned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Side {
    /// The first core that the process may use.
    Sender,
    /// The second, or the first again if there is only one.
    Receiver,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Side::Sender => Side::Receiver,
            Side::Receiver => Side::Sender,
        }
    }
}

impl Machine {
    /// Looks at `/proc` and at the affinity of this thread.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn look() -> io::Result<Self> {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpus = line("/proc/cpuinfo");
        let model = cpus.lines().find(|line| line.starts_with("model name"));
        let cpu = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown CPU").to_string();
        let set = sched_getaffinity(None)?;
        let cores = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
        Ok(Self { kernel: format!("Linux {}", line("/proc/sys/kernel/osrelease").trim()), cpu, cores })
    }

    /// Pins this thread, and those that it starts from here on.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn pin(&self, side: Side) -> io::Result<()> {
        let first = self.cores.first().copied().unwrap_or(0);
        let core = if side == Side::Receiver { self.cores.get(1).copied().unwrap_or(first) } else { first };
        let mut set = CpuSet::new();
        set.set(core);
        Ok(sched_setaffinity(None, &set)?)
    }

    /// Lets this thread, and those that it starts from here on, run where the process may.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn unpin(&self) -> io::Result<()> {
        let mut set = CpuSet::new();
        self.cores.iter().for_each(|core| set.set(*core));
        Ok(sched_setaffinity(None, &set)?)
    }

    /// How the sides are pinned, in words.
    pub fn pinning(&self) -> String {
        match self.cores[..] {
            [sender, receiver, ..] => format!("sender on core {sender}, receiver on core {receiver}"),
            _ => "only one core: sender and receiver share it, and speeds mean little".into(),
        }
    }
}

/// CPU time of this thread so far.
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
