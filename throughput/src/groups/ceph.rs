//! A client of a real Ceph osd beside Ceph's own client library.
//!
//! The *null* operation: a write to an object whose name is longer than `osd_max_object_name_len`. The osd receives the
//! whole message, checks it and answers `ENAMETOOLONG`; no store is measured. Baseline: `librados-null`, the same load through
//! librados (`throughput/librados-null.c`), started anew for each piece and measured by itself: CPU time of its whole process,
//! all threads, from the first write to the last answer. Ours is one thread, and so its CPU time is that thread's. Neither
//! side is pinned, and both turn their piece into one connection to the same osd, one after the other. librados is given one
//! buffer, again and again, and so are we: what scattered pages cost beside that, prefetch and checksum, is a row of its own.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use super::Group;
use crate::args::size;
use crate::bench::Bench;
use crate::osd::{Client, Osd, Ran, Version};
use crate::pages::{Message, Pool, Random};
use crate::plot::Chart;
use crate::report::{Report, Row, Section};
use crate::stats::Spread;

/// `ceph`.
pub const GROUP: Group = Group {
    name: "ceph",
    about: "Null operations against a real osd: it receives and checks each message, and refuses it for its name. \
            Baseline: librados, by its own count, in pieces between ours. CPU is that of the whole client (ours: one thread; \
            librados: its process without connecting). Both send one buffer over and over; the rows of 4k pages send as many \
            bytes from scattered pages (--page-pool BYTES: buffers and pages of a larger pool). Nothing is pinned. Where an \
            osd speaks both versions librados chooses the second.",
    run,
};

/// Where the osd is: one address, or several that are measured in one run, such as one of each version.
#[derive(Clone, Debug, Default, Args)]
#[non_exhaustive]
pub struct CephArgs {
    /// An osd, for the group ceph (auth none, osd_max_object_name_len = 100). Several, separated by commas, are measured in
    /// one run; which version of the messenger each speaks is found out
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        requires = "nonce",
        requires = "epoch",
        requires = "pool"
    )]
    pub osd: Vec<String>,

    /// The nonce of the osd's address (`ceph osd dump`); one for all, or one for each
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "osd")]
    pub nonce: Vec<u32>,

    /// The epoch of the osd map; one for all, or one for each
    #[arg(long, value_name = "E", value_delimiter = ',', requires = "osd")]
    pub epoch: Vec<u32>,

    /// Compare with librados, which is to read this ceph.conf; one for all, or one for each
    #[arg(long, value_name = "CONF", value_delimiter = ',', requires = "osd")]
    pub librados: Vec<PathBuf>,

    /// The program built from throughput/librados-null.c
    #[arg(long, value_name = "PATH", default_value = "librados-null")]
    pub librados_null: PathBuf,

    /// The pool's name, for librados
    #[arg(long, value_name = "NAME", default_value = "bench")]
    pub librados_pool: String,
}

const SIZES: &[u64] = &[4 << 10, 64 << 10, 1 << 20, 4 << 20];
const IN_FLIGHT: [u64; 2] = [1, 16];
const PAGE: u64 = 4096;
/// Of one client in one round: a hundred messages of 4 MiB and more.
const PIECE: Duration = Duration::from_millis(600);
const SHORT_PIECE: Duration = Duration::from_millis(20);
const OURS: &str = "segchain";
const PAGED: &str = "segchain, 4k pages";
const LIBRADOS: &str = "librados";
const LIBRADOS_AGAIN: &str = "librados again";

const COLUMNS: &[&str] =
    &["rate", "speed", "speed_ratio", "client_us", "cpu_ratio", "calls_per_message", "copied_per_message"];

