//! A stream that is already written, and what its records were.
#![allow(dead_code, unreachable_pub, missing_docs, missing_debug_implementations)]

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use segchain::chain::{ChainBuilder, Payload};
use segchain::framer::{Framer, LentSlices, Targets};
use segchain::recv::{Received, Receiver, RecvError, RecvOptions};
use segchain::slab::SlabPool;
use segchain::transport::VectoredRecv;
use segchain_oncrpc::{
    DataAt, Direction, Dropped, Error, Layout, Message, Pending, Placed, Record, RecordDeframer, RecordFramer,
};

/// Bytes that arrive in pieces; then the end of the stream.
pub struct Wire(RefCell<VecDeque<Vec<u8>>>);

impl Wire {
    pub fn pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).map(<[u8]>::to_vec);
        Self(RefCell::new(pieces.collect()))
    }
}

impl VectoredRecv for Wire {
    fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut pieces = self.0.borrow_mut();
        let Some(mut piece) = pieces.pop_front() else { return Ok(0) };
        let mut done = 0;
        for buf in bufs {
            let n = buf.len().min(piece.len() - done);
            buf[..n].copy_from_slice(&piece[done..done + n]);
            done += n;
        }
        if done < piece.len() {
            pieces.push_front(piece.split_off(done));
        }
        Ok(done)
    }
}

/// A table of targets that are one vector each.
#[derive(Default)]
pub struct Table(pub HashMap<u64, Vec<u8>>);

impl Table {
    pub fn with(key: u64, len: usize) -> Self {
        Self(HashMap::from([(key, vec![0xee; len])]))
    }
}

impl Targets for Table {
    fn expect(&mut self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|target| target.len() as u64)
    }

    fn lend<'a>(&'a mut self, key: u64, at: u64, len: usize, out: &mut LentSlices<'a>) -> bool {
        let Some(target) = self.0.get_mut(&key) else { return false };
        let end = target.len().min(at as usize + len);
        out.push(&mut target[at as usize..end]);
        true
    }
}

/// A record, copied out of the callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub xid: u32,
    pub direction: Direction,
    pub fragments: u32,
    pub bytes: Vec<u8>,
    pub placed: Option<Placed>,
}

impl From<Record<'_>> for Seen {
    fn from(record: Record<'_>) -> Self {
        assert_eq!(record.parts().map(<[u8]>::len).sum::<usize>(), record.to_bytes().len());
        Self {
            xid: record.xid(),
            direction: record.direction(),
            fragments: record.fragments(),
            bytes: record.to_bytes().into_owned(),
            placed: record.placed(),
        }
    }
}

/// NFSv3 READ3res (RFC 1813 section 3.3.6).
pub fn read_data(results: &[u8]) -> DataAt {
    let word = |at: usize| results.get(at..at + 4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
    let (Some(status), Some(attributes)) = (word(0), word(4)) else { return DataAt::Need(8) };
    if status != 0 {
        return DataAt::Nowhere;
    }
    let offset = 8 + 84 * (attributes as usize & 1) + 12;
    word(offset - 4).map_or(DataAt::Need(offset), |len| DataAt::At { offset, len: len.into() })
}

/// The head of a READ reply, up to and including the length of its data.
pub fn read_head(xid: u32, verifier: usize, attributes: bool, len: u32) -> Vec<u8> {
    let mut head = words(&[xid, 1, 0, 3, verifier as u32]);
    head.extend(vec![0xaa; verifier.next_multiple_of(4)]);
    head.extend(words(&[0, 0, attributes.into()]));
    head.extend(vec![0xbb; if attributes { 84 } else { 0 }]);
    head.extend(words(&[len, 1, len]));
    head
}

pub fn read_reply(xid: u32, data: &[u8]) -> Vec<u8> {
    let mut reply = read_head(xid, 0, true, data.len() as u32);
    reply.extend_from_slice(data);
    reply.resize(reply.len().next_multiple_of(4), 0);
    reply
}

pub fn expecting(xids: &[u32]) -> RecordDeframer {
    let pending = Pending::new();
    for xid in xids {
        pending.expect(*xid, Layout::Data(read_data)).unwrap();
    }
    RecordDeframer::new(pending)
}

/// What came out of a stream, and how it ended.
pub struct Outcome {
    pub records: Vec<Seen>,
    pub dropped: Vec<Dropped>,
    pub end: Result<Received, RecvError<Error>>,
}

impl Outcome {
    pub fn error(self) -> Error {
        match self.end.expect_err("an error was expected").into_kind() {
            segchain::recv::RecvErrorKind::Frame(error) => error,
            other => panic!("a framing error was expected, got {other:?}"),
        }
    }
}

pub fn receive(wire: Wire, deframer: RecordDeframer, targets: &mut dyn Targets) -> Outcome {
    receive_with(wire, deframer, targets, RecvOptions::default())
}

pub fn receive_with(
    wire: Wire,
    deframer: RecordDeframer,
    targets: &mut dyn Targets,
    options: RecvOptions,
) -> Outcome {
    let dropped = Arc::new(Mutex::new(Vec::new()));
    let log = dropped.clone();
    let deframer = deframer.on_dropped(move |record| log.lock().unwrap().push(record));
    let mut receiver = Receiver::with_options(wire, deframer, options, SlabPool::default());
    let mut records = Vec::new();
    let end = receiver.receive(targets, |record| {
        records.push(Seen::from(record));
        ControlFlow::Continue(())
    });
    let count = receiver.deframer().dropped();
    let dropped = dropped.lock().unwrap().clone();
    assert_eq!(count, dropped.len() as u64);
    Outcome { records, dropped, end }
}

/// The bytes of one record.
pub fn framed<P: Payload>(mut framer: RecordFramer, message: Message<'_, P>) -> Vec<u8> {
    let mut out = ChainBuilder::new();
    framer.frame(message, &mut out).unwrap();
    out.finish().unwrap().seal_all().to_vec()
}

/// A record cut into fragments of these lengths, by hand; what is left is the last one.
pub fn cut(message: &[u8], fragments: &[usize]) -> Vec<u8> {
    let mut wire = Vec::new();
    let mut rest = message;
    for len in fragments {
        let (now, later) = rest.split_at(*len);
        wire.extend_from_slice(&(*len as u32).to_be_bytes());
        wire.extend_from_slice(now);
        rest = later;
    }
    wire.extend_from_slice(&(rest.len() as u32 | 1 << 31).to_be_bytes());
    wire.extend_from_slice(rest);
    wire
}

/// A record in fragments of `max` bytes.
pub fn cut_evenly(message: &[u8], max: usize) -> Vec<u8> {
    cut(message, &vec![max; message.len().saturating_sub(1) / max])
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8)) as u8).collect()
}

pub fn server() -> RecordDeframer {
    RecordDeframer::new(Pending::new())
}
