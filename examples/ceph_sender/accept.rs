//! The server's half of both handshakes.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use segchain::recv::Receiver;
use segchain::send::StreamSender;
use segchain::transport::SocketRef;
use segchain_ceph::v1::handshake::{MON_PROTOCOL, OSD_PROTOCOL};
use segchain_ceph::{EntityAddr, v1, v2};

use crate::Failure;
use crate::messenger::{Connection, Protocol, halves_of_v1, halves_of_v2, shake_hands};

/// The entity type of an osd.
pub(crate) const OSD: u8 = 4;

/// What a server is, where, and what it speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    pub(crate) protocol: Protocol,
    pub(crate) entity_type: u8,
    pub(crate) address: SocketAddr,
    /// 0 for a monitor.
    pub(crate) nonce: u32,
    /// Whether version 2 offers frames of revision 1.
    pub(crate) revision_1: bool,
    /// For a client that has none yet.
    pub(crate) next_global_id: u64,
}

impl Server {
    /// Shakes hands with a client that has just connected.
    pub(crate) fn accept(&self, stream: TcpStream, client: SocketAddr) -> Result<Connection, Failure> {
        let socket = SocketRef::new(Arc::new(stream));
        socket.set_nodelay(true)?;
        let mut sender = StreamSender::new(socket.clone());
        match self.protocol {
            Protocol::V1 => {
                use v1::handshake::{Server, ServerOptions};
                let own = EntityAddr::new(self.address, self.nonce);
                let osd = self.entity_type == OSD;
                let mut ours = ServerOptions::new(own, client, if osd { OSD_PROTOCOL } else { MON_PROTOCOL });
                ours.claim_required = osd;
                let receiver = Receiver::new(socket, Server::new(ours));
                let (session, receiver) = shake_hands(&mut sender, receiver)?;
                let global_id = session.authorizer.global_id();
                Connection::new(sender, receiver, halves_of_v1(&session.options()), global_id)
            }
            Protocol::V2 => {
                use v2::handshake::{Server, ServerOptions};
                let own = EntityAddr::msgr2(self.address, self.nonce);
                let mut ours = ServerOptions::new(vec![own], client, self.entity_type);
                (ours.next_global_id, ours.revision_1) = (self.next_global_id, self.revision_1);
                let receiver = Receiver::new(socket, Server::new(ours));
                let (session, receiver) = shake_hands(&mut sender, receiver)?;
                let global_id = Some(session.global_id);
                Connection::new(sender, receiver, halves_of_v2(&session.options()), global_id)
            }
        }
    }
}
