//! iSCSI PDUs with header and data digests (RFC 7143).
#![forbid(unsafe_code)]
