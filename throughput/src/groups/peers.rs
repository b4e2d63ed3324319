//! The same messages through what people use today.
//!
//! Sending, the baseline is *segchain* itself, so that a row says what the other way costs beside it: std
//! `write_vectored` with `advance_slices`, tokio `write_all_buf`, tokio-util `FramedWrite` with an encoder that copies,
//! tokio `write_all` a page. Receiving: tokio-util `LengthDelimitedCodec`, and a recv for the header and one for the rest.
//! Who has a checksum computes it with crc-fast (segchain: with its slots).

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::net::TcpStream;

use futures_util::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use super::Group;
use super::whole_write::raw_whole;
use crate::args::size;
use crate::bench::Bench;
use crate::contest::{Contest, Counts, Method};
use crate::deframe::Slabs;
use crate::link;
use crate::machine::Side;
use crate::ours::Whole;
use crate::pages::{CRC_AT, FOOT, HEAD, Message, Sum, crc_by_hand, expected};
use crate::plot::Chart;
use crate::raw;
use crate::report::{Report, Row, Section};
use crate::tokio_io::{Async, Copying, Pieces};

/// `peers`.
pub const GROUP: Group = Group {
    name: "peers",
    about: "Baseline: segchain; a row says what another way costs beside it. Raw: one call of ready iovecs. tokio runs \
            on the same socket, on a current-thread runtime in the measured thread; how many calls it makes is its \
            own business and not counted. Receivers let go of each message at once, so that all of them reuse memory \
            that is still in the cache. Who has a checksum computes it with crc-fast over the same pages.",
    run,
};

const SIZES: &[u64] = &[64 << 10, 1 << 20, 4 << 20];
const COLUMNS: &[&str] = &[
    "speed",
    "speed_ratio",
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
    let pool = bench.pool(4096);
    let pool_size = size(pool.len());
    let mut sending = Section::new(format!("Sending, 4k pages, pool {pool_size}"), COLUMNS);
    // Nobody is the limit here.
    let columns: Vec<_> = COLUMNS.iter().copied().filter(|key| !key.starts_with("limit")).collect();
    let mut receiving = Section::new(format!("Receiving, 4k pages sent, pool {pool_size}"), &columns);
    for bytes in bench.sizes(SIZES) {
        let messages = pool.messages(bytes);
        sending.rows.extend(send_rows(bench, &messages)?);
        receiving.rows.extend(receive_rows(bench, &messages)?);
    }
    for bytes in bench.sizes(SIZES) {
        targets(report, &sending, bytes);
    }
    report.charts.push(Chart::over_size(
        "peers",
        "What other ways of sending cost beside segchain",
        &sending,
        ("cpu_ratio", "sender CPU / segchain"),
        &["raw", "write_vectored", "write_all_buf", "FramedWrite", "write_all a page", "segchain again"],
    ));
    report.sections.extend([sending, receiving]);
    Ok(())
}

fn targets(report: &mut Report, sending: &Section, bytes: u64) {
    let name = |what: &str| format!("{}: {what}", size(bytes));
    let against = |method: &str, key: &str| Some(sending.get(method, bytes, key)?.inverse());
    if bytes >= 1 << 20 {
        for method in ["write_all_buf", "FramedWrite"] {
            let what = format!("segchain / {method}, CPU");
            report.at_most(name(&what), 0.95, against(method, "cpu_ratio"));
            report.beside(against(method, "limit_cpu_ratio"));
        }
        report.at_least(
            name("segchain / write_all a page, speed"),
            3.5,
            against("write_all a page", "speed_ratio"),
        );
        report.beside(against("write_all a page", "limit_speed_ratio"));
    }
    for crc in ["", " + crc"] {
        let (method, noise) = (format!("write_vectored{crc}"), format!("segchain again{crc}"));
        let what = |of: &str| name(&format!("segchain / {method}, {of}"));
        let both = |key: &str| (against(&method, key), against(&noise, key));
        let ((speed, speed_noise), (cpu, cpu_noise)) = (both("speed_ratio"), both("cpu_ratio"));
        report.no_slower_than_noise(what("speed"), speed, speed_noise);
        report.no_dearer_than_noise(what("CPU"), cpu, cpu_noise);
    }
}

