//! The other side: a thread on the other core that does one job at a time and says what it cost.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::Duration;

use crate::machine::{Machine, Side, thread_cpu};

/// Something to do: returns a digest of what it saw, or 0 if nobody asked for one.
pub type Job<'s> = Box<dyn FnOnce() -> io::Result<u64> + Send + 's>;

/// A thread that takes jobs.
#[derive(Debug)]
pub struct Partner<'s> {
    jobs: Sender<Job<'s>>,
    done: Receiver<(io::Result<u64>, Duration)>,
}

impl<'s> Partner<'s> {
    /// Starts it, pinned to `side`. It ends when this is dropped.
    pub fn start(scope: &'s Scope<'s, '_>, machine: Machine, side: Side) -> Self {
        let (jobs, todo) = channel::<Job<'s>>();
        let (say, done) = channel();
        scope.spawn(move || {
            let pinned = machine.pin(side);
            if let Err(error) = pinned {
                let _ = say.send((Err(error), Duration::ZERO));
                return;
            }
            for job in todo {
                let began = thread_cpu();
                let result = job();
                if say.send((result, thread_cpu().saturating_sub(began))).is_err() {
                    break;
                }
            }
        });
        Self { jobs, done }
    }

    /// Gives it a job, which it begins at once.
    ///
    /// # Errors
    /// It has ended.
    pub fn begin(&self, job: Job<'s>) -> io::Result<()> {
        self.jobs.send(job).map_err(|_| gone())
    }

    /// Waits for the end of the job: what it returned, and its CPU time.
    ///
    /// # Errors
    /// The job's own.
    pub fn end(&self) -> io::Result<(u64, Duration)> {
        let (result, cpu) = self.done.recv().map_err(|_| gone())?;
        Ok((result?, cpu))
    }
}

fn gone() -> io::Error {
    io::Error::other("the other side has ended")
}
