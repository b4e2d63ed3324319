//! x
/// x
pub const OP_REPLY: u16 = 43;
