//! The deframer conformance harness: one stream, cut, shortened and damaged in every way, and what has to come of it.
//!
//! ```text
//!  frames of a stream ─▶ Conformance::new(make a deframer, frames)
//!       .check(value)                 whole, cut anywhere, Need is pure, truncated anywhere, every bit flipped
//!       .check_memory(heads, peak)    a header claims 4 GiB: memory stays bounded
//!       .check_take_back(value, lost) a target is taken back at every byte
//! ```
//!
//! Every check panics with the case that failed.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{ControlFlow, Range};

use segchain::framer::{Deframer, Filled, LentSlices, Step, Targets};
use segchain::recv::{Received, Receiver, RecvErrorKind, RecvOptions};
use segchain::slab::{SLAB, SlabPool};

use crate::naive::{Random, seed};
use crate::scripted::{RecvStep, ScriptedRecv};

/// The receive window of all checks.
pub const WINDOW: usize = 64 * 1024;
/// Up to this length a stream is cut at every pair of places.
const SHORT: usize = 256;
/// How often a stream is cut at random.
const RANDOM_CUTS: usize = 1000;

/// The memory that bodies may land in, by key.
///
/// A target that was [taken back](TargetTable::take) is not in it any more; its bytes are the test's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetTable {
    memory: BTreeMap<u64, Vec<u8>>,
    slices: usize,
}

impl TargetTable {
    /// A table of targets of these keys and lengths, all zero.
    pub fn new(targets: &[(u64, usize)]) -> Self {
        Self { memory: targets.iter().map(|(key, len)| (*key, vec![0; *len])).collect(), slices: usize::MAX }
    }

    /// Lends its memory in slices of at most `bytes` bytes, to see that a target may be scattered.
    #[must_use]
    pub fn scattered(mut self, bytes: usize) -> Self {
        self.slices = bytes.max(1);
        self
    }

    /// Takes a target back.
    pub fn take(&mut self, key: u64) -> Option<Vec<u8>> {
        self.memory.remove(&key)
    }

    /// What lies in a target.
    pub fn get(&self, key: u64) -> Option<&[u8]> {
        self.memory.get(&key).map(Vec::as_slice)
    }
}

impl Targets for TargetTable {
    fn expect(&mut self, key: u64) -> Option<u64> {
        self.memory.get(&key).map(|memory| memory.len() as u64)
    }

    fn lend<'a>(&'a mut self, key: u64, at: u64, len: usize, out: &mut LentSlices<'a>) -> bool {
        let Some(memory) = self.memory.get_mut(&key) else { return false };
        let start = memory.len().min(at as usize);
        let end = memory.len().min(start + len);
        for slice in memory[start..end].chunks_mut(self.slices) {
            out.push(slice);
        }
        true
    }
}

/// The checks on one stream.
#[derive(Debug)]
pub struct Conformance<'s, M> {
    make: M,
    frames: Vec<&'s [u8]>,
    stream: Vec<u8>,
    targets: TargetTable,
    uncovered: Vec<Range<usize>>,
    options: RecvOptions,
    read_ahead: usize,
    pool: SlabPool,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
enum Ending {
    Blocked,
    Eof,
    UnexpectedEof,
    Refused,
}

/// Frames, the targets behind them, the end, and its message if it was an error.
struct Run<F> {
    frames: Vec<F>,
    targets: TargetTable,
    ending: Ending,
    message: String,
}

/// Prints which case it was if the deframer or an assertion panics.
struct Case<'a>(&'a str, &'a dyn Debug);

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("conformance: {} {:?}", self.0, self.1);
        }
    }
}

