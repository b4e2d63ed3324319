//! Writes objects to a Ceph osd, as fast as one connection goes, and shows what it took.
//!
//! ```text
//! cargo run --release --example ceph_sender                       an embedded peer in the same process
//! cargo run --release --example ceph_sender -- --osd 127.0.0.1:6801 --nonce 7 --epoch 9 --pool 1
//! ```
//!
//! `client.rs` is what to copy: sending without waiting for each reply, and reading into pages of one's own. `connect.rs`
//! is the handshake before it, `messenger.rs` makes both versions of the messenger one. `peer.rs` is the other side, made
//! of the same crate's receiving half. Here are the flags and the table.

mod accept;
mod client;
mod connect;
mod messenger;
mod pages;
mod peer;
mod report;

use std::io::Read;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use segchain::window::Window;
use segchain_ceph::osd::{Op, Request};

use self::client::Client;
use self::connect::Osd;
use self::messenger::Protocol;
use self::pages::Pages;
use self::peer::{Peer, Tally};
use self::report::Report;

type Failure = Box<dyn std::error::Error>;

/// Where the figures of a real osd are found.
const AFTER_HELP: &str = "\
With a real osd, `ceph osd dump` has all that is asked for: the epoch in its first line, the pool's number, and the
osd's addresses, of which the one that begins with v1: or v2: has HOST:PORT/NONCE. For instance:

  ceph_sender --protocol v2 --osd 127.0.0.1:6800 --nonce 1234 --epoch 9 --pool 1 --object NAME --input FILE";

