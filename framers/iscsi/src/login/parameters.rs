//! What is negotiated: what one side wishes, and what comes of it (RFC 7143 section 13).
//!
//! Every key that both sides have a say in is settled by the same rule on either side, so there is one table of them.

use super::Error;
use crate::text::{self, Pair};
use crate::{Bhs, Options};

/// What one side wishes of a session. The defaults are digests if the other side has them, and bursts that are larger than
/// the RFC's own defaults.
///
/// ```
/// use segchain_iscsi::login::{DigestOffer, InitiatorOptions, Parameters};
///
/// let mut options = InitiatorOptions::new("iqn.2026-11.example:me", "iqn.2026-11.example:disk");
/// // No session without a header digest, no digest over data, and 1 MiB of data a PDU.
/// options.parameters = Parameters::new().digests(DigestOffer::Require, DigestOffer::Off).max_recv(1 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct Parameters {
    digests: [DigestOffer; 2],
    max_recv: u32,
    numbers: [u32; NUMBERS.len()],
}

/// Whether a digest is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there are no more ways to want one")]
pub enum DigestOffer {
    /// No.
    Off,
    /// If the other side has it.
    #[default]
    Prefer,
    /// Without it there is no session.
    Require,
}

/// What a session's parameters came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a key of its own")]
#[non_exhaustive]
pub struct Negotiated {
    /// HeaderDigest is CRC32C.
    pub header_digest: bool,
    /// DataDigest is CRC32C.
    pub data_digest: bool,
    /// MaxRecvDataSegmentLength of the other side, in bytes.
    pub max_send: u32,
    /// MaxRecvDataSegmentLength of ours, in bytes.
    pub max_recv: u32,
    /// No data goes out that the target has not asked for, but immediate data.
    pub initial_r2t: bool,
    /// Data may go out with its command.
    pub immediate_data: bool,
    /// The most data that goes out unasked, immediate data included, in bytes.
    pub first_burst: u32,
    /// The most data of one sequence, in bytes.
    pub max_burst: u32,
    /// How many R2T a task may have at a time.
    pub max_outstanding_r2t: u32,
    /// Seconds to wait before a reconnect.
    pub time_to_wait: u32,
    /// Seconds for which tasks are kept.
    pub time_to_retain: u32,
}

/// How a value comes of two.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Min,
    Max,
    /// Yes if both say so: the minimum of bits.
    And,
    /// Yes if one says so: the maximum.
    Or,
}

struct Number {
    key: &'static str,
    rule: Rule,
    least: u32,
    most: u32,
    /// If nobody says anything.
    default: u32,
    /// What we wish unless told otherwise.
    wish: u32,
}

const MAX_CONNECTIONS: usize = 0;
const ERROR_RECOVERY_LEVEL: usize = 1;
const INITIAL_R2T: usize = 2;
const IMMEDIATE_DATA: usize = 3;
const FIRST_BURST: usize = 4;
const MAX_BURST: usize = 5;
const MAX_OUTSTANDING_R2T: usize = 6;
const TIME_TO_WAIT: usize = 7;
const TIME_TO_RETAIN: usize = 8;

#[rustfmt::skip]
const NUMBERS: [Number; 11] = [
    Number { key: "MaxConnections", rule: Rule::Min, least: 1, most: 65_535, default: 1, wish: 1 },
    Number { key: "ErrorRecoveryLevel", rule: Rule::Min, least: 0, most: 2, default: 0, wish: 0 },
    Number { key: "InitialR2T", rule: Rule::Or, least: 0, most: 1, default: 1, wish: 0 },
    Number { key: "ImmediateData", rule: Rule::And, least: 0, most: 1, default: 1, wish: 1 },
    Number { key: "FirstBurstLength", rule: Rule::Min, least: 512, most: Bhs::MAX_DATA, default: 65_536, wish: 262_144 },
    Number { key: "MaxBurstLength", rule: Rule::Min, least: 512, most: Bhs::MAX_DATA, default: 262_144, wish: 1 << 20 },
    Number { key: "MaxOutstandingR2T", rule: Rule::Min, least: 1, most: 65_535, default: 1, wish: 1 },
    Number { key: "DefaultTime2Wait", rule: Rule::Max, least: 0, most: 3600, default: 2, wish: 2 },
    Number { key: "DefaultTime2Retain", rule: Rule::Min, least: 0, most: 3600, default: 20, wish: 0 },
    Number { key: "DataPDUInOrder", rule: Rule::Or, least: 0, most: 1, default: 1, wish: 1 },
    Number { key: "DataSequenceInOrder", rule: Rule::Or, least: 0, most: 1, default: 1, wish: 1 },
];
const DIGESTS: [&str; 2] = ["HeaderDigest", "DataDigest"];
const MAX_RECV: &str = "MaxRecvDataSegmentLength";

