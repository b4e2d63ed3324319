//! Checksums: over scattered pages, sealed ahead of a send, and joined.
//!
//! Baselines: the crate that the checksum of the same polynomial is built on, crc-fast (CRC-32C) and crc32fast (IEEE), over
//! the same pages; for `concat` each crate's own combine; for sealing, the message sealed whole before its first call.

use std::hint::black_box;
use std::io;

use segchain::checksum::{Checksum, Crc32, Crc32c};
use segchain::send::SendOptions;

use super::Group;
use super::whole_write::raw_whole;
use crate::args::size;
use crate::bench::Bench;
use crate::contest::{Contest, Counts, Method};
use crate::link;
use crate::machine::Side;
use crate::ours::Whole;
use crate::pages::{FOOT, HEAD, Message, Pool, crc_by_hand, expected};
use crate::raw;
use crate::report::{Report, Row, Section};

/// `checksum`.
pub const GROUP: Group = Group {
    name: "checksum",
    about: "Baselines: crc-fast and crc32fast over the same scattered pages, in memory that stays in the cache (hot) and \
            in the pool; for sealing a message that is sealed whole before its first call; for concat crc-fast's \
            combine, and crc32c's as a row.",
    run,
};

const PAGE: u64 = 4096;
const PAGES: &[u64] = &[1, 4, 16, 64, 256];
const PIECES: &[&str] = &["speed", "speed_ratio", "cpu_ratio"];
const SEALED: &[&str] = &[
    "speed",
    "speed_ratio",
    "cpu_ratio",
    "limit_cpu_ratio",
    "sender_cpu",
    "receiver_cpu",
    "calls_per_message",
];
const JOINED: &[&str] = &["ns", "speed_ratio"];
const COLD: u64 = 256 << 20;

fn run(bench: &Bench, report: &mut Report) -> io::Result<()> {
    let counts = if bench.args.short { &PAGES[..3] } else { PAGES };
    let hot = format!("Scattered 4k pages, hot ({} at most)", size(counts.iter().max().unwrap_or(&1) * PAGE));
    let mut section = Section::new(hot, PIECES);
    for &pages in counts {
        section.rows.extend(over_pages(bench, &Pool::new(pages * PAGE, PAGE), pages)?);
    }
    for bytes in counts.iter().map(|pages| pages * PAGE).filter(|&bytes| bytes >= 16 * PAGE) {
        for method in ["segchain Crc32c", "segchain Crc32"] {
            let name = format!("{}: {method} / the crate beneath, speed", size(bytes));
            report.at_least(name, 0.95, section.get(method, bytes, "speed_ratio"));
        }
    }
    report.sections.push(section);

    let pool = bench.pool(PAGE);
    let mut section = Section::new(format!("Scattered 4k pages, pool {}", size(pool.len())), PIECES);
    for &pages in counts {
        section.rows.extend(over_pages(bench, &pool, pages)?);
    }
    report.sections.push(section);

    let pools =
        if bench.args.short { vec![bench.args.page_pool()] } else { vec![bench.args.page_pool(), COLD] };
    for bytes in pools {
        let pool = Pool::new(bytes, PAGE);
        let mut section =
            Section::new(format!("Sealed whole or in windows, and sent; pool {}", size(bytes)), SEALED);
        for bytes in bench.sizes(&[1 << 20, 4 << 20, 16 << 20]) {
            section.rows.extend(sealing(bench, &pool.messages(bytes))?);
        }
        report.sections.push(section);
    }
    let joined = joining(bench, report)?;
    report.sections.push(joined);
    Ok(())
}

/// The same pages through each checksum, so many in a row.
fn over_pages(bench: &Bench, pool: &Pool, pages: u64) -> io::Result<Vec<Row>> {
    let messages = pool.messages(pages * PAGE);
    let messages = &messages;
    let mut contest = Contest::new(format!("checksum, {pages} pages"), Side::Sender, pages * PAGE);
    let mut add = |name: &str, base: &str, digest: fn(&[&[u8]]) -> u32| {
        let method = Method::new(name, move |count, _| {
            for message in messages.iter().cycle().take(count as usize) {
                black_box(digest(black_box(&message.segments)));
            }
            Ok(Counts::default())
        });
        contest.add(method.against(base));
    };
    add("crc-fast", "crc-fast", crc_by_hand);
    add("crc-fast again", "crc-fast", crc_by_hand);
    add("segchain Crc32c", "crc-fast", |pages| through(Crc32c::raw(0), pages).value());
    add("crc32c", "crc-fast", |pages| {
        // Inverted before and after, which is the raw form from 0.
        !pages.iter().fold(!0, |crc, page| crc32c::crc32c_append(crc, page))
    });
    add("crc32fast", "crc32fast", |pages| {
        let mut crc = crc32fast::Hasher::new();
        for page in pages {
            crc.update(page);
        }
        crc.finalize()
    });
    add("segchain Crc32", "crc32fast", |pages| through(Crc32::new(), pages).value());
    let segments = &messages[0].segments;
    let all = [
        crc_by_hand(segments),
        through(Crc32c::raw(0), segments).value(),
        !segments.iter().fold(!0, |crc, page| crc32c::crc32c_append(crc, page)),
    ];
    if all.iter().any(|&crc| crc != all[0]) {
        return Err(io::Error::other(format!("CRC-32C of {pages} pages: {all:x?}")));
    }
    let rows = contest.run(bench)?.rows();
    Ok(rows.into_iter().map(|row| row.label("pages", pages.to_string())).collect())
}

