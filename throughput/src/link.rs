//! Connections: loopback TCP with what matters set on each socket and read back, and AF_UNIX pairs.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;

/// Congestion control of every TCP socket here. The default differs from machine to machine.
pub const CONGESTION: &str = "cubic";

/// After how long a blocking call gives up: the other side has failed, and says why.
const STALL: Duration = Duration::from_secs(30);

/// A connected pair over loopback: who sends, who receives.
///
/// # Errors
/// As the system reports them, and an option that reads back otherwise than it was set.
pub fn tcp() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (two, _) = listener.accept()?;
    for socket in [&one, &two] {
        prepare(socket)?;
        socket.set_read_timeout(Some(STALL))?;
        socket.set_write_timeout(Some(STALL))?;
    }
    Ok((one, two))
}

/// Sets cubic and `TCP_NODELAY`, and reads both back.
///
/// # Errors
/// As [`tcp`].
pub fn prepare(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_congestion(socket, CONGESTION).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(
            error.kind(),
            format!("{CONGESTION} (net.ipv4.tcp_allowed_congestion_control): {error}"),
        )
    })?;
    sockopt::set_tcp_nodelay(socket, true)?;
    let (congestion, nodelay) = (sockopt::tcp_congestion(socket)?, sockopt::tcp_nodelay(socket)?);
    if congestion.trim_end_matches('\0') == CONGESTION && nodelay {
        return Ok(());
    }
    Err(io::Error::other(format!("the socket has {congestion} and TCP_NODELAY {nodelay}")))
}
