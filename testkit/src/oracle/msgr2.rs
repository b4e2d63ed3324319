//! Version 2 of the Ceph messenger, revisions 0 and 1, crc mode, from Ceph's `src/msg/async/frames_v2.h`.

use super::{Decoded, EOF, End, Payload, Rest, Targets, crc32c, le};

/// A frame.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Frame {
    /// A message that has not come before.
    Message {
        /// Sequence number, acknowledgement, tid, type, priority, version, compat version, data_off, reserved.
        header: [u64; 9],
        /// Segment 1.
        front: Vec<u8>,
        /// Segment 2.
        middle: Vec<u8>,
        /// Segment 3.
        data: Payload,
    },
    /// Any other frame: its tag, and its fields one after the other.
    Control(u8, Vec<u64>),
    /// A frame that its sender gave up: its tag, and the tid if it is a message.
    Aborted(u8, Option<u64>),
}

/// How a stream is to be read.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "the settings of a test")]
pub struct Settings {
    /// Revision 1 of the frames.
    pub rev1: bool,
    /// The last message that came before.
    pub last_seq: u64,
    /// The longest segment 0.
    pub first_limit: usize,
    /// The longest of the others.
    pub limit: usize,
}

/// The message type whose tid names a target: MOSDOpReply.
const REPLY: u64 = 43;
const MESSAGE: u8 = 17;

/// Decodes a stream. Data of a reply goes to the target of its tid.
pub fn decode(settings: &Settings, targets: Targets, bytes: &[u8]) -> Decoded<Frame> {
    let mut decoder = Decoder { settings: *settings, rest: Rest(bytes), targets, frames: Vec::new() };
    let end = loop {
        if decoder.rest.0.is_empty() {
            break EOF.into();
        }
        if let Err(end) = decoder.frame() {
            break end;
        }
    };
    Decoded { frames: decoder.frames, end, targets: decoder.targets }
}

struct Decoder<'a> {
    settings: Settings,
    rest: Rest<'a>,
    targets: Targets,
    frames: Vec<Frame>,
}

impl Decoder<'_> {
    fn frame(&mut self) -> Result<(), End> {
        let Settings { rev1, first_limit, limit, .. } = self.settings;
        let preamble = self.rest.take(32)?;
        if le(&preamble[28..]) != u64::from(crc32c(0, &preamble[..28])) {
            return Err("Crc Preamble".into());
        }
        let (tag, count) = (preamble[0], usize::from(preamble[1]));
        if tag == 0 || tag > 20 {
            return Err("Tag".into());
        }
        if preamble[26] & 1 == 1 {
            return Err("Compressed".into());
        }
        let is_message = tag == MESSAGE;
        if !(1..=4).contains(&count) || (count > 1 && !is_message) {
            return Err("Segments".into());
        }
        let lens: Vec<usize> = (0..count).map(|i| le(&preamble[2 + 6 * i..6 + 6 * i]) as usize).collect();
        let names = [if is_message { "Header" } else { "Control" }, "Front", "Middle", "Data"];
        for (index, len) in lens.iter().enumerate() {
            if *len > if index == 0 { first_limit } else { limit } {
                return Err(format!("TooLong {}", names[index]));
            }
        }
        if count > 1 && lens[count - 1] == 0 {
            return Err("LastEmpty".into());
        }
        if is_message && lens[0] < 41 {
            return Err("HeaderTooShort".into());
        }

        let mut segments = vec![self.rest.take(lens[0])?];
        if rev1 && lens[0] > 0 && le(self.rest.take(4)?) != u64::from(crc32c(!0, segments[0])) {
            return Err(format!("Crc {}", names[0]));
        }
        for len in &lens[1..] {
            segments.push(self.rest.take(*len)?);
        }
        let mut status = if rev1 { 0xe } else { 0 };
        if !rev1 || count > 1 {
            let epilogue = self.rest.take(if rev1 { 13 } else { 17 })?;
            status = epilogue[0];
            let first = usize::from(rev1);
            for index in first..count {
                let at = 1 + 4 * (index - first);
                if le(&epilogue[at..at + 4]) != u64::from(crc32c(!0, segments[index])) {
                    return Err(format!("Crc {}", names[index]));
                }
            }
        }
        let aborted = match (rev1, status & 15) {
            (true, 0xe) => false,
            (true, 1) => true,
            (true, _) => return Err("LateStatus".into()),
            (false, status) => status & 1 == 1,
        };
        self.whole(tag, &segments, aborted)
    }

    fn whole(&mut self, tag: u8, segments: &[&[u8]], aborted: bool) -> Result<(), End> {
        if tag != MESSAGE {
            let frame = if aborted {
                Frame::Aborted(tag, None)
            } else {
                Frame::Control(tag, fields(tag, segments[0])?)
            };
            self.frames.push(frame);
            return Ok(());
        }
        let at = |from, to| le(&segments[0][from..to]);
        let (seq, tid, kind) = (at(0, 8), at(8, 16), at(16, 18));
        let part = |index: usize| segments.get(index).copied().unwrap_or_default();
        let data = part(3);
        let new = seq > self.settings.last_seq;
        let placed = match self.targets.get_mut(&tid).filter(|_| kind == REPLY && new) {
            _ if data.is_empty() => Payload::Bytes(vec![]),
            Some(memory) if memory.len() >= data.len() => {
                memory[..data.len()].copy_from_slice(data);
                Payload::Target(data.len() as u64)
            }
            Some(_) => Payload::Discarded(data.len() as u64),
            None => Payload::Bytes(data.to_vec()),
        };
        if aborted {
            self.frames.push(Frame::Aborted(tag, Some(tid)));
        } else if new {
            self.settings.last_seq = seq;
            let header =
                [seq, at(28, 36), tid, kind, at(18, 20), at(20, 22), at(37, 39), at(26, 28), at(39, 41)];
            let (front, middle) = (part(1).to_vec(), part(2).to_vec());
            self.frames.push(Frame::Message { header, front, middle, data: placed });
        }
        Ok(())
    }
}

