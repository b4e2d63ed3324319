//! A monitor that can do one thing: it answers `ceph ping`, over either version of the messenger.
//!
//! ```text
//! cargo run --release --example ceph_pong -- --protocol v2 --listen 127.0.0.1:3300
//! ceph -c /dev/null --auth_client_required none --ms_mon_client_mode crc -m v2:127.0.0.1:3300 ping mon.noname-a
//! ```
//!
//! The server's half of the handshake is `accept.rs`, and what is common to both versions `messenger.rs`, which
//! `ceph_sender` uses as well. What happens is said on standard error; where it listens is the only line on standard
//! output.

#[allow(dead_code, reason = "each example uses its own part")]
#[path = "../ceph_sender/accept.rs"]
mod accept;
#[allow(dead_code, reason = "each example uses its own part")]
#[path = "../ceph_sender/messenger.rs"]
mod messenger;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use clap::Parser;
use segchain::window::Window;
use segchain_ceph::EntityName;
use segchain_ceph::mon::{self, PING};

use self::accept::Server;
use self::messenger::{Frame, Outbound, Protocol};

type Failure = Box<dyn std::error::Error>;

/// Answers `ceph ping`, as a monitor would.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// The version of the messenger
    #[arg(long, value_enum, default_value_t = Protocol::V1)]
    protocol: Protocol,
    /// Where to listen; with port 0 the system chooses one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// The newest revision of version 2 to offer
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(..=1))]
    revision: u8,
    /// The pong
    #[arg(long, value_name = "TEXT", default_value = r#"{"health":"it is segchain that answers"}"#)]
    text: String,
    /// End with the first connection on which a ping was answered
    #[arg(long)]
    once: bool,
}

/// The entity type of a monitor.
const MONITOR: u8 = 1;
/// Connections at a time; others wait. A silent one ends after [`messenger::PATIENCE`].
const CONNECTIONS: usize = 64;
/// `accept` fails while there are no file descriptors left.
const BREATH: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<(), Failure> {
    let Flags { protocol, ref listen, .. } = *flags;
    let cannot = |error| format!("cannot listen on {listen}: {error}");
    let listener = TcpListener::bind(listen).map_err(cannot)?;
    let address = listener.local_addr()?;
    println!("{protocol}:{address}");
    let revision_1 = flags.revision == 1;
    let server =
        Server { protocol, entity_type: MONITOR, address, nonce: 0, revision_1, next_global_id: 4100 };
    let (text, (answered, wait)) = (flags.text.clone(), mpsc::channel());
    thread::spawn(move || accept_all(&listener, server, &text, &answered));
    for () in wait {
        if flags.once {
            break;
        }
    }
    Ok(())
}

/// A thread for each connection. Who gets a pong is told to `answered` when the connection has ended.
fn accept_all(listener: &TcpListener, server: Server, text: &str, answered: &Sender<()>) {
    let connections = Window::new(u64::MAX, CONNECTIONS);
    for next_global_id in server.next_global_id.. {
        let permit = connections.acquire_until(0, None);
        let (stream, client) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("accept: {error}");
                thread::sleep(BREATH);
                continue;
            }
        };
        let (text, answered) = (text.to_owned(), answered.clone());
        thread::spawn(move || {
            let server = Server { next_global_id, ..server };
            let mut pongs = 0;
            match serve(stream, client, &server, &text, &mut pongs) {
                Ok(()) => eprintln!("{client}: closed"),
                Err(failure) => eprintln!("{client}: {failure}"),
            }
            if pongs > 0 {
                // Nobody waits any more if this is not the first one that --once waits for.
                let _ = answered.send(());
            }
            drop(permit);
        });
    }
}

fn serve(
    stream: TcpStream,
    client: SocketAddr,
    server: &Server,
    text: &str,
    pongs: &mut u64,
) -> Result<(), Failure> {
    let mut connection = server.accept(stream, client)?;
    eprintln!("{client}: connected");
    while let Some(frame) = connection.next()? {
        match frame {
            Frame::Message(message) if message.header.kind == PING => {
                connection.send(Outbound::Message(mon::pong(EntityName::new(MONITOR, 0), text)))?;
                *pongs += 1;
                eprintln!("{client}: ping, answered");
            }
            Frame::Message(message) => {
                eprintln!("{client}: a message of type {}, passed over", message.header.kind);
            }
            Frame::Keepalive(stamp) => connection.send(Outbound::<()>::KeepaliveAck(stamp))?,
            Frame::Close => break,
            Frame::Aborted(_) | Frame::Other => {}
        }
    }
    Ok(())
}