fn run(bench: &Bench, report: &mut Report) -> io::Result<()> {
    let CephArgs { osd, librados, librados_null, .. } = &bench.args.ceph;
    if osd.is_empty() {
        report.skipped =
            Some("needs a real osd: --osd HOST:PORT --nonce N --epoch E --pool P [--librados CONF]".into());
        return Ok(());
    }
    if librados.is_empty() {
        report.notes.push("Without --librados CONF there is nothing to compare with.".into());
    }
    bench.machine.unpin()?;
    // The same bytes over and over, as librados-null does.
    let sizes = bench.sizes(SIZES);
    let pools = |segment: fn(u64) -> u64| -> Vec<Pool> {
        sizes.iter().map(|&size| Pool::new(bench.args.page_pool.unwrap_or(size), segment(size))).collect()
    };
    let (buffers, pages) = (pools(|size| size), pools(|_| PAGE));
    let (buffers, pages) = (messages(&buffers, &sizes), messages(&pages, &sizes));
    for (at, address) in osd.iter().enumerate() {
        let peer = peer(bench, at)?;
        let failed = |why: io::Error| io::Error::other(format!("{address}: {why}"));
        let version = peer.version().map_err(failed)?;
        let conf = one_or_each(librados, at, "librados")?;
        let mut client = peer.connect(version).map_err(failed)?;
        let (name, words) = match version {
            Version::V1 => ("v1", "version 1"),
            Version::V2 => ("v2", "version 2"),
        };
        let mut rates = Vec::new();
        for in_flight in IN_FLIGHT {
            let pool = bench.args.page_pool.map_or(String::new(), |pool| format!(", pool {}", size(pool)));
            let title = format!("Messenger {words}, {in_flight} in flight{pool}");
            let mut section = Section::new(title, COLUMNS);
            for (buffers, pages) in buffers.iter().zip(&pages) {
                let what = format!("ceph {name}, {in_flight} in flight");
                let load = Load { bench, in_flight, conf: conf.map(PathBuf::as_path), librados_null };
                for row in load.rows(&what, buffers, pages, &mut *client)? {
                    section.rows.push(row.label("protocol", name).label("in_flight", in_flight.to_string()));
                }
            }
            targets(report, &section, &sizes, (&format!("{name}, {in_flight} in flight"), conf.is_some()));
            rates.push(section.get(OURS, PAGE, "rate").map(|rate| rate.median));
            report.charts.push(Chart::over_size(
                &format!("ceph-{name}-{in_flight}"),
                &format!("CPU of a client, messenger {words}, {in_flight} in flight"),
                &section,
                ("cpu_ratio", "CPU / librados"),
                &[OURS, PAGED, LIBRADOS_AGAIN],
            ));
            report.sections.push(section);
        }
        if let [Some(one), Some(many)] = rates[..] {
            let what = format!("{name}, {}: op/s of 16 in flight / one by one", size(PAGE));
            report.at_least(what, 2.0, Some(Spread::exact(many / one)));
        }
    }
    Ok(())
}

/// Of each size, out of its own pool.
fn messages<'p>(pools: &'p [Pool], sizes: &[u64]) -> Vec<Vec<Message<'p>>> {
    pools.iter().zip(sizes).map(|(pool, size)| pool.messages(*size)).collect()
}

fn targets(report: &mut Report, section: &Section, sizes: &[u64], (what, librados): (&str, bool)) {
    for &bytes in sizes {
        let most = match bytes {
            0..0x1_0000 => 0.6,
            0x1_0000..0x10_0000 => 0.75,
            _ => 0.8,
        };
        let name = |of: &str| format!("{what}, {}: {of}", size(bytes));
        let get = |key: &str| section.get(OURS, bytes, key);
        if librados {
            report.at_most(name("CPU / librados"), most, get("cpu_ratio"));
            report.at_least(name("op/s / librados"), 1.0, get("speed_ratio"));
        }
        report.exactly(name("bytes copied"), 0.0, get("copied_per_message"));
    }
}

/// The osd of that place in the lists.
fn peer(bench: &Bench, at: usize) -> io::Result<Osd> {
    let CephArgs { osd, nonce, epoch, .. } = &bench.args.ceph;
    let address = resolve(&osd[at])?;
    let missing = |what| io::Error::other(format!("--{what} is missing"));
    Ok(Osd::new(
        address,
        *one_or_each(nonce, at, "nonce")?.ok_or_else(|| missing("nonce"))?,
        *one_or_each(epoch, at, "epoch")?.ok_or_else(|| missing("epoch"))?,
        *one_or_each(&bench.args.pool, at, "pool")?.ok_or_else(|| missing("pool"))?,
    ))
}

/// The value for the osd at that place; `None` if there is none for any.
fn one_or_each<'v, T>(values: &'v [T], at: usize, what: &str) -> io::Result<Option<&'v T>> {
    match values {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        each => match each.get(at) {
            Some(value) => Ok(Some(value)),
            None => Err(io::Error::other(format!("--{what}: one for all osds, or one for each"))),
        },
    }
}

fn resolve(osd: &str) -> io::Result<SocketAddr> {
    let failed = |why: String| io::Error::other(format!("--osd {osd}: {why}"));
    let mut found = osd.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
    found.next().ok_or_else(|| failed("the name has no address".into()))
}

/// One size at one depth, with whomever there is.
struct Load<'b> {
    bench: &'b Bench,
    in_flight: u64,
    conf: Option<&'b Path>,
    librados_null: &'b Path,
}