impl Default for Parameters {
    fn default() -> Self {
        Self { digests: Default::default(), max_recv: 262_144, numbers: NUMBERS.map(|number| number.wish) }
    }
}

impl Parameters {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether headers shall have a digest, and data; preferred unless set.
    #[must_use]
    pub fn digests(mut self, header: DigestOffer, data: DigestOffer) -> Self {
        self.digests = [header, data];
        self
    }

    /// The most data of a PDU that we take, in bytes, 512 to 2^24 - 1; 256 KiB unless set.
    #[must_use]
    pub fn max_recv(mut self, bytes: u32) -> Self {
        self.max_recv = bytes.clamp(512, Bhs::MAX_DATA);
        self
    }

    /// Whether data goes out only when the target asks for it; no unless set, and yes if either side says so.
    #[must_use]
    pub fn initial_r2t(mut self, yes: bool) -> Self {
        self.numbers[INITIAL_R2T] = yes.into();
        self
    }

    /// Whether data may go out with its command; yes unless set, and no if either side says so.
    #[must_use]
    pub fn immediate_data(mut self, yes: bool) -> Self {
        self.numbers[IMMEDIATE_DATA] = yes.into();
        self
    }

    /// The most data that goes out unasked, and the most of a sequence, in bytes, 512 to 2^24 - 1; 256 KiB and 1 MiB unless
    /// set, and the smaller one of both sides. The first is never more than the second.
    #[must_use]
    pub fn bursts(mut self, first: u32, max: u32) -> Self {
        let max = max.clamp(512, Bhs::MAX_DATA);
        (self.numbers[FIRST_BURST], self.numbers[MAX_BURST]) = (first.clamp(512, max), max);
        self
    }

    /// How many R2T a task may have at a time, 1 to 65535; 1 unless set, and the smaller one of both sides.
    #[must_use]
    pub fn max_outstanding_r2t(mut self, count: u16) -> Self {
        self.numbers[MAX_OUTSTANDING_R2T] = u32::from(count).max(1);
        self
    }
}

/// Where the two sides are.
#[derive(Debug)]
pub(super) struct Negotiation {
    ours: Parameters,
    /// Per key, the numbers first, then the digests.
    state: [Key; NUMBERS.len() + DIGESTS.len()],
    max_send: Option<u32>,
    declared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Open,
    Offered,
    Settled(u32),
}

impl Negotiation {
    pub(super) fn new(ours: Parameters) -> Self {
        Self { ours, state: [Key::Open; NUMBERS.len() + DIGESTS.len()], max_send: None, declared: false }
    }

    /// Writes all that an initiator has to offer.
    pub(super) fn offer(&mut self, text: &mut Vec<u8>) -> Result<(), text::Error> {
        // What the target has offered before is settled, and may not be said again (RFC 7143 section 6.3).
        let state = self.state;
        let (numbers, digests) = state.split_at(NUMBERS.len());
        for (key, offer) in open(DIGESTS.iter().zip(self.ours.digests), digests) {
            text::put(text, key, offer.list())?;
        }
        self.declare(text)?;
        for (number, ours) in open(NUMBERS.iter().zip(self.ours.numbers), numbers) {
            number.put(text, ours)?;
        }
        self.state = state.map(|state| if state == Key::Open { Key::Offered } else { state });
        Ok(())
    }

