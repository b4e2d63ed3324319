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

use std::any::Any;
use std::fmt;

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

/// A checksum in progress, whatever its type.
///
/// The built-in checksums are held in place, so a slot of a chain that uses one does not allocate; any other
/// is boxed. The methods mirror [`Checksum`]; those that take a second digest say whether the two fit.
///
/// # Examples
///
/// ```
/// use segchain::checksum::{Crc32c, Digest};
///
/// let mut digest = Digest::new(Crc32c::new());
/// digest.update(b"123456789");
/// assert_eq!(digest.value(), Some(0xe306_9283));
/// assert_eq!(digest.downcast_ref::<Crc32c>().map(Crc32c::state), Some(!0xe306_9283));
/// ```
#[derive(Clone)]
pub struct Digest(Kind);

#[derive(Clone)]
enum Kind {
    Crc32c(Crc32c),
    Crc32(Crc32),
    Custom(Box<dyn Erased>),
}

/// One expression for every kind: all of them have the methods of `Checksum` or of `Erased`.
macro_rules! each {
    ($kind:expr, $crc:ident => $builtin:expr, $custom:ident => $other:expr) => {
        match $kind {
            Kind::Crc32c($crc) => $builtin,
            Kind::Crc32($crc) => $builtin,
            Kind::Custom($custom) => $other,
        }
    };
}

impl Digest {
    /// Holds `checksum`, in place if it is a built-in one.
    ///
    /// ```
    /// use segchain::checksum::{Crc32, Digest};
    ///
    /// let digest = Digest::new(Crc32::new());
    /// assert_eq!(digest.width(), 4);
    /// ```
    #[must_use]
    pub fn new<C: Checksum>(checksum: C) -> Self {
        let any: &dyn Any = &checksum;
        if let Some(crc) = any.downcast_ref::<Crc32c>() {
            Self(Kind::Crc32c(crc.clone()))
        } else if let Some(crc) = any.downcast_ref::<Crc32>() {
            Self(Kind::Crc32(crc.clone()))
        } else {
            Self(Kind::Custom(Box::new(checksum)))
        }
    }

    /// Digests `bytes`. How a message is cut into calls makes no difference.
    ///
    /// ```
    /// use segchain::checksum::{Crc32, Digest};
    ///
    /// let mut digest = Digest::new(Crc32::new());
    /// digest.update(b"1234");
    /// digest.update(b"56789");
    /// assert_eq!(digest.value(), Some(0xcbf4_3926));
    /// ```
    pub fn update(&mut self, bytes: &[u8]) {
        each!(&mut self.0, crc => crc.update(bytes), custom => custom.erased_update(bytes));
    }

    /// Digests `len` zero bytes; see [`Checksum::zeros`].
    ///
    /// ```
    /// use segchain::checksum::{Crc32c, Digest};
    ///
    /// let mut digest = Digest::new(Crc32c::raw(!0));
    /// digest.zeros(4096);
    /// assert_eq!(digest.value(), Some(0x6706_be76));
    /// ```
    pub fn zeros(&mut self, len: u64) {
        each!(&mut self.0, crc => crc.zeros(len), custom => custom.erased_zeros(len));
    }

    /// How many bytes the value takes on the wire.
    ///
    /// ```
    /// use segchain::checksum::{Crc32c, Digest};
    ///
    /// assert_eq!(Digest::new(Crc32c::new()).width(), 4);
    /// ```
    #[must_use]
    pub fn width(&self) -> usize {
        each!(&self.0, crc => crc.width(), custom => custom.erased_width())
    }

    /// Writes the value in wire order. The state is not changed.
    ///
    /// If `out` is not [`width`](Self::width) bytes long, as much as fits is written at its beginning,
    /// whatever a checksum of the user's own would make of such an `out`.
    ///
    /// ```
    /// use segchain::checksum::{Crc32c, Digest};
    ///
    /// let mut wire = [0; 4];
    /// Digest::new(Crc32c::raw(0x0102_0304)).write(&mut wire);
    /// assert_eq!(wire, [4, 3, 2, 1]);
    /// ```
    pub fn write(&self, out: &mut [u8]) {
        each!(&self.0, crc => crc.write(out), custom => {
            let width = custom.erased_width();
            if let Some(out) = out.get_mut(..width) {
                custom.erased_write(out);
            } else {
                let mut whole = vec![0; width];
                custom.erased_write(&mut whole);
                copy_what_fits(&whole, out);
            }
        });
    }

