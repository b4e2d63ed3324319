//! Methods against each other: who sends wrong bytes is found out, and counts are per message.

#![allow(clippy::float_cmp)] // small whole numbers

use std::cell::Cell;
use std::io;

use clap::Parser;
use segchain_throughput::args::Args;
use segchain_throughput::bench::Bench;
use segchain_throughput::contest::{Contest, Counts, Method};
use segchain_throughput::link;
use segchain_throughput::machine::{Machine, Side};
use segchain_throughput::ours::Whole;
use segchain_throughput::pages::{FOOT, HEAD, Message, Pool, expected};
use segchain_throughput::raw;

const SIZE: u64 = 16 << 10;

fn bench(line: &str) -> Bench {
    let args = ["throughput"].into_iter().chain(line.split_whitespace());
    let args = Args::try_parse_from(args).expect("a good command line");
    Bench::new(args, Machine::look().expect("Linux")).expect("loopback")
}

/// Sends the messages of `sent`, whoever expects those of `promised`.
fn send(sent: &[Message<'_>], promised: &[Message<'_>], sealed: bool) -> io::Result<()> {
    let (near, far) = link::tcp()?;
    let (near, far) = (&near, &far);
    let wire = SIZE + (HEAD + FOOT) as u64;
    let mut whole = Whole::new(near);
    let mut contest = Contest::new("test", Side::Sender, SIZE)
        .partner(move |task| Box::new(move || raw::drain(far, wire * task.messages, task.check)))
        .expected(|task| expected(promised, task.messages, task.sealed));
    contest.add(Method::new("whole", move |count, _| whole.send(sent, count, false)).sealed(sealed));
    contest.run(&bench("--short")).map(drop)
}

#[test]
fn a_method_that_sends_other_bytes_than_it_should_ends_the_run() {
    let (one, other) = (Pool::new(64 << 10, 4096), Pool::new(64 << 10, 16 << 10));
    let (one, other) = (one.messages(SIZE), other.messages(SIZE));
    send(&one, &one, false).expect("these are the bytes");
    // The same bytes in another order, and a checksum that was promised and is not there.
    for error in [send(&one, &other, false), send(&one, &one, true)] {
        let error = error.expect_err("these are not").to_string();
        assert!(error.contains("test, whole: digest"), "{error}");
    }
}

#[test]
fn every_method_runs_once_a_round_and_counts_are_per_message() {
    let runs = [Cell::new(0), Cell::new(0)];
    let mut contest = Contest::new("test", Side::Sender, 4096);
    for (runs, calls) in runs.iter().zip([3, 1]) {
        let method = Method::new(format!("{calls} calls"), move |messages, _| {
            runs.set(runs.get() + 1);
            let mut counts = Counts::default();
            (counts.calls, counts.slices) = (calls * messages, 6 * calls * messages);
            Ok(counts)
        });
        // Half the size, twice as many: the same work.
        contest.add(if calls == 1 { method.messages_of(2048, 2) } else { method });
    }
    let rows = contest.run(&bench("--rounds 5 --piece 1")).expect("nothing to go wrong").rows();
    // Five rounds and the check; the first one is calibrated by, too.
    assert_eq!(runs[1].get(), 6);
    assert!(runs[0].get() > 6);
    let get = |row: usize, key: &str| rows[row].get(key).expect("a number").median;
    assert_eq!([get(0, "calls_per_message"), get(1, "calls_per_message")], [3.0, 1.0]);
    assert_eq!([get(0, "slices_per_call"), get(1, "slices_per_call")], [6.0, 6.0]);
    assert_eq!([rows[0].size(), rows[1].size()], [4096, 2048]);
}
