//! The address of a daemon or client, as the messenger writes it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where an entity is, and which of its lives it is in: the nonce tells a restarted daemon from the one before it at the
/// same address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntityAddr {
    /// Chosen anew by each process.
    pub nonce: u32,
    /// `None` is a blank address.
    pub socket: Option<SocketAddr>,
}

/// Linux's numbers, on whatever system the peer runs.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

impl EntityAddr {
    /// Bytes of the form that version 1 of the messenger uses.
    pub const LEGACY_LEN: usize = 136;

    /// An address.
    pub fn new(socket: impl Into<Option<SocketAddr>>, nonce: u32) -> Self {
        Self { nonce, socket: socket.into() }
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
        (*marker == 0).then_some(Self { nonce, socket })
    }
}

/// As Ceph prints it: `127.0.0.1:6789/7`, or `-` if it is blank.
impl fmt::Display for EntityAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.socket {
            Some(socket) => write!(f, "{socket}/{}", self.nonce),
            None => f.write_str("-"),
        }
    }
}