    /// Says what we take, unless that was said.
    pub(super) fn declare(&mut self, text: &mut Vec<u8>) -> Result<(), text::Error> {
        if !std::mem::replace(&mut self.declared, true) {
            text::put(text, MAX_RECV, self.ours.max_recv)?;
        }
        Ok(())
    }

    /// Takes a pair of the other side: an answer, or an offer, which is answered.
    pub(super) fn take(&mut self, pair: Pair<'_>, answers: &mut Vec<u8>) -> Result<(), Error> {
        if let Some(index) = NUMBERS.iter().position(|number| number.key == pair.key) {
            return self.take_number(index, pair, answers);
        }
        if let Some(index) = DIGESTS.iter().position(|key| *key == pair.key) {
            return self.take_digest(index, pair, answers);
        }
        match pair.key {
            MAX_RECV => {
                let value = parse(pair.value, 512, Bhs::MAX_DATA);
                let value = value.ok_or_else(|| refuse(pair, format!("512 to {}", Bhs::MAX_DATA)))?;
                if self.max_send.replace(value).is_some() {
                    return Err(repeated(pair));
                }
            }
            // What is only declared, and nothing to us.
            "TargetAlias" | "InitiatorAlias" | "TargetPortalGroupTag" | "TargetAddress" => {}
            // Markers are gone since RFC 7143.
            "IFMarker" | "OFMarker" => text::put(answers, pair.key, "No")?,
            "IFMarkInt" | "OFMarkInt" => text::put(answers, pair.key, "Reject")?,
            _ if is_remark(pair.value) => {}
            _ => text::put(answers, pair.key, "NotUnderstood")?,
        }
        Ok(())
    }

    fn take_number(&mut self, index: usize, pair: Pair<'_>, answers: &mut Vec<u8>) -> Result<(), Error> {
        let (number, ours, state) = (&NUMBERS[index], self.ours.numbers[index], self.state[index]);
        let offered = state == Key::Offered;
        self.state[index] = match state {
            Key::Settled(_) => return Err(repeated(pair)),
            Key::Offered if pair.value == "Irrelevant" || pair.value == "NotUnderstood" => {
                Key::Settled(number.default)
            }
            _ => {
                let theirs = number.parse(pair.value).ok_or_else(|| refuse(pair, number.range()))?;
                let result = number.result(ours, theirs);
                if offered && result != theirs {
                    return Err(refuse(pair, number.answers(ours)));
                }
                if !offered {
                    number.put(answers, result)?;
                }
                Key::Settled(result)
            }
        };
        Ok(())
    }

    fn take_digest(&mut self, index: usize, pair: Pair<'_>, answers: &mut Vec<u8>) -> Result<(), Error> {
        let (offer, at) = (self.ours.digests[index], NUMBERS.len() + index);
        let (crc, none) = (offer != DigestOffer::Off, offer != DigestOffer::Require);
        let unacceptable = || refuse(pair, offer.list().to_owned());
        let settled = match (self.state[at], pair.value) {
            (Key::Settled(_), _) => return Err(repeated(pair)),
            (Key::Offered, "CRC32C") if crc => true,
            (Key::Offered, "None" | "NotUnderstood" | "Irrelevant") if none => false,
            (Key::Offered, _) => return Err(unacceptable()),
            // The responder takes the first of the list that it has (RFC 7143 section 6.2.1).
            (Key::Open, list) => {
                let mut known = list.split(',').filter_map(|value| match value {
                    "CRC32C" => Some(true).filter(|_| crc),
                    "None" => Some(false).filter(|_| none),
                    _ => None,
                });
                let first = known.next().ok_or_else(unacceptable)?;
                text::put(answers, pair.key, if first { "CRC32C" } else { "None" })?;
                first
            }
        };
        self.state[at] = Key::Settled(settled.into());
        Ok(())
    }

