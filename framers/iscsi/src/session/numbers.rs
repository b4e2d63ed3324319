//! Sequence numbers of an initiator's session: 32 bits, compared as RFC 1982 says.

use crate::login::Session;

/// What is next, in both directions.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_field_names, reason = "the RFC's names")]
pub(super) struct Numbers {
    /// The next command's number.
    pub(super) cmd_sn: u32,
    /// The last command that the target takes for now.
    max_cmd_sn: u32,
    /// The next status that is awaited.
    pub(super) exp_stat_sn: u32,
}

impl Numbers {
    pub(super) fn new(session: &Session) -> Self {
        let Session { cmd_sn, max_cmd_sn, stat_sn, .. } = *session;
        Self { cmd_sn, max_cmd_sn, exp_stat_sn: stat_sn }
    }

    /// Whether the target takes one more command.
    pub(super) fn is_open(&self) -> bool {
        !is_after(self.cmd_sn, self.max_cmd_sn)
    }

    /// Takes the number of a command.
    pub(super) fn take(&mut self) -> u32 {
        let number = self.cmd_sn;
        self.cmd_sn = number.wrapping_add(1);
        number
    }

    /// What every PDU of a target says of commands. An older view of the window is of no interest, and one that has its end
    /// more than one before its start is none (RFC 7143 section 4.2.2.1).
    pub(super) fn see(&mut self, exp_cmd_sn: u32, max_cmd_sn: u32) {
        if !is_after(exp_cmd_sn.wrapping_sub(1), max_cmd_sn) && is_after(max_cmd_sn, self.max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }
}

/// Whether `a` comes after `b`: at most 2^31 - 1 later.
fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).wrapping_sub(1) < (1 << 31) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(cmd_sn: u32, max_cmd_sn: u32) -> Numbers {
        Numbers { cmd_sn, max_cmd_sn, exp_stat_sn: 0 }
    }

    #[test]
    fn a_window_goes_on_past_2_to_the_32() {
        let mut numbers = at(u32::MAX, 1);
        for number in [u32::MAX, 0, 1] {
            assert!(numbers.is_open());
            assert_eq!(numbers.take(), number);
        }
        assert!(!numbers.is_open());
        numbers.see(2, 2);
        assert!(numbers.is_open());
    }

    #[test]
    fn an_older_view_of_the_window_and_one_that_is_none_change_nothing() {
        let mut numbers = at(10, 9);
        numbers.see(3, 8);
        assert!(!numbers.is_open());
        numbers.see(20, 12); // ends more than one before its start
        assert!(!numbers.is_open());
        numbers.see(10, 9);
        assert!(!numbers.is_open());
        numbers.see(10, 10);
        assert!(numbers.is_open());
    }
}
