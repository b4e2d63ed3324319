//! A complete protocol of one's own: a text header that ends in CRLF, a body, a CRC-32 (IEEE) of both as the trailer.
//!
//! ```text
//!  PUT greeting 13\r\n  Hello, world!  <crc: 4 bytes, big-endian>
//! ```
//!
//! Both ends run here, over a socket pair: `cargo run --release --example own_framer`.

use std::os::unix::net::UnixStream;
use std::{error, io, thread};

use bytes::Bytes;
use segchain::chain::{ChainBuilder, ChainError, Outgoing};
use segchain::checksum::{Checksum, Crc32};
use segchain::framer::{BodyReq, Framer, Landed, Place};
use segchain::recv::Receiver;
use segchain::send::StreamSender;
use segchain::straight::{Straight, Wire};
use segchain::transport::SocketRef;

/// The message: a name and pages, which are sent from where they are.
struct Put<'p> {
    name: &'p str,
    pages: &'p [&'p [u8]],
}

/// Sending: the message as a chain.
struct PutFramer;

impl<'p> Framer<Put<'p>> for PutFramer {
    type Error = ChainError;

    fn overhead(&self, _: u64) -> u64 {
        512
    }

    fn frame<'m>(&mut self, put: Put<'p>, out: &mut ChainBuilder<'m>) -> Result<(), ChainError>
    where
        Put<'p>: 'm,
    {
        let len: usize = put.pages.iter().map(|page| page.len()).sum();
        let start = out.put(format!("PUT {} {len}\r\n", put.name).as_bytes());
        for page in put.pages {
            out.push_borrowed(page);
        }
        let trailer = out.put_u32_be(0);
        out.slot(start..trailer, Crc32::new().big_endian(), trailer); // filled in while it is sent
        out.check()
    }
}

/// Receiving: one frame, read in a straight line. Where it awaits, the receiver fetches more bytes.
async fn read_put(mut wire: Wire) -> io::Result<Option<(String, Bytes)>> {
    let line = wire.until(b"\r\n", 400).await.map_err(|_| bad("header of more than 400 bytes"))?;
    let text = str::from_utf8(&line).map_err(|_| bad("header that is no text"))?;
    let parts: Vec<&str> = text.split(' ').collect();
    let ["PUT", name, len] = parts[..] else { return Err(bad("header that is not PUT NAME LENGTH")) };
    let len = len.parse().map_err(|_| bad("length that is no number"))?;

    let mut crc = Crc32::new();
    crc.update(&line);
    crc.update(b"\r\n");
    let body = wire.body(BodyReq::new(len, Place::Contiguous).digest(crc)).await; // digested as it lands
    let expected = u32::from_be_bytes(wire.array().await);
    if body.sum.and_then(|sum| sum.value()) != Some(expected) {
        return Err(bad("wrong checksum"));
    }
    let Landed::Contiguous(bytes) = body.landed else { return Ok(None) };
    Ok(Some((name.to_owned(), bytes)))
}

fn main() -> Result<(), Box<dyn error::Error>> {
    let (here, there) = UnixStream::pair()?;
    let receiving = thread::spawn(move || {
        let mut receiver = Receiver::new(SocketRef::new(there), Straight::new(read_put));
        while let Some((name, body)) = receiver.next(&mut (), None, |frame| frame)? {
            println!("{name}: {} bytes, checksum right", body.len());
        }
        Ok::<_, io::Error>(())
    });

    let page: &[u8] = &[b'x'; 4096];
    let mut sender = StreamSender::new(SocketRef::new(here));
    for (name, pages) in [("greeting", &[&b"Hello, world!"[..]][..]), ("pages", &[page; 8])] {
        let mut out = ChainBuilder::new();
        PutFramer.frame(Put { name, pages }, &mut out)?;
        sender.send_blocking(&mut Outgoing::new(out.finish()?), None)?;
    }
    println!("sent with {} calls, {} bytes copied", sender.stats().calls, sender.stats().copied);
    drop(sender); // closes: the receiver sees the end of the stream
    Ok(receiving.join().expect("the receiver does not panic")?)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the peer sent a {what}"))
}