fn send_rows(bench: &Bench, messages: &[Message<'_>]) -> io::Result<Vec<Row>> {
    let (near, far) = link::tcp()?;
    let (near, far) = (&near, &far);
    let payload = messages[0].payload();
    let wire = payload + (HEAD + FOOT) as u64;
    let runtime = Async::new(near)?;
    let runtime = &runtime;
    let ready =
        [false, true].map(|sealed| messages.iter().map(|message| message.ready(sealed)).collect::<Vec<_>>());
    let mut contest = Contest::new(format!("peers, sending {}", size(payload)), Side::Sender, payload)
        .partner(move |task| Box::new(move || raw::drain(far, wire * task.messages, task.check)))
        .expected(|task| expected(messages, task.messages, task.sealed));
    for (sealed, ready) in [false, true].into_iter().zip(&ready) {
        // Each message as its ready slices, after its checksum was computed, if there is one.
        let each = move |count: u64| {
            messages.iter().zip(ready).cycle().take(count as usize).map(move |(message, ready)| {
                if sealed {
                    message.check_by_hand()?;
                }
                Ok::<_, io::Error>(ready)
            })
        };
        let mut methods = Vec::new();
        for twice in ["segchain", "segchain again"] {
            let mut whole = Whole::new(near);
            methods.push(Method::new(twice, move |count, _| whole.send(messages, count, sealed)));
        }
        for twice in ["raw", "raw again"] {
            methods.push(Method::new(twice, move |count, _| raw_whole(near, messages, ready, count, sealed)));
        }
        let mut slices = Vec::new();
        methods.push(Method::new("write_vectored", move |count, _| {
            let mut counts = Counts::default();
            each(count).try_for_each(|ready| write_vectored(near, ready?, &mut slices, &mut counts))?;
            Ok(counts)
        }));
        methods.push(Method::new("write_all_buf", move |count, _| {
            runtime.run(async |mut socket| {
                for ready in each(count) {
                    socket.write_all_buf(&mut Pieces::new(ready?)).await?;
                }
                Ok(Counts::default())
            })
        }));
        methods.push(Method::new("FramedWrite", move |count, _| {
            runtime.run(async |socket| {
                let mut framed = FramedWrite::new(socket, Copying { sealed });
                for message in messages.iter().cycle().take(count as usize) {
                    framed.send(message).await?;
                }
                Ok(Counts { copied: count * payload, ..Counts::default() })
            })
        }));
        methods.push(Method::new("write_all a page", move |count, _| {
            runtime.run(async |mut socket| {
                for ready in each(count) {
                    for piece in ready? {
                        socket.write_all(piece).await?;
                    }
                }
                Ok(Counts::default())
            })
        }));
        for method in methods {
            contest.add(compared(method, "segchain", sealed));
        }
    }
    Ok(contest.run(bench)?.rows())
}

/// Names the method as one with a checksum, if it is one, and its baselines so too.
fn compared<'c>(method: Method<'c>, baseline: &str, sealed: bool) -> Method<'c> {
    let name = |name: &str| if sealed { format!("{name} + crc") } else { name.to_string() };
    let named = name(method.name());
    method.named(named).sealed(sealed).against(name(baseline)).limit(name("raw"))
}

fn write_vectored<'r>(
    mut socket: &TcpStream,
    ready: &[IoSlice<'r>],
    slices: &mut Vec<IoSlice<'r>>,
    counts: &mut Counts,
) -> io::Result<()> {
    slices.clear();
    slices.extend_from_slice(ready);
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        counts.calls += 1;
        counts.slices += rest.len().min(raw::MAX_SLICES) as u64;
        let sent = socket.write_vectored(rest)?;
        IoSlice::advance_slices(&mut rest, sent);
    }
    Ok(())
}

fn receive_rows(bench: &Bench, messages: &[Message<'_>]) -> io::Result<Vec<Row>> {
    let (near, far) = link::tcp()?;
    let (near, far) = (&near, &far);
    let payload = messages[0].payload();
    let runtime = Async::new(far)?;
    let runtime = &runtime;
    let ready =
        [false, true].map(|sealed| messages.iter().map(|message| message.ready(sealed)).collect::<Vec<_>>());
    let ready = &ready;
    let mut contest = Contest::new(format!("peers, receiving {}", size(payload)), Side::Receiver, payload)
        .partner(move |task| {
            let ready = &ready[usize::from(task.sealed)];
            Box::new(move || raw::feed(near, ready, task.messages))
        })
        .expected(|task| expected(messages, task.messages, task.sealed));
    for sealed in [false, true] {
        let mut methods = Vec::new();
        for twice in ["segchain", "segchain again"] {
            let mut slabs = Slabs::new(far, sealed, 0);
            methods.push(Method::new(twice, move |count, sum| slabs.receive(count, sum)));
        }
        methods.push(Method::new("LengthDelimitedCodec", move |count, mut sum| {
            runtime.run(async |socket| {
                let mut framed = FramedRead::new(socket, codec());
                for _ in 0..count {
                    let frame = framed.next().await.ok_or(io::ErrorKind::UnexpectedEof)??;
                    look(&frame, sealed, &mut sum)?;
                }
                Ok(Counts::default())
            })
        }));
        let mut body = vec![0; HEAD + payload as usize + FOOT];
        methods.push(Method::new("recv a header, recv the rest", move |count, mut sum| {
            let mut counts = Counts::default();
            for _ in 0..count {
                let (head, rest) = body.split_at_mut(HEAD);
                raw::recv_all(far, &mut [IoSliceMut::new(head)], &mut counts)?;
                raw::recv_all(far, &mut [IoSliceMut::new(rest)], &mut counts)?;
                look(&body, sealed, &mut sum)?;
            }
            Ok(counts)
        }));
        for method in methods {
            contest.add(compared(method, "segchain", sealed));
        }
    }
    Ok(contest.run(bench)?.rows())
}

/// The length of the payload is in the head at 8; a frame is the whole message.
fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .little_endian()
        .length_field_offset(8)
        .length_field_length(8)
        .length_adjustment((HEAD + FOOT).cast_signed())
        .num_skip(0)
        .max_frame_length(1 << 30)
        .new_codec()
}

/// What is done with a message in one piece: its checksum, if there is one, and a digest, if somebody asks for it.
fn look(message: &[u8], sealed: bool, sum: &mut Option<&mut Sum>) -> io::Result<()> {
    let (body, foot) = message.split_at(message.len() - FOOT);
    if sealed && foot[CRC_AT..CRC_AT + 4] != crc_by_hand(&[&body[HEAD..]]).to_le_bytes() {
        return Err(io::Error::other("the checksum differs"));
    }
    if let Some(sum) = sum {
        sum.update(message);
    }
    Ok(())
}
