//! The built-in checksums against slow ones that can be checked by eye, and what public reports of other
//! implementations taught: zlib 659, scylladb 10731, cpython 156180, zlib-ng 462, 1161, 1891 and 2398,
//! zowens/crc32c 34, ICRAR/crc32c 22 and 44, leveldb 91, blazingmq 688, alexgorbatchev/crc 66, wiredtiger
//! 9900.

use proptest::prelude::*;
use segchain::checksum::{Checksum, Crc32, Crc32c, Digest};

const SEEDS: [u32; 4] = [0, 1, 0xffff_ffff, 0x9e37_79b9];

// ---- the bytes

/// Length x start offset, since fast paths are chosen by both: zowens/crc32c #34, ICRAR/crc32c #22 and #44
/// (wrong only for some sizes), zlib-ng #462, blazingmq #688 (misaligned first bytes).
#[test]
fn every_length_from_every_start_offset_equals_the_bitwise_register() {
    fn check<C: Crc>() {
        let bytes = Random(1).bytes(64 + 4096);
        for offset in 0..64 {
            let seed = SEEDS[offset % SEEDS.len()];
            let mut expected = seed;
            for len in 0..=4096 {
                let mut crc = C::raw(seed);
                crc.update(&bytes[offset..offset + len]);
                assert_eq!(crc.state(), expected, "offset {offset}, length {len}, seed {seed:#x}");
                expected = bitwise(C::POLYNOMIAL, expected, &bytes[offset + len..=offset + len]);
            }
        }
    }
    check::<Crc32c>();
    check::<Crc32>();
}

/// zlib-ng #1891: wrong only above 32 KiB.
#[test]
fn lengths_around_32_kib_equal_the_bitwise_register() {
    fn check<C: Crc>() {
        let bytes = Random(2).bytes(32_777);
        let mut expected = bitwise(C::POLYNOMIAL, 1, &bytes[..32_767]);
        for len in 32_767..=32_777 {
            let mut crc = C::raw(1);
            crc.update(&bytes[..len]);
            assert_eq!(crc.state(), expected, "length {len}");
            if let Some(next) = bytes.get(len..=len) {
                expected = bitwise(C::POLYNOMIAL, expected, next);
            }
        }
    }
    check::<Crc32c>();
    check::<Crc32>();
}

/// zlib-ng #462: a vector load before the first or after the last byte. Here such bytes would be digested; a
/// sanitizer sees it in the exact allocation even when they are masked out again.
#[test]
fn bytes_outside_the_slice_make_no_difference() {
    fn check<C: Crc>() {
        let inner = Random(3).bytes(256);
        for len in 0..=inner.len() {
            let exact: Box<[u8]> = inner[..len].into();
            let mut expected = C::raw(1);
            expected.update(&exact);
            for poison in [0x00, 0xff] {
                let mut outer = vec![poison; 64 + len + 64];
                outer[64..64 + len].copy_from_slice(&exact);
                let mut crc = C::raw(1);
                crc.update(&outer[64..64 + len]);
                assert_eq!(crc.state(), expected.state(), "length {len}, poison {poison}");
            }
        }
    }
    check::<Crc32c>();
    check::<Crc32>();
}

