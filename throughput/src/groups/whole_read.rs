//! Receiving a message into its pages with one call against a call for each page.
//!
//! Baseline, *page-wise*: a recv for the head, one of 4 KiB for each page, one for the footer, each with `MSG_WAITALL`, so
//! that it is one call and no more. Reported for Linux (see [`groups`](super)): 1.00 times the speed at 4 KiB, 1.37 at
//! 64 KiB, 1.70 at 512 KiB, 1.17 at 1 MiB. Limit, *raw*: one recvmsg with `MSG_WAITALL` into an iovec array that is ready
//! before the clock starts. *By halves*: without that flag, waiting for half of what is missing as the library does, which
//! is faster from 512 KiB on and costs no more: what raw calls reach is judged by that row.

use std::io::{self, IoSliceMut};
use std::net::TcpStream;

use segchain::framer::{Landed, LentSlices, Targets};
use segchain::recv::Receiver;
use segchain::transport::SocketRef;

use super::Group;
use crate::args::size;
use crate::bench::Bench;
use crate::contest::{Contest, Counts, Method};
use crate::deframe::{Messages, Slabs, counts, receiver, see};
use crate::link;
use crate::machine::Side;
use crate::pages::{FOOT, HEAD, Message, Pool, Sum, expected};
use crate::plot::Chart;
use crate::raw;
use crate::report::{Report, Row, Section};

/// `whole-read`.
pub const GROUP: Group = Group {
    name: "whole-read",
    about: "Baseline: head, each 4 KiB page and footer in a recv of their own. Raw: one recvmsg into ready iovecs over \
            pages of the same kind, MSG_WAITALL. By halves: recvmsg of what is there, then a wait for half of what is \
            missing (SO_RCVLOWAT). Contiguous: one recv into one buffer, then a copy into the pages. Every method \
            walks memory of its own, as much as the pool; bodies in slabs are held until so much is held. The other \
            side sends ready iovecs, a call a message.",
    run,
};

const SIZES: &[u64] = &[4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20];
const REPORTED: &[(u64, f64)] = &[(4 << 10, 1.00), (64 << 10, 1.37), (512 << 10, 1.70), (1 << 20, 1.17)];
const PAGE: u64 = 4096;
const BY_HALVES: &str = "raw, by halves";
const OURS: [&str; 2] = ["slabs", "lent pages"];
const COLUMNS: &[&str] = &[
    "speed",
    "speed_ratio",
    "reported",
    "limit_speed_ratio",
    "cpu_ratio",
    "limit_cpu_ratio",
    "receiver_cpu",
    "sender_cpu",
    "calls_per_message",
    "resumed_per_message",
    "slices_per_call",
    "copied_per_message",
];

fn run(bench: &Bench, report: &mut Report) -> io::Result<()> {
    let pool = bench.pool(PAGE);
    let mut section = Section::new(format!("Pages of 4k, pool {}", size(pool.len())), COLUMNS);
    for bytes in bench.sizes(SIZES) {
        section.rows.extend(rows(bench, &pool.messages(bytes))?);
    }
    for (bytes, method) in bench.sizes(SIZES).iter().flat_map(|&bytes| OURS.map(|method| (bytes, method))) {
        let name = |what: &str| format!("{}, {method}: {what}", size(bytes));
        if bytes == 1 << 20 {
            report.at_least(name("speed / page-wise"), 1.8, section.get(method, bytes, "speed_ratio"));
            report.beside(section.get(BY_HALVES, bytes, "speed_ratio"));
        }
        if bytes >= 256 << 10 {
            report.at_most(name("receiver CPU / page-wise"), 0.5, section.get(method, bytes, "cpu_ratio"));
            report.beside(section.get(BY_HALVES, bytes, "cpu_ratio"));
        }
    }
    report.charts.push(Chart::over_size(
        "whole-read",
        "Receiving into pages against a recv for each",
        &section,
        ("speed_ratio", "speed / page-wise"),
        &["slabs", "lent pages", "raw", BY_HALVES, "contiguous + copy", "page-wise again"],
    ));
    report.sections.push(section);
    Ok(())
}

