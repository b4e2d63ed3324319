//! The claim of `auth none`: who a client says it is. Nobody proves anything.

use bytes::Bytes;

use crate::wire::{Reader, Short};

/// The first byte of a claim to an osd (`AUTH_MODE_AUTHORIZER` of Ceph `src/auth/Auth.h`).
pub(crate) const TO_SERVICE: u8 = 1;
/// The first byte of a claim to a monitor (`AUTH_MODE_MON`).
pub(crate) const TO_MONITOR: u8 = 10;

/// What a client is, among entities.
pub(crate) const CLIENT: u32 = 8;

/// A claim that was read.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) mode: u8,
    pub(crate) name: Bytes,
    /// 0 to a monitor, which gives one.
    pub(crate) global_id: u64,
}

pub(crate) fn claim(mode: u8, name: &str, global_id: u64) -> Bytes {
    let mut bytes = vec![mode];
    bytes.extend(self::name(CLIENT, name));
    bytes.extend(global_id.to_le_bytes());
    bytes.into()
}

/// `entity_name_t`, as authentication writes it.
pub(crate) fn name(kind: u32, name: &str) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend((name.len() as u32).to_le_bytes());
    bytes.extend(name.as_bytes());
    bytes
}

pub(crate) fn read_claim(bytes: &[u8]) -> Option<Claim> {
    let mut reader = Reader::new(bytes);
    let mut claim = || -> Result<Claim, Short> {
        let mode = reader.u8("mode")?;
        reader.u32("entity type")?;
        let name = Bytes::copy_from_slice(reader.string("name")?);
        Ok(Claim { mode, name, global_id: reader.u64("global id")? })
    };
    claim().ok()
}