/// The catalogue's check value, RFC 3720 appendix B.4, and Ceph's own tests (`src/test/common/test_crc32c.cc`
/// seeds with 0 and -1 and inverts nothing; a page of zeros by the same register).
#[test]
fn published_vectors_of_crc32c_hold_in_each_convention() {
    assert_eq!(standard_crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(standard_crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(standard_crc32c(&[0xff; 32]), 0x62a8_ab43);

    assert_eq!(after(Crc32c::raw(!0), b"123456789"), 0x1cf9_6d7c);
    assert_eq!(after(Crc32c::raw(0), b"123456789"), 0x58e3_fa20);
    assert_eq!(after(Crc32c::raw(!0), &[0; 4096]), 0x6706_be76);
    assert_eq!(after(Crc32c::raw(0), b"foo bar baz"), 4_119_623_852);
    assert_eq!(after(Crc32c::raw(1234), b"foo bar baz"), 881_700_046);
    assert_eq!(after(Crc32c::raw(5678), b"whiz bang boom"), 3_743_019_208);
    assert_eq!(after(Crc32c::raw(0), &vec![1; 4_096_000]), 31_583_199);
}

/// The catalogue's check value, and zlib's `crc32` of the same bytes as above.
#[test]
fn published_vectors_of_crc32_hold() {
    let standard = |bytes: &[u8]| {
        let mut crc = Crc32::new();
        crc.update(bytes);
        crc.value()
    };
    assert_eq!(standard(b"123456789"), 0xcbf4_3926);
    assert_eq!(standard(&[0; 32]), 0x190a_55ad);
    assert_eq!(standard(&[0xff; 32]), 0xff6c_ab0b);
}

/// alexgorbatchev/crc #66, wiredtiger #9900, zlib-ng #1161: a seed of 0 taken for none, or dropped by the
/// fast path.
#[test]
fn a_seed_is_honoured_whatever_it_is_and_however_empty_the_parts() {
    fn check<C: Crc>() {
        let bytes = Random(4).bytes(300);
        for seed in SEEDS {
            for (a, b) in [(0, 0), (0, 5), (5, 5), (0, 300), (300, 300), (150, 300)] {
                let mut parts = C::raw(seed);
                parts.update(&bytes[..a]);
                parts.update(&bytes[a..b]);
                let mut resumed = C::raw(after(C::raw(seed), &bytes[..a]));
                resumed.update(&bytes[a..b]);
                let expected = bitwise(C::POLYNOMIAL, seed, &bytes[..b]);
                assert_eq!(parts.state(), expected, "seed {seed:#x}, {a} then {b} bytes");
                assert_eq!(resumed.state(), expected, "seed {seed:#x}, {a} then {b} bytes");
            }
        }
    }
    check::<Crc32c>();
    check::<Crc32>();
}

proptest! {
    #[test]
    fn any_split_of_any_bytes_into_pieces_gives_the_same_value(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..700), 0..12),
        seed in any::<u32>(),
    ) {
        let whole = pieces.concat();

        let mut crc = Crc32c::raw(seed);
        let mut joined = Digest::new(Crc32c::raw(seed));
        for piece in &pieces {
            crc.update(piece);
            let mut part = joined.zero_state().unwrap();
            part.update(piece);
            prop_assert!(joined.concat(&part, piece.len() as u64));
        }
        prop_assert_eq!(crc.value(), bitwise(Crc32c::POLYNOMIAL, seed, &whole));
        prop_assert_eq!(joined.value(), Some(crc.value()));

        let mut crc = Crc32::raw(seed);
        for piece in &pieces {
            crc.update(piece);
        }
        prop_assert_eq!(crc.value(), bitwise(Crc32::POLYNOMIAL, seed, &whole));
    }
}

// ---- the arithmetic

/// cpython #156180, zlib-ng #2398: a hang, or a wrong value, where the length does not fit a signed integer.
/// That this test ends is half of what it shows: 2^63 zero bytes would take years to read.
#[test]
fn zeros_and_concat_of_any_length_equal_matrix_arithmetic() {
    fn check<C: Crc>() {
        let mut random = Random(5);
        let mut lengths = vec![0, 1, 255, 256, 257, (1 << 32) + 1, (1 << 63) + 1, u64::MAX];
        lengths.extend((0..64).map(|k| 1 << k));
        lengths.extend((0..64).map(|k| (1 << k) - 1));
        lengths.extend((0..200).map(|_| random.next()));
        for len in lengths {
            let operator = Matrix::zero_byte(C::POLYNOMIAL).power(len);
            for seed in SEEDS {
                let mut crc = C::raw(seed);
                crc.zeros(len);
                assert_eq!(crc.state(), operator.times(seed), "{len} zeros after {seed:#x}");

                let next = if len == 0 { 0 } else { random.next() as u32 };
                let mut crc = C::raw(seed);
                crc.concat(&C::raw(next), len);
                assert_eq!(crc.state(), operator.times(seed) ^ next, "{next:#x} of {len} after {seed:#x}");
            }
        }
    }
    check::<Crc32c>();
    check::<Crc32>();
}

