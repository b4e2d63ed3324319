//! Two network namespaces with a veth pair between them, and a packet socket that sees what arrives in one.
//!
//! ```text
//!  namespace a: socket ─ veth ══ MTU 1500, no offloads ══ veth ─ socket, packet socket :namespace b
//! ```
//!
//! A socket belongs to the namespace that its thread was in when it was made, so threads go there to make one, and no
//! process has to. A shell that waits for the end of a pipe removes both namespaces, however this process ends.

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::net::sockopt;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, Socket, Type};

use crate::link;

/// A pair of namespaces; removed when it is dropped.
#[derive(Debug)]
pub struct Veth {
    names: [String; 2],
    /// Removes them at the end of its standard input.
    remover: Child,
}

/// Addresses of the two ends: RFC 2544 keeps 198.18.0.0/15 for measurements.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
/// Ethernet's.
const MTU: &str = "1500";
/// For packets that nobody has looked at yet.
const CAPTURE_BUFFER: usize = 64 << 20;
/// `ETH_P_ALL` of `linux/if_ether.h`. A socket for IPv4 alone sees a packet after IP has it (measured on Linux 6.18), one
/// for all protocols before.
const ETH_P_ALL: u16 = 3;
const TCP: u8 = 6;

impl Veth {
    /// Makes them.
    ///
    /// # Errors
    /// In words, what is missing on this machine.
    pub fn new() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root, for network namespaces".into());
        }
        for (tool, version, package) in [("ip", "-V", "iproute2"), ("ethtool", "--version", "ethtool")] {
            let found = Command::new(tool).arg(version).output().is_ok();
            if !found {
                return Err(format!("{tool} is not installed (Debian: {package})"));
            }
        }
        let names = ["a", "b"].map(|end| format!("segchain-{}-{end}", std::process::id()));
        let remove = format!("read -r _; ip netns del {}; ip netns del {}", names[0], names[1]);
        let remover = Command::new("sh")
            .args(["-c", &remove])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // an interrupt from the terminal is not for it
            .spawn()
            .map_err(|error| format!("sh: {error}"))?;
        let veth = Self { names, remover };
        let [a, b] = &veth.names;
        step(&["ip", "netns", "add", a])?;
        step(&["ip", "netns", "add", b])?;
        step(&["ip", "link", "add", "v", "netns", a, "type", "veth", "peer", "name", "v", "netns", b])?;
        for (name, address) in veth.names.iter().zip(ADDRESSES) {
            step(&["ip", "-n", name, "address", "add", &format!("{address}/30"), "dev", "v"])?;
            step(&["ip", "-n", name, "link", "set", "v", "mtu", MTU, "up"])?;
            let off = ["tso", "off", "gso", "off", "gro", "off"];
            step(&[&["ip", "netns", "exec", name, "ethtool", "-K", "v"][..], &off].concat())?;
        }
        Ok(veth)
    }

    /// A connection from one to the other, and a socket that sees the packets which arrive there.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn connect(&self) -> io::Result<(TcpStream, TcpStream, Capture)> {
        let [a, b] = &self.names;
        let (listener, capture) = inside(b, || Ok((TcpListener::bind((ADDRESSES[1], 0))?, Capture::new()?)))?;
        let to = listener.local_addr()?;
        let near = inside(a, move || TcpStream::connect(to))?;
        let (far, _) = listener.accept()?;
        for socket in [&near, &far] {
            link::prepare(socket)?;
        }
        Ok((near, far, capture))
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

fn step(words: &[&str]) -> Result<(), String> {
    let failed = |why: &str| format!("cannot be set up: {}: {}", words.join(" "), why.trim());
    let output =
        Command::new(words[0]).args(&words[1..]).output().map_err(|error| failed(&error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(failed(&String::from_utf8_lossy(&output.stderr))) }
}

/// Runs `make` on a thread that is in the namespace.
fn inside<R: Send>(name: &str, make: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
    // Where ip-netns(8) keeps them.
    let namespace = File::open(format!("/run/netns/{name}"))?;
    let there = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        make()
    };
    thread::scope(|scope| scope.spawn(there).join())
        .unwrap_or_else(|_| Err(io::Error::other("a thread in a namespace panicked")))
}

/// A packet socket: what arrives, and leaves.
#[derive(Debug)]
pub struct Capture {
    socket: Socket,
    stream: Stream,
}

/// A TCP segment with payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Bytes of payload.
    pub bytes: usize,
    /// Those of them that were not seen before: all, or the segment was sent again.
    pub fresh: usize,
}

impl Capture {
    fn new() -> io::Result<Self> {
        let protocol = Protocol::from(i32::from(ETH_P_ALL.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol))?;
        socket.set_nonblocking(true)?;
        sockopt::set_socket_recv_buffer_size_force(&socket, CAPTURE_BUFFER)?;
        Ok(Self { socket, stream: Stream::default() })
    }

