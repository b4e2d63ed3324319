//! What every group is given: the settings of the run, the machine, and a progress bar.

use std::io;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{Args, size};
use crate::groups::Group;
use crate::link;
use crate::machine::Machine;
use crate::pages::Pool;
use crate::report::Report;

/// The settings of a run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Bench {
    /// As they were given.
    pub args: Args,
    /// As it was found.
    pub machine: Machine,
}

impl Bench {
    /// Checks that a socket can be set up as the head of the output says.
    ///
    /// # Errors
    /// As [`link::tcp`].
    pub fn new(args: Args, machine: Machine) -> io::Result<Self> {
        link::tcp()?;
        Ok(Self { args, machine })
    }

    /// What the tables depend on.
    pub fn head(&self) -> String {
        let Machine { kernel, cpu, .. } = &self.machine;
        let form = if self.args.short { ", short form: times mean nothing" } else { "" };
        format!(
            "{kernel}, {cpu}\n{}; loopback TCP, {}, TCP_NODELAY, both read back\n\
             page pool {} unless a table says otherwise; {} rounds, each method once a round in shuffled order; \
             median (min-max){form}",
            self.machine.pinning(),
            link::CONGESTION,
            size(self.args.page_pool()),
            self.rounds(),
        )
    }

    /// Runs one group.
    ///
    /// # Errors
    /// As the group reports them.
    pub fn group(&self, group: &Group) -> io::Result<Report> {
        let mut report = Report::new(group, &self.args);
        (group.run)(self, &mut report)?;
        Ok(report)
    }

    /// How often each method runs.
    pub fn rounds(&self) -> usize {
        if self.args.short { 1 } else { self.args.rounds.max(1) }
    }

    /// How long one piece takes; `None` in the short form: a fixed, small number of messages.
    pub fn piece(&self) -> Option<Duration> {
        (!self.args.short).then(|| Duration::from_millis(self.args.piece.max(1)))
    }

    /// The sizes to measure: those of the command line, or the group's own (the first and last of them in the short
    /// form, none above 1 MiB).
    pub fn sizes(&self, own: &[u64]) -> Vec<u64> {
        match (&self.args.sizes[..], own) {
            ([], [first, .., last]) if self.args.short => vec![*first, (*last).min(1 << 20)],
            ([], own) => own.to_vec(),
            (given, _) => given.to_vec(),
        }
    }

    /// The pool of the command line, in segments of so many bytes.
    pub fn pool(&self, segment: u64) -> Pool {
        Pool::new(self.args.page_pool(), segment)
    }

    /// A bar on stderr, of so many steps; nothing where stderr is not a terminal.
    pub fn bar(&self, what: &str, steps: usize) -> ProgressBar {
        let bar = ProgressBar::new(steps as u64).with_message(what.to_string());
        if let Ok(style) = ProgressStyle::with_template("{msg:32} {bar:40} {pos}/{len} {eta}") {
            bar.set_style(style);
        }
        bar
    }
}