/// The fields of a control frame: 1, 4 and 8 are numbers of so many bytes, l a list of u32, s a string, a an address, v a
/// list of addresses, h 32 bytes.
fn schema(tag: u8) -> &'static str {
    match tag {
        1 => "1a",
        2 => "4ls",
        3 => "44ll",
        4 | 5 => "s",
        6 => "84s",
        7 => "h",
        8 => "va888888",
        9 => "v888888",
        11 => "v88888",
        12 => "1",
        16 => "",
        18 | 19 => "44",
        _ => "8",
    }
}

fn fields(tag: u8, segment: &[u8]) -> Result<Vec<u64>, End> {
    let mut rest = segment;
    let mut out = Vec::new();
    for field in schema(tag).chars() {
        match field {
            '1' | '4' | '8' => out.push(le(take(&mut rest, field as usize - '0' as usize)?)),
            'h' => out.extend(take(&mut rest, 32)?.iter().map(|byte| u64::from(*byte))),
            's' => out.extend(string(&mut rest)?.iter().map(|byte| u64::from(*byte))),
            'l' => {
                for _ in 0..le(take(&mut rest, 4)?) {
                    out.push(le(take(&mut rest, 4)?));
                }
            }
            'a' => address(&mut rest, &mut out)?,
            _ => {
                if take(&mut rest, 1)?[0] != 2 {
                    return Err("Value".into());
                }
                for _ in 0..le(take(&mut rest, 4)?) {
                    address(&mut rest, &mut out)?;
                }
            }
        }
    }
    if tag == 12 {
        // A truth value.
        out[0] = u64::from(out[0] != 0);
    }
    Ok(out)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], End> {
    let (taken, after) = rest.split_at_checked(len).ok_or("Short")?;
    *rest = after;
    Ok(taken)
}

fn string<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], End> {
    let len = le(take(rest, 4)?) as usize;
    take(rest, len)
}

/// Kind and nonce, and port and IP where there are any.
fn address(rest: &mut &[u8], out: &mut Vec<u64>) -> Result<(), End> {
    if take(rest, 1)?[0] != 1 {
        return Err("Value".into());
    }
    take(rest, 2)?;
    let mut body = string(rest)?;
    let kind = le(take(&mut body, 4)?);
    if kind > 3 {
        return Err("Value".into());
    }
    out.extend([kind, le(take(&mut body, 4)?)]);
    let mut socket = string(&mut body)?;
    if socket.is_empty() {
        return Ok(());
    }
    let family = le(take(&mut socket, 2)?);
    let port = super::be(take(&mut socket, 2)?);
    match family {
        0 => {}
        2 => out.extend([port, le(take(&mut socket, 4)?)]),
        10 => {
            let flow = le(take(&mut socket, 4)?);
            let (low, high) = (le(take(&mut socket, 8)?), le(take(&mut socket, 8)?));
            out.extend([port, flow, low, high, le(take(&mut socket, 4)?)]);
        }
        _ => return Err("Value".into()),
    }
    Ok(())
}