#[test]
fn zeros_equal_zero_bytes() {
    fn check<C: Crc>() {
        let zeros = vec![0; 70_000];
        for len in (0..600).chain([4095, 4096, 4097, 65_535, 65_536, 65_537, 70_000]) {
            let mut crc = C::raw(0x1234_5678);
            crc.zeros(len as u64);
            assert_eq!(crc.state(), after(C::raw(0x1234_5678), &zeros[..len]), "{len} zeros");
        }
    }
    check::<Crc32c>();
    check::<Crc32>();
}

/// zlib #659 and scylladb #10731: combining with a length of 0 changed its meaning between releases.
#[test]
fn concat_of_nothing_changes_nothing() {
    fn check<C: Crc>(start: &C) {
        let mut crc = start.clone();
        crc.update(b"before");
        let before = crc.clone();

        crc.concat(&start.zero_state().unwrap(), 0);
        assert!(crc == before);
        // A contradiction: no bytes, and yet a state. The length is believed.
        crc.concat(&C::raw(0xdead_beef), 0);
        assert!(crc == before);
    }
    check(&Crc32c::new());
    check(&Crc32::new());
    for seed in SEEDS {
        check(&Crc32c::raw(seed));
        check(&Crc32::raw(seed));
    }
}

#[test]
fn every_split_in_three_joins_to_the_whole_in_either_order() {
    fn check<C: Crc>(start: &C) {
        let bytes = Random(6).bytes(48);
        let mut whole = start.clone();
        whole.update(&bytes);
        let zero = start.zero_state().unwrap();
        for i in 0..=bytes.len() {
            for j in i..=bytes.len() {
                let [mut a, mut b, mut c] = [start.clone(), zero.clone(), zero.clone()];
                a.update(&bytes[..i]);
                b.update(&bytes[i..j]);
                c.update(&bytes[j..]);
                let (b_len, c_len) = ((j - i) as u64, (bytes.len() - j) as u64);

                let mut left = a.clone();
                left.concat(&b, b_len);
                left.concat(&c, c_len);
                assert!(left == whole, "(a b) c, cut at {i} and {j}");

                b.concat(&c, c_len);
                a.concat(&b, b_len + c_len);
                assert!(a == whole, "a (b c), cut at {i} and {j}");
            }
        }
    }
    check(&Crc32c::new());
    check(&Crc32::new());
    for seed in SEEDS {
        check(&Crc32c::raw(seed));
        check(&Crc32::raw(seed));
    }
}

#[test]
fn states_of_equal_length_add_like_their_bytes() {
    fn check<C: Crc>() {
        let (a, b) = (Random(7).bytes(777), Random(8).bytes(777));
        let sum: Vec<u8> = a.iter().zip(&b).map(|(a, b)| a ^ b).collect();
        let mut crc = C::raw(0x1234_5678);
        crc.update(&a);
        let mut other = crc.zero_state().unwrap();
        other.update(&b);
        crc.add(&other);
        assert_eq!(crc.state(), after(C::raw(0x1234_5678), &sum));
    }
    check::<Crc32c>();
    check::<Crc32>();
}

/// What revoking a half-sent message does: bytes that will not be sent become zeros in a finished checksum.
#[test]
fn unsent_bytes_are_taken_out_without_the_sent_ones() {
    let bytes = Random(9).bytes(10_000);
    let mut crc = Digest::new(Crc32c::new());
    crc.update(&bytes);

    let mut unsent = crc.zero_state().unwrap();
    unsent.update(&bytes[1234..8000]);
    unsent.zeros(2000);
    assert!(crc.add(&unsent));

    let mut expected = bytes;
    expected[1234..8000].fill(0);
    assert_eq!(crc.value(), Some(standard_crc32c(&expected)));
}

// ---- the wire

