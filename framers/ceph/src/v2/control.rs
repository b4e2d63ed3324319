//! Frames of one segment: the handshake's, and what travels between messages.

use bytes::Bytes;

use super::{Error, PREAMBLE, Stamp};
use crate::EntityAddr;
use crate::wire::{Malformed, Reader};

/// A frame that is not a message. The fields are those of Ceph `src/msg/async/frames_v2.h`; what a newer version adds behind
/// them is passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// The first frame of both sides.
    Hello {
        /// What the sender is: 1 monitor, 4 OSD, 8 client.
        entity_type: u8,
        /// The address of the peer as the sender sees it.
        peer: EntityAddr,
    },
    /// A client says who it is.
    AuthRequest {
        /// 1 is `auth none`, 2 cephx.
        method: u32,
        /// The connection modes it would have, best first: 1 crc, 2 secure.
        modes: Vec<u32>,
        /// The method's own.
        payload: Bytes,
    },
    /// The server does not do this method, or does not believe it.
    AuthBadMethod {
        /// The refused method.
        method: u32,
        /// A negative errno of Linux.
        result: i32,
        /// What it would do.
        methods: Vec<u32>,
        /// The connection modes it would have.
        modes: Vec<u32>,
    },
    /// The server asks for another round.
    AuthReplyMore(Bytes),
    /// The client's next round.
    AuthRequestMore(Bytes),
    /// The server is content.
    AuthDone {
        /// The client's number, given by a monitor.
        global_id: u64,
        /// The mode of all frames from here on: 1 crc, 2 secure.
        mode: u32,
        /// The method's own.
        payload: Bytes,
    },
    /// What makes sure that nobody has changed what was said so far; all zeros with `auth none`.
    AuthSignature([u8; 32]),
    /// A client begins a session.
    ClientIdent {
        /// The client.
        ident: Ident,
        /// Whom it means to reach, nonce included.
        target: EntityAddr,
    },
    /// The server takes it.
    ServerIdent(Ident),
    /// The server takes no client without these features.
    IdentMissingFeatures(u64),
    /// A client goes on with a session.
    SessionReconnect {
        /// Its addresses.
        addrs: Vec<EntityAddr>,
        /// Its own number of the session.
        client_cookie: u64,
        /// The server's.
        server_cookie: u64,
        /// Counts its connections to whomever.
        global_seq: u64,
        /// Counts the connections of the session.
        connect_seq: u64,
        /// The last message that it has received.
        msg_seq: u64,
    },
    /// The server has forgotten the session.
    SessionReset {
        /// Whether the client has to forget it too.
        full: bool,
    },
    /// The client's `connect_seq` is too low: the server's.
    SessionRetry(u64),
    /// The client's `global_seq` is too low: the server's.
    SessionRetryGlobal(u64),
    /// The session goes on: the last message that the server has received.
    SessionReconnectOk(u64),
    /// The server is connecting to the client at the same time, and that connection goes first.
    Wait,
    /// The sender is alive, and asks for the stamp back.
    Keepalive2(Stamp),
    /// The answer, with the same stamp.
    Keepalive2Ack(Stamp),
    /// Every message up to this number has arrived.
    Ack(u64),
}

/// What both sides say of themselves when a session begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ident {
    /// The sender's addresses.
    pub addrs: Vec<EntityAddr>,
    /// Its number among its kind: a daemon's id, a client's global id, or -1 of a client that has none yet.
    pub gid: i64,
    /// Counts its connections to whomever.
    pub global_seq: u64,
    /// The features it has.
    pub features: u64,
    /// The features that the peer must have.
    pub required: u64,
    /// 1: the session ends with the connection.
    pub flags: u64,
    /// Its own number of the session; 0 if that ends with the connection.
    pub cookie: u64,
}

impl Control {
    /// The frame's tag (`enum class Tag` of `frames_v2.h`).
    pub fn tag(&self) -> u8 {
        match self {
            Control::Hello { .. } => 1,
            Control::AuthRequest { .. } => 2,
            Control::AuthBadMethod { .. } => 3,
            Control::AuthReplyMore(_) => 4,
            Control::AuthRequestMore(_) => 5,
            Control::AuthDone { .. } => 6,
            Control::AuthSignature(_) => 7,
            Control::ClientIdent { .. } => 8,
            Control::ServerIdent(_) => 9,
            Control::IdentMissingFeatures(_) => 10,
            Control::SessionReconnect { .. } => 11,
            Control::SessionReset { .. } => 12,
            Control::SessionRetry(_) => 13,
            Control::SessionRetryGlobal(_) => 14,
            Control::SessionReconnectOk(_) => 15,
            Control::Wait => 16,
            Control::Keepalive2(_) => 18,
            Control::Keepalive2Ack(_) => 19,
            Control::Ack(_) => 20,
        }
    }

