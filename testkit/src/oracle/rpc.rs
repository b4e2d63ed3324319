//! ONC RPC records on a stream, from RFC 5531 section 11, and the data of NFSv3 READ in them, from RFC 1813 section 3.3.6.

use std::collections::BTreeMap;

use super::{Decoded, EOF, End, Rest, Targets, be};

/// A record.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Record {
    /// One that is handed out.
    Message {
        /// The transaction id.
        xid: u64,
        /// 0 a call, 1 a reply.
        direction: u64,
        /// How many fragments it came in.
        fragments: u64,
        /// Its bytes without those that went to a target.
        bytes: Vec<u8>,
        /// How many those are, if it is a reply with data.
        placed: Option<u64>,
    },
    /// One that is dropped.
    Dropped {
        /// The transaction id.
        xid: u64,
        /// 0 a call, 1 a reply.
        direction: u64,
        /// Why.
        reason: Reason,
    },
}

/// Why a record is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Nobody waits for this reply.
    UnknownXid,
    /// Calls are not wanted.
    UnwantedCall,
    /// There is no target for its data.
    NoTarget,
    /// So many bytes of data for a target of so many.
    TargetTooSmall(u64, u64),
    /// So many bytes of data are announced, so many came.
    DataCutShort(u64, u64),
}

/// How a stream is to be read.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "the settings of a test")]
pub struct Settings {
    /// Whether calls are wanted.
    pub calls: bool,
    /// The most bytes of a record.
    pub max_record: u64,
    /// The most fragments of a record.
    pub max_fragments: u64,
    /// The most empty ones, besides the last.
    pub max_empty: u64,
    /// The replies that are waited for, and whether they are those of READs, whose data has a target.
    pub waiting: BTreeMap<u64, bool>,
}

/// Decodes a stream. The data of a READ that is waited for goes to the target of its transaction id.
pub fn decode(settings: &Settings, targets: Targets, bytes: &[u8]) -> Decoded<Record> {
    let mut decoder = Decoder { settings: settings.clone(), rest: Rest(bytes), targets };
    let mut frames = Vec::new();
    let end = loop {
        if decoder.rest.0.is_empty() {
            break EOF.into();
        }
        match decoder.record() {
            Ok(record) => frames.push(record),
            Err(end) => break end,
        }
    };
    Decoded { frames, end, targets: decoder.targets }
}

struct Decoder<'a> {
    settings: Settings,
    rest: Rest<'a>,
    targets: Targets,
}

impl Decoder<'_> {
    fn record(&mut self) -> Result<Record, End> {
        let Settings { max_record, max_fragments, max_empty, .. } = self.settings;
        let mut joined = Vec::new();
        let mut empty = 0;
        // Where each fragment ends in the record.
        let mut ends = Vec::new();
        loop {
            let marker = be(self.rest.take(4)?);
            let (last, len) = (marker >> 31 == 1, marker & 0x7fff_ffff);
            let sum = joined.len() as u64 + len;
            if sum > max_record {
                return Err("RecordTooLong".into());
            }
            if ends.len() as u64 >= max_fragments {
                return Err("TooManyFragments".into());
            }
            if last && sum < 8 {
                return Err("RecordTooShort".into());
            }
            if len == 0 && !last {
                empty += 1;
                if empty > max_empty {
                    return Err("TooManyEmptyFragments".into());
                }
            }
            let here = self.rest.0.len().min(len as usize);
            joined.extend_from_slice(self.rest.take(here)?);
            // Seen as soon as it is there.
            if joined.len() >= 8 && be(&joined[4..8]) > 1 {
                return Err("NoDirection".into());
            }
            if here < len as usize {
                return Err(super::CUT.into());
            }
            ends.push(joined.len());
            if last {
                return Ok(self.whole(joined, &ends));
            }
        }
    }

    fn whole(&mut self, mut joined: Vec<u8>, ends: &[usize]) -> Record {
        let (xid, direction) = (be(&joined[..4]), be(&joined[4..8]));
        let dropped = |reason| Record::Dropped { xid, direction, reason };
        let fragments = ends.len() as u64;
        if direction == 0 && !self.settings.calls {
            return dropped(Reason::UnwantedCall);
        }
        let is_read = match direction {
            0 => false,
            _ => match self.settings.waiting.remove(&xid) {
                None => return dropped(Reason::UnknownXid),
                Some(is_read) => is_read,
            },
        };
        let Some((start, len)) = data_of_read(&joined).filter(|_| is_read) else {
            return Record::Message { xid, direction, fragments, bytes: joined, placed: None };
        };
        let got = len.min((joined.len() - start) as u64);
        let cut_short = dropped(Reason::DataCutShort(len, got));
        // Whether all of the record is known by the time that its data begins.
        let known = ends.len() == 1 || ends[ends.len() - 2] < start;
        if known && got < len {
            return cut_short;
        }
        let Some(target) = self.targets.get_mut(&xid) else { return dropped(Reason::NoTarget) };
        if (target.len() as u64) < len {
            return dropped(Reason::TargetTooSmall(len, target.len() as u64));
        }
        let end = start + got as usize;
        target[..got as usize].copy_from_slice(&joined[start..end]);
        if got < len {
            return cut_short;
        }
        joined.drain(start..end);
        Record::Message { xid, direction, fragments, bytes: joined, placed: Some(len) }
    }
}

/// Where the data of a READ begins and how much it is; `None` if it failed, or the record ends before.
fn data_of_read(reply: &[u8]) -> Option<(usize, u64)> {
    let word = |at: usize| Some(be(reply.get(at..at + 4)?));
    let accepted = word(8)? == 0;
    if !accepted {
        return None;
    }
    let verifier = word(16)?;
    if verifier > 400 {
        return None;
    }
    let status = 20 + (verifier as usize).next_multiple_of(4);
    let success = word(status)? == 0;
    if !success || word(status + 4)? != 0 {
        return None;
    }
    // Attributes, if they follow; count, end of file, length.
    let attributes = if word(status + 8)? & 1 == 1 { 84 } else { 0 };
    let data = status + 12 + attributes + 12;
    Some((data, word(data - 4)?))
}