    /// The value, final inversion included, of a built-in checksum; `None` for any other.
    ///
    /// ```
    /// use segchain::checksum::{Crc32c, Digest};
    ///
    /// assert_eq!(Digest::new(Crc32c::raw(7)).value(), Some(7));
    /// ```
    #[must_use]
    pub fn value(&self) -> Option<u32> {
        each!(&self.0, crc => Some(crc.value()), _custom => None)
    }

    /// The checksum as `C`, if that is what it is.
    ///
    /// ```
    /// use segchain::checksum::{Crc32, Crc32c, Digest};
    ///
    /// let digest = Digest::new(Crc32c::raw(7));
    /// assert_eq!(digest.downcast_ref(), Some(&Crc32c::raw(7)));
    /// assert_eq!(digest.downcast_ref::<Crc32>(), None);
    /// ```
    #[must_use]
    pub fn downcast_ref<C: Checksum>(&self) -> Option<&C> {
        let any: &dyn Any = each!(&self.0, crc => crc, custom => custom.as_any());
        any.downcast_ref()
    }

    /// Whether the checksum is linear over GF(2), so that [`zero_state`](Self::zero_state),
    /// [`add`](Self::add) and [`concat`](Self::concat) work.
    ///
    /// ```
    /// use segchain::checksum::{Crc32c, Digest};
    ///
    /// assert!(Digest::new(Crc32c::new()).is_linear());
    /// ```
    #[must_use]
    pub fn is_linear(&self) -> bool {
        each!(&self.0, _crc => true, custom => custom.erased_is_linear())
    }

    /// The same checksum in its zero state; `None` if it is not linear.
    ///
    /// ```
    /// use segchain::checksum::{Crc32c, Digest};
    ///
    /// let zero = Digest::new(Crc32c::raw(7)).zero_state().unwrap();
    /// assert_eq!(zero.value(), Some(0));
    /// ```
    #[must_use]
    pub fn zero_state(&self) -> Option<Self> {
        match &self.0 {
            Kind::Crc32c(crc) => crc.zero_state().map(|crc| Self(Kind::Crc32c(crc))),
            Kind::Crc32(crc) => crc.zero_state().map(|crc| Self(Kind::Crc32(crc))),
            Kind::Custom(custom) => custom.erased_zero_state().map(|custom| Self(Kind::Custom(custom))),
        }
    }

    /// Whether both are the same built-in checksum, so that what one has digested from the zero state can be
    /// [added](Self::add) into the other. Seed, final inversion and byte order may differ.
    ///
    /// Always `false` for checksums of the user's own: two of the same type may still differ in, say, their
    /// polynomial.
    ///
    /// ```
    /// use segchain::checksum::{Crc32, Crc32c, Digest};
    ///
    /// let iscsi = Digest::new(Crc32c::new());
    /// assert!(iscsi.same_kind(&Digest::new(Crc32c::raw(0).big_endian())));
    /// assert!(!iscsi.same_kind(&Digest::new(Crc32::new())));
    /// ```
    #[must_use]
    pub fn same_kind(&self, other: &Self) -> bool {
        matches!((&self.0, &other.0), (Kind::Crc32c(_), Kind::Crc32c(_)) | (Kind::Crc32(_), Kind::Crc32(_)))
    }

    /// Adds (exclusive or) the state of `other`; see [`Checksum::add`].
    ///
    /// Returns `false`, with nothing added, if the two are of different types or not linear. Checksums of one
    /// type of the user's own are added: that they are also of one polynomial is for the caller to know, as
    /// it is when `other` came from this digest's [`zero_state`](Self::zero_state).
    ///
    /// ```
    /// use segchain::checksum::{Crc32, Crc32c, Digest};
    ///
    /// let mut digest = Digest::new(Crc32c::raw(0b0110));
    /// assert!(digest.add(&Digest::new(Crc32c::raw(0b0011))));
    /// assert_eq!(digest.value(), Some(0b0101));
    /// assert!(!digest.add(&Digest::new(Crc32::raw(0b0011))));
    /// ```
    #[must_use = "`false` means that nothing was added"]
    pub fn add(&mut self, other: &Self) -> bool {
        match (&mut self.0, &other.0) {
            (Kind::Crc32c(crc), Kind::Crc32c(other)) => crc.add(other),
            (Kind::Crc32(crc), Kind::Crc32(other)) => crc.add(other),
            (Kind::Custom(custom), Kind::Custom(other)) => return custom.erased_add(&**other),
            _ => return false,
        }
        true
    }

