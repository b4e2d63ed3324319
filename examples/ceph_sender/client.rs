//! A client of one osd: many requests in flight over one connection.
//!
//! ```text
//!  Request ─▶ Window ─▶ SendQueue (Framer) ─▶ ┐
//!                                             socket
//!  replies ◀─ Deframer ◀─ Receiver ◀───────── ┘        what is read lands in our own pages
//! ```
//!
//! Requests are pushed by whoever has them; one thread sees to it that the queue goes on when the socket was full, one
//! receives. Replies are matched by tid.

use std::collections::HashMap;
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use segchain::framer::{LentSlices, Targets};
use segchain::queue::SendQueue;
use segchain::recv::{Received, Receiver, RecvError, RecvStats};
use segchain::send::SendStats;
use segchain::transport::{Interest, Wait};
use segchain::window::{InFlight, Window};
use segchain_ceph::osd::{self, Request};
use segchain_ceph::v1::Stamp;
use segchain_ceph::{Data, EntityName, Incoming};

use crate::Failure;
use crate::connect::Osd;
use crate::messenger::{Connection, Deframer, Frame, Framer, Outbound, PATIENCE, Socket};

type Queue = SendQueue<Outbound<Vec<Bytes>>, Framer, Socket>;
/// A request carries its tid; its reply is a whole message, and its error a text.
type Requests = InFlight<u64, Incoming, String>;
type InFlightRequest = segchain::window::Request<u64, Incoming, String>;

/// The most data of one message.
pub(crate) const DATA_LIMIT: u32 = 64 << 20;
/// What an osd answers to a name that is too long.
pub(crate) const NAME_TOO_LONG: i32 = -36;

/// A connection to an osd.
pub(crate) struct Client {
    queue: Queue,
    requests: Requests,
    table: Arc<Mutex<Table>>,
    threads: Vec<JoinHandle<()>>,
    global_id: u64,
    next_tid: u64,
    results: Results,
}

/// What the receiving thread shares with the one that sends.
#[derive(Default)]
struct Table {
    waiting: HashMap<u64, InFlightRequest>,
    reading: Reading,
    stats: RecvStats,
    /// Osd maps that came unasked.
    maps: u64,
    /// Why no more replies will come.
    ended: Option<String>,
}

/// What the replies said.
#[derive(Default)]
struct Results {
    expected: i32,
    ok: u64,
    failed: u64,
    failure: Option<String>,
    read: Option<Data>,
}

impl Client {
    /// Connects and shakes hands, as the client that a monitor has numbered, or with a number of our own. `window` bounds
    /// what is in flight.
    pub(crate) fn connect(osd: &Osd, global_id: Option<u64>, window: Window) -> Result<Self, Failure> {
        // With `auth none` a client may call itself what it likes. A name and a tid that it has seen before an osd answers,
        // and does nothing; and behind an operation that waits for a newer map it lets all later ones of that name wait.
        // So both are new each time.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
        let global_id = global_id.unwrap_or(now >> 10 & (u64::MAX >> 1));
        let Connection { sender, framer, receiver, .. } = osd.connect(global_id)?;

        let queue = SendQueue::new(framer, sender.into_transport());
        let table = Arc::new(Mutex::new(Table { stats: receiver.stats(), ..Table::default() }));
        let (pusher, answerer, shared) = (queue.clone(), queue.clone(), table.clone());
        // What ends the queue ends the connection, and so the receiving thread tells everybody.
        let send = move || drop(pusher.run());
        let receive = move || receive(receiver, &answerer, &shared);
        let threads = vec![
            thread::Builder::new().name("send".into()).spawn(send)?,
            thread::Builder::new().name("receive".into()).spawn(receive)?,
        ];
        Ok(Self {
            queue,
            requests: InFlight::new(window),
            table,
            threads,
            global_id,
            next_tid: now,
            results: Results::default(),
        })
    }

