//! The measurements behind `docs/performance.md`: what a way of sending or receiving costs beside the ways that people
//! use today, on one machine in one run.
//!
//! ```text
//!  args ─▶ groups/* ─▶ contest: every method once a round, on one connection ─▶ report: rows, targets ─▶ text, JSON, SVG
//!                         │ link, partner: the other side, on the other core
//!                         └ pages, raw: what is sent, and the plainest way to send it
//! ```
//!
//! A group is one file: a table of methods, sizes, a named baseline and what has to be reached. To add one, write its
//! `run` and name it in [`groups::ALL`].

#![forbid(unsafe_code)]
// Counts and times become ratios here, and all are positive and far below 2^52.
#![allow(clippy::cast_precision_loss, clippy::cast_sign_loss)]

pub mod args;
pub mod bench;
pub mod contest;
pub mod deframe;
pub mod groups;
pub mod link;
pub mod machine;
pub mod netns;
pub mod osd;
pub mod ours;
pub mod packets;
pub mod pages;
pub mod partner;
pub mod plot;
pub mod queued;
pub mod raw;
pub mod report;
pub mod service;
pub mod stats;
pub mod tokio_io;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::args::Args;
use crate::bench::Bench;
use crate::machine::Machine;
use crate::report::Reports;

/// Does all that the command line asks for. `false` if a count does not hold.
///
/// # Errors
/// As [`measure`]; files that cannot be written.
pub fn run(args: Args) -> io::Result<bool> {
    let Args { json, markdown, plot, .. } = args.clone();
    // A path that does not do is found out before the measurements, and not after them.
    let page = markdown.as_deref().map(|path| page(path).map_err(at(path))).transpose()?;
    if let Some(dir) = &plot {
        fs::create_dir_all(dir).map_err(at(dir))?;
    }
    let reports = if json { measure(args, &mut io::stderr())? } else { measure(args, &mut io::stdout())? };
    if let (Some(path), Some(page)) = (&markdown, page) {
        fs::write(path, report::fill_in(&page, &reports.markdown())).map_err(at(path))?;
    }
    if let Some(dir) = &plot {
        reports.draw(dir).map_err(at(dir))?;
    }
    if json {
        println!("{}", reports.json());
    }
    Ok(reports.counts_hold())
}

/// What is in a file that can be written; nothing if there was none.
fn page(path: &Path) -> io::Result<String> {
    File::options().append(true).create(true).open(path)?;
    fs::read_to_string(path)
}

/// Says which file it was.
fn at(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Runs the groups that were asked for, and writes the tables of each as soon as it has them.
///
/// # Errors
/// A group that does not exist, a method that sends or receives the wrong bytes, and what the system reports of sockets
/// and threads.
pub fn measure(args: Args, tables: &mut dyn Write) -> io::Result<Reports> {
    let chosen = groups::chosen(&args.only)?;
    let bench = Bench::new(args, Machine::look()?)?;
    let mut reports = Reports::new(bench.head());
    writeln!(tables, "{}", bench.head())?;
    for group in chosen {
        let report = bench.group(group)?;
        write!(tables, "{}", report.text())?;
        reports.push(report);
    }
    writeln!(tables, "{}", reports.summary())?;
    Ok(reports)
}
