//! A server on libtirpc that is made for large replies: they leave in many fragments.
//!
//! Its source is in `peers/tirpc-echo/`. It is compiled with rpcgen and cc each time it starts, which takes a moment and
//! needs no artefact in the repository.

use super::Unavailable;
use super::home::{Daemon, Home, Identity};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TIRPC: Identity =
    Identity { what: "the libtirpc echo server", package: "gcc libc6-dev libtirpc-dev rpcsvc-proto" };
const HEADERS: &str = "/usr/include/tirpc";
const STEP: Duration = Duration::from_secs(60);

/// An ONC RPC server on a TCP port and on a unix socket. It is not registered with rpcbind.
///
/// The procedures take and return XDR: [`GIVE_BACK`](Self::GIVE_BACK) an opaque and the same opaque,
/// [`SINK`](Self::SINK) an opaque and its length as an unsigned int, [`SOURCE`](Self::SOURCE) an unsigned int and an opaque
/// of so many bytes, byte `i` being `i % 251`.
#[derive(Debug)]
pub struct TirpcEcho {
    tcp: SocketAddr,
    unix: PathBuf,
    server: Daemon,
    _home: Home,
}

impl TirpcEcho {
    /// The program number.
    pub const PROGRAM: u32 = 0x2000_1234;
    /// The version number.
    pub const VERSION: u32 = 1;
    /// Takes and returns nothing.
    pub const NULL: u32 = 0;
    /// Returns its argument.
    pub const GIVE_BACK: u32 = 1;
    /// Returns the length of its argument.
    pub const SINK: u32 = 2;
    /// Returns as many bytes as asked.
    pub const SOURCE: u32 = 3;

    /// Starts the server with libtirpc's own sizes: fragments of 65532 bytes on TCP and 8996 on the unix socket
    /// (measured, libtirpc 1.3.3).
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if rpcgen, a compiler or libtirpc's headers are missing, or the server does not start.
    pub fn start() -> Result<Self, Unavailable> {
        Self::start_with(TirpcEchoOptions::default())
    }

    /// Starts the server.
    ///
    /// # Errors
    ///
    /// As [`TirpcEcho::start`].
    pub fn start_with(options: TirpcEchoOptions) -> Result<Self, Unavailable> {
        let rpcgen = TIRPC.program("rpcgen")?;
        let cc = TIRPC.program("cc")?;
        let header = Path::new(HEADERS).join("rpc/rpc.h");
        if !header.is_file() {
            return Err(TIRPC.missing(header.display().to_string()));
        }
        let mut home = Home::new(TIRPC, None)?;
        home.write("echo.x", include_str!("../../peers/tirpc-echo/echo.x"))?;
        home.write("server.c", include_str!("../../peers/tirpc-echo/server.c"))?;
        for (what, output) in [("-h", "echo.h"), ("-c", "echo_xdr.c")] {
            let mut command = Command::new(&rpcgen);
            command.args([what, "-o", output, "echo.x"]);
            home.step(command, STEP)?;
        }
        let mut command = Command::new(cc);
        command.args(["-O1", "-w", "-I", HEADERS, "-o", "server", "server.c", "echo_xdr.c", "-ltirpc"]);
        home.step(command, STEP)?;

        let unix = home.path("echo.sock");
        let mut command = Command::new(home.path("server"));
        command.arg(&unix);
        command.args([options.send, options.receive, options.record].map(|bytes| bytes.to_string()));
        let mut server = home.daemon("server", command, None)?;
        let out = home.path("server.out");
        let mut port = None;
        server.wait_until("named its port", Duration::from_secs(10), || {
            port = std::fs::read_to_string(&out).ok().and_then(|text| port_of(&text));
            port.is_some()
        })?;
        let port = port.ok_or_else(|| server.failed("the server has not named its port"))?;
        let tcp = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Self { tcp, unix, server, _home: home })
    }

    /// Its TCP address.
    pub fn tcp(&self) -> SocketAddr {
        self.tcp
    }

    /// Its unix socket.
    pub fn unix(&self) -> &Path {
        &self.unix
    }

    /// The pids of its daemons.
    pub fn pids(&self) -> Vec<u32> {
        vec![self.server.pid()]
    }
}

/// Sizes of a [`TirpcEcho`], in bytes; 0, the default, is libtirpc's own choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct TirpcEchoOptions {
    send: u32,
    receive: u32,
    record: u32,
}

impl TirpcEchoOptions {
    /// The send buffer, and with it the size of a reply's fragments.
    #[must_use]
    pub fn send_buffer(self, bytes: u32) -> Self {
        Self { send: bytes, ..self }
    }

    /// The receive buffer.
    #[must_use]
    pub fn receive_buffer(self, bytes: u32) -> Self {
        Self { receive: bytes, ..self }
    }

    /// The largest record the server accepts. Setting it makes libtirpc read without blocking.
    #[must_use]
    pub fn largest_record(self, bytes: u32) -> Self {
        Self { record: bytes, ..self }
    }
}

fn port_of(output: &str) -> Option<u16> {
    let line = output.lines().find_map(|line| line.strip_prefix("listening on port "))?;
    // A whole line only: the file is read while it is written.
    if output.ends_with('\n') { line.parse().ok() } else { None }
}
