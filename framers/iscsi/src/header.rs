//! The header of each opcode, its fields by their names (RFC 7143 sections 11.3 to 11.19).
//!
//! A header here is what differs from PDU to PDU: the lengths of additional header segments and data are found when it
//! is framed. What the RFC reserves is written as 0 and not kept; [`Bhs`] has the bytes as they came.

use crate::Bhs;
use crate::wire::Wire;

/// The tag that is none: reserved for initiator task tags and target transfer tags (RFC 7143 section 11.2.1.8).
pub const NO_TAG: u32 = 0xffff_ffff;

/// Declares headers: the RFC's name, the opcode, the bits of byte 1 that are always set, the offset of a tag that is always none,
/// and each field's place: the offset of its first byte, or a byte and the bits of it.
macro_rules! headers {
    ($($(#[$doc:meta])+ $name:ident $text:literal = $opcode:literal | $fixed:literal $(no tag at $no_tag:literal)? {
        $($(#[$field_doc:meta])+ $field:ident: $type:ty = $at:literal $(& $mask:literal)? $(or $default:expr)?;)+
    })+) => {
        $($(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::exhaustive_structs, reason = "RFC 7143 has settled what 48 bytes hold")]
        #[allow(clippy::struct_excessive_bools, reason = "bits of the wire")]
        pub struct $name {
            $($(#[$field_doc])+ pub $field: $type,)+
        }

        impl $name {
            /// Its opcode.
            pub const OPCODE: u8 = $opcode;

            fn read(bhs: &Bhs) -> Self {
                Self { $($field: Wire::get(&bhs.0, $at, headers!(@mask $($mask)?)),)+ }
            }

            fn to_bhs(self) -> Bhs {
                let mut bhs = Bhs([0; Bhs::LEN]);
                (bhs.0[0], bhs.0[1]) = ($opcode, $fixed);
                $(NO_TAG.put(&mut bhs.0, $no_tag, 0xff);)?
                $(self.$field.put(&mut bhs.0, $at, headers!(@mask $($mask)?));)+
                bhs
            }
        }

        /// No flags, tags that are none, and all else 0.
        impl Default for $name {
            fn default() -> Self {
                Self { $($field: headers!(@default $($default)?),)+ }
            }
        }

        impl From<$name> for Header {
            fn from(header: $name) -> Self {
                Header::$name(header)
            }
        })+

        /// A header of any opcode.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Header {
            $($(#[$doc])+ $name($name),)+
            /// Any other opcode, as it is on the wire; its lengths are found anew when it is framed.
            Other(Bhs),
        }

        impl From<&Bhs> for Header {
            fn from(bhs: &Bhs) -> Self {
                match bhs.opcode() {
                    $($opcode => Header::$name($name::read(bhs)),)+
                    _ => Header::Other(*bhs),
                }
            }
        }

        /// With lengths of 0, but for [`Header::Other`].
        impl From<Header> for Bhs {
            fn from(header: Header) -> Self {
                match header {
                    $(Header::$name(header) => header.to_bhs(),)+
                    Header::Other(bhs) => bhs,
                }
            }
        }

        impl Bhs {
            /// The name of the opcode, for messages.
            pub fn name(&self) -> &'static str {
                match self.opcode() {
                    $($opcode => $text,)+
                    _ => "PDU of an unknown opcode",
                }
            }
        }
    };
    (@mask) => { 0xff };
    (@mask $mask:literal) => { $mask };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

headers! {
    /// NOP-Out: a ping, or the answer to one (section 11.18).
    NopOut "NOP-Out" = 0x00 | 0x80 {
        /// Takes no command number.
        immediate: bool = 0 & 0x40;
        /// The logical unit; that of the NOP-In in an answer, else 0.
        lun: u64 = 8;
        /// The ping's tag; [`NO_TAG`] in an answer.
        itt: u32 = 16 or NO_TAG;
        /// The tag of the NOP-In that is answered; [`NO_TAG`] in a ping.
        ttt: u32 = 20 or NO_TAG;
        /// The command's number.
        cmd_sn: u32 = 24;
        /// The next status that is awaited.
        exp_stat_sn: u32 = 28;
    }
    /// SCSI Command (section 11.3).
    ScsiCommand "SCSI Command" = 0x01 | 0x00 {
        /// Takes no command number.
        immediate: bool = 0 & 0x40;
        /// No unsolicited Data-Out follows.
        last: bool = 1 & 0x80;
        /// Data is expected to come in.
        read: bool = 1 & 0x40;
        /// Data is expected to go out.
        write: bool = 1 & 0x20;
        /// Task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
        attribute: u8 = 1 & 0x07;
        /// The logical unit.
        lun: u64 = 8;
        /// The task's tag.
        itt: u32 = 16 or NO_TAG;
        /// Bytes that the command is to move.
        expected_len: u32 = 20;
        /// The command's number.
        cmd_sn: u32 = 24;
        /// The next status that is awaited.
        exp_stat_sn: u32 = 28;
        /// The SCSI command descriptor block; what is longer goes on in an additional header segment.
        cdb: [u8; 16] = 32;
    }
    /// Task Management Function Request (section 11.5).
    TaskRequest "Task Management Request" = 0x02 | 0x80 {
        /// Takes no command number.
        immediate: bool = 0 & 0x40;
        /// 1 ABORT TASK, 2 ABORT TASK SET, 5 LOGICAL UNIT RESET, 6 TARGET WARM RESET, and others.
        function: u8 = 1 & 0x7f;
        /// The logical unit.
        lun: u64 = 8;
        /// The tag of this request.
        itt: u32 = 16 or NO_TAG;
        /// The tag of the task that it is about.
        referenced_itt: u32 = 20 or NO_TAG;
        /// The command's number.
        cmd_sn: u32 = 24;
        /// The next status that is awaited.
        exp_stat_sn: u32 = 28;
        /// The number of the command that it is about.
        ref_cmd_sn: u32 = 32;
        /// The next data that is awaited, when a task is reassigned.
        exp_data_sn: u32 = 36;
    }
    /// Login Request (section 11.12).
    LoginRequest "Login Request" = 0x03 | 0x00 {
        /// Always set.
        immediate: bool = 0 & 0x40 or true;
        /// Ready for the next stage.
        transit: bool = 1 & 0x80;
        /// The text goes on in the next request.
        more: bool = 1 & 0x40;
        /// The current stage: 0 security, 1 operational.
        csg: u8 = 1 & 0x0c;
        /// The next stage, if `transit`; 3 is the full feature phase.
        nsg: u8 = 1 & 0x03;
        /// The newest version that is spoken; 0 is the only one.
        version_max: u8 = 2;
        /// The oldest.
        version_min: u8 = 3;
        /// The initiator's part of the session's name.
        isid: [u8; 6] = 8;
        /// The target's part; 0 in a new session.
        tsih: u16 = 14;
        /// One tag for the whole login.
        itt: u32 = 16 or NO_TAG;
        /// The connection's number within the session.
        cid: u16 = 20;
        /// The session's first command number.
        cmd_sn: u32 = 24;
        /// The next status that is awaited; in the first request of a new session, nothing.
        exp_stat_sn: u32 = 28;
    }
    /// Text Request (section 11.10).
    TextRequest "Text Request" = 0x04 | 0x00 {
        /// Takes no command number.
        immediate: bool = 0 & 0x40;
        /// The whole negotiation, or the end of it.
        last: bool = 1 & 0x80;
        /// The text goes on in the next request.
        more: bool = 1 & 0x40;
        /// The logical unit that goes with `ttt`.
        lun: u64 = 8;
        /// The tag of the negotiation.
        itt: u32 = 16 or NO_TAG;
        /// The target's tag of it, [`NO_TAG`] at the start.
        ttt: u32 = 20 or NO_TAG;
        /// The command's number.
        cmd_sn: u32 = 24;
        /// The next status that is awaited.
        exp_stat_sn: u32 = 28;
    }
    /// SCSI Data-Out (section 11.7).
    DataOut "SCSI Data-Out" = 0x05 | 0x00 {
        /// The last one of its sequence.
        last: bool = 1 & 0x80;
        /// The logical unit of the R2T, if one has asked for it.
        lun: u64 = 8;
        /// The task's tag.
        itt: u32 = 16 or NO_TAG;
        /// The tag of the R2T that asked for it; [`NO_TAG`] if none has.
        ttt: u32 = 20 or NO_TAG;
        /// The next status that is awaited.
        exp_stat_sn: u32 = 28;
        /// Its number within its sequence, from 0.
        data_sn: u32 = 36;
        /// Where in the task's data it belongs, in bytes.
        offset: u32 = 40;
    }
    /// Logout Request (section 11.14).
    LogoutRequest "Logout Request" = 0x06 | 0x80 {
        /// Takes no command number.
        immediate: bool = 0 & 0x40;
        /// 0 ends the session, 1 the connection, 2 prepares a recovery.
        reason: u8 = 1 & 0x7f;
        /// The request's tag.
        itt: u32 = 16 or NO_TAG;
        /// The connection.
        cid: u16 = 20;
        /// The command's number.
        cmd_sn: u32 = 24;
        /// The next status that is awaited.
        exp_stat_sn: u32 = 28;
    }
    /// NOP-In: a ping, or the answer to one with its data (section 11.19).
    NopIn "NOP-In" = 0x20 | 0x80 {
        /// The logical unit that goes with `ttt`.
        lun: u64 = 8;
        /// The tag of the NOP-Out that is answered; [`NO_TAG`] in a ping.
        itt: u32 = 16 or NO_TAG;
        /// A tag that asks for an answer; [`NO_TAG`] asks for none.
        ttt: u32 = 20 or NO_TAG;
        /// The status' number; in a ping the next one's.
        stat_sn: u32 = 24;
        /// The next command that is awaited.
        exp_cmd_sn: u32 = 28;
        /// The last command that is taken for now.
        max_cmd_sn: u32 = 32;
    }
    /// SCSI Response (section 11.4). Its data is sense data behind its length, two bytes.
    ScsiResponse "SCSI Response" = 0x21 | 0x80 {
        /// More was to be read than expected: bidirectional commands.
        bidi_overflow: bool = 1 & 0x10;
        /// Less was read than expected: bidirectional commands.
        bidi_underflow: bool = 1 & 0x08;
        /// More was to be moved than expected.
        overflow: bool = 1 & 0x04;
        /// Less was moved than expected.
        underflow: bool = 1 & 0x02;
        /// 0 the command was carried out, 1 the target failed.
        response: u8 = 2;
        /// SCSI status: 0 GOOD, 2 CHECK CONDITION, 8 BUSY, 0x18 RESERVATION CONFLICT, 0x28 TASK SET FULL, and others.
        status: u8 = 3;
        /// The task's tag.
        itt: u32 = 16 or NO_TAG;
        /// For recovery.
        snack_tag: u32 = 20;
        /// The status' number.
        stat_sn: u32 = 24;
        /// The next command that is awaited.
        exp_cmd_sn: u32 = 28;
        /// The last command that is taken for now.
        max_cmd_sn: u32 = 32;
        /// How many Data-In or R2T there were.
        exp_data_sn: u32 = 36;
        /// By how many bytes: see the flags of bidirectional commands.
        bidi_residual: u32 = 40;
        /// By how many bytes: see `overflow` and `underflow`.
        residual: u32 = 44;
    }
    /// Task Management Function Response (section 11.6).
    TaskResponse "Task Management Response" = 0x22 | 0x80 {
        /// 0 done, 1 no such task, 2 no such LUN, 5 not supported, 255 rejected, and others.
        response: u8 = 2;
        /// The request's tag.
        itt: u32 = 16 or NO_TAG;
        /// The status' number.
        stat_sn: u32 = 24;
        /// The next command that is awaited.
        exp_cmd_sn: u32 = 28;
        /// The last command that is taken for now.
        max_cmd_sn: u32 = 32;
    }
    /// Login Response (section 11.13).
    LoginResponse "Login Response" = 0x23 | 0x00 {
        /// The next stage begins.
        transit: bool = 1 & 0x80;
        /// The text goes on in the next response.
        more: bool = 1 & 0x40;
        /// The current stage: 0 security, 1 operational.
        csg: u8 = 1 & 0x0c;
        /// The next stage, if `transit`; 3 is the full feature phase.
        nsg: u8 = 1 & 0x03;
        /// The newest version that is spoken.
        version_max: u8 = 2;
        /// The version that is used.
        version_active: u8 = 3;
        /// As in the request.
        isid: [u8; 6] = 8;
        /// The target's part of the session's name, in the last response.
        tsih: u16 = 14;
        /// As in the request.
        itt: u32 = 16 or NO_TAG;
        /// The status' number.
        stat_sn: u32 = 24;
        /// The next command that is awaited.
        exp_cmd_sn: u32 = 28;
        /// The last command that is taken for now.
        max_cmd_sn: u32 = 32;
        /// 0 success, 1 redirection, 2 the initiator's fault, 3 the target's.
        status_class: u8 = 36;
        /// What of its class.
        status_detail: u8 = 37;
    }
    /// Text Response (section 11.11).
    TextResponse "Text Response" = 0x24 | 0x00 {
        /// The whole negotiation, or the end of it.
        last: bool = 1 & 0x80;
        /// The text goes on in the next response.
        more: bool = 1 & 0x40;
        /// The logical unit that goes with `ttt`.
        lun: u64 = 8;
        /// The tag of the negotiation.
        itt: u32 = 16 or NO_TAG;
        /// The target's tag of it; [`NO_TAG`] at the end.
        ttt: u32 = 20 or NO_TAG;
        /// The status' number.
        stat_sn: u32 = 24;
        /// The next command that is awaited.
        exp_cmd_sn: u32 = 28;
        /// The last command that is taken for now.
        max_cmd_sn: u32 = 32;
    }
    /// SCSI Data-In (section 11.7).
    DataIn "SCSI Data-In" = 0x25 | 0x00 {
        /// The last one of its sequence.
        last: bool = 1 & 0x80;
        /// An acknowledgement is asked for: recovery above level 0.
        acknowledge: bool = 1 & 0x40;
        /// More was to be moved than expected; with `has_status`.
        overflow: bool = 1 & 0x04;
        /// Less was moved than expected; with `has_status`.
        underflow: bool = 1 & 0x02;
        /// It carries the command's status, which is then no failure, and ends it.
        has_status: bool = 1 & 0x01;
        /// SCSI status, if `has_status`.
        status: u8 = 3;
        /// The logical unit that goes with `ttt`.
        lun: u64 = 8;
        /// The task's tag.
        itt: u32 = 16 or NO_TAG;
        /// For acknowledgements.
        ttt: u32 = 20 or NO_TAG;
        /// The status' number, if `has_status`.
        stat_sn: u32 = 24;
        /// The next command that is awaited.
        exp_cmd_sn: u32 = 28;
        /// The last command that is taken for now.
        max_cmd_sn: u32 = 32;
        /// Its number within its task, from 0.
        data_sn: u32 = 36;
        /// Where in the task's data it belongs, in bytes.
        offset: u32 = 40;
        /// By how many bytes: see `overflow` and `underflow`.
        residual: u32 = 44;
    }
    /// Logout Response (section 11.15).
    LogoutResponse "Logout Response" = 0x26 | 0x80 {
        /// 0 done, 1 no such connection, 2 no recovery here, 3 the cleanup failed.
        response: u8 = 2;
        /// The request's tag.
        itt: u32 = 16 or NO_TAG;
        /// The status' number.
        stat_sn: u32 = 24;
        /// The next command that is awaited.
        exp_cmd_sn: u32 = 28;
        /// The last command that is taken for now.
        max_cmd_sn: u32 = 32;
        /// Seconds to wait before a reconnect.
        time_to_wait: u16 = 40;
        /// Seconds for which tasks are kept.
        time_to_retain: u16 = 42;
    }
    /// Ready To Transfer: the target asks for data of a write (section 11.8).
    R2t "R2T" = 0x31 | 0x80 {
        /// The logical unit, for the Data-Out.
        lun: u64 = 8;
        /// The task's tag.
        itt: u32 = 16 or NO_TAG;
        /// The tag for the Data-Out.
        ttt: u32 = 20 or NO_TAG;
        /// The number of the next status.
        stat_sn: u32 = 24;
        /// The next command that is awaited.
        exp_cmd_sn: u32 = 28;
        /// The last command that is taken for now.
        max_cmd_sn: u32 = 32;
        /// Its number within its task, from 0.
        r2t_sn: u32 = 36;
        /// Where in the task's data it begins, in bytes.
        offset: u32 = 40;
        /// How many bytes are asked for.
        desired_len: u32 = 44;
    }
    /// Asynchronous Message (section 11.9).
    AsyncMessage "Asynchronous Message" = 0x32 | 0x80 no tag at 16 {
        /// The logical unit.
        lun: u64 = 8;
        /// The number of this status.
        stat_sn: u32 = 24;
        /// The next command that is awaited.
        exp_cmd_sn: u32 = 28;
        /// The last command that is taken for now.
        max_cmd_sn: u32 = 32;
        /// 0 SCSI event, 1 log out, 2 this connection is dropped, 3 all are, 4 negotiate, 255 the vendor's.
        event: u8 = 36;
        /// The vendor's code.
        vendor_code: u8 = 37;
        /// Differs with the event.
        parameter1: u16 = 38;
        /// Differs with the event.
        parameter2: u16 = 40;
        /// Differs with the event.
        parameter3: u16 = 42;
    }
    /// Reject: a PDU that the target does not take; its data is that PDU's header (section 11.17).
    Reject "Reject" = 0x3f | 0x80 no tag at 16 {
        /// 2 data digest, 4 protocol error, 5 not supported, 6 too many immediate commands, 9 a field is invalid, and others.
        reason: u8 = 2;
        /// The number of this status.
        stat_sn: u32 = 24;
        /// The next command that is awaited.
        exp_cmd_sn: u32 = 28;
        /// The last command that is taken for now.
        max_cmd_sn: u32 = 32;
        /// For a rejected SNACK: what is awaited next.
        data_sn: u32 = 36;
    }
}
