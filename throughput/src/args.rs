//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::groups::ceph::CephArgs;

/// Measures ways of sending and receiving messages against each other, and prints tables.
///
/// Each method of a group runs once a round, in an order that changes from round to round; a table shows medians, and
/// in brackets the least and the most. Figures of different runs do not compare.
#[derive(Clone, Debug, Parser)]
#[command(name = "throughput", version)]
#[non_exhaustive]
pub struct Args {
    /// Groups to run, separated by commas; all of them unless given
    #[arg(long, value_delimiter = ',', value_name = "GROUP")]
    pub only: Vec<String>,

    /// Message sizes to measure instead of a group's own, such as 4k,64k,1m
    #[arg(long, value_delimiter = ',', value_parser = bytes, value_name = "SIZE")]
    pub sizes: Vec<u64>,

    /// Size of the pool that payload pages come from [default: 16m]. With --osd: the number of the Ceph pool; one for all
    /// osds, or one for each
    #[arg(long, value_delimiter = ',', value_parser = bytes, value_name = "BYTES")]
    pub pool: Vec<u64>,

    /// Size of the pool that payload pages come from, with --osd
    #[arg(long, value_parser = bytes, value_name = "BYTES", requires = "osd")]
    pub page_pool: Option<u64>,

    /// How often each method runs; at least 9 for figures that are to be published
    #[arg(long, default_value_t = 9, value_name = "N")]
    pub rounds: usize,

    /// How long the first method of a table runs in one round (four times as long in small, sending); the others do as much
    /// work
    #[arg(long, default_value_t = 120, value_name = "MILLISECONDS")]
    pub piece: u64,

    /// Print one JSON object as the last line, and the tables on stderr
    #[arg(long)]
    pub json: bool,

    /// Write plots (SVG) into this folder
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,

    /// Write the tables as Markdown into this file: between its markers, if it has them
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,

    /// Each group once and tiny: that it works and that its counts hold, no judgement of times
    #[arg(long)]
    pub short: bool,

    /// How long the peer of the group in-flight takes for a request
    #[arg(long, default_value_t = 2000, value_name = "MICROSECONDS")]
    pub service: u64,

    /// For the group ceph.
    #[command(flatten)]
    pub ceph: CephArgs,
}

/// What a message's pages come from unless something else is said.
const PAGE_POOL: u64 = 16 << 20;

impl Args {
    /// Size of the pool that payload pages come from, in bytes.
    pub fn page_pool(&self) -> u64 {
        let pool = if self.ceph.osd.is_empty() { self.pool.first().copied() } else { self.page_pool };
        pool.unwrap_or(PAGE_POOL)
    }
}

/// A number of bytes with an optional `k`, `m` or `g` (binary).
///
/// ```
/// use segchain_throughput::args::bytes;
/// assert_eq!(bytes("64k"), Ok(65536));
/// assert_eq!(bytes("100"), Ok(100));
/// assert!(bytes("4 pages").is_err());
/// ```
///
/// # Errors
/// What does not look like that.
pub fn bytes(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, shift) = match lower.strip_suffix(['k', 'm', 'g']) {
        Some(digits) if lower.ends_with('k') => (digits, 10),
        Some(digits) if lower.ends_with('m') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (&*lower, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text}: a number and k, m or g"))?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| (1..=1 << 40).contains(bytes))
        .ok_or_else(|| format!("{text}: 1 byte to 1024g"))
}

/// The same backwards, for tables: `64k`, `1m`, `200`.
///
/// ```
/// assert_eq!(segchain_throughput::args::size(65536), "64k");
/// ```
pub fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}g", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}