    /// The segment.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Control::Hello { entity_type, peer } => {
                out.push(*entity_type);
                peer.encode(&mut out);
            }
            Control::AuthRequest { method, modes, payload } => {
                out.extend(method.to_le_bytes());
                put_u32s(&mut out, modes);
                put_bytes(&mut out, payload);
            }
            Control::AuthBadMethod { method, result, methods, modes } => {
                out.extend(method.to_le_bytes());
                out.extend(result.to_le_bytes());
                put_u32s(&mut out, methods);
                put_u32s(&mut out, modes);
            }
            Control::AuthReplyMore(payload) | Control::AuthRequestMore(payload) => {
                put_bytes(&mut out, payload);
            }
            Control::AuthDone { global_id, mode, payload } => {
                out.extend(global_id.to_le_bytes());
                out.extend(mode.to_le_bytes());
                put_bytes(&mut out, payload);
            }
            Control::AuthSignature(signature) => out.extend(signature),
            Control::ClientIdent { ident, target } => ident.encode(Some(target), &mut out),
            Control::ServerIdent(ident) => ident.encode(None, &mut out),
            Control::SessionReconnect {
                addrs,
                client_cookie,
                server_cookie,
                global_seq,
                connect_seq,
                msg_seq,
            } => {
                EntityAddr::encode_all(addrs, &mut out);
                for number in [client_cookie, server_cookie, global_seq, connect_seq, msg_seq] {
                    out.extend(number.to_le_bytes());
                }
            }
            Control::SessionReset { full } => out.push((*full).into()),
            Control::IdentMissingFeatures(number)
            | Control::SessionRetry(number)
            | Control::SessionRetryGlobal(number)
            | Control::SessionReconnectOk(number)
            | Control::Ack(number) => out.extend(number.to_le_bytes()),
            Control::Wait => {}
            Control::Keepalive2(stamp) | Control::Keepalive2Ack(stamp) => {
                out.extend(stamp.sec.to_le_bytes());
                out.extend(stamp.nsec.to_le_bytes());
            }
        }
        out
    }

    pub(super) fn decode(tag: u8, segment: &[u8]) -> Result<Self, Error> {
        Self::read(tag, &mut Reader::new(segment)).map_err(|malformed| match malformed {
            Malformed::Short(short) => Error::Short {
                tag,
                field: short.field,
                offset: (PREAMBLE + short.offset) as u64,
                expected: short.expected,
                got: short.got,
            },
            Malformed::Value { field, offset, got } => {
                Error::Value { tag, field, offset: (PREAMBLE + offset) as u64, got }
            }
        })
    }

    fn read(tag: u8, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let bytes =
            |reader: &mut Reader<'_>| Ok::<_, Malformed>(Bytes::copy_from_slice(reader.string("payload")?));
        let stamp = |reader: &mut Reader<'_>| {
            Ok::<_, Malformed>(Stamp::new(reader.u32("seconds")?, reader.u32("nanoseconds")?))
        };
        Ok(match tag {
            1 => Control::Hello { entity_type: reader.u8("entity type")?, peer: EntityAddr::decode(reader)? },
            2 => Control::AuthRequest {
                method: reader.u32("method")?,
                modes: reader.u32s("modes")?,
                payload: bytes(reader)?,
            },
            3 => Control::AuthBadMethod {
                method: reader.u32("method")?,
                result: reader.i32("result")?,
                methods: reader.u32s("methods")?,
                modes: reader.u32s("modes")?,
            },
            4 => Control::AuthReplyMore(bytes(reader)?),
            5 => Control::AuthRequestMore(bytes(reader)?),
            6 => Control::AuthDone {
                global_id: reader.u64("global id")?,
                mode: reader.u32("mode")?,
                payload: bytes(reader)?,
            },
            7 => Control::AuthSignature(reader.array("signature")?),
            8 => {
                let mut target = EntityAddr::default();
                let ident = Ident::decode(Some(&mut target), reader)?;
                Control::ClientIdent { ident, target }
            }
            9 => Control::ServerIdent(Ident::decode(None, reader)?),
            10 => Control::IdentMissingFeatures(reader.u64("features")?),
            11 => Control::SessionReconnect {
                addrs: EntityAddr::decode_all(reader)?,
                client_cookie: reader.u64("client cookie")?,
                server_cookie: reader.u64("server cookie")?,
                global_seq: reader.u64("global seq")?,
                connect_seq: reader.u64("connect seq")?,
                msg_seq: reader.u64("message seq")?,
            },
            12 => Control::SessionReset { full: reader.u8("full")? != 0 },
            13 => Control::SessionRetry(reader.u64("connect seq")?),
            14 => Control::SessionRetryGlobal(reader.u64("global seq")?),
            15 => Control::SessionReconnectOk(reader.u64("message seq")?),
            16 => Control::Wait,
            18 => Control::Keepalive2(stamp(reader)?),
            19 => Control::Keepalive2Ack(stamp(reader)?),
            20 => Control::Ack(reader.u64("message seq")?),
            _ => return Err(Malformed::Value { field: "tag", offset: 0, got: tag.into() }),
        })
    }
}

impl Ident {
    fn encode(&self, target: Option<&EntityAddr>, out: &mut Vec<u8>) {
        EntityAddr::encode_all(&self.addrs, out);
        if let Some(target) = target {
            target.encode(out);
        }
        out.extend(self.gid.to_le_bytes());
        for number in [self.global_seq, self.features, self.required, self.flags, self.cookie] {
            out.extend(number.to_le_bytes());
        }
    }

    fn decode(target: Option<&mut EntityAddr>, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let addrs = EntityAddr::decode_all(reader)?;
        if let Some(target) = target {
            *target = EntityAddr::decode(reader)?;
        }
        Ok(Self {
            addrs,
            gid: reader.u64("gid")?.cast_signed(),
            global_seq: reader.u64("global seq")?,
            features: reader.u64("features")?,
            required: reader.u64("required features")?,
            flags: reader.u64("flags")?,
            cookie: reader.u64("cookie")?,
        })
    }
}

fn put_u32s(out: &mut Vec<u8>, numbers: &[u32]) {
    out.extend((numbers.len() as u32).to_le_bytes());
    for number in numbers {
        out.extend(number.to_le_bytes());
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}
