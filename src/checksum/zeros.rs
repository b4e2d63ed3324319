//! Appending zero bytes to a CRC-32 without reading them: the arithmetic under `zeros` and `concat`.

pub(super) static CASTAGNOLI: ZeroOperators = ZeroOperators::new(0x82f6_3b78);
pub(super) static IEEE: ZeroOperators = ZeroOperators::new(0xedb8_8320);

/// What it takes to append zero bytes to a CRC-32 without reading them.
///
/// The register is a polynomial over GF(2), and a zero byte multiplies it by x^8 modulo the CRC's polynomial.
/// So n zero bytes multiply it by x^(8n), which is the product of one table entry for each non-zero digit of
/// n in base 256. (zlib's `crc32_combine` keeps the powers of two instead: smaller, and one step for each
/// bit.)
///
/// Polynomials are reflected, as in the register: the top bit is the coefficient of x^0.
pub(super) struct ZeroOperators {
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

    pub(super) fn append_zeros(&self, mut state: u32, len: u64) -> u32 {
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
