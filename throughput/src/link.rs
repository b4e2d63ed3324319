//! Connections: loopback TCP with what matters set on each socket and read back, and AF_UNIX pairs.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};

/// Congestion control of every TCP socket here. The default differs from machine to machine.
pub const CONGESTION: &str = "cubic";

/// After how long a blocking call gives up: the other side has failed, and says why.
pub const STALL: Duration = Duration::from_secs(30);

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
    }
    Ok((one, two))
}

/// Sets cubic and `TCP_NODELAY`, and reads both back; no call waits for longer than [`STALL`].
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
    socket.set_read_timeout(Some(STALL))?;
    socket.set_write_timeout(Some(STALL))?;
    let (congestion, nodelay) = (sockopt::tcp_congestion(socket)?, sockopt::tcp_nodelay(socket)?);
    if congestion.trim_end_matches('\0') == CONGESTION && nodelay {
        return Ok(());
    }
    Err(io::Error::other(format!("the socket has {congestion} and TCP_NODELAY {nodelay}")))
}

/// Shuts the stream down if `result` is an error, so that whoever waits at the other end learns of it at once.
///
/// # Errors
/// Those of `result`.
pub fn or_shut_down<T>(socket: impl AsFd, result: io::Result<T>) -> io::Result<T> {
    if result.is_err() {
        let _ = shutdown(socket, Shutdown::Both);
    }
    result
}
