//! The address of a daemon or client, as the messenger writes it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::wire::{Malformed, Reader};

/// Where an entity is, and which of its lives it is in: the nonce tells a restarted daemon from the one before it at the
/// same address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntityAddr {
    /// Chosen anew by each process.
    pub nonce: u32,
    /// `None` is a blank address.
    pub socket: Option<SocketAddr>,
    /// What is spoken there. Version 1 of the messenger does not say it.
    pub kind: AddrKind,
}

/// What is spoken at an address (`entity_addr_t`, `TYPE_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddrKind {
    /// Nothing: a blank address.
    Blank,
    /// Version 1 of the messenger.
    #[default]
    Legacy,
    /// Version 2.
    Msgr2,
    /// Whatever is asked for: a client's own address, where nobody listens.
    Any,
}

/// Linux's numbers, on whatever system the peer runs.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

impl EntityAddr {
    /// Bytes of the form that version 1 of the messenger uses.
    pub const LEGACY_LEN: usize = 136;

    /// An address of version 1 of the messenger.
    pub fn new(socket: impl Into<Option<SocketAddr>>, nonce: u32) -> Self {
        Self { nonce, socket: socket.into(), kind: AddrKind::Legacy }
    }

    /// An address of version 2.
    pub fn msgr2(socket: impl Into<Option<SocketAddr>>, nonce: u32) -> Self {
        Self { nonce, socket: socket.into(), kind: AddrKind::Msgr2 }
    }

    /// The same place, where something else is spoken.
    #[must_use]
    pub fn with_kind(self, kind: AddrKind) -> Self {
        Self { kind, ..self }
    }

