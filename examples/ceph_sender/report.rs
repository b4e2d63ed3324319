//! What it took, as a table or as JSON.

#![allow(clippy::cast_precision_loss, reason = "rates for people to read")]

use std::fmt;
use std::time::Duration;

use segchain::recv::RecvStats;
use segchain::send::SendStats;
use serde_json::json;

use crate::client::Client;
use crate::messenger::Protocol;

/// The counts of one run, without its handshake.
pub(crate) struct Report {
    pub(crate) peer: String,
    pub(crate) protocol: Protocol,
    pub(crate) from_monitor: bool,
    global_id: u64,
    pub(crate) payload_bytes: u64,
    /// The [`Tally`](crate::peer::Tally) of what was to arrive.
    pub(crate) tally: [u8; 32],
    pub(crate) checksum_ok: bool,
    messages: u64,
    seconds: f64,
    calls: u64,
    slices: u64,
    copied: u64,
    short_writes: u64,
    recv_calls: u64,
    recv_copied: u64,
    ok: u64,
    failed: u64,
    failure: Option<String>,
}

impl Report {
    /// The counts since `sent` and `received`.
    pub(crate) fn new(client: &Client, sent: SendStats, received: RecvStats, time: Duration) -> Self {
        let (send, recv) = (client.send_stats(), client.recv_stats());
        let (ok, failed, failure) = client.results();
        Self {
            peer: String::new(),
            protocol: Protocol::V1,
            from_monitor: false,
            global_id: client.global_id(),
            payload_bytes: 0,
            tally: [0; 32],
            checksum_ok: failed == 0,
            messages: send.messages - sent.messages,
            seconds: time.as_secs_f64(),
            calls: send.calls - sent.calls,
            slices: send.slices - sent.slices,
            copied: send.copied - sent.copied,
            short_writes: send.short_writes - sent.short_writes,
            recv_calls: recv.calls - received.calls,
            recv_copied: recv.copied - received.copied,
            ok,
            failed,
            failure,
        }
    }

    /// What went wrong, if something has.
    pub(crate) fn fault(&self) -> Option<String> {
        match (&self.failure, self.checksum_ok) {
            (Some(failure), _) => {
                Some(format!("{} of {} requests failed: {failure}", self.failed, self.messages))
            }
            (None, false) => Some("what arrived is not what was sent".into()),
            (None, true) => None,
        }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        json!({
            "peer": self.peer,
            "protocol": format!("ceph-{}", self.protocol),
            "global_id": self.global_id,
            "messages": self.messages,
            "payload_bytes": self.payload_bytes,
            "seconds": self.seconds,
            "mib_per_s": self.mib_per_s(),
            "send_calls": self.calls,
            "send_calls_per_message": ratio(self.calls, self.messages),
            "slices_per_call": ratio(self.slices, self.calls),
            "payload_bytes_copied": self.copied,
            "short_writes": self.short_writes,
            "recv_calls": self.recv_calls,
            "recv_bytes_copied": self.recv_copied,
            "replies_ok": self.ok,
            "replies_failed": self.failed,
            "checksum_ok": self.checksum_ok,
        })
    }

    fn mib_per_s(&self) -> f64 {
        self.payload_bytes as f64 / f64::from(1 << 20) / self.seconds
    }
}

fn ratio(n: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { n as f64 / of as f64 }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name, value: String| writeln!(f, "{name:<22}{value}");
        row("peer", format!("{} (ceph-{})", self.peer, self.protocol))?;
        if self.from_monitor {
            row("global id", format!("{}, from the monitor", self.global_id))?;
        }
        row("messages", format!("{} in {:.3} s", self.messages, self.seconds))?;
        row("payload", format!("{} bytes", self.payload_bytes))?;
        row("MiB/s", format!("{:.0}", self.mib_per_s()))?;
        row("messages/s", format!("{:.0}", self.messages as f64 / self.seconds))?;
        row("sendmsg calls", format!("{} ({:.2} a message)", self.calls, ratio(self.calls, self.messages)))?;
        row(
            "slices",
            format!(
                "{:.1} a message, {:.1} a call",
                ratio(self.slices, self.messages),
                ratio(self.slices, self.calls)
            ),
        )?;
        row("payload bytes copied", self.copied.to_string())?;
        row("replies", format!("{} ok, {} failed", self.ok, self.failed))?;
        write!(f, "{:<22}{}", "checksum", if self.checksum_ok { "ok" } else { "WRONG" })
    }
}