fn rows(bench: &Bench, messages: &[Message<'_>]) -> io::Result<Vec<Row>> {
    let (near, far) = link::tcp()?;
    let (near, far) = (&near, &far);
    let payload = messages[0].payload();
    let ready: Vec<_> = messages.iter().map(|message| message.ready(false)).collect();
    let ready = &ready;
    let mut pools: Vec<Pool> = (0..7).map(|_| Pool::new(bench.args.page_pool().max(payload), PAGE)).collect();
    let mut edges = vec![[0; HEAD + FOOT]; 3 * messages.len()];
    let mut pools = pools.iter_mut().map(|pool| Pages::new(pool, payload));
    let mut pages = || pools.next().unwrap_or_default();
    let mut contest = Contest::new(format!("whole-read {}", size(payload)), Side::Receiver, payload)
        .partner(move |task| Box::new(move || raw::feed(near, ready, task.messages)))
        .expected(|task| expected(messages, task.messages, task.sealed));

    for name in ["page-wise", "page-wise again"] {
        let mut pages = pages();
        let method = Method::new(name, move |count, sum| pages.one_by_one(far, count, sum));
        contest.add(method.against("page-wise").limit("raw"));
    }
    for (name, edges) in ["raw", "raw again", BY_HALVES].into_iter().zip(edges.chunks_mut(messages.len())) {
        let mut ready = pages().ready(edges);
        let method =
            Method::new(name, move |count, sum| raw_whole(far, &mut ready, count, sum, name == BY_HALVES));
        contest.add(method.against("page-wise").limit("raw"));
    }
    let mut buffer = vec![0; HEAD + payload as usize + FOOT];
    let mut copied = pages();
    let method =
        Method::new("contiguous + copy", move |count, sum| copied.by_copy(far, &mut buffer, count, sum));
    contest.add(method.against("page-wise").limit("raw"));

    let mut lent = Lending { receiver: receiver(far, Messages::lent()), pages: pages() };
    let method = Method::new("lent pages", move |count, sum| lent.receive(count, sum));
    contest.add(method.against("page-wise").limit("raw"));

    let mut slabs = Slabs::new(far, false, messages.len());
    let method = Method::new("slabs", move |count, sum| slabs.receive(count, sum));
    contest.add(method.against("page-wise").limit("raw"));

    let rows = contest.run(bench)?.rows().into_iter().map(|row| {
        let reported = REPORTED.iter().find(|(size, _)| *size == payload);
        match (row.method(), reported) {
            (method, Some((_, speed))) if OURS.contains(&method) => row.with("reported", *speed),
            _ => row,
        }
    });
    Ok(rows.collect())
}

/// Pages to receive into: those of a pool, so many a message.
#[derive(Default)]
struct Pages<'p> {
    all: Vec<&'p mut [u8]>,
    each: usize,
    next: usize,
}

impl<'p> Pages<'p> {
    fn new(pool: &'p mut Pool, payload: u64) -> Self {
        Self { all: pool.segments_mut(payload), each: payload.div_ceil(PAGE) as usize, next: 0 }
    }

    /// The pages of the next message.
    fn next(&mut self) -> &mut [&'p mut [u8]] {
        let first = self.next;
        self.next = (first + self.each) % (self.all.len() / self.each * self.each);
        &mut self.all[first..first + self.each]
    }

    fn of(&mut self, number: u64) -> &mut [&'p mut [u8]] {
        self.next = number as usize % (self.all.len() / self.each) * self.each;
        self.next()
    }

    fn one_by_one(
        &mut self,
        socket: &TcpStream,
        count: u64,
        mut sum: Option<&mut Sum>,
    ) -> io::Result<Counts> {
        let mut counts = Counts::default();
        let (mut head, mut foot) = ([0; HEAD], [0; FOOT]);
        for _ in 0..count {
            raw::recv_all(socket, &mut [IoSliceMut::new(&mut head)], &mut counts)?;
            let pages = self.next();
            for page in pages.iter_mut() {
                raw::recv_all(socket, &mut [IoSliceMut::new(page)], &mut counts)?;
            }
            raw::recv_all(socket, &mut [IoSliceMut::new(&mut foot)], &mut counts)?;
            see(&mut sum, &head, pages.iter().map(|page| &**page), &foot);
        }
        Ok(counts)
    }

