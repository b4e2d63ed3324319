//! A request that is not answered, and the data that goes with it.

use std::ops::RangeInclusive;

use super::{Outcome, Violation};
use crate::login::Negotiated;
use crate::scsi::{Command, Failure, Moved, Residual, Sense, Transfer};
use crate::{Data, DataIn, DataOut, Extent, NO_TAG, Pages, Pdu, R2t, ScsiResponse};

#[derive(Debug)]
pub(super) enum Task {
    /// Not sent yet: to the target there is no such task.
    Waiting,
    Ping,
    Logout,
    /// A command without data.
    Plain,
    Read {
        len: u32,
        /// Bytes that have come; they come in order.
        received: u32,
        data_sn: u32,
    },
    Write {
        pages: Pages,
        /// Bytes that have left.
        sent: u64,
        r2t_sn: u32,
        /// R2T whose data has not left.
        outstanding: u32,
    },
}

impl Task {
    pub(super) fn new(command: &Command) -> Self {
        match &command.transfer {
            Transfer::None => Task::Plain,
            Transfer::Read(len) => Task::Read { len: *len, received: 0, data_sn: 0 },
            Transfer::Write(pages) => {
                Task::Write { pages: pages.clone(), sent: 0, r2t_sn: 0, outstanding: 0 }
            }
        }
    }

    pub(super) fn is_command(&self) -> bool {
        !matches!(self, Task::Waiting | Task::Ping | Task::Logout)
    }

    /// Takes a piece of a read's data.
    pub(super) fn data_in(&mut self, header: &DataIn, bytes: u64) -> Result<(), Violation> {
        let Task::Read { len, received, data_sn } = self else {
            return Err(Violation::UnknownTask { pdu: "SCSI Data-In", itt: header.itt, offset: 16 });
        };
        range("SCSI Data-In", "data number", 36, *data_sn..=*data_sn, header.data_sn)?;
        // DataPDUInOrder and DataSequenceInOrder are Yes.
        range("SCSI Data-In", "buffer offset", 40, *received..=*received, header.offset)?;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        range("SCSI Data-In", "data length", 5, 0..=*len - *received, bytes)?;
        *received += bytes;
        *data_sn = data_sn.wrapping_add(1);
        Ok(())
    }

    /// Takes the target's wish for data of a write.
    pub(super) fn r2t(&mut self, r2t: &R2t, negotiated: &Negotiated) -> Result<Burst, Violation> {
        let Task::Write { pages, r2t_sn, outstanding, .. } = self else {
            return Err(Violation::UnknownTask { pdu: "R2T", itt: r2t.itt, offset: 16 });
        };
        let len = pages.len() as u32; // the length was checked when the command came
        if len == 0 {
            return Err(Violation::Unexpected { pdu: "R2T", opcode: R2t::OPCODE });
        }
        let R2t { lun, itt, ttt, offset, desired_len, .. } = *r2t;
        range("R2T", "target transfer tag", 20, 0..=NO_TAG - 1, ttt)?;
        range("R2T", "R2T number", 36, *r2t_sn..=*r2t_sn, r2t.r2t_sn)?;
        range("R2T", "buffer offset", 40, 0..=len - 1, offset)?;
        let most = negotiated.max_burst.min(len.saturating_sub(offset));
        range("R2T", "desired data transfer length", 44, 1..=most, desired_len)?;
        at_most(negotiated.max_outstanding_r2t, "outstanding R2Ts of a write", *outstanding + 1)?;
        *r2t_sn = r2t_sn.wrapping_add(1);
        *outstanding += 1;
        let (at, end) = (offset.into(), u64::from(offset) + u64::from(desired_len));
        Ok(Burst { pages: pages.clone(), lun, itt, ttt, at, end, data_sn: 0 })
    }

    /// Data of a write has left, and maybe all that an R2T has asked for.
    pub(super) fn data_out(&mut self, bytes: u64, answers_r2t: bool) {
        if let Task::Write { sent, outstanding, .. } = self {
            *sent += bytes;
            *outstanding -= u32::from(answers_r2t && *outstanding > 0);
        }
    }

    /// How a command ended whose status came with its last data (phase collapse).
    pub(super) fn outcome_of_data_in(&self, header: &DataIn) -> Result<Outcome, Violation> {
        Ok(match header.status {
            0 => Ok(self.moved("SCSI Data-In", header.underflow, header.overflow, header.residual)?),
            status => Err(Failure::Status(status)),
        })
    }