#[test]
fn the_value_is_written_in_the_order_asked_for_and_never_past_the_end() {
    const KEPT_IN_A_CONSTANT: Crc32c = Crc32c::raw(0x0102_0304).big_endian();
    let little = Crc32::raw(0x0102_0304);
    for len in 0..8 {
        let fits = len.min(4);
        let mut out = vec![0xee; len];
        KEPT_IN_A_CONSTANT.write(&mut out);
        assert_eq!(out[..fits], [1, 2, 3, 4][..fits]);
        assert!(out[fits..].iter().all(|&byte| byte == 0xee));

        little.write(&mut out);
        assert_eq!(out[..fits], [4, 3, 2, 1][..fits]);
        assert!(out[fits..].iter().all(|&byte| byte == 0xee));
    }
}

// ---- checksums without their type

#[test]
fn a_digest_does_what_its_checksum_does() {
    fn check<C: Crc>(start: C) {
        let mut crc = start.clone();
        let mut digest = Digest::new(start);
        crc.update(b"some bytes");
        digest.update(b"some bytes");
        crc.zeros(1 << 40);
        digest.zeros(1 << 40);
        let before = digest.clone();
        digest.update(b"more");

        assert_eq!(before.downcast_ref::<C>().map(C::state), Some(crc.state()));
        crc.update(b"more");
        assert!(digest.downcast_ref::<C>() == Some(&crc));
        assert_eq!((digest.width(), digest.is_linear()), (4, true));

        let (mut expected, mut written) = ([0; 4], [0; 4]);
        crc.write(&mut expected);
        digest.write(&mut written);
        assert_eq!(written, expected);
    }
    check(Crc32c::new().big_endian());
    check(Crc32c::raw(7));
    check(Crc32::new());
    check(Crc32::raw(7).big_endian());
    assert!(size_of::<Digest>() <= 24);
}

#[test]
fn digests_of_different_kinds_refuse_each_other_and_stay_as_they_were() {
    let all = [
        Digest::new(Crc32c::raw(7)),
        Digest::new(Crc32::raw(7)),
        Digest::new(Parity(7)),
        Digest::new(Fletcher::default()),
    ];
    for (i, one) in all.iter().enumerate() {
        for (j, other) in all.iter().enumerate().filter(|&(j, _)| j != i) {
            let mut changed = one.clone();
            assert!(!changed.add(other), "{i} and {j}");
            assert!(!changed.concat(other, 100), "{i} and {j}");
            assert!(!changed.same_kind(other), "{i} and {j}");
            assert_eq!(written(&changed), written(one));
        }
    }
}

#[test]
fn a_linear_checksum_of_the_users_own_joins_like_a_built_in_one() {
    let mut whole = Digest::new(Parity(0x55));
    whole.update(b"head and payload");

    let mut head = Digest::new(Parity(0x55));
    head.update(b"head and ");
    let mut payload = head.zero_state().unwrap();
    payload.update(b"payload");
    assert!(head.concat(&payload, 7));

    assert!(head.is_linear());
    assert_eq!(written(&head), written(&whole));
    assert_eq!(head.downcast_ref::<Parity>().map(|parity| parity.0), Some(written(&whole)[0]));
    assert_eq!(head.value(), None);
    // Two of one type may differ in a parameter, so nothing is shared between them unasked.
    assert!(!head.same_kind(&whole));
}

#[test]
fn a_checksum_that_is_not_linear_says_so_and_is_not_joined() {
    let mut digest = Digest::new(Fletcher::default());
    digest.update(b"abcde");
    // The check value of Fletcher-16 that is printed everywhere.
    assert_eq!(written(&digest), 0xc8f0_u16.to_be_bytes());

    assert!(!digest.is_linear());
    assert!(digest.zero_state().is_none());
    assert!(!digest.concat(&digest.clone(), 5));
    assert!(!digest.add(&digest.clone()));
    assert_eq!(written(&digest), 0xc8f0_u16.to_be_bytes());
}

#[test]
fn zeros_by_default_are_read() {
    for len in [0, 1, 4095, 4096, 4097, 10_000] {
        let mut read = Fletcher::default();
        read.update(b"abcde");
        let mut digest = Digest::new(read.clone());
        digest.zeros(len as u64);
        read.update(&vec![0; len]);
        assert_eq!(written(&digest), written(&Digest::new(read)), "{len} zeros");
    }
}

