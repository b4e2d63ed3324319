//! The harness catches what it is for: deframers with one mistake each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use allocation_counter::measure;
use segchain::framer::{BodyReq, Deframer, Filled, Landed, Place, Step, Targets};
use segchain_testkit::conformance::{Conformance, TargetTable};

/// What is wrong with a deframer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// It uses the first byte before it has the second.
    NeedChanges,
    /// It does not look at the checksum.
    NoCheck,
    /// It lets a frame that is cut off count as one.
    ShortFrames,
    /// It makes room for as much as the header claims.
    Reserves,
    /// It hands out a target as whole that was taken back.
    AlwaysWhole,
    /// It looks at how many bytes there are, not at how many it needs.
    Greedy,
}

/// A length and its complement, the body in target 1, and the exclusive or of its bytes.
struct Toy {
    mistake: Mistake,
    len: Option<u8>,
    landed: Option<(bool, u8)>,
    room: Vec<u8>,
}

impl Deframer for Toy {
    type Frame<'h> = bool;
    type Error = ();

    fn decode(&mut self, head: &[u8], _: &mut dyn Targets) -> Result<Step<bool>, ()> {
        if let Some((whole, len)) = self.landed {
            let Some(sum) = head.first() else {
                if self.mistake == Mistake::ShortFrames {
                    self.landed = None;
                    return Ok(Step::Dropped { head: 0 });
                }
                return Ok(Step::Need(1));
            };
            self.landed = None;
            if *sum != len ^ 0x55 && self.mistake != Mistake::NoCheck {
                return Err(());
            }
            return Ok(Step::Frame { frame: whole || self.mistake == Mistake::AlwaysWhole, head: 1 });
        }
        if self.mistake == Mistake::Greedy && head.len() > 7 {
            return Err(());
        }
        let (len, complement) = match (self.len, head) {
            (None, [len, complement, ..]) => (*len, *complement),
            (Some(len), [_, complement, ..]) => (len, *complement),
            (_, [len]) => {
                if self.mistake == Mistake::NeedChanges {
                    self.len = Some(self.len.map_or(*len, |len| len + 1));
                    return Ok(Step::Need(if self.len == Some(*len) { 2 } else { 3 }));
                }
                return Ok(Step::Need(2));
            }
            (_, []) => return Ok(Step::Need(2)),
        };
        if len != !complement {
            return Err(());
        }
        if self.mistake == Mistake::Reserves {
            self.room = Vec::with_capacity(usize::from(len) << 20);
        }
        self.len = None;
        self.landed = Some((false, len));
        Ok(Step::Body { head: 2, req: BodyReq::new(len.into(), Place::Target { key: 1, at: 0 }) })
    }

    fn body(&mut self, piece: Filled) -> Result<(), ()> {
        let whole = matches!(piece.landed, Landed::Target { whole: true, .. });
        self.landed = self.landed.map(|(_, len)| (whole, len));
        Ok(())
    }
}

const FRAME: &[u8] = &[5, !5, 1, 2, 3, 4, 5, 5 ^ 0x55];

fn passes(mistake: Mistake, check: impl FnOnce(&Conformance<'_, &dyn Fn() -> Toy>)) -> bool {
    let make = move || Toy { mistake, len: None, landed: None, room: Vec::new() };
    let make: &dyn Fn() -> Toy = &make;
    // The toy's checksum is of the length: its body is not covered.
    let conformance = Conformance::new(make, &[FRAME, FRAME])
        .targets(TargetTable::new(&[(1, 5)]))
        .uncovered(&[2..7, 10..15]);
    catch_unwind(AssertUnwindSafe(|| check(&conformance))).is_ok()
}

#[test]
fn a_deframer_without_a_mistake_passes_and_one_with_a_mistake_does_not() {
    let check = |conformance: &Conformance<'_, &dyn Fn() -> Toy>| {
        assert_eq!(conformance.check(|whole| whole), [true, true]);
    };
    assert!(passes(Mistake::None, check));
    for mistake in [Mistake::NeedChanges, Mistake::NoCheck, Mistake::ShortFrames, Mistake::Greedy] {
        assert!(!passes(mistake, check), "{mistake:?}");
    }
}

#[test]
fn a_claimed_length_that_takes_memory_is_seen() {
    let check = |conformance: &Conformance<'_, &dyn Fn() -> Toy>| {
        conformance.check_memory(&[vec![200, !200]], |run| measure(run).bytes_max);
    };
    assert!(passes(Mistake::None, check));
    assert!(!passes(Mistake::Reserves, check));
}

#[test]
fn a_target_that_was_taken_back_and_is_told_as_whole_is_seen() {
    let check = |conformance: &Conformance<'_, &dyn Fn() -> Toy>| {
        conformance.check_take_back(|whole| whole, |_| vec![Some(false)]);
    };
    assert!(passes(Mistake::None, check));
    let unforgiving = |conformance: &Conformance<'_, &dyn Fn() -> Toy>| {
        conformance.check_take_back(|whole| whole, |_| Vec::new());
    };
    assert!(!passes(Mistake::None, unforgiving));
}
