//! Sends iSCSI PDUs: pings with payload, writes and reads, to a target of its own or to a real one.
//!
//! ```text
//!  iscsi_sender                                        pings with payload to an embedded target, compared
//!  iscsi_sender --write FILE --lba N --read BLOCKS --output FILE       the embedded target has a disk of 16 MiB
//!  iscsi_sender --portal HOST:PORT --target IQN --lun N ...            the same with a real target
//! ```
//!
//! [`client`] is what to copy: one thread and one connection, requests in flight, data of writes out of the caller's
//! pages and data of reads into them. [`target`] is the other side, made of the same crate. Here are the flags and the
//! work.
#![allow(unreachable_pub)] // a program: nothing of it is reachable

mod client;
mod report;
mod target;

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use bytes::Bytes;
use clap::{Parser, ValueEnum, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use segchain_iscsi::Data;
use segchain_iscsi::login::{DigestOffer, Parameters};
use segchain_iscsi::scsi::{Command, lun};
use segchain_iscsi::session::Event;

use client::Client;
use report::Report;
use target::Embedded;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Sends iSCSI PDUs with segchain. Without a portal it talks to a target inside of this process.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Portal of a real target
    #[arg(long, value_name = "HOST:PORT", requires = "target")]
    portal: Option<String>,
    /// Name of the target
    #[arg(long, value_name = "IQN", requires = "portal")]
    target: Option<String>,
    /// Logical unit
    #[arg(long, value_name = "N", default_value_t = 1)]
    lun: u16,
    /// Ping with so many bytes [default, if there is nothing else to do: 65536]
    #[arg(long, value_name = "BYTES", value_parser = value_parser!(u32).range(0..1 << 24))]
    echo: Option<u32>,
    /// How many pings
    #[arg(long, value_name = "N", default_value_t = 1000)]
    count: u64,
    /// File to write to the disk: whole blocks
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// How many blocks to read from the disk (after --write, if both are given)
    #[arg(long, value_name = "BLOCKS", requires = "output")]
    read: Option<u32>,
    /// Block to begin at
    #[arg(long, value_name = "N", default_value_t = 0)]
    lba: u32,
    /// Where the blocks that were read go
    #[arg(long, value_name = "FILE", requires = "read")]
    output: Option<PathBuf>,
    /// Which digests there have to be
    #[arg(long, value_enum, default_value_t = Digests::Both)]
    digests: Digests,
    /// How many requests may be in flight
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(1..=65536))]
    in_flight: u32,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Digests {
    None,
    Header,
    Data,
    Both,
}

impl Digests {
    fn name(self) -> &'static str {
        ["none", "header", "data", "both"][self as usize]
    }

    fn parameters(self) -> Parameters {
        let offer = |on| if on { DigestOffer::Require } else { DigestOffer::Off };
        let header = matches!(self, Self::Header | Self::Both);
        let data = matches!(self, Self::Data | Self::Both);
        Parameters::new().digests(offer(header), offer(data)).max_recv(MAX_RECV)
    }
}

