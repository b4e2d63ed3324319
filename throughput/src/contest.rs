//! Methods against each other: every one once a round, in an order that changes from round to round, over the same
//! connection, with the other side doing the same for all of them.
//!
//! Before anything is timed each method runs once with both ends digested: one that sends or hands out the wrong bytes
//! ends the program. That run also warms the method up.

use std::collections::HashMap;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::machine::{Side, thread_cpu};
use crate::pages::{Random, Sum};
use crate::partner::{Job, Partner};
use crate::report::Row;
use crate::stats::Spread;

/// What a method did for some number of messages.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// System calls that carried bytes, or tried to.
    pub calls: u64,
    /// Those of them that went on after a short write, or found the socket full or empty: how many depends on who is faster.
    pub resumed: u64,
    /// Slices in all calls.
    pub slices: u64,
    /// Bytes of payload copied in user space.
    pub copied: u64,
    /// CPU time of threads other than the one that ran the method.
    pub cpu: Duration,
}

/// How a method is run: so many messages; a receiving method digests what it has received if there is a sum.
pub type Run<'c> = Box<dyn FnMut(u64, Option<&mut Sum>) -> io::Result<Counts> + 'c>;

/// One way to do it.
pub struct Method<'c> {
    name: String,
    against: Option<String>,
    limit: Option<String>,
    sealed: bool,
    size: Option<u64>,
    per: u64,
    run: Run<'c>,
}

impl std::fmt::Debug for Method<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Method").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'c> Method<'c> {
    /// A method without a baseline.
    pub fn new(
        name: impl Into<String>,
        run: impl FnMut(u64, Option<&mut Sum>) -> io::Result<Counts> + 'c,
    ) -> Self {
        Self {
            name: name.into(),
            against: None,
            limit: None,
            sealed: false,
            size: None,
            per: 1,
            run: Box::new(run),
        }
    }

    /// Its name in the tables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Compares it with the group's baseline: `speed_ratio` and `cpu_ratio`.
    #[must_use]
    pub fn against(mut self, name: impl Into<String>) -> Self {
        self.against = Some(name.into());
        self
    }

    /// Compares it with what the machine can do at best: `limit_speed_ratio` and `limit_cpu_ratio`.
    #[must_use]
    pub fn limit(mut self, name: impl Into<String>) -> Self {
        self.limit = Some(name.into());
        self
    }

    /// It sends `per` messages of `size` bytes where the contest counts one. Speeds and costs are compared per byte.
    #[must_use]
    pub fn messages_of(mut self, size: u64, per: u64) -> Self {
        (self.size, self.per) = (Some(size), per);
        self
    }

    /// Runs it once outside of a round, for counts that are not of the method's own making.
    ///
    /// # Errors
    /// As the method reports them.
    pub fn once(&mut self, messages: u64) -> io::Result<Counts> {
        (self.run)(messages * self.per, None)
    }

    /// Whether it computes the payload's checksum.
    #[must_use]
    pub fn sealed(mut self, sealed: bool) -> Self {
        self.sealed = sealed;
        self
    }

    fn task(&self, units: u64, payload: u64, check: bool) -> Task {
        let size = self.size.unwrap_or(payload);
        Task { messages: units * self.per, size, sealed: self.sealed, check }
    }
}

/// What the other side has to do while a method runs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Task {
    /// So many messages.
    pub messages: u64,
    /// Of so many bytes of payload.
    pub size: u64,
    /// Whether they carry a checksum.
    pub sealed: bool,
    /// Whether to return a digest of what was received.
    pub check: bool,
}

/// The methods of one table at one size.
pub struct Contest<'c> {
    what: String,
    side: Side,
    payload: u64,
    methods: Vec<Method<'c>>,
    partner: Option<Box<dyn Fn(Task) -> Job<'c> + 'c>>,
    expected: Option<Box<dyn Fn(Task) -> u64 + 'c>>,
    checked: u64,
    units: Option<u64>,
    longer: u32,
}

impl std::fmt::Debug for Contest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contest").field("what", &self.what).finish_non_exhaustive()
    }
}

impl<'c> Contest<'c> {
    /// One without another side and without a digest. `what` is for the progress bar, `side` the core that the methods run on
    /// (the other side runs on the other), and `payload` how many bytes of it a message has.
    pub fn new(what: impl Into<String>, side: Side, payload: u64) -> Self {
        Self {
            what: what.into(),
            side,
            payload,
            methods: Vec::new(),
            partner: None,
            expected: None,
            checked: 3,
            units: None,
            longer: 1,
        }
    }

    /// What the other side does.
    #[must_use]
    pub fn partner(mut self, job: impl Fn(Task) -> Job<'c> + 'c) -> Self {
        self.partner = Some(Box::new(job));
        self
    }