impl<'s, M, D> Conformance<'s, M>
where
    M: Fn() -> D,
    D: Deframer<Error: Debug>,
{
    /// Checks for the deframers that `make` makes, each at the start of the stream, on a stream of these frames. A piece is
    /// everything up to a place where the stream may end: usually one frame, or a handshake's line.
    pub fn new(make: M, frames: &[&'s [u8]]) -> Self {
        Self {
            make,
            frames: frames.to_vec(),
            stream: frames.concat(),
            targets: TargetTable::default(),
            uncovered: Vec::new(),
            options: RecvOptions::new().window(WINDOW),
            read_ahead: 4096,
            pool: SlabPool::default(),
        }
    }

    /// Bodies may land in such targets; what lies in them in the end is compared too.
    #[must_use]
    pub fn targets(mut self, targets: TargetTable) -> Self {
        self.targets = targets;
        self
    }

    /// The read-ahead: 4 KiB unless set. No header is longer.
    #[must_use]
    pub fn read_ahead(mut self, bytes: usize) -> Self {
        self.read_ahead = bytes;
        self
    }

    /// Other limits of the receiver; window and read-ahead are the harness's.
    #[must_use]
    pub fn options(mut self, options: RecvOptions) -> Self {
        self.options = options.window(WINDOW);
        self
    }

    /// Bytes of the stream that no checksum covers and whose value is not determined: a flipped bit there may go unnoticed.
    /// Everywhere else it has to be refused.
    #[must_use]
    pub fn uncovered(mut self, ranges: &[Range<usize>]) -> Self {
        self.uncovered = ranges.to_vec();
        self
    }

    /// Cuts, truncations and flipped bits. `value` makes of a frame what can be kept and compared; the values of the whole
    /// stream come back.
    ///
    /// # Panics
    /// If the deframer does not conform.
    pub fn check<F, V>(&self, value: V) -> Vec<F>
    where
        F: PartialEq + Debug,
        V: for<'h> Fn(D::Frame<'h>) -> F,
    {
        let whole = self.check_cuts(&value);
        self.check_truncations(&value, &whole);
        self.check_flips(&value, &whole);
        whole.frames
    }

    /// Only the cuts: for streams so long that the other checks take too long.
    ///
    /// # Panics
    /// If the deframer does not conform.
    pub fn check_cuts_only<F, V>(&self, value: V) -> Vec<F>
    where
        F: PartialEq + Debug,
        V: for<'h> Fn(D::Frame<'h>) -> F,
    {
        self.check_cuts(&value).frames
    }

    fn check_cuts<F, V>(&self, value: &V) -> Run<F>
    where
        F: PartialEq + Debug,
        V: for<'h> Fn(D::Frame<'h>) -> F,
    {
        let len = self.stream.len();
        let script = ScriptedRecv::new(&[], []);
        let whole = self.run(&script, &self.stream, &[], false, value);
        assert_eq!(whole.ending, Ending::Eof, "the whole stream: {}", whole.message);
        let same = |cuts: &[usize], again: bool| {
            let _case = Case("cut at", &cuts);
            let run = self.run(&script, &self.stream, cuts, again, value);
            assert_eq!(run.ending, Ending::Eof, "cut at {cuts:?}: {}", run.message);
            assert_eq!(run.frames, whole.frames, "cut at {cuts:?}");
            assert_eq!(run.targets, whole.targets, "cut at {cuts:?}");
        };

        let everywhere: Vec<usize> = (1..len).collect();
        same(&everywhere, false);
        same(&everywhere, true);
        for cut in 1..len {
            same(&[cut], true);
        }
        if len <= SHORT {
            for first in 1..len {
                for second in first + 1..len {
                    same(&[first, second], false);
                }
            }
        }
        let mut random = Random::new(seed("conformance"));
        for _ in 0..RANDOM_CUTS {
            let mut cuts: Vec<usize> = (0..=random.below(12)).map(|_| 1 + random.below(len)).collect();
            cuts.sort_unstable();
            cuts.dedup();
            same(&cuts, random.below(2) == 0);
        }
        whole
    }

    fn check_truncations<F, V>(&self, value: &V, whole: &Run<F>)
    where
        F: PartialEq + Debug,
        V: for<'h> Fn(D::Frame<'h>) -> F,
    {
        let script = ScriptedRecv::new(&[], []);
        let mut start = 0;
        let mut complete = 0;
        for frame in &self.frames {
            for end in start..start + frame.len() {
                let _case = Case("truncated to", &end);
                let run = self.run(&script, &self.stream[..end], &[], false, value);
                let expected = if end == start { Ending::Eof } else { Ending::UnexpectedEof };
                assert_eq!(run.ending, expected, "truncated to {end}: {}", run.message);
                assert_eq!(run.frames, whole.frames[..run.frames.len()], "truncated to {end}");
                if end == start {
                    complete = run.frames.len();
                }
                assert_eq!(run.frames.len(), complete, "truncated to {end}: frames of a part of one");
            }
            start += frame.len();
        }
    }

    fn check_flips<F, V>(&self, value: &V, whole: &Run<F>)
    where
        F: PartialEq + Debug,
        V: for<'h> Fn(D::Frame<'h>) -> F,
    {
        let script = ScriptedRecv::new(&[], []);
        let mut stream = self.stream.clone();
        let mut start = 0;
        for frame in &self.frames {
            let before = self.run(&script, &self.stream[..start], &[], false, value).frames.len();
            for bit in start * 8..(start + frame.len()) * 8 {
                let _case = Case("bit flipped:", &bit);
                stream[bit / 8] ^= 1 << (bit % 8);
                let run = self.run(&script, &stream, &[], false, value);
                stream[bit / 8] ^= 1 << (bit % 8);
                let refused = matches!(run.ending, Ending::Refused | Ending::UnexpectedEof);
                let uncovered = self.uncovered.iter().any(|range| range.contains(&(bit / 8)));
                assert!(
                    refused || uncovered,
                    "bit {} of byte {} flipped, and nobody noticed",
                    bit % 8,
                    bit / 8
                );
                assert!(run.frames.len() >= before, "byte {} struck a frame before it", bit / 8);
                assert_eq!(
                    run.frames[..before],
                    whole.frames[..before],
                    "byte {} struck a frame before",
                    bit / 8
                );
            }
            start += frame.len();
        }
    }

    /// Memory while a header claims a long body: at most the bytes fed, the window, the read-ahead and one slab, and at most
    /// 4 KiB for the receiver itself.
    ///
    /// `heads` are starts of streams, each with a length of 2^31 - 1, 2^32 - 1 or whatever the protocol has in one of its
    /// fields. Each is fed, then body bytes, and nothing more comes. `peak` runs a closure and says how many bytes were
    /// allocated at most in it: `|run| allocation_counter::measure(run).bytes_max`.
    ///
    /// # Panics
    /// If the memory is more.
    pub fn check_memory(&self, heads: &[Vec<u8>], peak: impl Fn(&mut dyn FnMut()) -> u64) {
        let receiver_itself = 4096;
        for head in heads {
            for more in [0, 1, 4096, WINDOW, 10 * WINDOW + 7] {
                let _case = Case("a head that claims much, and body bytes:", &(head, more));
                let mut stream = head.clone();
                stream.resize(head.len() + more, 0);
                let script = ScriptedRecv::new(&stream, []).end(RecvStep::Again);
                let mut given = 0;
                let used = peak(&mut || {
                    let options = self.options.clone().read_ahead(self.read_ahead);
                    let mut targets = self.targets.clone();
                    let mut receiver =
                        Receiver::with_options(&script, (self.make)(), options, SlabPool::new(4));
                    let _ = receiver.receive(&mut targets, |_| ControlFlow::Continue(()));
                    given = script.given();
                });
                let targets: usize = self.targets.memory.values().map(Vec::len).sum();
                let bound = given + WINDOW + self.read_ahead + SLAB + receiver_itself + targets;
                assert!(
                    used <= bound as u64,
                    "{given} bytes came and {used} bytes of memory went, the bound is {bound}"
                );
            }
        }
    }

    /// Takes every target back when `n` bytes have arrived, for every `n`: nothing is written to it afterwards, the stream
    /// stays in sync, and the frames are the ones of the whole stream but for those that `lost` may change. Of each frame it
    /// says what may come in its place: another value, or nothing at all.
    ///
    /// # Panics
    /// If the deframer does not conform.
    pub fn check_take_back<F, V>(&self, value: V, lost: impl Fn(&F) -> Vec<Option<F>>)
    where
        F: PartialEq + Debug,
        V: for<'h> Fn(D::Frame<'h>) -> F,
    {
        let script = ScriptedRecv::new(&[], []);
        let whole = self.run(&script, &self.stream, &[], false, &value);
        let mut landed_partly = false;
        for arrived in 0..=self.stream.len() {
            let _case = Case("targets taken back after", &arrived);
            let mut targets = self.targets.clone();
            let mut frames = Vec::new();
            script.reset(&self.stream[..arrived], &[], RecvStep::Again);
            let mut receiver = self.receiver(&script);
            let first = receiver.receive(&mut targets, |frame| {
                frames.push(value(frame));
                ControlFlow::Continue(())
            });
            assert_eq!(first.expect("a part of a good stream"), Received::Blocked, "after {arrived} bytes");
            // From here on the memory is the caller's again. Rust proves that nobody else writes to it; what is left to be
            // seen is that only bytes of the stream were written, and that the receiver finds its way without it.
            let taken = std::mem::take(&mut targets.memory);
            for (key, memory) in &taken {
                let original = whole.targets.get(*key).unwrap_or_default();
                let differ = memory.iter().zip(original).filter(|(now, then)| now != then && **now != 0);
                assert_eq!(differ.count(), 0, "target {key} holds bytes that are not its own");
                landed_partly |= memory != original && memory.iter().any(|byte| *byte != 0);
            }
            script.reset(&self.stream[arrived..], &[], RecvStep::Eof);
            let rest = receiver.receive(&mut targets, |frame| {
                frames.push(value(frame));
                ControlFlow::Continue(())
            });
            assert_eq!(rest.expect("the rest of it"), Received::Eof, "taken back after {arrived} bytes");
            let mut got = frames.into_iter().peekable();
            for expected in &whole.frames {
                if got.next_if(|frame| frame == expected).is_some() {
                    continue;
                }
                let alternatives = lost(expected);
                let other = got.next_if(|frame| alternatives.iter().flatten().any(|other| other == frame));
                assert!(
                    other.is_some() || alternatives.contains(&None),
                    "taken back after {arrived} bytes: instead of {expected:?} there is {:?}",
                    got.peek()
                );
            }
            assert_eq!(got.next(), None, "taken back after {arrived} bytes: a frame too many");
        }
        assert!(
            landed_partly,
            "no target was ever filled in part: the stream does not show what this check is for"
        );
    }

    fn receiver<'r>(&self, script: &'r ScriptedRecv) -> Receiver<&'r ScriptedRecv, Pure<D>> {
        let options = self.options.clone().read_ahead(self.read_ahead);
        Receiver::with_options(script, Pure((self.make)()), options, self.pool.clone())
    }

    fn run<F, V>(
        &self,
        script: &ScriptedRecv,
        stream: &[u8],
        cuts: &[usize],
        again: bool,
        value: &V,
    ) -> Run<F>
    where
        V: for<'h> Fn(D::Frame<'h>) -> F,
    {
        script.reset(stream, &[], RecvStep::Eof);
        script.stop_at(cuts, again);
        let mut receiver = self.receiver(script);
        let mut targets = self.targets.clone();
        let mut frames = Vec::new();
        let mut message = String::new();
        let ending = loop {
            let received = receiver.receive(&mut targets, |frame| {
                frames.push(value(frame));
                ControlFlow::Continue(())
            });
            match received {
                Ok(Received::Blocked) if again => {}
                Ok(Received::Budget) => {}
                Ok(Received::Eof) => break Ending::Eof,
                Ok(_) => break Ending::Blocked,
                Err(error) => {
                    message = format!("{error:?}");
                    break match error.kind() {
                        RecvErrorKind::UnexpectedEof { .. } => Ending::UnexpectedEof,
                        RecvErrorKind::Stuck => panic!("the deframer is stuck: {message}"),
                        _ => Ending::Refused,
                    };
                }
            }
        };
        Run { frames, targets, ending, message }
    }
}

/// Asks twice wherever the answer is `Need`: the second answer has to be the same.
struct Pure<D>(D);

impl<D: Deframer> Deframer for Pure<D> {
    type Frame<'h> = D::Frame<'h>;
    type Error = D::Error;

    fn decode<'h>(
        &mut self,
        head: &'h [u8],
        targets: &mut dyn Targets,
    ) -> Result<Step<D::Frame<'h>>, D::Error> {
        let step = self.0.decode(head, targets)?;
        let Step::Need(wanted) = step else { return Ok(step) };
        assert!(wanted > head.len(), "Need({wanted}) with {} bytes at hand", head.len());
        match self.0.decode(head, targets) {
            Ok(Step::Need(again)) if again == wanted => Ok(Step::Need(wanted)),
            Ok(Step::Need(again)) => panic!("Need({wanted}), then Need({again}) for the same bytes"),
            _ => panic!("Need({wanted}) has changed something: another answer for the same bytes"),
        }
    }

    fn body(&mut self, piece: Filled) -> Result<(), D::Error> {
        self.0.body(piece)
    }

    fn awaiting(&self) -> &'static str {
        self.0.awaiting()
    }
}