fn through<C: Checksum>(mut checksum: C, pages: &[&[u8]]) -> C {
    for page in pages {
        checksum.update(page);
    }
    checksum
}

/// Sealed whole, and in windows of different lengths, and sent.
fn sealing(bench: &Bench, messages: &[Message<'_>]) -> io::Result<Vec<Row>> {
    let (near, far) = link::tcp()?;
    let (near, far) = (&near, &far);
    let payload = messages[0].payload();
    let wire = payload + (HEAD + FOOT) as u64;
    let ready: Vec<_> = messages.iter().map(|message| message.ready(true)).collect();
    let ready = &ready;
    let mut contest = Contest::new(format!("checksum, sealing {}", size(payload)), Side::Sender, payload)
        .partner(move |task| Box::new(move || raw::drain(far, wire * task.messages, task.check)))
        .expected(|task| expected(messages, task.messages, task.sealed));
    let windows = [
        ("whole", u64::MAX),
        ("whole again", u64::MAX),
        ("windows of 64k", 64 << 10),
        ("windows of 256k", 256 << 10),
        ("windows of 1m, the default", 1 << 20),
    ];
    for (name, window) in windows {
        let mut whole = Whole::with_options(near, SendOptions::new().seal_window(window));
        contest.add(Method::new(name, move |count, _| whole.send(messages, count, true)));
    }
    let mut whole = Whole::new(near);
    contest.add(Method::new("no checksum", move |count, _| whole.send(messages, count, false)));
    contest.add(Method::new("raw + crc-fast", move |count, _| raw_whole(near, messages, ready, count, true)));
    contest.each(|method| {
        let sealed = method.name() != "no checksum";
        method.sealed(sealed).against("whole").limit("raw + crc-fast")
    });
    Ok(contest.run(bench)?.rows())
}

/// Two checksums joined, the second of so many bytes. A power of two, a length that is none, and the longest.
fn joining(bench: &Bench, report: &mut Report) -> io::Result<Section> {
    // One join of a crate takes as long as some hundred of ours: timed alike, ours would be over at once.
    const UNIT: u64 = 16;
    const OURS: u64 = 256 * UNIT;
    let mut section = Section::new("concat against the crates' combine", JOINED);
    for (len, at_least) in [(1 << 20, 200.0), (1_000_003, 80.0)] {
        let mut contest = Contest::new(format!("checksum, joining {len}"), Side::Sender, len * UNIT);
        let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
        for name in ["crc-fast", "crc-fast again"] {
            let method = Method::new(name, move |count, _| {
                for _ in 0..count {
                    black_box(crc_fast::checksum_combine(
                        algorithm,
                        black_box(1),
                        black_box(2),
                        black_box(len),
                    ));
                }
                Ok(Counts::default())
            });
            contest.add(method.against("crc-fast"));
        }
        let method = Method::new("crc32c", move |count, _| {
            for _ in 0..count {
                black_box(crc32c::crc32c_combine(black_box(1), black_box(2), black_box(len as usize)));
            }
            Ok(Counts::default())
        });
        contest.add(method.against("crc-fast"));
        let method = Method::new("segchain", move |count, _| {
            let next = Crc32c::raw(2);
            for _ in 0..count {
                let mut crc = Crc32c::raw(black_box(1));
                crc.concat(black_box(&next), black_box(len));
                black_box(crc.value());
            }
            Ok(Counts::default())
        });
        contest.add(method.against("crc-fast").limit("crc32c"));
        contest.each(|method| {
            let per = if method.name() == "segchain" { OURS } else { UNIT };
            method.messages_of(len, per)
        });
        for mut row in contest.run(bench)?.rows() {
            let rate = row.get("rate");
            row.set("ns", rate.map(|rate| rate.inverse().times(1e9)));
            section.rows.push(row);
        }
        for (base, key) in [("crc-fast", "speed_ratio"), ("crc32c", "limit_speed_ratio")] {
            let what = format!("concat of {len} / {base}'s combine, speed");
            report.at_least(what, at_least, section.get("segchain", len, key));
        }
    }
    Ok(section)
}