    /// What it came to; a key that was not answered has the RFC's default.
    ///
    /// # Errors
    /// A required digest that nobody answered.
    pub(super) fn settled(&self) -> Result<Negotiated, Error> {
        let number = |index: usize| match self.state[index] {
            Key::Settled(value) => value,
            _ => NUMBERS[index].default,
        };
        let digest = |index: usize| match self.state[NUMBERS.len() + index] {
            Key::Settled(value) => Ok(value == 1),
            _ if self.ours.digests[index] == DigestOffer::Require => {
                Err(Error::Missing { key: DIGESTS[index] })
            }
            _ => Ok(false),
        };
        debug_assert!(number(MAX_CONNECTIONS) == 1 && number(ERROR_RECOVERY_LEVEL) == 0);
        Ok(Negotiated {
            header_digest: digest(0)?,
            data_digest: digest(1)?,
            max_send: self.max_send.unwrap_or(Options::DEFAULT_MAX_DATA),
            max_recv: if self.declared { self.ours.max_recv } else { Options::DEFAULT_MAX_DATA },
            initial_r2t: number(INITIAL_R2T) == 1,
            immediate_data: number(IMMEDIATE_DATA) == 1,
            first_burst: number(FIRST_BURST).min(number(MAX_BURST)),
            max_burst: number(MAX_BURST),
            max_outstanding_r2t: number(MAX_OUTSTANDING_R2T),
            time_to_wait: number(TIME_TO_WAIT),
            time_to_retain: number(TIME_TO_RETAIN),
        })
    }
}

impl Number {
    fn is_bool(&self) -> bool {
        matches!(self.rule, Rule::And | Rule::Or)
    }

    fn result(&self, a: u32, b: u32) -> u32 {
        match self.rule {
            Rule::Min | Rule::And => a.min(b),
            Rule::Max | Rule::Or => a.max(b),
        }
    }

    fn parse(&self, value: &str) -> Option<u32> {
        match value {
            "Yes" if self.is_bool() => Some(1),
            "No" if self.is_bool() => Some(0),
            _ if self.is_bool() => None,
            _ => parse(value, self.least, self.most),
        }
    }

    fn put(&self, text: &mut Vec<u8>, value: u32) -> Result<(), text::Error> {
        match (self.is_bool(), value) {
            (true, 0) => text::put(text, self.key, "No"),
            (true, _) => text::put(text, self.key, "Yes"),
            (false, _) => text::put(text, self.key, value),
        }
    }

    fn range(&self) -> String {
        if self.is_bool() { "Yes or No".into() } else { format!("{} to {}", self.least, self.most) }
    }

    /// What may be answered to an offer.
    fn answers(&self, offer: u32) -> String {
        match self.rule {
            Rule::And => "No".into(),
            Rule::Or => "Yes".into(),
            Rule::Min => format!("{} to {offer}", self.least),
            Rule::Max => format!("{offer} to {}", self.most),
        }
    }
}

impl DigestOffer {
    fn list(self) -> &'static str {
        match self {
            DigestOffer::Off => "None",
            DigestOffer::Prefer => "CRC32C,None",
            DigestOffer::Require => "CRC32C",
        }
    }
}

/// Those of `items` whose key nobody has spoken of.
fn open<T>(items: impl Iterator<Item = T>, states: &[Key]) -> impl Iterator<Item = T> {
    items.zip(states).filter(|(_, state)| **state == Key::Open).map(|(item, _)| item)
}

/// A number in decimal, or in hexadecimal behind `0x` (RFC 7143 section 6.1).
fn parse(value: &str, least: u32, most: u32) -> Option<u32> {
    let digits = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"));
    let (digits, radix) = digits.map_or((value, 10), |digits| (digits, 16));
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u32::from_str_radix(digits, radix).ok().filter(|number| plain && (least..=most).contains(number))
}

/// Values that say something of the offer (RFC 7143 section 6.2).
fn is_remark(value: &str) -> bool {
    matches!(value, "NotUnderstood" | "Irrelevant" | "Reject")
}

fn refuse(pair: Pair<'_>, expected: String) -> Error {
    // A value is at most 8 KiB; what is said of it need not be.
    let got = pair.value.chars().take(64).collect();
    Error::Value { key: pair.key.into(), offset: pair.offset, expected, got }
}

fn repeated(pair: Pair<'_>) -> Error {
    Error::Repeated { key: pair.key.into(), offset: pair.offset }
}