    /// Takes the segments that have come for this port since the last time.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn take(&mut self, port: u16, mut seen: impl FnMut(Segment)) -> io::Result<()> {
        // The headers; what follows them is cut off.
        let mut packet = [0; 128];
        loop {
            let n = match (&self.socket).read(&mut packet) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                read => read?,
            };
            let Some((seq, bytes)) = data_segment(&packet[..n], port) else { continue };
            seen(Segment { bytes, fresh: self.stream.see(seq, bytes) });
        }
    }

    /// Bytes that were passed over and never seen, up to the last segment that was. Once the connection has them all, the
    /// packet socket has dropped their packets, for it had no room. They are not expected any more.
    pub fn dropped(&mut self) -> usize {
        let missing = self.stream.missing.drain(..);
        missing.map(|(from, to)| (to - from) as usize).sum()
    }
}

/// The bytes of a connection that were seen. Two cores may deliver packets of one connection (what the sender's system call
/// sends, and what an acknowledgement sets free), and so a packet can be seen before its predecessor.
#[derive(Debug, Default)]
struct Stream {
    /// What follows all that was seen, counted on past 2^32.
    next: Option<i64>,
    /// From and to: what is before `next` and was not seen.
    missing: Vec<(i64, i64)>,
}

impl Stream {
    /// How many bytes of this segment were not seen before.
    fn see(&mut self, seq: u32, bytes: usize) -> usize {
        let next = self.next.unwrap_or_else(|| i64::from(seq));
        let from = next + i64::from(seq.wrapping_sub(next as u32).cast_signed());
        let to = from + i64::from(bytes as u32);
        let mut fresh = (to - next.max(from)).max(0);
        let mut left = Vec::new();
        for (start, end) in self.missing.drain(..) {
            let (cut, rest) = (from.clamp(start, end), to.clamp(start, end));
            fresh += rest - cut;
            left.extend([(start, cut), (rest, end)].into_iter().filter(|(start, end)| start < end));
        }
        if from > next {
            left.push((next, from));
        }
        (self.next, self.missing) = (Some(next.max(to)), left);
        fresh as usize
    }
}

/// Sequence number and bytes of payload, if it is a data segment for this port (RFC 791 section 3.1, RFC 9293 section 3.1).
fn data_segment(packet: &[u8], port: u16) -> Option<(u32, usize)> {
    let half = |from: &[u8], at: usize| Some(u16::from_be_bytes(*from.get(at..)?.first_chunk()?));
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    let total = usize::from(half(packet, 2)?);
    let tcp = packet.get(header..)?;
    let seq = u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?);
    let bytes = total.checked_sub(header + usize::from(tcp.get(12)? >> 4) * 4)?;
    let ours = first >> 4 == 4 && packet.get(9) == Some(&TCP) && half(tcp, 2)? == port;
    (ours && bytes > 0).then_some((seq, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 header of 24 bytes (one option), a TCP header of 32, and the total length that says `payload` more.
    fn packet(protocol: u8, port: u16, seq: u32, payload: u16) -> Vec<u8> {
        let mut packet = vec![0; 56];
        packet[0] = 0x46;
        packet[2..4].copy_from_slice(&(56 + payload).to_be_bytes());
        packet[9] = protocol;
        packet[26..28].copy_from_slice(&port.to_be_bytes());
        packet[28..32].copy_from_slice(&seq.to_be_bytes());
        packet[36] = 0x80;
        packet
    }

    #[test]
    fn only_data_for_the_port_counts() {
        assert_eq!(data_segment(&packet(TCP, 7, 99, 1448), 7), Some((99, 1448)));
        assert_eq!(data_segment(&packet(TCP, 7, 99, 0), 7), None); // an acknowledgement
        assert_eq!(data_segment(&packet(TCP, 8, 99, 1448), 7), None);
        assert_eq!(data_segment(&packet(17, 7, 99, 1448), 7), None);
        let mut six = packet(TCP, 7, 99, 1448);
        six[0] = 0x66; // of IPv6
        assert_eq!(data_segment(&six, 7), None);
    }

    #[test]
    fn a_segment_that_overtakes_another_is_not_one_that_was_sent_again() {
        let mut stream = Stream::default();
        // 30 bytes over the end of the numbers, the last ten first; then twice.
        let start = u32::MAX - 14;
        assert_eq!(stream.see(start.wrapping_sub(5), 5), 5);
        assert_eq!(stream.see(start.wrapping_add(20), 10), 10);
        assert_eq!(stream.missing.len(), 1);
        assert_eq!(stream.see(start, 10), 10);
        assert_eq!(stream.see(start.wrapping_add(10), 10), 10);
        assert!(stream.missing.is_empty());
        assert_eq!([stream.see(start, 10), stream.see(start.wrapping_add(20), 10)], [0, 0]);
        assert_eq!(stream.see(start.wrapping_add(25), 10), 5);
    }

    #[test]
    fn what_is_never_seen_is_missing() {
        let mut stream = Stream::default();
        assert_eq!(
            [stream.see(0, 10), stream.see(20, 10), stream.see(22, 10), stream.see(14, 2)],
            [10, 10, 2, 2]
        );
        assert_eq!(stream.missing, [(10, 14), (16, 20)]);
    }

    #[test]
    fn a_packet_cut_anywhere_is_no_segment() {
        let whole = packet(TCP, 7, 99, 1448);
        assert!((0..37).all(|len| data_segment(&whole[..len], 7).is_none()));
    }
}
