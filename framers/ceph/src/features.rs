//! Feature bits that change what is on the wire (Ceph `src/include/ceph_features.h`).

/// After a reconnect both sides say which message they have received last.
pub const RECONNECT_SEQ: u64 = 1 << 6;
/// Message footers carry a signature field, whether or not it is used.
pub const MSG_AUTH: u64 = 1 << 23;
/// What this crate offers unless told otherwise: the features of a 16.2.15 client, whose encodings [`osd`](crate::osd)
/// writes.
pub const OFFERED: u64 = 0x3f01_cfbd_fffd_ffff;
/// What a 16.2.15 osd requires of its clients (SERVER_IDENT of ceph-osd 16.2.15).
pub const REQUIRED_BY_OSD: u64 = 0x0c01_0200_4204_0000;
