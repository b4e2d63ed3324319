//! The same for version 2, and samples of its frames.

use std::net::SocketAddr;
use std::ops::ControlFlow;

use bytes::Bytes;
use segchain::chain::ChainBuilder;
use segchain::checksum::{Checksum as _, Crc32c};
use segchain::framer::{Framer as _, Targets};
use segchain::recv::{Received, Receiver, RecvError, RecvErrorKind, RecvOptions};
use segchain::slab::SlabPool;
use segchain_ceph::v2::{Codec, Control, Deframer, Error, Frame, Framer, Ident, Options, Stamp};
use segchain_ceph::{AddrKind, EntityAddr, Header, Incoming};
use segchain_testkit::scripted::ScriptedRecv;

use super::{SeenData, seen_data};

/// A frame, with its data as bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    Message { seq: u64, acked: u64, header: Header, front: Bytes, middle: Bytes, data: SeenData },
    Control(Control),
    Aborted { tag: u8, tid: Option<u64> },
}

pub(crate) fn seen(frame: Frame) -> Seen {
    match frame {
        Frame::Message(message) => {
            let Incoming { seq, header, front, middle, data, acked, .. } = message;
            Seen::Message { seq, acked, header, front, middle, data: seen_data(data) }
        }
        Frame::Control(control) => Seen::Control(control),
        Frame::Aborted { tag, tid } => Seen::Aborted { tag, tid },
        other => panic!("{other:?}"),
    }
}

pub(crate) const CODECS: [Codec; 2] = [Codec::CrcRev0, Codec::CrcRev1];

pub(crate) fn options(codec: Codec) -> Options {
    Options::new().codec(codec)
}

/// The bytes of a frame.
pub(crate) fn wire<'m, M>(framer: &mut Framer, message: M) -> Vec<u8>
where
    M: 'm,
    Framer: segchain::framer::Framer<M, Error = Error>,
{
    let mut out = ChainBuilder::new();
    framer.frame(message, &mut out).unwrap();
    out.finish().unwrap().seal_all().to_vec()
}

pub(crate) fn control_wire(codec: Codec, control: Control) -> Vec<u8> {
    wire(&mut Framer::new(&options(codec)), control)
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

pub(crate) fn frame_error(options: &Options, bytes: &[u8]) -> Error {
    match receive(options, bytes).unwrap_err().into_kind() {
        RecvErrorKind::Frame(error) => error,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn crc(seed: u32, bytes: &[u8]) -> [u8; 4] {
    let mut crc = Crc32c::raw(seed);
    crc.update(bytes);
    crc.value().to_le_bytes()
}

/// A preamble with a right checksum, whatever it says.
pub(crate) fn preamble(tag: u8, count: u8, segments: [(u32, u16); 4]) -> Vec<u8> {
    let mut wire = vec![tag, count];
    for (len, alignment) in segments {
        wire.extend(len.to_le_bytes());
        wire.extend(alignment.to_le_bytes());
    }
    wire.extend([0, 0]);
    let crc = crc(0, &wire);
    wire.extend(crc);
    wire
}

/// Puts right the preamble's checksum after a change.
pub(crate) fn reseal(wire: &mut [u8]) {
    let crc = crc(0, &wire[..28]);
    wire[28..32].copy_from_slice(&crc);
}

pub(crate) fn address(text: &str, nonce: u32) -> EntityAddr {
    EntityAddr::msgr2(text.parse::<SocketAddr>().unwrap(), nonce)
}

/// A frame of every tag but MESSAGE, with something in every field.
pub(crate) fn controls() -> Vec<Control> {
    let peer = address("10.1.2.3:6800", 0x0102_0304);
    let six = address("[2001:db8::7]:3300", 9).with_kind(AddrKind::Any);
    let mut ident = Ident::default();
    ident.addrs = vec![peer, six, EntityAddr::default().with_kind(AddrKind::Blank)];
    (ident.gid, ident.global_seq, ident.features) = (-1, 7, 0x3f01_cfbd_fffd_ffff);
    (ident.required, ident.flags, ident.cookie) = (1 << 55, 1, 0xfeed);
    let payload = Bytes::from_static(b"payload");
    vec![
        Control::Hello { entity_type: 4, peer },
        Control::AuthRequest { method: 1, modes: vec![2, 1], payload: payload.clone() },
        Control::AuthBadMethod { method: 2, result: -95, methods: vec![1], modes: vec![1, 2] },
        Control::AuthReplyMore(payload.clone()),
        Control::AuthRequestMore(payload.clone()),
        Control::AuthDone { global_id: 4199, mode: 1, payload },
        Control::AuthSignature([0xa5; 32]),
        Control::ClientIdent { ident: ident.clone(), target: six },
        Control::ServerIdent(ident),
        Control::IdentMissingFeatures(1 << 40),
        Control::SessionReconnect {
            addrs: vec![six],
            client_cookie: 1,
            server_cookie: 2,
            global_seq: 3,
            connect_seq: 4,
            msg_seq: 5,
        },
        Control::SessionReset { full: true },
        Control::SessionRetry(6),
        Control::SessionRetryGlobal(7),
        Control::SessionReconnectOk(8),
        Control::Wait,
        Control::Keepalive2(Stamp::new(1, 2)),
        Control::Keepalive2Ack(Stamp::new(3, 4)),
        Control::Ack(0x1_0000_0000),
    ]
}
