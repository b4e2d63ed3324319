//! How many packets a connection has sent, as the kernel counts them: `data_segs_out` of `TCP_INFO`, which `ss`
//! (iproute2) prints.

use std::io;
use std::net::TcpStream;
use std::process::Command;

/// Segments with data that this socket has sent since it was made; those that the card or the loopback device would cut
/// a larger one into are counted one by one.
///
/// # Errors
/// `ss` is missing, or does not print it.
pub fn sent(socket: &TcpStream) -> io::Result<u64> {
    let (near, far) = (socket.local_addr()?.port(), socket.peer_addr()?.port());
    let filter = format!("sport = :{near} and dport = :{far}");
    let output = Command::new("ss")
        .args(["-tinH", &filter])
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("ss, of the package iproute2: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let field = text.split_whitespace().find_map(|field| field.strip_prefix("data_segs_out:"));
    let count = field.and_then(|field| field.parse().ok());
    count.ok_or_else(|| io::Error::other(format!("no data_segs_out in what ss prints: {}", text.trim())))
}