    /// How a command ended; the response's data begins at `data_offset`.
    pub(super) fn outcome(
        &self,
        response: &ScsiResponse,
        data: &Data,
        data_offset: u64,
    ) -> Result<Outcome, Violation> {
        let ScsiResponse { underflow, overflow, residual, .. } = *response;
        Ok(match (response.response, response.status) {
            (0, 0) => Ok(self.moved("SCSI Response", underflow, overflow, residual)?),
            (0, 2) => Err(Failure::CheckCondition(sense(data, data_offset)?)),
            (0, status) => Err(Failure::Status(status)),
            (response, _) => Err(Failure::Response(response)),
        })
    }

    /// What was moved by a command that went well: all that was expected, less what the target says was left out. A target
    /// that leaves out more than it says has lost data.
    fn moved(&self, pdu: &'static str, under: bool, over: bool, residual: u32) -> Result<Moved, Violation> {
        let short = if under { residual } else { 0 };
        let left_out = |range_of: RangeInclusive<u32>| range(pdu, "residual count", 44, range_of, short);
        let (mut received, mut sent) = (0, 0);
        match self {
            Task::Read { len, received: came, .. } => {
                left_out(*len - *came..=*len - *came)?;
                received = (*came).into();
            }
            Task::Write { pages, sent: left, .. } => {
                let len = pages.len() as u32;
                let unsent = pages.len().saturating_sub(*left) as u32;
                left_out(unsent..=len)?;
                sent = (len - short).into();
            }
            _ => left_out(0..=0)?,
        }
        let residual = match (under, over) {
            (true, _) => Residual::Under(residual),
            (_, true) => Residual::Over(residual),
            _ => Residual::None,
        };
        Ok(Moved { received, sent, residual })
    }
}

/// Sense data behind its length.
fn sense(data: &Data, data_offset: u64) -> Result<Sense, Violation> {
    let Data::Bytes(bytes) = data else { return Ok(Sense::default()) };
    let Some(len) = bytes.first_chunk() else { return Ok(Sense::default()) };
    let (len, most) = (u16::from_be_bytes(*len), bytes.len() - 2);
    range("SCSI Response", "sense length", data_offset, 0..=most as u32, len.into())?;
    Ok(Sense::decode(bytes.slice(2..2 + usize::from(len))))
}

/// Data of a write that goes out in one sequence.
#[derive(Debug)]
pub(super) struct Burst {
    pages: Pages,
    lun: u64,
    pub(super) itt: u32,
    pub(super) ttt: u32,
    at: u64,
    end: u64,
    data_sn: u32,
}

impl Burst {
    /// What of a write goes out unasked: with the command, and behind it.
    pub(super) fn unsolicited(
        negotiated: &Negotiated,
        lun: u64,
        itt: u32,
        pages: &Pages,
    ) -> (Extent, Option<Self>) {
        let first = pages.len().min(negotiated.first_burst.into());
        let immediate = if negotiated.immediate_data { first.min(negotiated.max_send.into()) } else { 0 };
        let data = pages.extent(0, immediate).unwrap_or_default();
        let behind = !negotiated.initial_r2t && first > immediate;
        let burst =
            Self { pages: pages.clone(), lun, itt, ttt: NO_TAG, at: immediate, end: first, data_sn: 0 };
        (data, behind.then_some(burst))
    }

    /// The next PDU, and whether it is the last one.
    pub(super) fn next(&mut self, max: u32, exp_stat_sn: u32) -> (Pdu<Extent>, bool) {
        let len = (self.end - self.at).min(max.into());
        let Self { lun, itt, ttt, data_sn, .. } = *self;
        let (offset, last) = (self.at as u32, self.at + len == self.end);
        let data = self.pages.extent(self.at, len).unwrap_or_default();
        self.at += len;
        self.data_sn = data_sn.wrapping_add(1);
        (Pdu::new(DataOut { last, lun, itt, ttt, exp_stat_sn, data_sn, offset }, data), last)
    }
}

/// So many at a time, and no more.
pub(super) fn at_most(limit: u32, what: &'static str, count: u32) -> Result<(), Violation> {
    if count <= limit { Ok(()) } else { Err(Violation::TooMany { what, limit }) }
}

/// A field that has to lie in this range.
pub(super) fn range(
    pdu: &'static str,
    field: &'static str,
    offset: u64,
    range: RangeInclusive<u32>,
    got: u32,
) -> Result<(), Violation> {
    if range.contains(&got) {
        return Ok(());
    }
    let (least, most) = ((*range.start()).into(), (*range.end()).into());
    Err(Violation::Field { pdu, field, offset, least, most, got: got.into() })
}
