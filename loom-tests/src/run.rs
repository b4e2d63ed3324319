//! The runner: explores a model, prints how many executions that took, and plants faults in other processes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How far the schedules of a model are explored.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// All of them.
    None,
    /// Those with at most three preemptions.
    Three,
}

/// What the executions of a model came upon. A model that never sees what it is about proves nothing.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Seen {
    /// Notes that an execution came upon something.
    pub fn note(&self, what: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }
}

/// Runs a model under every schedule within the bound, and prints how many that were.
///
/// # Panics
/// If an execution fails, or if none of them sees one of the things that have to be seen.
pub fn explore(name: &str, bound: Bound, required: &[&str], model: fn(&Seen)) {
    let mut builder = loom::model::Builder::new();
    // Who sets LOOM_MAX_PREEMPTIONS wants more, or less.
    builder.preemption_bound = builder.preemption_bound.or(match bound {
        Bound::None => None,
        Bound::Three => Some(3),
    });
    builder.max_branches = 20_000;
    let seen = Seen::default();
    let executions = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    builder.check({
        let (seen, executions) = (seen.clone(), executions.clone());
        move || {
            executions.fetch_add(1, Ordering::Relaxed);
            model(&seen);
        }
    });
    let seen = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
    let executions = executions.load(Ordering::Relaxed);
    let seconds = begun.elapsed().as_secs_f64();
    // Not by println: the harness would keep it for itself.
    let line = format!("{name:<46} {executions:>8} executions {seconds:>6.1} s  bound {bound:?}  {seen:?}\n");
    let _ = io::stderr().write_all(line.as_bytes());
    for required in required {
        assert!(seen.contains_key(required), "{name}: no execution saw: {required}");
    }
}

/// A fault that `segchain` plants in itself if `SEGCHAIN_PLANTED_FAULT` asks for it, and the model that has to catch it.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The model.
    pub model: &'static str,
    /// The fault.
    pub name: &'static str,
}

impl Fault {
    /// A fault for a model.
    pub const fn new(model: &'static str, name: &'static str) -> Self {
        Self { model, name }
    }
}

/// Whether the model fails if the fault is planted: runs this very test binary again, for that model alone.
///
/// # Errors
/// If the binary cannot be run, or has no such model.
pub fn is_caught(fault: Fault) -> io::Result<bool> {
    let child = Command::new(std::env::current_exe()?)
        .args([fault.model, "--exact", "--test-threads", "1"])
        .env("SEGCHAIN_PLANTED_FAULT", fault.name)
        .output()?;
    if !String::from_utf8_lossy(&child.stdout).contains("running 1 test\n") {
        return Err(io::Error::other(format!("there is no model {}", fault.model)));
    }
    let caught = !child.status.success();
    let verdict = if caught { "catches" } else { "DOES NOT CATCH" };
    let _ = io::stderr().write_all(format!("{:<46} {verdict}: {}\n", fault.model, fault.name).as_bytes());
    Ok(caught)
}