/// What we take in one PDU: whatever can be pinged.
const MAX_RECV: u32 = (1 << 24) - 1;
/// What one command moves.
const CHUNK: u64 = 1 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            let text = error.to_string();
            eprintln!("iscsi_sender: {} (see --help)", one_line(text.trim_start_matches("error: ")));
            return ExitCode::from(2);
        }
    };
    match run(&args) {
        Ok(report) => {
            if args.json {
                println!("{}", report.json());
            } else {
                print!("{report}");
            }
            let Some(complaint) = report.complaint() else { return ExitCode::SUCCESS };
            eprintln!("iscsi_sender: {complaint}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("iscsi_sender: {}", one_line(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<Report> {
    let parameters = args.digests.parameters();
    if let (Some(portal), Some(target)) = (&args.portal, &args.target) {
        return work(args, Client::connect(portal, target, parameters)?, portal);
    }
    let embedded = Embedded::start()?;
    let client = Client::connect(&embedded.portal(), target::NAME, parameters)?;
    let report = work(args, client, "embedded")?;
    embedded.end()?;
    Ok(report)
}

/// Everything that the flags ask for, then a logout.
fn work(args: &Args, mut client: Client, peer: &str) -> Result<Report> {
    let in_flight = args.in_flight as usize;
    let began = Instant::now();
    let mut done = Done { same: true, ..Done::default() };
    let files = args.write.is_some() || args.read.is_some();
    if let Some(bytes) = args.echo.or_else(|| (!files).then_some(65_536)) {
        done.add(&echo(&mut client, bytes as usize, args.count, in_flight)?);
    }
    if files {
        let disk = Disk::find(&mut client, args)?;
        if let Some(path) = &args.write {
            done.add(&disk.write(&mut client, path, in_flight)?);
        }
        if let (Some(blocks), Some(path)) = (args.read, &args.output) {
            done.add(&disk.read(&mut client, blocks, path, in_flight)?);
        }
        if let (Some(sent), Some(received)) = (&args.write, &args.output) {
            let (sent, received) = (std::fs::read(sent)?, std::fs::read(received)?);
            let both = sent.len().min(received.len());
            done.same &= sent[..both] == received[..both];
        }
    }
    let report = Report {
        peer: peer.into(),
        digests: args.digests.name(),
        payload_bytes: done.bytes,
        elapsed: began.elapsed(),
        send: client.send_stats(),
        recv: client.recv_stats(),
        replies_ok: done.ok,
        replies_failed: done.failed,
        failure: done.failure,
        checksum_ok: done.same,
    };
    client.log_out()?;
    Ok(report)
}

/// What came of a part of the work.
#[derive(Debug, Default)]
struct Done {
    bytes: u64,
    ok: u64,
    failed: u64,
    /// Why the first of them failed.
    failure: Option<String>,
    /// Whether what was compared is the same.
    same: bool,
}

impl Done {
    fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.ok += other.ok;
        self.failed += other.failed;
        self.failure = self.failure.take().or_else(|| other.failure.clone());
        self.same &= other.same;
    }

    fn fail(&mut self, why: String) {
        self.failed += 1;
        self.failure.get_or_insert(why);
    }
}

/// Sends `count` pings of `len` bytes in scattered pages, and compares what comes back.
fn echo(client: &mut Client, len: usize, count: u64, in_flight: usize) -> Result<Done> {
    let memory = Scattered::new(len);
    let bar = bar(count, "pings");
    let mut done = Done { same: true, ..Done::default() };
    let mut pings = HashMap::new();
    let mut started = 0;
    while done.ok + done.failed < count {
        while started < count && pings.len() < in_flight {
            pings.insert(client.ping(memory.pages(started))?, started);
            started += 1;
        }
        match client.next()? {
            Event::Pong { itt, data } => {
                let ping = pings.remove(&itt).ok_or("a pong without a ping")?;
                done.ok += 1;
                done.bytes += data.len();
                done.same &= same(&data, &memory.pages(ping));
            }
            Event::Rejected { reason, header: Some(header) } => {
                pings.remove(&header.itt());
                done.fail(format!("the target rejects it, reason {reason:#x}"));
            }
            other => return Err(format!("unexpected: {other:?}").into()),
        }
        bar.set_position(done.ok);
    }
    bar.finish_and_clear();
    Ok(done)
}

/// Whether data in pieces is that of the pages.
fn same(data: &Data, pages: &[Bytes]) -> bool {
    let mut pages = pages.iter();
    let mut page: &[u8] = &[];
    for mut part in data.parts() {
        while !part.is_empty() {
            if page.is_empty() {
                let Some(next) = pages.next() else { return false };
                page = next;
            }
            let (now, later) = part.split_at(part.len().min(page.len()));
            if now != &page[..now.len()] {
                return false;
            }
            (part, page) = (later, &page[now.len()..]);
        }
    }
    page.is_empty() && pages.next().is_none()
}

/// The disk of a target, from one of its blocks on.
struct Disk {
    lun: u64,
    lba: u32,
    block_len: u32,
}

impl Disk {
    fn find(client: &mut Client, args: &Args) -> Result<Self> {
        let lun = lun(args.lun);
        let capacity = client.capacity(lun)?;
        // It says how much memory a command takes.
        if u64::from(capacity.block_len) > CHUNK {
            return Err(
                format!("blocks of {} bytes are too large for this example", capacity.block_len).into()
            );
        }
        Ok(Self { lun, lba: args.lba, block_len: capacity.block_len })
    }

    /// Parts of `len` bytes, a command each: where it begins, its first block, and how many.
    fn commands(&self, len: u64) -> impl Iterator<Item = (u64, u32, u16)> {
        let (lba, block_len) = (self.lba, u64::from(self.block_len));
        let blocks = (CHUNK / block_len).clamp(1, u16::MAX.into());
        (0..len.div_ceil(block_len)).step_by(blocks as usize).map(move |block| {
            let count = blocks.min(len / block_len - block) as u16;
            (block * block_len, lba.wrapping_add(block as u32), count)
        })
    }

    fn check(&self, blocks: u64) -> Result<()> {
        let end = u64::from(self.lba) + blocks;
        if u32::try_from(end).is_ok() {
            Ok(())
        } else {
            Err("READ (10) and WRITE (10) end at 2^32 blocks".into())
        }
    }

    /// A command that went well may have moved less than it was to: that is no disk's content.
    fn all_moved(&self, what: &str, (_, lba, blocks): (u64, u32, u16), moved: u64) -> Result<()> {
        let asked = u64::from(blocks) * u64::from(self.block_len);
        if moved == asked {
            Ok(())
        } else {
            Err(format!("{what} of {blocks} blocks at block {lba}: {moved} of {asked} bytes were moved")
                .into())
        }
    }

    fn write(&self, client: &mut Client, path: &Path, in_flight: usize) -> Result<Done> {
        let name = path.display();
        let mut file = File::open(path).map_err(|error| format!("cannot open {name}: {error}"))?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(format!("{name} is no file").into());
        }
        let len = about.len();
        if !len.is_multiple_of(self.block_len.into()) {
            let block = self.block_len;
            return Err(format!("{name} has {len} bytes: no whole number of blocks of {block}").into());
        }
        self.check(len / u64::from(self.block_len))?;
        let parts: Vec<_> = self.commands(len).collect();
        let commands = parts.iter().map(|&(_, lba, blocks)| {
            let mut data = vec![0; usize::from(blocks) * self.block_len as usize];
            file.read_exact(&mut data)?;
            let command = Command::write10(self.lun, lba, blocks, Bytes::from(data));
            Ok((command, Vec::new()))
        });
        let mut bytes = 0;
        let mut done = client.run(commands, in_flight, len, |(index, _), moved| {
            bytes += moved;
            self.all_moved("write", parts[index], moved)
        })?;
        done.bytes = bytes;
        Ok(done)
    }

    fn read(&self, client: &mut Client, blocks: u32, path: &Path, in_flight: usize) -> Result<Done> {
        let name = path.display();
        let mut file = File::create(path).map_err(|error| format!("cannot create {name}: {error}"))?;
        self.check(blocks.into())?;
        let len = u64::from(blocks) * u64::from(self.block_len);
        let parts: Vec<_> = self.commands(len).collect();
        let commands = parts.iter().map(|&(_, lba, blocks)| {
            let memory = vec![0; usize::from(blocks) * self.block_len as usize];
            Ok((Command::read10(self.lun, lba, blocks, self.block_len), memory))
        });
        let mut bytes = 0;
        let mut done = client.run(commands, in_flight, len, |(index, memory), moved| {
            bytes += moved;
            self.all_moved("read", parts[index], moved)?;
            file.seek(SeekFrom::Start(parts[index].0))?;
            Ok(file.write_all(&memory)?)
        })?;
        done.bytes = bytes;
        Ok(done)
    }
}

