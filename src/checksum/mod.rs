//! Incremental checksums over scattered memory, and the arithmetic that joins them.
//!
//! [`Crc32c`] (iSCSI, Ceph, NVMe/TCP) and [`Crc32`] (IEEE 802.3, Ethernet, zlib) are built in. Any other
//! checksum plugs in through [`Checksum`]; [`Digest`] holds one of either sort without its type. The bytes
//! are digested by crc-fast and crc32fast. What is ours is [`zeros`](Checksum::zeros) and
//! [`concat`](Checksum::concat): a checksum of bytes that were never read together, in time that does not
//! grow with their number.
//!
//! This module knows nothing of chains or frames: which bytes are covered, and where the value is written, is
//! said by a slot of a chain. It is no defence against an attacker: a CRC is not a message authentication
//! code.

mod digest;
mod zeros;

use std::{fmt, iter};

pub use self::digest::Digest;

use self::zeros::{CASTAGNOLI, IEEE};

/// A checksum in progress.
///
/// Three methods make a checksum: [`update`](Self::update), [`width`](Self::width) and
/// [`write`](Self::write). The others have defaults that are right for every checksum, and better answers for
/// some.
///
/// # Linear checksums
///
/// A checksum is linear over GF(2) if exclusive or of two messages of equal length gives exclusive or of
/// their states, from the zero state. Then, for any state *s* and any bytes *m*,
///
/// > *s* after *m* = (*s* after as many zero bytes) xor (zero after *m*)
///
/// so bytes can be digested before it is known what precedes them, once for several checksums that cover
/// them, or be taken out again when they are not sent after all. Every CRC is linear in its register. Sums
/// (RFC 1071, Fletcher, Adler) and cryptographic hashes are not. A linear checksum implements
/// [`zero_state`](Self::zero_state) and [`add`](Self::add), both or neither, and should override
/// [`zeros`](Self::zeros).
///
/// # Examples
///
/// The Internet checksum (RFC 1071): not linear, since it adds with carry.
///
/// ```
/// use segchain::checksum::Checksum;
///
/// #[derive(Clone, Default)]
/// struct Internet {
///     sum: u16,
///     odd: bool,
/// }
///
/// impl Checksum for Internet {
///     fn update(&mut self, bytes: &[u8]) {
///         for &byte in bytes {
///             let word = if self.odd { u16::from(byte) } else { u16::from(byte) << 8 };
///             let (sum, carry) = self.sum.overflowing_add(word);
///             self.sum = sum + u16::from(carry);
///             self.odd = !self.odd;
///         }
///     }
///     fn width(&self) -> usize {
///         2
///     }
///     fn write(&self, out: &mut [u8]) {
///         for (to, from) in out.iter_mut().zip((!self.sum).to_be_bytes()) {
///             *to = from;
///         }
///     }
/// }
///
/// // The example of RFC 1071, section 3, cut in the middle of a word.
/// let mut sum = Internet::default();
/// sum.update(&[0x00, 0x01, 0xf2]);
/// sum.update(&[0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
/// let mut wire = [0; 2];
/// sum.write(&mut wire);
/// assert_eq!(wire, (!0xddf2u16).to_be_bytes());
/// assert!(sum.zero_state().is_none());
/// ```
pub trait Checksum: Clone + Send + Sync + 'static {
    /// Digests `bytes`. How a message is cut into calls makes no difference.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32c};
    ///
    /// let mut crc = Crc32c::new();
    /// crc.update(b"12345");
    /// crc.update(b"");
    /// crc.update(b"6789");
    /// assert_eq!(crc.value(), 0xe306_9283);
    /// ```
    fn update(&mut self, bytes: &[u8]);

    /// Digests `len` zero bytes.
    ///
    /// The default reads a page of zeros again and again. The built-in checksums take a time that depends on
    /// the number of non-zero bytes in `len` itself, at most eight.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32c};
    ///
    /// let mut crc = Crc32c::new();
    /// crc.zeros(32);
    /// assert_eq!(crc.value(), 0x8a91_36aa); // RFC 3720, appendix B.4
    /// ```
    fn zeros(&mut self, len: u64) {
        const PAGE: [u8; 4096] = [0; 4096];
        let mut left = len;
        while left > 0 {
            let n = left.min(4096);
            self.update(&PAGE[..n as usize]);
            left -= n;
        }
    }

    /// How many bytes the value takes on the wire.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32};
    ///
    /// assert_eq!(Crc32::new().width(), 4);
    /// ```
    fn width(&self) -> usize;

    /// Writes the value in wire order; `out` is [`width`](Checksum::width) bytes long.
    ///
    /// The state is not changed: more bytes may follow. The built-in checksums write as much as fits into an
    /// `out` of another length.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32c};
    ///
    /// let mut crc = Crc32c::new();
    /// crc.update(b"123456789");
    /// let mut wire = [0; 4];
    /// crc.write(&mut wire);
    /// assert_eq!(wire, [0x83, 0x92, 0x06, 0xe3]);
    /// ```
    fn write(&self, out: &mut [u8]);

    /// The same checksum in its zero state, if it is linear over GF(2); `None` for any other.
    ///
    /// From the zero state, zero bytes leave the state zero. It is seldom the state that a message starts in.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32c};
    ///
    /// let mut zero = Crc32c::new().zero_state().unwrap();
    /// zero.update(&[0; 100]);
    /// assert_eq!(zero.state(), 0);
    /// ```
    fn zero_state(&self) -> Option<Self> {
        None
    }

    /// Adds (exclusive or) the state of `other`. Called on linear checksums only.
    ///
    /// Both must have digested the same number of bytes, one of them from the zero state. The default, for
    /// checksums that are not linear, does nothing.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32c};
    ///
    /// let mut crc = Crc32c::new();
    /// let mut change = crc.zero_state().unwrap();
    /// crc.update(b"unsent");
    /// change.update(b"unsent"); // "unsent" xor itself: six zeros
    /// crc.add(&change);
    ///
    /// let mut zeros = Crc32c::new();
    /// zeros.zeros(6);
    /// assert_eq!(crc, zeros);
    /// ```
    fn add(&mut self, other: &Self) {
        let _ = other;
    }

    /// Appends what `next` has digested: `len` bytes, from the [zero state](Self::zero_state).
    ///
    /// Like [`add`](Self::add), for linear checksums only. A `len` of 0 changes nothing, whatever `next` is:
    /// no bytes leave the zero state as it was, so `next` had nothing to say.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32c};
    ///
    /// // The payload is read once, for two checksums that begin in different places.
    /// let mut payload = Crc32c::new().zero_state().unwrap();
    /// payload.update(b"56789");
    ///
    /// let mut data_only = Crc32c::new();
    /// data_only.concat(&payload, 5);
    /// let mut whole = Crc32c::new();
    /// whole.update(b"1234");
    /// whole.concat(&payload, 5);
    ///
    /// let mut read_again = Crc32c::new();
    /// read_again.update(b"56789");
    /// assert_eq!(data_only, read_again);
    /// assert_eq!(whole.value(), 0xe306_9283);
    /// ```
    fn concat(&mut self, next: &Self, len: u64) {
        if len > 0 {
            self.zeros(len);
            self.add(next);
        }
    }
}