/// `Fletcher::write` panics on an `out` of the wrong length; a digest never passes it one.
#[test]
fn a_digest_writes_what_fits_even_if_the_checksum_would_panic() {
    let mut digest = Digest::new(Fletcher::default());
    digest.update(b"abcde");
    for len in 0..5 {
        let fits = len.min(2);
        let mut out = vec![0xee; len];
        digest.write(&mut out);
        assert_eq!(out[..fits], [0xc8, 0xf0][..fits]);
        assert!(out[fits..].iter().all(|&byte| byte == 0xee));
    }
}

#[test]
fn debug_shows_the_kind_and_the_state() {
    let shown = format!("{:?}", Digest::new(Crc32c::raw(0xabc)));
    assert_eq!(shown, "Digest(Crc32c { state: 0x00000abc, value: 0x00000abc })");
    assert_eq!(format!("{:?}", Crc32::default()), "Crc32 { state: 0xffffffff, value: 0x00000000 }");
    assert_eq!(format!("{:?}", Digest::new(Parity(0))), "Digest(custom)");
}

// ---- references

/// What both built-in checksums have beyond the trait.
trait Crc: Checksum + PartialEq {
    /// Reflected, as in the register.
    const POLYNOMIAL: u32;
    fn raw(seed: u32) -> Self;
    fn state(&self) -> u32;
}

impl Crc for Crc32c {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    fn raw(seed: u32) -> Self {
        Self::raw(seed)
    }
    fn state(&self) -> u32 {
        self.state()
    }
}

impl Crc for Crc32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    fn raw(seed: u32) -> Self {
        Self::raw(seed)
    }
    fn state(&self) -> u32 {
        self.state()
    }
}

fn after<C: Crc>(mut crc: C, bytes: &[u8]) -> u32 {
    crc.update(bytes);
    crc.state()
}

fn standard_crc32c(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.value()
}

fn written(digest: &Digest) -> Vec<u8> {
    let mut out = vec![0; digest.width()];
    digest.write(&mut out);
    out
}

/// The shift register, one bit at a time.
fn bitwise(polynomial: u32, mut register: u32, bytes: &[u8]) -> u32 {
    for &byte in bytes {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = if register & 1 == 1 { register >> 1 ^ polynomial } else { register >> 1 };
        }
    }
    register
}

/// A linear map of the register: column i is the image of bit i. Shares nothing with polynomial arithmetic.
#[derive(Clone, Copy)]
struct Matrix([u32; 32]);

impl Matrix {
    fn zero_byte(polynomial: u32) -> Self {
        Self(std::array::from_fn(|i| bitwise(polynomial, 1 << i, &[0])))
    }

    fn times(&self, register: u32) -> u32 {
        (0..32).filter(|i| register >> i & 1 == 1).fold(0, |sum, i| sum ^ self.0[i])
    }

    fn power(self, mut exponent: u64) -> Self {
        let mut result = Self(std::array::from_fn(|i| 1 << i));
        let mut base = self;
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = Self(result.0.map(|column| base.times(column)));
            }
            base = Self(base.0.map(|column| base.times(column)));
            exponent >>= 1;
        }
        result
    }
}

/// Fletcher-16: two sums modulo 255, not linear.
#[derive(Clone, Default)]
struct Fletcher(u16, u16);

impl Checksum for Fletcher {
    fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 + u16::from(byte)) % 255;
            self.1 = (self.1 + self.0) % 255;
        }
    }

    fn width(&self) -> usize {
        2
    }

    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(&[self.1 as u8, self.0 as u8]);
    }
}

/// Exclusive or of all bytes: the simplest linear checksum, one whose `zeros` and `concat` are the defaults.
#[derive(Clone)]
struct Parity(u8);

impl Checksum for Parity {
    fn update(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, byte| sum ^ byte);
    }

    fn width(&self) -> usize {
        1
    }

    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(&[self.0]);
    }

    fn zero_state(&self) -> Option<Self> {
        Some(Self(0))
    }

    fn add(&mut self, other: &Self) {
        self.0 ^= other.0;
    }
}

/// SplitMix64: the same bytes in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}