    /// What the receiver must have seen.
    #[must_use]
    pub fn expected(mut self, digest: impl Fn(Task) -> u64 + 'c) -> Self {
        self.expected = Some(Box::new(digest));
        self
    }

    /// How many messages are sent to see whether a method sends the right bytes; 3 unless set.
    #[must_use]
    pub fn checked(mut self, count: u64) -> Self {
        self.checked = count;
        self
    }

    /// A piece has so many messages, whatever that takes; as many as take the time that was asked for unless set.
    #[must_use]
    pub fn messages(mut self, count: u64) -> Self {
        self.units = Some(count);
        self
    }

    /// A piece lasts so many times as long as was asked for: for methods that take a while to reach their pace.
    #[must_use]
    pub fn longer(mut self, times: u32) -> Self {
        self.longer = times;
        self
    }

    /// Adds a method.
    pub fn add(&mut self, method: Method<'c>) {
        self.methods.push(method);
    }

    /// Sets what all methods that were added have in common.
    pub fn each(&mut self, set: impl FnMut(Method<'c>) -> Method<'c>) {
        self.methods = std::mem::take(&mut self.methods).into_iter().map(set).collect();
    }

    /// The methods, to run [once](Method::once).
    pub fn methods_mut(&mut self) -> &mut [Method<'c>] {
        &mut self.methods
    }

    /// Runs it.
    ///
    /// # Errors
    /// Wrong bytes, or what the methods report.
    pub fn run(&mut self, bench: &Bench) -> io::Result<Outcome> {
        bench.machine.pin(self.side)?;
        thread::scope(|scope| {
            let partner = Partner::start(scope, bench.machine.clone(), self.side.other());
            self.check(&partner)?;
            let messages = self.calibrate(&partner, bench)?;
            let rounds = bench.rounds();
            let bar = bench.bar(&self.what, rounds * self.methods.len());
            let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); self.methods.len()];
            let mut random = Random(0x2545_f491_4f6c_dd1d);
            for _ in 0..rounds {
                for method in random.shuffled(self.methods.len()) {
                    samples[method].push(self.piece(&partner, method, messages)?);
                    bar.inc(1);
                }
            }
            bar.finish_and_clear();
            let methods = self.methods.iter().map(|method| Named {
                name: method.name.clone(),
                against: method.against.clone(),
                limit: method.limit.clone(),
            });
            Ok(Outcome { side: self.side, methods: methods.zip(samples).collect() })
        })
    }

    /// Every method once, both ends digested.
    fn check<'s>(&mut self, partner: &Partner<'s>) -> io::Result<()>
    where
        'c: 's,
    {
        for method in &mut self.methods {
            let mut sum = Sum::new();
            let task = method.task(self.checked, self.payload, true);
            let mut seen = 0;
            if let Some(job) = &self.partner {
                partner.begin(job(task))?;
            }
            (method.run)(task.messages, Some(&mut sum))?;
            if self.partner.is_some() {
                seen = partner.end()?.0;
            }
            let Some(expected) = &self.expected else { continue };
            if self.side == Side::Receiver {
                seen = sum.value();
            }
            let expected = expected(task);
            if seen != expected {
                let (what, name) = (&self.what, &method.name);
                return Err(io::Error::other(format!(
                    "{what}, {name}: digest {seen:x}, expected {expected:x}"
                )));
            }
        }
        Ok(())
    }

    /// How many messages a piece has, so that the first method takes as long as was asked for.
    fn calibrate<'s>(&mut self, partner: &Partner<'s>, bench: &Bench) -> io::Result<u64>
    where
        'c: 's,
    {
        if let Some(units) = self.units {
            return Ok(units);
        }
        let Some(wanted) = bench.piece().map(|piece| piece * self.longer) else {
            return Ok((256 << 10 >> self.payload.max(1).ilog2()).clamp(2, 64));
        };
        let mut messages = (2 << 20) / self.payload.max(1) + 1;
        loop {
            let took = self.piece(partner, 0, messages)?.wall;
            if took * 4 >= wanted || messages > 1 << 30 {
                return Ok(((messages as f64 * wanted.as_secs_f64() / took.as_secs_f64()) as u64).max(1));
            }
            messages *= 4;
        }
    }

    /// One method once.
    fn piece<'s>(&mut self, partner: &Partner<'s>, method: usize, messages: u64) -> io::Result<Sample>
    where
        'c: 's,
    {
        let method = &mut self.methods[method];
        let task = method.task(messages, self.payload, false);
        let job = self.partner.as_ref().map(|job| job(task));
        let (began, cpu) = (Instant::now(), thread_cpu());
        let other = job.is_some();
        if let Some(job) = job {
            partner.begin(job)?;
        }
        let counts = (method.run)(task.messages, None)?;
        let own = thread_cpu().saturating_sub(cpu) + counts.cpu;
        let other = if other { partner.end()?.1 } else { Duration::ZERO };
        let Task { messages, size, .. } = task;
        Ok(Sample { wall: began.elapsed(), own, other, counts, messages, size })
    }
}

