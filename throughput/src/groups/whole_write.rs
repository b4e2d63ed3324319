//! Sending a message whole against sending it in pieces.
//!
//! Baseline, *page-wise*: one sendmsg of the head with `MSG_MORE`, one send a segment with `MSG_MORE`, the footer without,
//! as Linux libceph sent before 2020. Reported for Linux (see [`groups`](super); 4 KiB segments): 1.02 times the
//! speed at 4 KiB to 1.40 at 1 MiB. Limit, *raw*: one sendmsg of an iovec array that is ready before the clock starts, over the same pages.

use std::io::{self, IoSlice};
use std::net::TcpStream;

use rustix::net::SendFlags;

use super::Group;
use crate::args::size;
use crate::bench::Bench;
use crate::contest::{Contest, Counts, Method};
use crate::link;
use crate::machine::Side;
use crate::ours::Whole;
use crate::pages::{CRC_AT, FOOT, HEAD, Message, expected};
use crate::plot::Chart;
use crate::raw;
use crate::report::{Report, Section};

/// `whole-write`.
pub const GROUP: Group = Group {
    name: "whole-write",
    about: "Baseline: head, each segment and footer in a send of their own, MSG_MORE on all but the last (libceph before \
            2020). Raw: one sendmsg of ready iovecs over the same pages. The rows with a checksum compare with the \
            baseline and the raw call that compute it by hand with crc-fast. \"again\" rows are the noise of this run: \
            the same method a second time. \"raw, built each time\" copies head and footer and fills the array of iovecs \
            for every message, as whoever has a message to send must. Receiver: recv into one buffer of 256 KiB.",
    run,
};

