//! Any checksum, without its type: what a slot of a chain and a body that is landing hold.

use std::any::Any;
use std::fmt;

use super::{Checksum, Crc32, Crc32c, copy_what_fits};

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
    #[inline]
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

    /// Digests pieces one after the other: what a checksum sets up for a call it sets up once.
    #[inline]
    pub(crate) fn update_all<'p>(&mut self, mut pieces: impl Iterator<Item = &'p [u8]>) {
        // One of them is compiled for these pieces: code of the others around it would cost it cache lines.
        let any: &mut dyn Iterator<Item = &'p [u8]> = &mut pieces;
        match &mut self.0 {
            Kind::Crc32c(crc) => crc.update_all(pieces),
            Kind::Crc32(crc) => crc.update_all(any),
            Kind::Custom(custom) => custom.erased_update_all(any),
        }
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
    #[inline]
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
    #[inline]
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

/// [`Checksum`] without `Self` in its signatures, so that it can be boxed. Its names differ, so that a call
/// on a box cannot mean the wrong trait.
trait Erased: Send + Sync {
    fn erased_clone(&self) -> Box<dyn Erased>;
    fn as_any(&self) -> &dyn Any;
    fn erased_update(&mut self, bytes: &[u8]);
    fn erased_update_all(&mut self, pieces: &mut dyn Iterator<Item = &[u8]>);
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

    fn erased_update_all(&mut self, pieces: &mut dyn Iterator<Item = &[u8]>) {
        pieces.for_each(|bytes| self.update(bytes));
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