/// CRC-32C (Castagnoli): iSCSI, SCTP, NVMe/TCP, and Ceph, which uses its raw register.
///
/// # Examples
///
/// Standard iSCSI form, and the form of Ceph, whose seed is a parameter and which inverts nothing:
///
/// ```
/// use segchain::checksum::{Checksum, Crc32c};
///
/// let mut iscsi = Crc32c::new();
/// iscsi.update(b"123456789");
/// assert_eq!(iscsi.value(), 0xe306_9283);
///
/// let mut ceph = Crc32c::raw(!0);
/// ceph.update(b"123456789");
/// assert_eq!(ceph.value(), 0x1cf9_6d7c);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Crc32c(Register);

impl Crc32c {
    /// The standard form (RFC 3720, section 12.1): starts at all ones, inverted at the end. Written
    /// little-endian.
    ///
    /// ```
    /// use segchain::checksum::Crc32c;
    ///
    /// assert_eq!(Crc32c::new().value(), 0);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self(Register::STANDARD)
    }

    /// The raw register, starting at `seed` and inverted nowhere: `ceph_crc32c(seed, ...)`. Written
    /// little-endian.
    ///
    /// A seed of 0 is a seed like any other. To go on from a value of the standard form, the seed is its
    /// complement.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32c};
    ///
    /// let mut crc = Crc32c::raw(0);
    /// crc.update(b"123456789");
    /// assert_eq!(crc.value(), 0x58e3_fa20);
    /// ```
    #[must_use]
    pub const fn raw(seed: u32) -> Self {
        Self(Register::raw(seed))
    }

    /// The same checksum, written in network byte order.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32c};
    ///
    /// let mut wire = [0; 4];
    /// Crc32c::raw(0x0102_0304).big_endian().write(&mut wire);
    /// assert_eq!(wire, [1, 2, 3, 4]);
    /// ```
    #[must_use]
    pub const fn big_endian(self) -> Self {
        Self(self.0.big_endian())
    }

    /// The checksum of what was digested so far, as [`write`](Checksum::write) would write it.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32c};
    ///
    /// let mut crc = Crc32c::new();
    /// crc.update(&[0xff; 32]);
    /// assert_eq!(crc.value(), 0x62a8_ab43); // RFC 3720, appendix B.4
    /// ```
    #[must_use]
    pub const fn value(&self) -> u32 {
        self.0.value()
    }

    /// The raw register: a seed from which [`raw`](Self::raw) goes on.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32c};
    ///
    /// let mut first = Crc32c::raw(!0);
    /// first.update(b"12345");
    /// let mut second = Crc32c::raw(first.state());
    /// second.update(b"6789");
    /// assert_eq!(second.value(), 0x1cf9_6d7c);
    /// ```
    #[must_use]
    pub const fn state(&self) -> u32 {
        self.0.state
    }
}

