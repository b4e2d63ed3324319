//! What the tests of this crate share: frames as bytes, and bytes as values that can be compared.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod v2;

use std::ops::ControlFlow;

use bytes::Bytes;
use segchain::chain::{ChainBuilder, Payload};
use segchain::framer::{Framer as _, Targets};
use segchain::recv::{Received, Receiver, RecvError, RecvOptions};
use segchain::slab::SlabPool;
use segchain_ceph::v1::{Control, Deframer, Error, Frame, Framer, Options};
use segchain_ceph::{Data, Header, Incoming, Message};
use segchain_testkit::scripted::ScriptedRecv;

/// A frame, with its data as bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    Message { seq: u64, header: Header, front: Bytes, middle: Bytes, data: SeenData, signature: Option<u64> },
    Control(Control),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SeenData {
    Bytes(Vec<u8>),
    Target { len: u64, whole: bool },
    Discarded { len: u64 },
}

pub(crate) fn seen(frame: Frame) -> Seen {
    match frame {
        Frame::Message(message) => {
            let Incoming { seq, header, front, middle, data, signature, .. } = message;
            Seen::Message { seq, header, front, middle, data: seen_data(data), signature }
        }
        Frame::Control(control) => Seen::Control(control),
        other => panic!("{other:?}"),
    }
}

fn seen_data(data: Data) -> SeenData {
    match data {
        Data::None => SeenData::Bytes(Vec::new()),
        Data::Slabs(slabs) => SeenData::Bytes(slabs.parts().collect::<Vec<_>>().concat()),
        Data::Target { len, whole } => SeenData::Target { len, whole },
        Data::Discarded { len } => SeenData::Discarded { len },
        other => panic!("{other:?}"),
    }
}

/// The bytes of a framed message.
pub(crate) fn wire<D: Payload>(framer: &mut Framer, message: Message<D>) -> Vec<u8> {
    let mut out = ChainBuilder::new();
    framer.frame(message, &mut out).unwrap();
    out.finish().unwrap().seal_all().to_vec()
}

pub(crate) fn control_wire(control: Control) -> Vec<u8> {
    let mut out = ChainBuilder::new();
    Framer::new(&Options::new()).frame(control, &mut out).unwrap();
    out.finish().unwrap().seal_all().to_vec()
}

/// A message with something in every part.
pub(crate) fn message(kind: u16, tid: u64, data: &[u8]) -> Message<&[u8]> {
    let mut header = Header::new(kind);
    (header.tid, header.priority, header.version) = (tid, 127, 8);
    let mut message = Message::new(header, Bytes::from_static(b"front"), data);
    message.middle = Bytes::from_static(b"mid");
    message
}

/// Everything in `bytes`, to the end of the stream.
pub(crate) fn receive(options: &Options, bytes: &[u8]) -> Result<Vec<Seen>, RecvError<Error>> {
    receive_into(options, bytes, &mut ())
}

pub(crate) fn receive_into(
    options: &Options,
    bytes: &[u8],
    targets: &mut dyn Targets,
) -> Result<Vec<Seen>, RecvError<Error>> {
    let script = ScriptedRecv::new(bytes, []);
    let limits = RecvOptions::new().contiguous(1 << 20);
    let mut receiver = Receiver::with_options(&script, Deframer::new(options), limits, SlabPool::default());
    let mut frames = Vec::new();
    let received = receiver.receive(targets, |frame| {
        frames.push(seen(frame));
        ControlFlow::Continue(())
    })?;
    assert_eq!(received, Received::Eof);
    Ok(frames)
}

/// A message header with a right checksum: tag, lengths as given, all else 0 but the sequence number, 1.
pub(crate) fn header_wire(kind: u16, lens: [u32; 3]) -> Vec<u8> {
    use segchain::checksum::{Checksum as _, Crc32c};
    let mut wire = vec![0; 54];
    (wire[0], wire[1]) = (7, 1);
    wire[17..19].copy_from_slice(&kind.to_le_bytes());
    for (at, len) in [23, 27, 31].into_iter().zip(lens) {
        wire[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }
    let mut crc = Crc32c::raw(0);
    crc.update(&wire[1..50]);
    wire[50..].copy_from_slice(&crc.value().to_le_bytes());
    wire
}