    /// Appends what `next` has digested: `len` bytes, from the [zero state](Self::zero_state); see
    /// [`Checksum::concat`].
    ///
    /// Returns `false`, with nothing changed, where [`add`](Self::add) would.
    ///
    /// ```
    /// use segchain::checksum::{Crc32c, Digest};
    ///
    /// let mut digest = Digest::new(Crc32c::new());
    /// let mut payload = digest.zero_state().unwrap();
    /// payload.update(b"56789");
    /// digest.update(b"1234");
    /// assert!(digest.concat(&payload, 5));
    /// assert_eq!(digest.value(), Some(0xe306_9283));
    /// ```
    #[must_use = "`false` means that nothing was appended"]
    pub fn concat(&mut self, next: &Self, len: u64) -> bool {
        match (&mut self.0, &next.0) {
            (Kind::Crc32c(crc), Kind::Crc32c(next)) => crc.concat(next, len),
            (Kind::Crc32(crc), Kind::Crc32(next)) => crc.concat(next, len),
            (Kind::Custom(custom), Kind::Custom(next)) => return custom.erased_concat(&**next, len),
            _ => return false,
        }
        true
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each!(&self.0, crc => f.debug_tuple("Digest").field(crc).finish(),
            _custom => f.write_str("Digest(custom)"))
    }
}

/// What both types are, but for the polynomial.
macro_rules! impl_crc {
    ($name:ident, $digest:path, $operators:path) => {
        impl Checksum for $name {
            #[inline]
            fn update(&mut self, bytes: &[u8]) {
                self.0.state = $digest(self.0.state, bytes);
            }

            fn zeros(&mut self, len: u64) {
                self.0.state = $operators.append_zeros(self.0.state, len);
            }

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
        let value = self.value();
        copy_what_fits(&if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }, out);
    }
}

fn copy_what_fits(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

/// The constructor copies 272 bytes of parameters at each call. The crate's only way around it, `crc32_iscsi`, knows no
/// seed, and adding the seed's part by [`ZeroOperators`] costs more than the copy.
#[inline]
fn digest_castagnoli(state: u32, bytes: &[u8]) -> u32 {
    let mut digest =
        crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(state));
    digest.update(bytes);
    digest.get_state() as u32
}

/// crc32fast starts from a finished value and ends with one: the register is its complement on both sides.
#[inline]
fn digest_ieee(state: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!state);
    hasher.update(bytes);
    !hasher.finalize()
}

static CASTAGNOLI: ZeroOperators = ZeroOperators::new(0x82f6_3b78);
static IEEE: ZeroOperators = ZeroOperators::new(0xedb8_8320);

/// What it takes to append zero bytes to a CRC-32 without reading them.
///
/// The register is a polynomial over GF(2), and a zero byte multiplies it by x^8 modulo the CRC's polynomial.
/// So n zero bytes multiply it by x^(8n), which is the product of one table entry for each non-zero digit of
/// n in base 256. (zlib's `crc32_combine` keeps the powers of two instead: smaller, and one step for each
/// bit.)
///
/// Polynomials are reflected, as in the register: the top bit is the coefficient of x^0.
struct ZeroOperators {
    /// `powers[k][d]` = x^(8 d 256^k).
    powers: [[u32; 256]; 8],
    /// `high[k][d]` = d x^32, where d stands in the k-th nibble from the right.
    high: [[u32; 16]; 8],
}

impl ZeroOperators {
    const fn new(polynomial: u32) -> Self {
        const ONE: u32 = 1 << 31;

        let mut powers = [[ONE; 256]; 8];
        let mut base = ONE >> 8;
        let mut k = 0;
        while k < 8 {
            let mut d = 1;
            while d < 256 {
                powers[k][d] = multiply_bitwise(polynomial, powers[k][d - 1], base);
                d += 1;
            }
            base = multiply_bitwise(polynomial, powers[k][255], base);
            k += 1;
        }

        let mut high = [[0; 16]; 8];
        let mut k = 0;
        while k < 8 {
            let mut d = 0;
            while d < 16 {
                // x^32 modulo the polynomial is the polynomial without its leading term.
                high[k][d] = multiply_bitwise(polynomial, (d as u32) << (4 * k), polynomial);
                d += 1;
            }
            k += 1;
        }
        Self { powers, high }
    }

    fn append_zeros(&self, mut state: u32, len: u64) -> u32 {
        for (powers, digit) in self.powers.iter().zip(len.to_le_bytes()) {
            if digit != 0 {
                state = self.multiply(state, powers[usize::from(digit)]);
            }
        }
        state
    }