/// One method in one round.
#[derive(Clone, Copy, Debug)]
struct Sample {
    wall: Duration,
    own: Duration,
    other: Duration,
    counts: Counts,
    messages: u64,
    size: u64,
}

impl Sample {
    fn bytes(&self) -> f64 {
        self.messages as f64 * self.size as f64
    }
}

#[derive(Debug)]
struct Named {
    name: String,
    against: Option<String>,
    limit: Option<String>,
}

/// All samples of a contest.
#[derive(Debug)]
pub struct Outcome {
    side: Side,
    methods: Vec<(Named, Vec<Sample>)>,
}

impl Outcome {
    /// A row for each method. Keys: `speed` (MiB/s of payload), `rate` (messages/s), `speed_ratio` and `cpu_ratio` (the
    /// method's own side) to the baseline, the same to the limit, `sender_cpu` and `receiver_cpu` (s/GiB),
    /// `sender_us` and `receiver_us` (CPU microseconds a message), `calls_per_message` without
    /// and `resumed_per_message` the calls that went on after a short write, `slices_per_call`, `copied_per_message` (bytes).
    pub fn rows(&self) -> Vec<Row> {
        let by_name: HashMap<&str, &[Sample]> =
            self.methods.iter().map(|(named, samples)| (&*named.name, &samples[..])).collect();
        self.methods.iter().map(|(named, samples)| self.row(named, samples, &by_name)).collect()
    }

    /// The speed of one method by that of another, round by round.
    pub fn speed_ratio(&self, method: &str, base: &str) -> Option<Spread> {
        let speeds = |name: &str| {
            let (_, samples) = self.methods.iter().find(|(named, _)| named.name == name)?;
            Some(speeds(samples))
        };
        Spread::of_ratios(&speeds(method)?, &speeds(base)?)
    }

    fn row(&self, named: &Named, samples: &[Sample], by_name: &HashMap<&str, &[Sample]>) -> Row {
        let size = samples.first().map_or(0, |sample| sample.size);
        let mut row = Row::new(&named.name, size);
        // Bytes per second and seconds per byte, so that methods with messages of different sizes compare.
        let cpus = |samples: &[Sample]| series(samples, |sample| sample.own.as_secs_f64() / sample.bytes());
        let others = series(samples, |sample| sample.other.as_secs_f64() / sample.bytes());
        let scaled = |values: &[f64], by: f64| Spread::of(values.iter().map(|value| value * by));
        row.set("speed", scaled(&speeds(samples), 1.0 / MIB));
        row.set("rate", scaled(&speeds(samples), 1.0 / size as f64));
        for (base, speed, cpu) in [
            (&named.against, "speed_ratio", "cpu_ratio"),
            (&named.limit, "limit_speed_ratio", "limit_cpu_ratio"),
        ] {
            let Some(base) = base.as_ref().and_then(|name| by_name.get(&**name)) else { continue };
            row.set(speed, Spread::of_ratios(&speeds(samples), &speeds(base)));
            row.set(cpu, Spread::of_ratios(&cpus(samples), &cpus(base)));
        }
        let (sender, receiver) = match self.side {
            Side::Sender => (cpus(samples), others),
            Side::Receiver => (others, cpus(samples)),
        };
        row.set("sender_cpu", scaled(&sender, 1024.0 * MIB));
        row.set("sender_us", scaled(&sender, 1e6 * size as f64));
        row.set("receiver_cpu", scaled(&receiver, 1024.0 * MIB));
        row.set("receiver_us", scaled(&receiver, 1e6 * size as f64));
        let count = |of: fn(&Counts) -> u64| series(samples, |sample| of(&sample.counts) as f64);
        let each = |of: fn(&Counts) -> u64| {
            Spread::of(samples.iter().map(|sample| of(&sample.counts) as f64 / sample.messages as f64))
        };
        let calls = count(|counts| counts.calls);
        // What a runtime does inside nobody has counted.
        if calls.iter().all(|&calls| calls > 0.0) {
            row.set("calls_per_message", each(|counts| counts.calls - counts.resumed));
            row.set("resumed_per_message", each(|counts| counts.resumed));
            row.set("slices_per_call", Spread::of_ratios(&count(|counts| counts.slices), &calls));
            row.set("copied_per_message", each(|counts| counts.copied));
        } else if samples.iter().all(|sample| sample.counts.copied > 0) {
            row.set("copied_per_message", each(|counts| counts.copied));
        }
        row
    }
}

const MIB: f64 = (1 << 20) as f64;

fn speeds(samples: &[Sample]) -> Vec<f64> {
    series(samples, |sample| sample.bytes() / sample.wall.as_secs_f64())
}

fn series(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(of).collect()
}
