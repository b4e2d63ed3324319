//! Sends ONC RPC records: to a peer of its own, to an NFS server, or to rpcbind.
//!
//! ```text
//!  rpc_sender                                    calls with payload to an embedded peer, digests compared
//!  rpc_sender --nfs A --mount B --export /x --write FILE --as NAME      NFSv3 WRITE from pages, then COMMIT
//!  rpc_sender --nfs A --mount B --export /x --read NAME --output FILE   NFSv3 READ into pages
//!  rpc_sender --nfs A                            NULL calls
//!  rpc_sender --rpcbind HOST:PORT | udp:HOST:PORT | SOCKET-PATH         DUMP, or GETADDR over UDP
//! ```
//!
//! [`client`] is what to copy: one connection, calls in flight, replies matched by transaction id. The programs' own
//! procedures are in [`mount`], [`nfs3`] and [`rpcbind`].
#![allow(unreachable_pub)] // a program: nothing of it is reachable

mod client;
mod embedded;
mod mount;
mod nfs3;
mod report;
mod rpcbind;

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use segchain::window::Window;

use client::Client;
use report::Report;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Sends ONC RPC records with segchain. Without arguments it talks to a peer inside of this process.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// NFSv3 server; alone it gets NULL calls
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "rpcbind")]
    nfs: Option<String>,
    /// Where MOUNT answers
    #[arg(long, value_name = "HOST:PORT", requires = "nfs", requires = "export")]
    mount: Option<String>,
    /// Path to mount
    #[arg(long, value_name = "PATH", requires = "mount")]
    export: Option<String>,
    /// File to write to the server: created there, or truncated
    #[arg(long, value_name = "FILE", requires = "mount", requires = "name")]
    write: Option<PathBuf>,
    /// What the written file is called in the export
    #[arg(long = "as", value_name = "NAME", requires = "write")]
    name: Option<String>,
    /// File to read from the server (after --write, if both are given)
    #[arg(long, value_name = "NAME", requires = "mount", requires = "output")]
    read: Option<String>,
    /// Where the read file goes
    #[arg(long, value_name = "FILE", requires = "read")]
    output: Option<PathBuf>,
    /// rpcbind: DUMP over TCP or a socket path, GETADDR over UDP
    #[arg(long, value_name = "HOST:PORT|udp:HOST:PORT|SOCKET-PATH")]
    rpcbind: Option<String>,
    /// Payload of one call, in bytes; the NFS server's own limits apply too
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10, value_parser = value_parser!(u32).range(1..=1 << 30))]
    chunk: u32,
    /// How many calls, where there is no file that says it [default: 1000; 1 with --rpcbind]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// How many calls may be in flight [default: as many as fill 64 MiB, at most 256]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=65536))]
    in_flight: Option<u32>,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

impl Args {
    fn window(&self) -> Window {
        match self.in_flight {
            Some(calls) => Window::new(u64::from(calls) * u64::from(self.chunk), calls as usize),
            None => Window::for_object_size(self.chunk.into()),
        }
    }
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            let text = error.to_string();
            eprintln!("rpc_sender: {} (see --help)", one_line(text.trim_start_matches("error: ")));
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
            eprintln!("rpc_sender: {complaint}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("rpc_sender: {}", one_line(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<Report> {
    match (&args.rpcbind, &args.nfs) {
        (Some(peer), _) => rpcbind::run(peer, args.count.unwrap_or(1), args.window()),
        (None, Some(peer)) if args.mount.is_some() => files(args, peer),
        (None, Some(peer)) => nulls(peer, args.count.unwrap_or(1000), args.window()),
        (None, None) => embedded::run(args.count.unwrap_or(1000), args.chunk, args.window()),
    }
}

/// Writes and reads files of an NFS server.
fn files(args: &Args, peer: &str) -> Result<Report> {
    let (Some(mount), Some(export)) = (&args.mount, &args.export) else {
        return Err("--mount and --export go together".into());
    };
    if args.write.is_none() && args.read.is_none() {
        return Err("nothing to do: --mount needs --write or --read".into());
    }
    let root = mount::mnt(mount, export)?;
    let mut server =
        nfs3::Server::new(Client::tcp(peer, nfs3::PROGRAM, nfs3::VERSION, args.window())?, root, args.chunk)?;

    let began = Instant::now();
    let mut payload = 0;
    if let (Some(path), Some(name)) = (&args.write, &args.name) {
        let file = File::open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        payload += server.write(&file, name)?;
    }
    if let (Some(name), Some(path)) = (&args.read, &args.output) {
        payload += server.read(name, path)?;
    }
    let mut report = server.client().report(began.elapsed());
    report.payload_bytes = payload;
    if let (Some(sent), Some(received)) = (&args.write, &args.output)
        && args.name == args.read
    {
        report.checksum_ok = std::fs::read(sent)? == std::fs::read(received)?;
    }
    Ok(report)
}

/// Calls that carry nothing: how fast the road is.
fn nulls(peer: &str, count: u64, window: Window) -> Result<Report> {
    let mut client = Client::tcp(peer, nfs3::PROGRAM, nfs3::VERSION, window)?;
    let bar = bar(count, "calls");
    let began = Instant::now();
    client.null(count, |done| bar.set_position(done))?;
    bar.finish_and_clear();
    Ok(client.report(began.elapsed()))
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