    /// The product modulo the polynomial.
    #[inline]
    fn multiply(&self, a: u32, b: u32) -> u32 {
        // Reflected, the product of two 32-bit polynomials has 63 bits, and x^0 belongs in the topmost of 64.
        let product = carryless_product(a, b) << 1;
        let low = (product >> 32) as u32;
        let high = product as u32;
        self.high.iter().enumerate().fold(low, |sum, (k, table)| sum ^ table[(high >> (4 * k)) as usize & 15])
    }
}

/// The product without carries, by ordinary multiplication.
///
/// Each operand is taken apart into four that have every fourth bit only: then at most eight ones meet in a
/// column, and their sum fits in the four bits before the next column. (The method of BearSSL's
/// `ghash_ctmul.c`. It is several times as fast as 32 shifts; intrinsics would be unsafe code.)
#[inline]
const fn carryless_product(a: u32, b: u32) -> u64 {
    const EVERY_FOURTH: u64 = 0x1111_1111_1111_1111;
    let (a, b) = (a as u64, b as u64);
    let a = [a & EVERY_FOURTH, a & EVERY_FOURTH << 1, a & EVERY_FOURTH << 2, a & EVERY_FOURTH << 3];
    let b = [b & EVERY_FOURTH, b & EVERY_FOURTH << 1, b & EVERY_FOURTH << 2, b & EVERY_FOURTH << 3];
    let c0 = (a[0] * b[0]) ^ (a[1] * b[3]) ^ (a[2] * b[2]) ^ (a[3] * b[1]);
    let c1 = (a[0] * b[1]) ^ (a[1] * b[0]) ^ (a[2] * b[3]) ^ (a[3] * b[2]);
    let c2 = (a[0] * b[2]) ^ (a[1] * b[1]) ^ (a[2] * b[0]) ^ (a[3] * b[3]);
    let c3 = (a[0] * b[3]) ^ (a[1] * b[2]) ^ (a[2] * b[1]) ^ (a[3] * b[0]);
    c0 & EVERY_FOURTH | c1 & EVERY_FOURTH << 1 | c2 & EVERY_FOURTH << 2 | c3 & EVERY_FOURTH << 3
}

/// The product modulo `polynomial`, a bit at a time: for the tables, at compile time.
const fn multiply_bitwise(polynomial: u32, a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ polynomial & (b & 1).wrapping_neg();
    }
    product
}

/// [`Checksum`] without `Self` in its signatures, so that it can be boxed. Its names differ, so that a call
/// on a box cannot mean the wrong trait.
trait Erased: Send + Sync {
    fn erased_clone(&self) -> Box<dyn Erased>;
    fn as_any(&self) -> &dyn Any;
    fn erased_update(&mut self, bytes: &[u8]);
    fn erased_zeros(&mut self, len: u64);
    fn erased_width(&self) -> usize;
    fn erased_write(&self, out: &mut [u8]);
    fn erased_is_linear(&self) -> bool;
    fn erased_zero_state(&self) -> Option<Box<dyn Erased>>;
    fn erased_add(&mut self, other: &dyn Erased) -> bool;
    fn erased_concat(&mut self, next: &dyn Erased, len: u64) -> bool;
}

impl<C: Checksum> Erased for C {
    fn erased_clone(&self) -> Box<dyn Erased> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn erased_update(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }

    fn erased_zeros(&mut self, len: u64) {
        self.zeros(len);
    }

    fn erased_width(&self) -> usize {
        self.width()
    }

    fn erased_write(&self, out: &mut [u8]) {
        self.write(out);
    }

    fn erased_is_linear(&self) -> bool {
        self.zero_state().is_some()
    }

    fn erased_zero_state(&self) -> Option<Box<dyn Erased>> {
        self.zero_state().map(|zero| Box::new(zero) as Box<dyn Erased>)
    }

    fn erased_add(&mut self, other: &dyn Erased) -> bool {
        linear_as::<C>(other).map(|other| self.add(other)).is_some()
    }

    fn erased_concat(&mut self, next: &dyn Erased, len: u64) -> bool {
        linear_as::<C>(next).map(|next| self.concat(next, len)).is_some()
    }
}

fn linear_as<C: Checksum>(checksum: &dyn Erased) -> Option<&C> {
    checksum.as_any().downcast_ref().filter(|_| checksum.erased_is_linear())
}

impl Clone for Box<dyn Erased> {
    fn clone(&self) -> Self {
        (**self).erased_clone()
    }
}
