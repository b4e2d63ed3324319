//! What a run came to: a table for people, one JSON object for programs.

use std::fmt;
use std::time::Duration;

use segchain::recv::RecvStats;
use segchain::send::SendStats;
use serde_json::{Value, json};

/// The figures of one run. Statistics are those of the connection that carried the payload.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Where the PDUs went.
    pub peer: String,
    /// The digests: `none`, `header`, `data` or `both`.
    pub digests: &'static str,
    /// Bytes of payload, in whichever direction.
    pub payload_bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// The sender's counts.
    pub send: SendStats,
    /// The receiver's.
    pub recv: RecvStats,
    /// Successful replies.
    pub replies_ok: u64,
    /// Others.
    pub replies_failed: u64,
    /// Why the first of them failed.
    pub failure: Option<String>,
    /// Whether all that was compared was the same.
    pub checksum_ok: bool,
}

impl Report {
    /// What was wrong, if anything was.
    pub fn complaint(&self) -> Option<String> {
        if self.replies_failed > 0 {
            let why = self.failure.as_deref().unwrap_or("no reason given");
            return Some(format!(
                "{} of {} requests failed: {why}",
                self.replies_failed,
                self.replies_ok + self.replies_failed
            ));
        }
        (!self.checksum_ok).then(|| format!("{}: what arrived differs from what was sent", self.peer))
    }

    pub fn json(&self) -> Value {
        json!({
            "peer": self.peer,
            "protocol": "iscsi",
            "digests": self.digests,
            "messages": self.send.messages,
            "payload_bytes": self.payload_bytes,
            "seconds": self.elapsed.as_secs_f64(),
            "mib_per_s": self.mib_per_s(),
            "send_calls": self.send.calls,
            "send_calls_per_message": ratio(self.send.calls, self.send.messages),
            "slices_per_call": ratio(self.send.slices, self.send.calls),
            "payload_bytes_copied": self.send.copied,
            "short_writes": self.send.short_writes,
            "recv_calls": self.recv.calls,
            "recv_bytes_copied": self.recv.copied,
            "replies_ok": self.replies_ok,
            "replies_failed": self.replies_failed,
            "checksum_ok": self.checksum_ok,
        })
    }

    fn mib_per_s(&self) -> f64 {
        ratio(self.payload_bytes, 1 << 20) / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        let per_second = ratio(self.send.messages, 1) / seconds.max(f64::MIN_POSITIVE);
        writeln!(f, "peer                   {} (iscsi, digests: {})", self.peer, self.digests)?;
        writeln!(f, "PDUs sent              {} in {seconds:.3} s, {per_second:.0}/s", self.send.messages)?;
        writeln!(f, "payload                {} bytes, {:.1} MiB/s", self.payload_bytes, self.mib_per_s())?;
        writeln!(f, "sendmsg per PDU        {:.3}", ratio(self.send.calls, self.send.messages))?;
        writeln!(f, "slices per sendmsg     {:.1}", ratio(self.send.slices, self.send.calls))?;
        writeln!(f, "payload bytes copied   {} sending", self.send.copied)?;
        writeln!(f, "                       {} receiving", self.recv.copied)?;
        writeln!(f, "replies                {} good, {} not", self.replies_ok, self.replies_failed)?;
        writeln!(f, "data                   {}", if self.checksum_ok { "as it should be" } else { "DIFFERS" })
    }
}

// Counts beyond 2^53 would lose digits that nobody reads.
#[allow(clippy::cast_precision_loss)]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
