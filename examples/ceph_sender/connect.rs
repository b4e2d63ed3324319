//! The client's half of both handshakes: to an osd, and to a monitor for a global id.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use segchain::recv::{Receiver, RecvOptions};
use segchain::send::StreamSender;
use segchain::slab::SlabPool;
use segchain::transport::SocketRef;
use segchain_ceph::mon::{self, AuthReply};
use segchain_ceph::v1::handshake::{Authorizer, MON_PROTOCOL, OSD_PROTOCOL};
use segchain_ceph::{EntityAddr, v1, v2};

use crate::Failure;
use crate::messenger::{
    Connection, Frame, Outbound, PATIENCE, Protocol, Socket, halves_of_v1, halves_of_v2, shake_hands,
};

/// The longest front: an osd map of a large cluster does not fit into the 64 KiB that a receiver takes by default.
const FRONT_LIMIT: u32 = 4 << 20;

/// An osd: where it is, and which of its lives is meant.
#[derive(Clone, Copy)]
pub(crate) struct Osd {
    pub(crate) protocol: Protocol,
    pub(crate) address: SocketAddr,
    /// Version 2 cannot do without it.
    pub(crate) nonce: Option<u32>,
    /// Whether data is protected by checksums. In version 2 it always is.
    pub(crate) crc_data: bool,
}

/// Who we are to everybody, with `auth none`.
const NAME: &str = "admin";
const NO_HANDSHAKE: &str = "no handshake with";

impl Osd {
    /// Connects as the client `global_id`.
    pub(crate) fn connect(&self, global_id: u64) -> Result<Connection, Failure> {
        let Self { address, nonce, .. } = *self;
        let socket = reach(address)?;
        let connection = match self.protocol {
            Protocol::V1 => {
                let authorizer = Authorizer::none(NAME, global_id);
                let mut ours = v1::handshake::ClientOptions::new(OSD_PROTOCOL, authorizer);
                ours.peer = nonce.map(|nonce| EntityAddr::new(address, nonce));
                version_1(socket, ours, v1::Options::new().crc_data(self.crc_data))
            }
            Protocol::V2 => {
                let target = EntityAddr::msgr2(address, nonce.unwrap_or(0));
                version_2(socket, v2::handshake::ClientOptions::to_osd(target, NAME, global_id))
            }
        };
        connection.map_err(|failure| format!("{NO_HANDSHAKE} {address}: {failure}").into())
    }
}

/// Asks a monitor what number we have.
pub(crate) fn global_id(protocol: Protocol, monitor: SocketAddr) -> Result<u64, Failure> {
    let socket = reach(monitor)?;
    let given = match protocol {
        Protocol::V1 => version_1(
            socket,
            v1::handshake::ClientOptions::new(MON_PROTOCOL, Authorizer::absent()),
            v1::Options::new(),
        )
        .and_then(say_who_we_are),
        Protocol::V2 => {
            let target = EntityAddr::msgr2(monitor, 0);
            version_2(socket, v2::handshake::ClientOptions::to_monitor(target, NAME))
                .and_then(|connection| Ok(connection.global_id.ok_or("no global id")?))
        }
    };
    given.map_err(|failure| format!("{NO_HANDSHAKE} the monitor {monitor}: {failure}").into())
}

/// Over version 1 that comes after the handshake.
fn say_who_we_are(mut connection: Connection) -> Result<u64, Failure> {
    connection.send(Outbound::Message(mon::auth_none(NAME)))?;
    while let Some(frame) = connection.next()? {
        match frame {
            Frame::Message(message) if message.header.kind == mon::AUTH_REPLY => {
                return match AuthReply::decode(&message.front)? {
                    AuthReply { result: 0.., global_id, .. } => Ok(global_id),
                    AuthReply { result, .. } => {
                        Err(std::io::Error::from_raw_os_error(result.wrapping_neg()).into())
                    }
                };
            }
            _ => {}
        }
    }
    Err("the peer closed the connection".into())
}

fn reach(address: SocketAddr) -> Result<Socket, Failure> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)
        .map_err(|error| format!("cannot reach {address}: {error}"))?;
    let socket = SocketRef::new(Arc::new(stream));
    socket.set_nodelay(true)?;
    Ok(socket)
}

fn version_1(
    socket: Socket,
    ours: v1::handshake::ClientOptions,
    options: v1::Options,
) -> Result<Connection, Failure> {
    let global_id = ours.authorizer.global_id();
    let mut sender = StreamSender::new(socket.clone());
    let receiver = receiver(socket, v1::handshake::Client::new(ours));
    let (session, receiver) = shake_hands(&mut sender, receiver)?;
    let options = options.features(session.features).front_limit(FRONT_LIMIT);
    Connection::new(sender, receiver, halves_of_v1(&options), global_id)
}

fn version_2(socket: Socket, ours: v2::handshake::ClientOptions) -> Result<Connection, Failure> {
    let mut sender = StreamSender::new(socket.clone());
    let receiver = receiver(socket, v2::handshake::Client::new(ours));
    let (session, receiver) = shake_hands(&mut sender, receiver)?;
    let options = session.options().front_limit(FRONT_LIMIT);
    Connection::new(sender, receiver, halves_of_v2(&options), Some(session.global_id))
}

fn receiver<D>(socket: Socket, handshake: D) -> Receiver<Socket, D> {
    let limits = RecvOptions::new().contiguous(FRONT_LIMIT.into());
    Receiver::with_options(socket, handshake, limits, SlabPool::default())
}
