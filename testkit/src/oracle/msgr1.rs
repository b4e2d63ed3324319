//! Version 1 of the Ceph messenger, an open connection, from Ceph's `src/include/msgr.h`.

use super::{Decoded, EOF, End, Payload, Rest, Targets, crc32c, le};

/// A frame.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Frame {
    /// A message that has not come before.
    Message {
        /// Sequence number, tid, type, priority, version, data_off, kind and number of the sender, compat version, reserved.
        header: [u64; 10],
        /// The first part.
        front: Vec<u8>,
        /// The second.
        middle: Vec<u8>,
        /// The third.
        data: Payload,
        /// Of a message that says it is signed.
        signature: Option<u64>,
    },
    /// Any other frame: its tag, and its numbers.
    Control(u8, Vec<u64>),
}

/// How a stream is to be read.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, clippy::struct_excessive_bools, reason = "the settings of a test")]
pub struct Settings {
    /// Both sides have feature MSG_AUTH.
    pub long_footer: bool,
    /// Header, front and middle are checked.
    pub crc_header: bool,
    /// Data is checked, unless the message says that it has no checksum.
    pub crc_data: bool,
    /// Messages without the flag COMPLETE are passed over.
    pub skip_incomplete: bool,
    /// The last message that came before.
    pub last_seq: u64,
    /// The longest front, middle and data.
    pub limit: usize,
}

/// The message type whose tid names a target: MOSDOpReply.
const REPLY: u64 = 43;

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
        let tag = self.rest.take(1)?[0];
        let numbers = match tag {
            // Close, keepalive.
            6 | 9 => vec![],
            7 => return self.message(),
            // Ack.
            8 => vec![le(self.rest.take(8)?)],
            // Keepalive2 and its ack: seconds and nanoseconds.
            14 | 15 => vec![le(self.rest.take(4)?), le(self.rest.take(4)?)],
            _ => return Err("Tag".into()),
        };
        self.frames.push(Frame::Control(tag, numbers));
        Ok(())
    }

    fn message(&mut self) -> Result<(), End> {
        const NAMES: [&str; 3] = ["Front", "Middle", "Data"];
        let Settings { long_footer, crc_header, crc_data, skip_incomplete, limit, .. } = self.settings;
        let header = self.rest.take(53)?;
        let at = |from, to| le(&header[from..to]);
        if crc_header && at(49, 53) != u64::from(crc32c(0, &header[..49])) {
            return Err("Crc Header".into());
        }
        let lens = [at(22, 26), at(26, 30), at(30, 34)];
        for (len, name) in lens.iter().zip(NAMES) {
            if *len > limit as u64 {
                return Err(format!("TooLong {name}"));
            }
        }
        let mut parts = Vec::new();
        for len in lens {
            parts.push(self.rest.take(len as usize)?);
        }
        let footer = self.rest.take(if long_footer { 21 } else { 13 })?;
        let flags = footer[footer.len() - 1];

        let (seq, tid, kind) = (at(0, 8), at(8, 16), at(16, 18));
        let new = seq > self.settings.last_seq;
        let data = self.place(kind, tid, new, parts[2]);
        if flags & 1 == 0 {
            return if skip_incomplete { Ok(()) } else { Err("Incomplete".into()) };
        }
        let checked = [crc_header, crc_header, crc_data && flags & 2 == 0];
        for index in 0..3 {
            let crc = le(&footer[4 * index..4 * index + 4]);
            if checked[index] && crc != u64::from(crc32c(0, parts[index])) {
                return Err(format!("Crc {}", NAMES[index]));
            }
        }
        if new {
            self.settings.last_seq = seq;
            let signature = (long_footer && flags & 4 != 0).then(|| le(&footer[12..20]));
            let header = [
                seq,
                tid,
                kind,
                at(18, 20),
                at(20, 22),
                at(34, 36),
                at(36, 37),
                at(37, 45),
                at(45, 47),
                at(47, 49),
            ];
            let (front, middle) = (parts[0].to_vec(), parts[1].to_vec());
            self.frames.push(Frame::Message { header, front, middle, data, signature });
        }
        Ok(())
    }

    fn place(&mut self, kind: u64, tid: u64, new: bool, data: &[u8]) -> Payload {
        match self.targets.get_mut(&tid).filter(|_| kind == REPLY && new) {
            _ if data.is_empty() => Payload::Bytes(vec![]),
            Some(memory) if memory.len() >= data.len() => {
                memory[..data.len()].copy_from_slice(data);
                Payload::Target(data.len() as u64)
            }
            Some(_) => Payload::Discarded(data.len() as u64),
            None => Payload::Bytes(data.to_vec()),
        }
    }
}