impl Load<'_> {
    fn rows<'p>(
        &self,
        what: &str,
        buffers: &'p [Message<'p>],
        pages: &'p [Message<'p>],
        client: &mut (dyn Client<'p> + 'p),
    ) -> io::Result<Vec<Row>> {
        let payload = buffers[0].payload();
        // Those without messages are librados.
        let mut methods = vec![(OURS, Some(buffers))];
        if payload > PAGE {
            methods.push((PAGED, Some(pages)));
        }
        if self.conf.is_some() {
            methods.extend([(LIBRADOS, None), (LIBRADOS_AGAIN, None)]);
        }
        let lasting = self.bench.piece().map_or(SHORT_PIECE, |_| PIECE);
        let rounds = self.bench.rounds();
        let bar = self.bench.bar(&format!("{what}, {}", size(payload)), rounds * methods.len());
        // Warm: the osd has its buffers, the connection its window.
        client.run(buffers, self.in_flight, SHORT_PIECE)?;
        let mut ran: Vec<Vec<Ran>> = vec![Vec::new(); methods.len()];
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        for _ in 0..rounds {
            for method in random.shuffled(methods.len()) {
                ran[method].push(match methods[method].1 {
                    Some(messages) => client.run(messages, self.in_flight, lasting)?,
                    None => self.librados(payload, lasting)?,
                });
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let base = methods.iter().position(|method| method.0 == LIBRADOS).map(|at| &ran[at]);
        Ok(methods.iter().zip(&ran).map(|(method, own)| row(method.0, payload, own, base)).collect())
    }

    /// One piece in a process of its own.
    fn librados(&self, payload: u64, lasting: Duration) -> io::Result<Ran> {
        let program = self.librados_null;
        let failed = |why: &str| io::Error::other(format!("{}: {}", program.display(), why.trim()));
        let numbers = [payload.to_string(), self.in_flight.to_string(), lasting.as_secs_f64().to_string()];
        let output = Command::new(program)
            .args(self.conf)
            .args([&self.bench.args.ceph.librados_pool, "null"])
            .args(numbers)
            .output()
            .map_err(|error| failed(&error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(failed(&format!("{said}{}", String::from_utf8_lossy(&output.stderr))));
        }
        parse(&said).ok_or_else(|| failed(&format!("says {said:?}")))
    }
}

/// `... N ops ... R op/s ... C us/op ...`
fn parse(line: &str) -> Option<Ran> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let before = |unit: &str| -> Option<f64> {
        let at = words.iter().position(|word| *word == unit)?;
        words.get(at.checked_sub(1)?)?.parse().ok().filter(|number| *number > 0.0)
    };
    let (requests, rate, cpu_us) = (before("ops")?, before("op/s")?, before("us/op")?);
    let wall = Duration::from_secs_f64(requests / rate);
    let cpu = Duration::from_secs_f64(requests * cpu_us / 1e6);
    Some(Ran { requests: requests as u64, wall, cpu, ..Ran::default() })
}

fn row(method: &str, payload: u64, own: &[Ran], librados: Option<&Vec<Ran>>) -> Row {
    let series = |ran: &[Ran], of: &dyn Fn(&Ran) -> f64| ran.iter().map(of).collect::<Vec<f64>>();
    let rate = |ran: &Ran| ran.requests as f64 / ran.wall.as_secs_f64();
    let cpu = |ran: &Ran| ran.cpu.as_secs_f64() * 1e6 / ran.requests as f64;
    let mut row = Row::new(method, payload);
    row.set("rate", Spread::of(series(own, &rate)));
    row.set("speed", Spread::of(series(own, &|ran| rate(ran) * payload as f64 / f64::from(1 << 20))));
    row.set("client_us", Spread::of(series(own, &cpu)));
    if let Some(base) = librados {
        row.set("speed_ratio", Spread::of_ratios(&series(own, &rate), &series(base, &rate)));
        row.set("cpu_ratio", Spread::of_ratios(&series(own, &cpu), &series(base, &cpu)));
    }
    if [OURS, PAGED].contains(&method) {
        let each = |of: fn(&Ran) -> u64| series(own, &|ran| of(ran) as f64 / ran.requests as f64);
        row.set("calls_per_message", Spread::of(each(|ran| ran.counts.calls)));
        row.set("copied_per_message", Spread::of(each(|ran| ran.counts.copied)));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_librados_null_is_understood_and_nothing_else() {
        let line = "null size 4096 depth 16: 11660 ops 0.5 s  23320.0 op/s  91.0 MiB/s  client cpu 0.336 s  28.80 us/op  bad 0";
        let ran = parse(line).expect("a good line");
        assert_eq!(
            (ran.requests, ran.wall, ran.cpu),
            (11660, Duration::from_millis(500), Duration::from_micros(335_808))
        );
        assert!(parse("usage: librados-null CONF POOL").is_none());
        assert!(parse("null size 4096 depth 16: 0 ops 0.5 s  0.0 op/s  nan us/op").is_none());
    }

    #[test]
    fn a_list_has_one_value_or_one_for_each() {
        assert_eq!(one_or_each(&[7], 3, "nonce").expect("for all"), Some(&7));
        assert_eq!(one_or_each(&[7, 8], 1, "nonce").expect("for each"), Some(&8));
        assert!(one_or_each(&[7, 8], 2, "nonce").is_err());
        assert!(one_or_each::<u32>(&[], 0, "nonce").expect("none").is_none());
    }
}