    /// What the osd knows us by.
    pub(crate) fn global_id(&self) -> u64 {
        self.global_id
    }

    /// Declares which result is a success; 0 unless set.
    pub(crate) fn expect_result(&mut self, result: i32) {
        self.results.expected = result;
    }

    /// Sends a request as soon as there is room in the window.
    pub(crate) fn send(&mut self, request: &Request, data: Vec<Bytes>) -> Result<(), Failure> {
        let bytes = data.iter().map(|page| page.len() as u64).sum();
        let Some(permit) = self.requests.window().acquire_until(bytes, Some(Instant::now() + PATIENCE))
        else {
            return Err(self.no_reply());
        };
        let tid = self.next_tid;
        self.next_tid += 1;
        let message = request.message(EntityName::client(self.global_id), tid, data)?;
        let in_flight = self.requests.start_with(permit, tid);
        {
            let mut table = lock(&self.table);
            if let Some(why) = &table.ended {
                return Err(why.clone().into());
            }
            table.waiting.insert(tid, in_flight);
        }
        // From here on the receiving thread tells what becomes of it: a message that does not leave ends the connection.
        if let Some(Err(error)) = self.queue.push(Outbound::Message(message))?.result() {
            return Err(error.into());
        }
        while let Some((_, result)) = self.requests.wait_one(Some(Instant::now())) {
            self.results.take(result.map_err(|failure| failure.to_string())?)?;
        }
        Ok(())
    }

    /// Waits until every request is answered.
    pub(crate) fn wait_for_all(&mut self, mut on_reply: impl FnMut(u64)) -> Result<(), Failure> {
        loop {
            let Some((_, result)) = self.requests.wait_one(Some(Instant::now() + PATIENCE)) else {
                return if self.requests.in_flight() == 0 { Ok(()) } else { Err(self.no_reply()) };
            };
            self.results.take(result.map_err(|failure| failure.to_string())?)?;
            on_reply(self.answered());
        }
    }

    /// Sends a READ and waits for it; what comes lands in pages that are made here, of `page` bytes each.
    pub(crate) fn read(&mut self, request: &Request, page: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let len: usize = request.ops.iter().map(|op| op.length as usize).sum();
        let pages = (0..len).step_by(page).map(|at| vec![0; page.min(len - at)]).collect();
        lock(&self.table).reading = Reading { tid: self.next_tid, page, len: len as u64, pages };
        self.send(request, Vec::new())?;
        self.wait_for_all(|_| {})?;
        let pages = std::mem::take(&mut lock(&self.table).reading).pages;
        match self.results.read.take() {
            _ if self.results.failed > 0 => Ok(Vec::new()),
            Some(Data::Target { len: read, whole: true }) if read == len as u64 => Ok(pages),
            None | Some(Data::None) if len == 0 => Ok(pages),
            data => Err(format!("expected {len} bytes, read {}", data.unwrap_or_default().len()).into()),
        }
    }

    /// How many replies have come.
    pub(crate) fn answered(&self) -> u64 {
        self.results.ok + self.results.failed
    }

    /// How many replies were as expected, how many were not, and what the first of those said.
    pub(crate) fn results(&self) -> (u64, u64, Option<String>) {
        (self.results.ok, self.results.failed, self.results.failure.clone())
    }

    /// What was sent so far.
    pub(crate) fn send_stats(&self) -> SendStats {
        self.queue.stats()
    }

    /// What was received so far.
    pub(crate) fn recv_stats(&self) -> RecvStats {
        lock(&self.table).stats
    }

