//! For how many bytes a blocking receive waits in the midst of a body.

use std::io;
use std::time::Duration;

use crate::transport::{Interest, Wait};

/// Below this a wake-up that is saved is not worth the calls that save it.
const LEAST: u64 = 64 << 10;
/// How many waits are for any byte after one that came back early; twice as many after the next.
const SHORTEST_REST: u8 = 2;
const LONGEST_REST: u8 = 64;

/// Waits for half of what is missing, so that the other half arrives while that is copied; for any byte if a transport keeps
/// coming back early.
///
/// A young TCP connection comes back early once or twice, for its window is small; what has no low-water mark always does, and
/// is asked again seldom.
#[derive(Debug)]
pub(super) struct LowWater {
    most: u64,
    /// How many bytes the last wait was for; 0 if it was for any, or was not ready.
    awaited: usize,
    /// How many waits to come are for any byte.
    rest: u8,
    /// How many will be after the next that comes back early.
    next_rest: u8,
}

impl LowWater {
    /// Never for more than `most` bytes at once.
    pub(super) fn new(most: usize) -> Self {
        Self { most: most as u64, awaited: 0, rest: 0, next_rest: SHORTEST_REST }
    }

    /// Waits until something is there; `missing` bytes are of the piece of a body that is being received. Never for more than
    /// these: the peer may want an answer to them.
    pub(super) fn wait(
        &mut self,
        transport: &impl Wait,
        missing: u64,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        let half = (missing / 2).min(self.most);
        if half < LEAST {
            return transport.wait(Interest::Readable, timeout);
        }
        if self.rest > 0 {
            self.rest -= 1;
            return transport.wait(Interest::Readable, timeout);
        }
        let ready = transport.wait_for_bytes(half as usize, timeout)?;
        self.awaited = if ready { half as usize } else { 0 };
        Ok(ready)
    }

    /// What the call after a wait brought, and for how much there was room in it.
    pub(super) fn received(&mut self, bytes: usize, offered: usize) {
        match std::mem::take(&mut self.awaited).min(offered) {
            0 => {}
            awaited if bytes < awaited => {
                self.rest = self.next_rest;
                self.next_rest = LONGEST_REST.min(self.next_rest * 2);
            }
            _ => self.next_rest = SHORTEST_REST,
        }
    }
}