/// Memory as it is in a page cache, for payloads whose pages do not lie side by side.
struct Scattered {
    memory: Bytes,
    len: usize,
}

impl Scattered {
    /// Memory for payloads of `len` bytes: twice as many pages as one takes, and at least 4096.
    fn new(len: usize) -> Self {
        let count = (2 * len.div_ceil(PAGE)).max(4096);
        let mut memory = vec![0; count * PAGE];
        for (number, page) in memory.chunks_mut(PAGE).enumerate() {
            let mark = (number as u64 ^ 0x5eed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            page.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&mark));
        }
        Self { memory: memory.into(), len }
    }

    /// The pages of a ping, every other one from another start each time.
    fn pages(&self, ping: u64) -> Vec<Bytes> {
        let count = self.memory.len() / PAGE;
        let page = |(index, at): (usize, usize)| {
            let start = (ping as usize + 2 * index) % count * PAGE;
            self.memory.slice(start..start + PAGE.min(self.len - at))
        };
        (0..self.len).step_by(PAGE).enumerate().map(page).collect()
    }
}

/// A progress bar on standard error; nothing if that is not a terminal.
fn bar(len: u64, unit: &str) -> ProgressBar {
    let bar = ProgressBar::new(len);
    let template = match unit {
        "bytes" => "{bar:40} {bytes}/{total_bytes} {bytes_per_sec}",
        _ => "{bar:40} {pos}/{len} {per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// The first paragraph of a message, on one line.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}