/// CRC-32 (IEEE 802.3): Ethernet, zlib, gzip, event streams.
///
/// # Examples
///
/// ```
/// use segchain::checksum::{Checksum, Crc32};
///
/// let mut crc = Crc32::new().big_endian();
/// crc.update(b"123456789");
/// assert_eq!(crc.value(), 0xcbf4_3926);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Crc32(Register);

impl Crc32 {
    /// The standard form, that of zlib's `crc32`: starts at all ones, inverted at the end. Written
    /// little-endian.
    ///
    /// ```
    /// use segchain::checksum::Crc32;
    ///
    /// assert_eq!(Crc32::new().value(), 0);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self(Register::STANDARD)
    }

    /// The raw register, starting at `seed` and inverted nowhere: Linux's `crc32_le(seed, ...)`. Written
    /// little-endian.
    ///
    /// A seed of 0 is a seed like any other. To go on from a value of the standard form, the seed is its
    /// complement.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32};
    ///
    /// let mut crc = Crc32::raw(!0xcbf4_3926); // the value of "123456789"
    /// crc.update(b"");
    /// assert_eq!(!crc.value(), 0xcbf4_3926);
    /// ```
    #[must_use]
    pub const fn raw(seed: u32) -> Self {
        Self(Register::raw(seed))
    }

    /// The same checksum, written in network byte order.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32};
    ///
    /// let mut wire = [0; 4];
    /// Crc32::raw(0x0102_0304).big_endian().write(&mut wire);
    /// assert_eq!(wire, [1, 2, 3, 4]);
    /// ```
    #[must_use]
    pub const fn big_endian(self) -> Self {
        Self(self.0.big_endian())
    }

    /// The checksum of what was digested so far, as [`write`](Checksum::write) would write it.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32};
    ///
    /// let mut crc = Crc32::new();
    /// crc.update(b"123456789");
    /// assert_eq!(crc.value(), 0xcbf4_3926);
    /// ```
    #[must_use]
    pub const fn value(&self) -> u32 {
        self.0.value()
    }

    /// The raw register: a seed from which [`raw`](Self::raw) goes on.
    ///
    /// ```
    /// use segchain::checksum::{Checksum, Crc32};
    ///
    /// let mut crc = Crc32::new();
    /// crc.update(b"123456789");
    /// assert_eq!(crc.state(), !crc.value());
    /// ```
    #[must_use]
    pub const fn state(&self) -> u32 {
        self.0.state
    }
}

