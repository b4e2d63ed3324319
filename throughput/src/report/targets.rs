//! What has to be reached, and whether it was. What was not measured was not reached: a method that has another name now, or
//! a count that cannot be had, is a missed target, unless the command line chose other sizes.

use std::fmt;

use comfy_table::{Table, TableStyle};
use serde_json::{Value, json};

use super::Report;
use super::table::{number, spread};
use crate::stats::Spread;

impl Report {
    /// The median is to be at least so much.
    pub fn at_least(&mut self, what: impl Into<String>, wanted: f64, reached: Option<Spread>) {
        self.target(what, format!("at least {}", number(wanted)), Bound::Least(wanted), reached);
    }

    /// The median is to be at most so much.
    pub fn at_most(&mut self, what: impl Into<String>, wanted: f64, reached: Option<Spread>) {
        self.target(what, format!("at most {}", number(wanted)), Bound::Most(wanted), reached);
    }

    /// The median of a speed ratio is not to be below every round of the noise row.
    pub fn no_slower_than_noise(
        &mut self,
        what: impl Into<String>,
        reached: Option<Spread>,
        noise: Option<Spread>,
    ) {
        let least = noise.map_or(f64::NAN, |noise| noise.min);
        self.target(what, within(noise), Bound::Least(least), noise.and(reached));
    }

    /// The median of a CPU ratio is not to be above every round of the noise row.
    pub fn no_dearer_than_noise(
        &mut self,
        what: impl Into<String>,
        reached: Option<Spread>,
        noise: Option<Spread>,
    ) {
        let most = noise.map_or(f64::NAN, |noise| noise.max);
        self.target(what, within(noise), Bound::Most(most), noise.and(reached));
    }

    /// A count that does not depend on the machine, the same in every round; the program fails if it does not hold.
    pub fn exactly(&mut self, what: impl Into<String>, wanted: f64, reached: Option<Spread>) {
        self.target(what, format!("exactly {}", number(wanted)), Bound::Exactly(wanted), reached);
    }

    /// What raw calls reach where the last target was set. If they miss it too, no library can meet it on this machine,
    /// and the table says so.
    pub fn beside(&mut self, raw: Option<Spread>) {
        if let Some(target) = self.targets.last_mut() {
            target.raw = raw;
        }
    }

    fn target(&mut self, what: impl Into<String>, wanted: String, bound: Bound, reached: Option<Spread>) {
        let judged = match (reached, bound) {
            (None, _) => !self.other_sizes,
            (_, Bound::Exactly(_)) => true,
            // One tiny round says nothing about time.
            _ => !self.short,
        };
        if judged {
            self.targets.push(Target { what: what.into(), wanted, reached, raw: None, bound });
        }
    }
}

fn within(noise: Option<Spread>) -> String {
    format!("noise {}", noise.map_or_else(String::new, spread))
}

/// What has to be reached.
#[derive(Clone, Debug)]
pub(super) struct Target {
    what: String,
    wanted: String,
    /// `None`: not measured.
    reached: Option<Spread>,
    bound: Bound,
    /// What raw calls reach.
    raw: Option<Spread>,
}

/// How it is judged.
#[derive(Clone, Copy, Debug)]
enum Bound {
    Least(f64),
    Most(f64),
    /// A count, which holds on any machine.
    Exactly(f64),
}

impl Bound {
    fn holds(self, Spread { median, min, max }: Spread) -> bool {
        match self {
            Self::Least(least) => median >= least,
            Self::Most(most) => median <= most,
            Self::Exactly(wanted) => [min, max].iter().all(|value| (value - wanted).abs() < 1e-9),
        }
    }
}

impl Target {
    pub(super) fn met(&self) -> bool {
        self.reached.is_some_and(|reached| self.bound.holds(reached))
    }

    /// Whether it is missed whatever the machine is.
    pub(super) fn fails(&self) -> bool {
        !self.met() && (self.reached.is_none() || matches!(self.bound, Bound::Exactly(_)))
    }

    pub(super) fn json(&self) -> Value {
        let Self { what, wanted, reached, .. } = self;
        let reached = reached.map(|reached| reached.median);
        json!({"what": what, "wanted": wanted, "reached": reached, "met": self.met()})
    }

    fn verdict(&self) -> &'static str {
        match self.raw {
            _ if self.met() => "met",
            Some(raw) if self.reached.is_some() && !self.bound.holds(raw) => "MISSED, by raw calls too",
            _ => "MISSED",
        }
    }

    fn reached(&self) -> String {
        self.reached.map_or_else(|| "not measured".into(), spread)
    }
}

/// One line.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, reached {}", self.what, self.wanted, self.reached())?;
        self.raw.map_or(Ok(()), |raw| write!(f, ", raw {}", spread(raw)))
    }
}

/// All of a group.
pub(super) fn table(targets: &[Target], preset: TableStyle) -> Table {
    let mut table = Table::new();
    table.load_style(preset).set_header(["what", "wanted", "reached", "raw reaches", ""]);
    for target in targets {
        let raw = target.raw.map_or_else(String::new, spread);
        table.add_row([&target.what, &target.wanted, &target.reached(), &raw, target.verdict()]);
    }
    table
}