    fn by_copy(
        &mut self,
        socket: &TcpStream,
        buffer: &mut [u8],
        count: u64,
        mut sum: Option<&mut Sum>,
    ) -> io::Result<Counts> {
        let mut counts = Counts::default();
        for _ in 0..count {
            raw::recv_all(socket, &mut [IoSliceMut::new(buffer)], &mut counts)?;
            let mut rest = &buffer[HEAD..];
            let pages = self.next();
            for page in pages.iter_mut() {
                let (bytes, later) = rest.split_at(page.len());
                page.copy_from_slice(bytes);
                counts.copied += bytes.len() as u64;
                rest = later;
            }
            see(&mut sum, &buffer[..HEAD], pages.iter().map(|page| &**page), rest);
        }
        Ok(counts)
    }

    /// Iovec arrays over all pages, one a message, with head and footer around.
    fn ready(self, edges: &'p mut [[u8; HEAD + FOOT]]) -> Vec<Vec<IoSliceMut<'p>>> {
        let mut pages = self.all.into_iter();
        let each = self.each;
        let one = |edge: &'p mut [u8; HEAD + FOOT]| {
            let (head, foot) = edge.split_at_mut(HEAD);
            let pages = pages.by_ref().take(each);
            [head].into_iter().chain(pages).chain([foot]).map(IoSliceMut::new).collect()
        };
        edges.iter_mut().map(one).collect()
    }
}

fn raw_whole(
    socket: &TcpStream,
    ready: &mut [Vec<IoSliceMut<'_>>],
    count: u64,
    mut sum: Option<&mut Sum>,
    by_halves: bool,
) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let slots = ready.len() as u64;
    for number in 0..count {
        let ready = &mut ready[(number % slots) as usize];
        if by_halves {
            // An array of its own, for it is advanced.
            let mut rest: Vec<_> = ready.iter_mut().map(|slice| IoSliceMut::new(slice)).collect();
            raw::recv_by_halves(socket, &mut rest, &mut counts)?;
        } else {
            for chunk in ready.chunks_mut(raw::MAX_SLICES) {
                raw::recv_all(socket, chunk, &mut counts)?;
            }
        }
        if let Some(sum) = &mut sum {
            for slice in ready.iter() {
                sum.update(slice);
            }
        }
    }
    Ok(counts)
}

struct Lending<'p, 's> {
    receiver: Receiver<SocketRef<&'s TcpStream>, Messages>,
    pages: Pages<'p>,
}

impl Lending<'_, '_> {
    fn receive(&mut self, count: u64, mut sum: Option<&mut Sum>) -> io::Result<Counts> {
        let before = self.receiver.stats();
        for _ in 0..count {
            let frame =
                self.receiver.next(&mut self.pages, None, |(head, landed, foot)| (head, landed, *foot));
            let Some((head, Landed::Target { key, whole: true }, foot)) = frame.map_err(io::Error::other)?
            else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            see(&mut sum, &head, self.pages.of(key).iter().map(|page| &**page), &foot);
        }
        Ok(counts(before, self.receiver.stats()))
    }
}

impl Targets for Pages<'_> {
    fn expect(&mut self, _: u64) -> Option<u64> {
        Some(self.all[..self.each].iter().map(|page| page.len() as u64).sum())
    }

    fn lend<'a>(&'a mut self, key: u64, at: u64, _: usize, out: &mut LentSlices<'a>) -> bool {
        let mut skip = (at % PAGE) as usize;
        for page in &mut self.of(key)[(at / PAGE) as usize..] {
            if out.wanted() == 0 {
                break;
            }
            out.push(&mut page[std::mem::take(&mut skip)..]);
        }
        true
    }
}