    /// The form that version 1 of the messenger uses (`entity_addr_t` without feature ADDR2): type u32 0, nonce u32, and a
    /// `sockaddr_storage` of 128 bytes whose family and port are big-endian.
    ///
    /// ```
    /// use segchain_ceph::EntityAddr;
    /// let addr = EntityAddr::new("127.0.0.1:6789".parse::<std::net::SocketAddr>()?, 7);
    /// let wire = addr.to_legacy();
    /// assert_eq!(wire[..16], [0, 0, 0, 0, 7, 0, 0, 0, 0, 2, 0x1a, 0x85, 127, 0, 0, 1]);
    /// assert_eq!(EntityAddr::from_legacy(&wire), Some(addr));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn to_legacy(&self) -> [u8; Self::LEGACY_LEN] {
        let mut wire = [0; Self::LEGACY_LEN];
        wire[4..8].copy_from_slice(&self.nonce.to_le_bytes());
        let Some(socket) = self.socket else { return wire };
        wire[10..12].copy_from_slice(&socket.port().to_be_bytes());
        match socket.ip() {
            IpAddr::V4(ip) => {
                wire[8..10].copy_from_slice(&AF_INET.to_be_bytes());
                wire[12..16].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                wire[8..10].copy_from_slice(&AF_INET6.to_be_bytes());
                wire[16..32].copy_from_slice(&ip.octets());
            }
        }
        wire
    }

    /// Reads that form. `None` if it is the newer one, which only msgr2 uses, or of a family that is not IP.
    pub fn from_legacy(wire: &[u8; Self::LEGACY_LEN]) -> Option<Self> {
        let [marker, _, _, _, n0, n1, n2, n3, f0, f1, p0, p1, rest @ ..] = wire;
        let (nonce, port) = (u32::from_le_bytes([*n0, *n1, *n2, *n3]), u16::from_be_bytes([*p0, *p1]));
        let socket = match u16::from_be_bytes([*f0, *f1]) {
            0 => None,
            AF_INET => Some((Ipv4Addr::from(*rest.first_chunk::<4>()?).into(), port)),
            AF_INET6 => Some((Ipv6Addr::from(*rest[4..].first_chunk::<16>()?).into(), port)),
            _ => return None,
        };
        let socket = socket.map(|(ip, port): (IpAddr, u16)| SocketAddr::new(ip, port));
        (*marker == 0).then_some(Self { nonce, socket, kind: AddrKind::Legacy })
    }

    /// Writes the form that version 2 of the messenger uses (`entity_addr_t` with feature ADDR2): marker 1, version and
    /// length, kind u32, nonce u32, and a `sockaddr` with its length, the family little-endian and the port big-endian.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut sockaddr = Vec::new();
        if let Some(socket) = self.socket {
            let family = if socket.is_ipv4() { AF_INET } else { AF_INET6 };
            sockaddr.extend(family.to_le_bytes());
            sockaddr.extend(socket.port().to_be_bytes());
            match socket {
                SocketAddr::V4(v4) => {
                    sockaddr.extend(v4.ip().octets());
                    sockaddr.extend([0; 8]);
                }
                SocketAddr::V6(v6) => {
                    sockaddr.extend(v6.flowinfo().to_le_bytes());
                    sockaddr.extend(v6.ip().octets());
                    sockaddr.extend(v6.scope_id().to_le_bytes());
                }
            }
        }
        out.extend([1, 1, 1]);
        out.extend((12 + sockaddr.len() as u32).to_le_bytes());
        out.extend((self.kind as u32).to_le_bytes());
        out.extend(self.nonce.to_le_bytes());
        out.extend((sockaddr.len() as u32).to_le_bytes());
        out.extend(sockaddr);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.expect("address marker", 1)?;
        let mut reader = reader.versioned("address")?;
        let offset = reader.offset();
        let kind = match reader.u32("address kind")? {
            0 => AddrKind::Blank,
            1 => AddrKind::Legacy,
            2 => AddrKind::Msgr2,
            3 => AddrKind::Any,
            got => return Err(Malformed::Value { field: "address kind", offset, got: got.into() }),
        };
        let nonce = reader.u32("nonce")?;
        let mut sockaddr = reader.string_reader("sockaddr")?;
        if sockaddr.is_empty() {
            return Ok(Self { nonce, socket: None, kind });
        }
        let offset = sockaddr.offset();
        let family = sockaddr.u16("address family")?;
        let port = u16::from_be_bytes(sockaddr.array("port")?);
        let socket = match family {
            0 => None,
            AF_INET => Some(SocketAddr::from((Ipv4Addr::from(sockaddr.array::<4>("ip")?), port))),
            AF_INET6 => {
                let flow = sockaddr.u32("flow")?;
                let ip = Ipv6Addr::from(sockaddr.array::<16>("ip")?);
                Some(SocketAddrV6::new(ip, port, flow, sockaddr.u32("scope")?).into())
            }
            got => return Err(Malformed::Value { field: "address family", offset, got: got.into() }),
        };
        Ok(Self { nonce, socket, kind })
    }

    /// All addresses of an entity (`entity_addrvec_t`): marker 2, a count, and the addresses.
    pub(crate) fn encode_all(addrs: &[Self], out: &mut Vec<u8>) {
        out.push(2);
        out.extend((addrs.len() as u32).to_le_bytes());
        for addr in addrs {
            addr.encode(out);
        }
    }

    pub(crate) fn decode_all(reader: &mut Reader<'_>) -> Result<Vec<Self>, Malformed> {
        reader.expect("addresses marker", 2)?;
        let count = reader.u32("address count")?;
        // Nothing is allocated for a count that is only claimed.
        (0..count).map(|_| Self::decode(reader)).collect()
    }

    /// Whether `got` may be whom `self` means: nonce and port, and the IP unless one side does not know it.
    pub(crate) fn means(&self, got: &Self) -> bool {
        let same_socket = match (self.socket, got.socket) {
            (Some(expected), Some(got)) => {
                expected.port() == got.port() && (expected.ip() == got.ip() || got.ip().is_unspecified())
            }
            _ => true,
        };
        self.nonce == got.nonce && same_socket
    }

    /// What a client calls itself: nobody listens at its port.
    pub(crate) fn without_port(mut self) -> Self {
        if let Some(socket) = &mut self.socket {
            socket.set_port(0);
        }
        self
    }
}

/// As Ceph prints it: `127.0.0.1:6789/7`, with `v2:` before it if that is spoken there, or `-` if it is blank.
impl fmt::Display for EntityAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.socket {
            Some(socket) if self.kind == AddrKind::Msgr2 => write!(f, "v2:{socket}/{}", self.nonce),
            Some(socket) => write!(f, "{socket}/{}", self.nonce),
            None => f.write_str("-"),
        }
    }
}
