//! Bytes that real programs put on a wire, to hold encoders and decoders against.
//!
//! None of them comes from an encoder of this workspace; `frames/README.md` names the origin of each group. A [`Frame`]
//! carries its bytes and, for most, the list of its fields with their offsets. The frames are constants in [`mod@ceph`],
//! [`oncrpc`] and [`iscsi`], embedded at compile time, so a test needs no file at run time. Module
//! [`peers`](crate::peers) starts the programs themselves.

/// One captured frame: its bytes, whence they come, and what each of them means.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Frame {
    /// The file name without its ending, such as `v1_msg_osd_op`.
    pub name: &'static str,
    /// The program and version that sent or accepted these bytes.
    pub origin: &'static str,
    /// The bytes in hexadecimal.
    pub hex: &'static str,
    /// One line a field: offset, length, name and bytes in hexadecimal (cut with `..` where long). The first line is a
    /// title; a list of the whole frame may be followed by finer fields of its parts.
    pub fields: Option<&'static str>,
}

impl Frame {
    /// The bytes as they were on the wire.
    ///
    /// ```
    /// use segchain_testkit::golden::ceph;
    /// assert_eq!(ceph::V1_ACK.bytes(), [8, 3, 0, 0, 0, 0, 0, 0, 0]);
    /// ```
    ///
    /// # Panics
    ///
    /// If the embedded text is not hexadecimal; a test of this module excludes that.
    pub fn bytes(&self) -> Vec<u8> {
        unhex(self.hex).unwrap_or_else(|| panic!("{} is not hexadecimal", self.name))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text.trim_end().chars().map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let whole = digits.len().is_multiple_of(2);
    whole.then(|| digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

/// The bytes of the Ceph frame called `name`, as in [`ceph::ALL`].
///
/// ```
/// let banner = segchain_testkit::golden::ceph("v2osd_s_banner");
/// assert!(banner.starts_with(b"ceph v2\n"));
/// ```
///
/// # Panics
///
/// If there is no frame of that name.
pub fn ceph(name: &str) -> Vec<u8> {
    let frame = ceph::ALL.iter().find(|frame| frame.name == name);
    frame.unwrap_or_else(|| panic!("no golden Ceph frame is called {name}")).bytes()
}

macro_rules! frames {
    ($folder:literal, $origin:literal; $($(#[$doc:meta])+ $constant:ident = $file:literal $(+ $fields:ident)?;)+) => {
        $($(#[$doc])+
        pub const $constant: Frame = Frame {
            name: $file,
            origin: $origin,
            hex: include_str!(concat!("../frames/", $folder, "/", $file, ".hex")),
            fields: frames!(@fields $folder, $file $(, $fields)?),
        };)+

        /// Every frame of this module.
        pub const ALL: &[Frame] = &[$($constant),+];
    };
    (@fields $folder:literal, $file:literal) => { None };
    (@fields $folder:literal, $file:literal, fields) => {
        Some(include_str!(concat!("../frames/", $folder, "/", $file, ".txt")))
    };
}

/// Frames of the Ceph messenger, versions 1 and 2.1 (crc mode, auth none).
pub mod ceph {
    use super::Frame;

    frames! { "ceph", "captured from ceph-osd / ceph-mon 16.2.15 (Debian 12)";
        /// v1: acknowledges sequence number 3.
        V1_ACK = "v1_ack";
        /// v1: all a client sends before its first message: banner, address, connect, authorizer, last sequence.
        V1_HELLO_CLIENT = "v1_hello_client" + fields;
        /// v1: all an osd sends before its first message.
        V1_HELLO_SERVER = "v1_hello_server" + fields;
        /// v1: KEEPALIVE2.
        V1_KEEPALIVE2 = "v1_keepalive2";
        /// v1: the answer to [`V1_KEEPALIVE2`].
        V1_KEEPALIVE2_ACK = "v1_keepalive2_ack";
        /// v1: MOSDOp, a write of 64 bytes.
        V1_MSG_OSD_OP = "v1_msg_osd_op" + fields;
        /// v1: the osd's reply.
        V1_MSG_OSD_OPREPLY = "v1_msg_osd_opreply" + fields;
        /// v2: ACK of sequence number 3.
        V2_ACK = "v2_ack";
        /// v2: the osd's answer to [`V2_KEEPALIVE2_SENT_BY_US`].
        V2_KEEPALIVE2_ACK_FROM_OSD = "v2_keepalive2_ack_from_osd";
        /// v2: KEEPALIVE2, sent to an osd.
        V2_KEEPALIVE2_SENT_BY_US = "v2_keepalive2_sent_by_us";
        /// v2, client to osd: AUTH_REQUEST.
        V2OSD_C_AUTH_REQUEST = "v2osd_c_auth_request" + fields;
        /// v2, client to osd: AUTH_SIGNATURE.
        V2OSD_C_AUTH_SIGNATURE = "v2osd_c_auth_signature" + fields;
        /// v2, client to osd: the banner.
        V2OSD_C_BANNER = "v2osd_c_banner" + fields;
        /// v2, client to osd: CLIENT_IDENT.
        V2OSD_C_CLIENT_IDENT = "v2osd_c_client_ident" + fields;
        /// v2, client to osd: HELLO.
        V2OSD_C_HELLO = "v2osd_c_hello" + fields;
        /// v2, client to osd: MOSDOp, a write of 64 bytes, four segments of which the third is present and empty.
        V2OSD_C_MSG_OSD_OP_4SEG = "v2osd_c_msg_osd_op_4seg" + fields;
        /// v2, osd to client: AUTH_DONE.
        V2OSD_S_AUTH_DONE = "v2osd_s_auth_done" + fields;
        /// v2, osd to client: AUTH_SIGNATURE.
        V2OSD_S_AUTH_SIGNATURE = "v2osd_s_auth_signature" + fields;
        /// v2, osd to client: the banner.
        V2OSD_S_BANNER = "v2osd_s_banner" + fields;
        /// v2, osd to client: HELLO.
        V2OSD_S_HELLO = "v2osd_s_hello" + fields;
        /// v2, osd to client: the reply to a write, two segments.
        V2OSD_S_MSG_OSD_OPREPLY_2SEG = "v2osd_s_msg_osd_opreply_2seg" + fields;
        /// v2, osd to client: SERVER_IDENT.
        V2OSD_S_SERVER_IDENT = "v2osd_s_server_ident" + fields;
    }
}

/// ONC RPC records on a stream: the record marker, then the message (RFC 5531 section 11).
pub mod oncrpc {
    use super::Frame;

    frames! { "oncrpc", "accepted or sent by nfs-ganesha 4.3 (Debian 12)";
        /// A NULL call to NFS version 3.
        NULL_CALL = "null_call" + fields;
        /// The reply to [`NULL_CALL`].
        NULL_REPLY = "null_reply" + fields;
        /// An NFSv3 WRITE of the 8 bytes `ABCDEFGH`, FILE_SYNC; the file handle is that server's.
        NFS3_WRITE = "nfs3_write" + fields;
    }
}

/// iSCSI PDUs (RFC 7143), each with the digests that its description names.
pub mod iscsi {
    use super::Frame;

    frames! { "iscsi", "captured from a session with tgt 1.0.85, or of libiscsi 1.19.0 with it (Debian 12)";
        /// A NOP-Out that carries `ABCDE`; both digests.
        NOP_OUT = "nop_out" + fields;
        /// tgt: the NOP-In that brings `ABCDE` back; both digests.
        NOP_IN = "nop_in" + fields;
        /// tgt: the answer to a login request in the security stage; no digests.
        LOGIN_RESPONSE_SECURITY = "login_response_security" + fields;
        /// tgt: the answer in the operational stage, which ends the login; no digests.
        LOGIN_RESPONSE_OPERATIONAL = "login_response_operational" + fields;
        /// tgt: CHECK CONDITION with sense data, a unit attention; both digests.
        SCSI_RESPONSE_CHECK_CONDITION = "scsi_response_check_condition" + fields;
        /// tgt: a write was carried out; both digests.
        SCSI_RESPONSE_GOOD = "scsi_response_good" + fields;
        /// tgt: asks for the 512 bytes of a write; header digest.
        R2T = "r2t" + fields;
        /// tgt: the 512 bytes of a read, and its status; both digests.
        DATA_IN = "data_in" + fields;
        /// tgt: a logical unit was reset; header digest.
        TASK_RESPONSE = "task_response" + fields;
        /// tgt: the end of a session; header digest.
        LOGOUT_RESPONSE = "logout_response" + fields;
        /// libiscsi: the only login request of a discovery session; no digests.
        DISCOVERY_LOGIN_REQUEST = "discovery_login_request" + fields;
        /// libiscsi: SendTargets; no digests.
        DISCOVERY_TEXT_REQUEST = "discovery_text_request" + fields;
        /// tgt: the answer to [`DISCOVERY_TEXT_REQUEST`]; no digests.
        DISCOVERY_TEXT_RESPONSE = "discovery_text_response" + fields;
        /// libiscsi: INQUIRY; header digest.
        SCSI_COMMAND_INQUIRY = "scsi_command_inquiry" + fields;
        /// libiscsi: a logout; header digest.
        LOGOUT_REQUEST = "logout_request" + fields;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = &'static Frame> {
        ceph::ALL.iter().chain(oncrpc::ALL).chain(iscsi::ALL)
    }

    /// CRC-32C bit by bit, as a raw register.
    fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(seed, |state, byte| {
            (0..8)
                .fold(state ^ u32::from(*byte), |s, _| if s & 1 == 1 { s >> 1 ^ 0x82f6_3b78 } else { s >> 1 })
        })
    }

    #[test]
    fn every_field_list_covers_its_frame_and_agrees_with_its_bytes() {
        for frame in all() {
            let bytes = frame.bytes();
            let Some(fields) = frame.fields else { continue };
            let mut at = 0;
            for line in fields.lines().skip(1) {
                let mut words = line.split_whitespace();
                let offset: usize = words.next().unwrap().parse().unwrap();
                let length: usize = words.next().unwrap().parse().unwrap();
                // Once the whole frame is listed, finer fields of its parts may follow.
                if at < bytes.len() {
                    assert_eq!(offset, at, "{}: {line}", frame.name);
                    at += length;
                }
                if length > 0 {
                    let shown = words.next_back().unwrap();
                    let shown = shown.strip_suffix("..").unwrap_or(shown);
                    let shown = unhex(shown).unwrap();
                    assert!(bytes[offset..offset + length].starts_with(&shown), "{}: {line}", frame.name);
                }
            }
            assert_eq!(at, bytes.len(), "{}", frame.name);
        }
    }

    #[test]
    fn record_markers_name_the_length_that_follows() {
        for frame in oncrpc::ALL {
            let bytes = frame.bytes();
            let marker = u32::from_be_bytes(bytes[..4].try_into().unwrap());
            assert_eq!(marker, 0x8000_0000 | (bytes.len() - 4) as u32, "{}", frame.name);
        }
    }

    #[test]
    fn checksums_inside_the_frames_are_right() {
        let v1 = ceph::V1_MSG_OSD_OP.bytes();
        assert_eq!(crc32c(0, &v1[1..50]).to_le_bytes(), v1[50..54]);
        assert_eq!(crc32c(0, &v1[266..330]).to_le_bytes(), v1[338..342]);
        for frame in [ceph::V2_ACK, ceph::V2_KEEPALIVE2_SENT_BY_US, ceph::V2OSD_S_SERVER_IDENT] {
            let bytes = frame.bytes();
            assert_eq!(crc32c(0, &bytes[..28]).to_le_bytes(), bytes[28..32], "{}", frame.name);
        }
        let pdu = iscsi::NOP_OUT.bytes();
        assert_eq!((!crc32c(!0, &pdu[..48])).to_le_bytes(), pdu[48..52]);
        assert_eq!((!crc32c(!0, &pdu[52..60])).to_le_bytes(), pdu[60..64]);
    }

    #[test]
    fn a_ceph_frame_is_found_by_its_name() {
        assert_eq!(ceph("v1_keepalive2")[0], 0x0e);
        assert_eq!(ceph("v1_keepalive2_ack")[1..], ceph("v1_keepalive2")[1..]);
    }
}
