//! What a receiver takes at once, and how long it waits for more.

/// Limits of the receiver. The defaults are good; tests and measurements change them.
#[derive(Clone, Debug)]
pub struct RecvOptions {
    pub(super) read_ahead: usize,
    pub(super) window: usize,
    pub(super) contiguous: u64,
    pub(super) turn_bytes: u64,
    pub(super) low_water: usize,
}

impl Default for RecvOptions {
    fn default() -> Self {
        Self {
            read_ahead: 64 << 10,
            window: 1 << 20,
            contiguous: 64 << 10,
            turn_bytes: 16 << 20,
            low_water: 256 << 10,
        }
    }
}

impl RecvOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of read-ahead, at least 64; 64 KiB unless set. No header of a frame can be longer, and at most so many
    /// bytes of a body are copied. Directly after a large body a smaller one of 8 KiB is offered: what follows is likely
    /// another.
    #[must_use]
    pub fn read_ahead(mut self, bytes: usize) -> Self {
        self.read_ahead = bytes.max(64);
        self
    }

    /// How much of a body is offered to one call at most, in bytes, 4 KiB to 32 MiB; 1 MiB unless set. Not more memory than
    /// this is taken ahead of the bytes that fill it.
    #[must_use]
    pub fn window(mut self, bytes: usize) -> Self {
        self.window = bytes.clamp(4096, 32 << 20);
        self
    }

    /// The longest contiguous body, in bytes; 64 KiB unless set.
    #[must_use]
    pub fn contiguous(mut self, bytes: u64) -> Self {
        self.contiguous = bytes;
        self
    }

    /// After how many bytes [`receive`] returns [`Budget`], so that a fast peer does not keep a turn for ever; 16 MiB unless
    /// set, at least 1.
    ///
    /// [`receive`]: super::Receiver::receive
    /// [`Budget`]: super::Received::Budget
    #[must_use]
    pub fn turn_bytes(mut self, bytes: u64) -> Self {
        self.turn_bytes = bytes.max(1);
        self
    }

    /// For how many bytes a blocking form waits at once, at most, in the midst of a piece of a body; 256 KiB unless set.
    /// It waits for half of what is missing, if that is 64 KiB or more, with one wake-up instead of one for each packet; see
    /// [`wait_for_bytes`]. With less than that set it always waits for any byte: for a socket from which somebody else reads
    /// at the same time, or whose receive buffer has to stay small though `SO_RCVBUF` is not set.
    ///
    /// [`wait_for_bytes`]: crate::transport::Wait::wait_for_bytes
    #[must_use]
    pub fn low_water(mut self, bytes: usize) -> Self {
        self.low_water = bytes;
        self
    }
}