const SIZES: &[u64] = &[4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SEGMENTS: &[u64] = &[4 << 10, 16 << 10, 64 << 10, 1 << 20];
const BUILT: &str = "raw, built each time";
const REPORTED: &[(u64, f64)] = &[(4 << 10, 1.02), (1 << 20, 1.40)];
const COLUMNS: &[&str] = &[
    "speed",
    "speed_ratio",
    "reported",
    "limit_speed_ratio",
    "cpu_ratio",
    "limit_cpu_ratio",
    "sender_cpu",
    "receiver_cpu",
    "calls_per_message",
    "resumed_per_message",
    "slices_per_call",
    "copied_per_message",
];

fn run(bench: &Bench, report: &mut Report) -> io::Result<()> {
    for &segment in if bench.args.short { &SEGMENTS[..2] } else { SEGMENTS } {
        let pool = bench.pool(segment);
        let title = format!("Segments of {}, pool {}", size(segment), size(pool.len()));
        let mut section = Section::new(title, COLUMNS);
        // One segment is one segment: a message below it is in the table of its own size.
        for bytes in bench.sizes(SIZES).into_iter().filter(|&bytes| bytes >= segment) {
            section.rows.extend(rows(bench, &pool.messages(bytes), segment)?);
            targets(report, &section, (bytes, segment));
        }
        let name = size(segment);
        report.charts.push(Chart::over_size(
            &format!("whole-write-{name}"),
            &format!("Whole message against page-wise, segments of {name}"),
            &section,
            ("speed_ratio", "speed / page-wise"),
            &["whole", "raw", "page-wise again", "whole + crc"],
        ));
        report.sections.push(section);
    }
    Ok(())
}

fn rows(bench: &Bench, messages: &[Message<'_>], segment: u64) -> io::Result<Vec<crate::report::Row>> {
    let (near, far) = link::tcp()?;
    let payload = messages[0].payload();
    let wire = payload + (HEAD + FOOT) as u64;
    let what = format!("whole-write {}, segments {}", size(payload), size(segment));
    let (near, far) = (&near, &far);
    let mut contest = Contest::new(what, Side::Sender, payload)
        .partner(move |task| Box::new(move || raw::drain(far, wire * task.messages, task.check)))
        .expected(|task| expected(messages, task.messages, task.sealed));
    for sealed in [false, true] {
        let ready: Vec<_> = messages.iter().map(|message| message.ready(sealed)).collect();
        let suffix = if sealed { " + crc" } else { "" };
        let name = |method: &str| format!("{method}{suffix}");
        for twice in ["page-wise", "page-wise again"] {
            let method = Method::new(name(twice), move |count, _| page_wise(near, messages, count, sealed));
            contest.add(method.sealed(sealed).against(name("page-wise")).limit(name("raw")));
        }
        let ready = std::rc::Rc::new(ready);
        for twice in ["raw", "raw again"] {
            let ready = ready.clone();
            let method =
                Method::new(name(twice), move |count, _| raw_whole(near, messages, &ready, count, sealed));
            contest.add(method.sealed(sealed).against(name("page-wise")).limit(name("raw")));
        }
        let method = Method::new(name(BUILT), move |count, _| raw_built(near, messages, count, sealed));
        contest.add(method.sealed(sealed).against(name("page-wise")).limit(name("raw")));
        let mut whole = Whole::new(near);
        let method = Method::new(name("whole"), move |count, _| whole.send(messages, count, sealed));
        contest.add(method.sealed(sealed).against(name("page-wise")).limit(name("raw")));
    }
    let rows = contest.run(bench)?.rows().into_iter().map(|mut row| {
        let reported = REPORTED.iter().find(|(size, _)| *size == payload && segment == 4 << 10);
        if row.method() == "whole"
            && let Some((_, speed)) = reported
        {
            row = row.with("reported", *speed);
        }
        row.label("segment", size(segment))
    });
    Ok(rows.collect())
}

/// A system call for the head, one for each segment and one for the footer; the checksum runs along.
pub(crate) fn page_wise(
    socket: &TcpStream,
    messages: &[Message<'_>],
    count: u64,
    sealed: bool,
) -> io::Result<Counts> {
    let mut counts = Counts::default();
    for message in messages.iter().cycle().take(count as usize) {
        raw::send(socket, &[IoSlice::new(&message.head)], SendFlags::MORE, &mut counts)?;
        let mut crc = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, 0);
        for segment in &message.segments {
            if sealed {
                crc.update(segment);
            }
            raw::send(socket, &[IoSlice::new(segment)], SendFlags::MORE, &mut counts)?;
        }
        let mut foot = message.foot;
        if sealed {
            foot[CRC_AT..CRC_AT + 4].copy_from_slice(&(crc.get_state() as u32).to_le_bytes());
        }
        raw::send(socket, &[IoSlice::new(&foot)], SendFlags::empty(), &mut counts)?;
    }
    Ok(counts)
}

/// A system call for the message; before it, the checksum by hand. (It is in the ready footer already, and is compared
/// with that, so that the array stays ready.)
pub(crate) fn raw_whole(
    socket: &TcpStream,
    messages: &[Message<'_>],
    ready: &[Vec<IoSlice<'_>>],
    count: u64,
    sealed: bool,
) -> io::Result<Counts> {
    let mut counts = Counts::default();
    for (message, ready) in messages.iter().zip(ready).cycle().take(count as usize) {
        if sealed {
            message.check_by_hand()?;
        }
        raw::send_ready(socket, ready, &mut counts)?;
    }
    Ok(counts)
}

/// A system call for the message, from head, footer and array that are put together for it; the checksum by hand.
fn raw_built(socket: &TcpStream, messages: &[Message<'_>], count: u64, sealed: bool) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let (mut head, mut foot, mut spare) = (Vec::new(), [0; FOOT], Vec::new());
    for message in messages.iter().cycle().take(count as usize) {
        head.clear();
        head.extend_from_slice(&message.head);
        foot.copy_from_slice(&message.foot);
        if sealed {
            foot[CRC_AT..CRC_AT + 4].copy_from_slice(&message.crc_by_hand().to_le_bytes());
        }
        let mut slices: Vec<IoSlice<'_>> = spare;
        slices.push(IoSlice::new(&head));
        slices.extend(message.segments.iter().map(|segment| IoSlice::new(segment)));
        slices.push(IoSlice::new(&foot));
        raw::send_ready(socket, &slices, &mut counts)?;
        slices.clear();
        // Collected from its own emptied iterator it keeps its memory, for slices of the next message.
        spare = slices.into_iter().map(|_| IoSlice::new(&[])).collect();
    }
    Ok(counts)
}

fn targets(report: &mut Report, section: &Section, (bytes, segment): (u64, u64)) {
    let name = |what: &str| format!("{} of {}: {what}", size(bytes), size(segment));
    let get = |method: &str, key: &str| section.get(method, bytes, key);
    // Head and footer take two of the 1024 slices of a call. (Where a message takes two calls, a short write in the first
    // can make the rest fit the second.)
    if bytes.div_ceil(segment) + 2 <= raw::MAX_SLICES as u64 {
        report.exactly(name("calls a message"), 1.0, get("whole", "calls_per_message"));
    }
    report.exactly(name("bytes copied"), 0.0, get("whole", "copied_per_message"));
    if segment == 4 << 10 {
        let speed = if bytes < 64 << 10 { 1.3 } else { 1.8 };
        report.at_least(name("whole / page-wise, speed"), speed, get("whole", "speed_ratio"));
        report.beside(get("raw", "speed_ratio"));
        if bytes >= 64 << 10 {
            report.at_most(name("whole / page-wise, CPU"), 0.52, get("whole", "cpu_ratio"));
            report.beside(get("raw", "cpu_ratio"));
            report.at_most(name("whole / page-wise with crc, CPU"), 0.55, get("whole + crc", "cpu_ratio"));
            report.beside(get("raw + crc", "cpu_ratio"));
        }
    }
    for crc in ["", " + crc"] {
        let (whole, noise) = (format!("whole{crc}"), format!("raw again{crc}"));
        let built = format!("{BUILT}{crc}");
        let what = |of: &str| name(&format!("whole / raw{crc}, {of}"));
        let both = |key: &str| (get(&whole, key), get(&noise, key));
        let ((speed, speed_noise), (cpu, cpu_noise)) = (both("limit_speed_ratio"), both("limit_cpu_ratio"));
        report.no_slower_than_noise(what("speed"), speed, speed_noise);
        report.beside(get(&built, "limit_speed_ratio"));
        report.no_dearer_than_noise(what("CPU"), cpu, cpu_noise);
        report.beside(get(&built, "limit_cpu_ratio"));
    }
}