    fn no_reply(&self) -> Failure {
        let hint = match lock(&self.table).maps {
            0 => "; is --pool wrong, or --epoch newer than the osd's map?",
            _ => "; the peer has sent a newer osd map: is the epoch too old?",
        };
        format!("no reply for {PATIENCE:?}{hint}").into()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.queue.shut_down();
        // Both threads see the end of the stream.
        let _ = self.queue.transport().get_ref().shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Takes replies until the connection ends, and tells every request that is left.
fn receive(mut receiver: Receiver<Socket, Deframer>, queue: &Queue, table: &Mutex<Table>) {
    let why = loop {
        let mut asked = None;
        let received = turn(&mut receiver, &mut lock(table), &mut asked);
        if let Some(stamp) = asked {
            // If it does not leave the connection has ended, which the next receive sees as well.
            drop(queue.push_control(Outbound::KeepaliveAck(stamp)));
        }
        match received {
            Ok(Received::Stopped | Received::Eof) => break "the peer closed the connection".to_owned(),
            Ok(Received::Blocked) => {
                if let Err(error) = receiver.transport().wait(Interest::Readable, None) {
                    break error.to_string();
                }
            }
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
    };
    let mut table = lock(table);
    let why = format!("{why}, {} requests unanswered", table.waiting.len());
    table.ended = Some(why.clone());
    for (_, request) in table.waiting.drain() {
        request.complete(Err(why.clone()));
    }
}

/// Takes what is there, under the lock: the pages that it lends are in the table. `asked` is the last keepalive's stamp.
fn turn(
    receiver: &mut Receiver<Socket, Deframer>,
    table: &mut Table,
    asked: &mut Option<Stamp>,
) -> Result<Received, RecvError<std::io::Error>> {
    let Table { waiting, reading, maps, stats, .. } = table;
    let received = receiver.receive(reading, |frame| {
        match frame {
            Frame::Message(reply) if reply.header.kind == osd::OP_REPLY => {
                if let Some(request) = waiting.remove(&reply.header.tid) {
                    request.complete(Ok(reply));
                }
            }
            Frame::Message(other) if other.header.kind == osd::MAP => *maps += 1,
            Frame::Aborted(Some(tid)) => {
                if let Some(request) = waiting.remove(&tid) {
                    request.complete(Err("the peer has given its reply up".into()));
                }
            }
            Frame::Keepalive(stamp) => *asked = Some(stamp),
            Frame::Close => return ControlFlow::Break(()),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    *stats = receiver.stats();
    received
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Results {
    fn take(&mut self, reply: Incoming) -> Result<(), osd::Error> {
        let said = osd::Reply::decode(&reply.front)?;
        if said.result == self.expected {
            self.ok += 1;
        } else {
            self.failed += 1;
            self.failure.get_or_insert_with(|| refusal(&said, self.expected));
        }
        self.read = Some(reply.data);
        Ok(())
    }
}

fn refusal(reply: &osd::Reply, expected: i32) -> String {
    let object = String::from_utf8_lossy(&reply.object);
    match (reply.result, expected) {
        (0.., NAME_TOO_LONG) => "the osd takes a name of 120 bytes: set osd_max_object_name_len = 100".into(),
        (0.., _) => format!("{object}: unexpected result {}", reply.result),
        (errno, _) => format!("{object}: {}", std::io::Error::from_raw_os_error(errno.wrapping_neg())),
    }
}

/// The pages of a READ under way.
#[derive(Default)]
struct Reading {
    tid: u64,
    page: usize,
    len: u64,
    pages: Vec<Vec<u8>>,
}

impl Targets for Reading {
    fn expect(&mut self, tid: u64) -> Option<u64> {
        (tid == self.tid && !self.pages.is_empty()).then_some(self.len)
    }

    fn lend<'a>(&'a mut self, tid: u64, at: u64, _: usize, out: &mut LentSlices<'a>) -> bool {
        if self.expect(tid).is_none() {
            return false;
        }
        let mut skip = at as usize % self.page;
        for page in &mut self.pages[at as usize / self.page..] {
            out.push(&mut page[std::mem::take(&mut skip)..]);
            if out.wanted() == 0 {
                break;
            }
        }
        true
    }
}