/// What both types are, but for the polynomial.
macro_rules! impl_crc {
    ($name:ident, $digest:path, $operators:path) => {
        impl Checksum for $name {
            #[inline]
            fn update(&mut self, bytes: &[u8]) {
                self.update_all(iter::once(bytes));
            }

            fn zeros(&mut self, len: u64) {
                self.0.state = $operators.append_zeros(self.0.state, len);
            }

            #[inline]
            fn width(&self) -> usize {
                4
            }

            fn write(&self, out: &mut [u8]) {
                self.0.write(out);
            }

            fn zero_state(&self) -> Option<Self> {
                Some(Self(Register { state: 0, ..self.0 }))
            }

            fn add(&mut self, other: &Self) {
                self.0.state ^= other.0.state;
            }
        }

        impl $name {
            /// Digests pieces one after the other.
            #[inline]
            fn update_all<'p>(&mut self, pieces: impl Iterator<Item = &'p [u8]>) {
                self.0.state = $digest(self.0.state, pieces);
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("state", &format_args!("{:#010x}", self.0.state))
                    .field("value", &format_args!("{:#010x}", self.0.value()))
                    .finish()
            }
        }
    };
}

impl_crc!(Crc32c, digest_castagnoli, CASTAGNOLI);
impl_crc!(Crc32, digest_ieee, IEEE);

/// The register of a reflected CRC-32, with how it is read and written.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Register {
    state: u32,
    final_xor: u32,
    big_endian: bool,
}

impl Register {
    const STANDARD: Self = Self { state: !0, final_xor: !0, big_endian: false };

    const fn raw(seed: u32) -> Self {
        Self { state: seed, final_xor: 0, big_endian: false }
    }

    const fn big_endian(self) -> Self {
        Self { big_endian: true, ..self }
    }

    const fn value(&self) -> u32 {
        self.state ^ self.final_xor
    }

    fn write(self, out: &mut [u8]) {
        let value = if self.big_endian { self.value().to_be_bytes() } else { self.value().to_le_bytes() };
        match out.first_chunk_mut() {
            Some(place) => *place = value,
            None => copy_what_fits(&value, out),
        }
    }
}

#[cold]
fn copy_what_fits(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

/// The constructor copies 272 bytes of parameters: once, for all pieces. The crate's only way around it, `crc32_iscsi`, knows
/// no seed, and adding the seed's part by [`ZeroOperators`] costs more than the copy.
#[inline]
fn digest_castagnoli<'p>(state: u32, pieces: impl Iterator<Item = &'p [u8]>) -> u32 {
    let mut digest =
        crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(state));
    pieces.for_each(|bytes| digest.update(bytes));
    digest.get_state() as u32
}

/// crc32fast starts from a finished value and ends with one: the register is its complement on both sides.
#[inline]
fn digest_ieee<'p>(state: u32, pieces: impl Iterator<Item = &'p [u8]>) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!state);
    pieces.for_each(|bytes| hasher.update(bytes));
    !hasher.finalize()
}