/// Writes objects to a Ceph osd over either version of the messenger.
#[derive(Parser)]
#[command(version, after_help = AFTER_HELP)]
struct Flags {
    /// The version of the messenger
    #[arg(long, value_enum, default_value_t = Protocol::V1)]
    protocol: Protocol,
    /// Send to this osd (its address of that version, auth none); without it an embedded peer is started
    #[arg(long, value_name = "HOST:PORT", requires = "epoch", requires = "pool")]
    osd: Option<String>,
    /// The nonce of the osd's address (`ceph osd dump`): refuse to talk to another one. Version 2 cannot do without
    #[arg(long, value_name = "N", requires = "osd")]
    nonce: Option<u32>,
    /// Ask this monitor for our global id; without it, it is made up
    #[arg(long, value_name = "HOST:PORT", requires = "osd")]
    mon: Option<String>,
    /// The epoch of the osd map.
    #[arg(long, value_name = "E", requires = "osd")]
    epoch: Option<u32>,
    /// The number of the pool, which has to have one placement group (pg_num 1): objects are not spread over more
    #[arg(long, value_name = "P", requires = "osd")]
    pool: Option<u64>,
    /// Write a file as this object, read it back and compare.
    #[arg(long, value_name = "NAME", requires = "input")]
    object: Option<String>,
    /// The file.
    #[arg(long, value_name = "FILE", requires = "object")]
    input: Option<PathBuf>,
    /// How many objects to write.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Bytes of each object.
    #[arg(long, value_name = "BYTES", default_value_t = 65536, value_parser = clap::value_parser!(u32).range(..=i64::from(client::DATA_LIMIT)))]
    size: u32,
    /// Bytes of each of the scattered pages that an object is made of.
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=i64::from(client::DATA_LIMIT)))]
    page: u32,
    /// How many objects may be in flight [default: as many as fill 64 MiB, at most 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    in_flight: Option<u32>,
    /// Send no checksums of data (Ceph's ms_crc_data = false). Version 1 only.
    #[arg(long)]
    no_crc: bool,
    /// Use names that are too long: the osd receives and checks everything and refuses it, so that no store is measured. It
    /// has to have osd_max_object_name_len = 100
    #[arg(long)]
    null: bool,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) if error.use_stderr() => {
            // The first paragraph says what is wrong, the rest is help.
            let text = error.to_string();
            let words: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            eprintln!("{} (see --help)", words.join(" "));
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    match run(&flags) {
        Ok(report) => {
            if flags.json {
                println!("{}", report.json());
            } else {
                println!("{report}");
            }
            match report.fault() {
                None => ExitCode::SUCCESS,
                Some(fault) => {
                    eprintln!("error: {fault}");
                    ExitCode::FAILURE
                }
            }
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<Report, Failure> {
    let Flags { protocol, .. } = *flags;
    if protocol == Protocol::V2 && flags.no_crc {
        return Err("--no-crc: version 2 of the messenger always has checksums".into());
    }
    if protocol == Protocol::V2 && flags.osd.is_some() && flags.nonce.is_none() {
        return Err("--protocol v2 needs --nonce: an osd closes on a client that means another one".into());
    }
    let (embedded, address, nonce) = if let Some(osd) = &flags.osd {
        (None, resolve(osd)?, flags.nonce)
    } else {
        let peer = Peer::start(protocol);
        let peer = peer.map_err(|error| format!("the embedded peer does not start: {error}"))?;
        let address = peer.address();
        (Some(peer), address, Some(peer::NONCE))
    };
    let global_id = match &flags.mon {
        Some(monitor) => Some(connect::global_id(protocol, resolve(monitor)?)?),
        None => None,
    };
    let osd = Osd { protocol, address, nonce, crc_data: !flags.no_crc };
    let mut client = Client::connect(&osd, global_id, window(flags))?;

    let mut report = match (&flags.object, &flags.input) {
        (Some(object), Some(input)) => transfer(flags, &mut client, object, input)?,
        _ => load(flags, &mut client)?,
    };
    report.peer = flags.osd.clone().unwrap_or_else(|| "embedded".into());
    (report.protocol, report.from_monitor) = (protocol, global_id.is_some());
    drop(client);
    if let Some(peer) = embedded {
        let tally = peer.finish()?;
        report.checksum_ok &= flags.null || tally == report.tally;
    }
    Ok(report)
}

fn resolve(osd: &str) -> Result<SocketAddr, Failure> {
    let mut found = osd.to_socket_addrs().map_err(|error| format!("cannot reach {osd}: {error}"))?;
    Ok(found.next().ok_or_else(|| format!("cannot reach {osd}: the name has no address"))?)
}

fn window(flags: &Flags) -> Window {
    match flags.in_flight {
        Some(requests) => Window::new(u64::from(requests) * u64::from(flags.size.max(1)), requests as usize),
        None => Window::for_object_size(flags.size.into()),
    }
}

/// Writes objects without waiting for the reply to each.
fn load(flags: &Flags, client: &mut Client) -> Result<Report, Failure> {
    let pages = Pages::scattered(flags.size as usize, flags.page as usize);
    if flags.null {
        client.expect_result(client::NAME_TOO_LONG);
    }

    let bar = progress_bar(flags.count);
    let (sent, received) = (client.send_stats(), client.recv_stats());
    let begin = Instant::now();
    for number in 0..flags.count {
        // `osd_max_object_name_len` has to be below 120 for a null operation.
        let name = if flags.null { format!("{number:0>120}") } else { format!("segchain-{number}") };
        client.send(&request(flags, &name, Op::write_full(flags.size)), pages.object(number))?;
        bar.set_position(client.answered());
    }
    client.wait_for_all(|answered| bar.set_position(answered))?;
    let seconds = begin.elapsed();
    bar.finish_and_clear();

    let mut report = Report::new(client, sent, received, seconds);
    report.payload_bytes = flags.count * u64::from(flags.size);
    if flags.osd.is_none() && !flags.null {
        report.tally = tally(&pages, flags.count);
    }
    Ok(report)
}

/// What an embedded peer has to come to. Objects come again, and so each is digested once.
fn tally(pages: &Pages, count: u64) -> [u8; 32] {
    let digests: Vec<_> =
        (0..count.min(pages.different())).map(|number| peer::digest(&pages.object(number))).collect();
    let mut tally = Tally::default();
    (0..count).zip(digests.iter().cycle()).for_each(|(_, digest)| tally.add(digest));
    tally.finish()
}

/// Writes a file as one object and reads it back.
fn transfer(flags: &Flags, client: &mut Client, name: &str, input: &PathBuf) -> Result<Report, Failure> {
    let (mut file, limit) = (Vec::new(), client::DATA_LIMIT);
    // One byte more tells whether it is too long, however long it is.
    std::fs::File::open(input)
        .and_then(|opened| opened.take(u64::from(limit) + 1).read_to_end(&mut file))
        .map_err(|error| format!("cannot read {}: {error}", input.display()))?;
    let len = u32::try_from(file.len()).ok().filter(|len| *len <= limit);
    let len = len.ok_or_else(|| format!("{} has more than {limit} bytes", input.display()))?;
    let page = flags.page as usize;
    let file = Bytes::from(file);
    let pages = (0..file.len()).step_by(page).map(|at| file.slice(at..file.len().min(at + page))).collect();

    let (sent, received) = (client.send_stats(), client.recv_stats());
    let begin = Instant::now();
    client.send(&request(flags, name, Op::write_full(len)), pages)?;
    client.wait_for_all(|_| {})?;
    let read = client.read(&request(flags, name, Op::read(0, len.into())), page)?;
    let seconds = begin.elapsed();

    let mut report = Report::new(client, sent, received, seconds);
    report.payload_bytes = 2 * u64::from(len);
    let mut tally = Tally::default();
    tally.add(&peer::digest(std::slice::from_ref(&file)));
    report.tally = tally.finish();
    report.checksum_ok &= read.concat() == file;
    Ok(report)
}

fn request(flags: &Flags, name: &str, op: Op) -> Request {
    Request::new(flags.pool.unwrap_or(1), name, flags.epoch.unwrap_or(1), op)
}

/// Shown on a terminal only.
fn progress_bar(count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} objects, {per_sec}, {eta} left");
    let bar = ProgressBar::new(count).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
