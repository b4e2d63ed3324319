//! How a connection is framed.

use crate::Bhs;

/// How PDUs are framed, in both directions. The defaults are what every connection begins with (RFC 7143 section 6.2);
/// [`login::Session::options`](crate::login::Session::options) has what was negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    pub(crate) max_send: u32,
    pub(crate) max_recv: u32,
    pub(crate) ahs_limit: u32,
}

impl Default for Options {
    fn default() -> Self {
        let max = Self::DEFAULT_MAX_DATA;
        let ahs_limit = Bhs::MAX_AHS as u32;
        Self { header_digest: false, data_digest: false, max_send: max, max_recv: max, ahs_limit }
    }
}

impl Options {
    /// MaxRecvDataSegmentLength until something else is declared (RFC 7143 section 13.12), in bytes.
    pub const DEFAULT_MAX_DATA: u32 = 8192;

    /// No digests, and 8 KiB of data a PDU.
    pub fn new() -> Self {
        Self::default()
    }

    /// CRC-32C over the header, and over data and pad; none unless set. Never on during the login.
    #[must_use]
    pub fn digests(mut self, header: bool, data: bool) -> Self {
        (self.header_digest, self.data_digest) = (header, data);
        self
    }

    /// The most data of a PDU to send, in bytes: the peer's MaxRecvDataSegmentLength.
    #[must_use]
    pub fn max_send(mut self, bytes: u32) -> Self {
        self.max_send = bytes.min(Bhs::MAX_DATA);
        self
    }

    /// The most data of a PDU to receive, in bytes: our MaxRecvDataSegmentLength. Data that lands in one piece has the
    /// receiver's own limit [`contiguous`](segchain::recv::RecvOptions::contiguous), too.
    #[must_use]
    pub fn max_recv(mut self, bytes: u32) -> Self {
        self.max_recv = bytes.min(Bhs::MAX_DATA);
        self
    }

    /// The most additional header segments to receive, in bytes; 1020, as many as there can be, unless set.
    #[must_use]
    pub fn ahs_limit(mut self, bytes: u32) -> Self {
        self.ahs_limit = bytes;
        self
    }

    /// Whether headers have a digest.
    pub fn header_digest(&self) -> bool {
        self.header_digest
    }

    /// Whether data has a digest.
    pub fn data_digest(&self) -> bool {
        self.data_digest
    }
}
