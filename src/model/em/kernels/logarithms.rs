//! Exponentials and logarithms that the compiler vectorises, and the logarithm of a long product.

use std::f64::consts::LN_2;

/// The larger of two numbers; `a` if one is NaN.
#[inline(always)]
pub(super) fn larger(a: f64, b: f64) -> f64 {
    // One operation. `f64::max` takes two more, which look for NaN.
    if b > a { b } else { a }
}

/// The natural logarithm of 2 as a sum; the low bits of the first part are zero, so that its product with an exponent
/// is exact.
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// 2^52 + 2^51: adding and then subtracting it rounds to an integer, and an integer n below 2^51 in its low bits makes it
/// larger by n.
const ROUND_TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// The exponential of a number of at most 0, to two units in the last place; 0 for a number of at most -708, where the
/// result comes close to the least normal number. It is a polynomial because the compiler vectorises that, but not a
/// call of the math library. It uses fused multiply-add, which rounds the same on every processor.
#[inline(always)]
pub(super) fn exp(x: f64) -> f64 {
    /// The minimax polynomial of degree 11 of the exponential for |x| <= ln(2) / 2 (relative error 1.3e-17), from the
    /// highest power down; the last two coefficients are those of 1 + x.
    const COEFFICIENTS: [f64; 12] = [
        2.510_037_592_470_971_7e-8,
        2.762_007_599_981_065e-7,
        2.755_726_848_011_633_3e-6,
        2.480_152_132_211_682_5e-5,
        1.984_126_986_304_067e-4,
        1.388_888_891_719_688_1e-3,
        8.333_333_333_330_065e-3,
        4.166_666_666_662_416_4e-2,
        0.166_666_666_666_666_69,
        0.500_000_000_000_000_1,
        1.0,
        1.0,
    ];
    let x = if x > -708.0 { x } else { -708.0 };
    let shifted = x.mul_add(std::f64::consts::LOG2_E, ROUND_TO_INTEGER);
    let power = shifted - ROUND_TO_INTEGER;
    let rest = power.mul_add(-LN_2_LOW, power.mul_add(-LN_2_HIGH, x));
    let mut value = COEFFICIENTS[0];
    for coefficient in &COEFFICIENTS[1..] {
        value = value.mul_add(rest, *coefficient);
    }
    // The low bits of `shifted` are the integer; it becomes the exponent of a power of two.
    let scale = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    if x > -708.0 { value * scale } else { 0.0 }
}

/// The natural logarithm of a positive normal number below 2^1023, to a relative error of 4.5e-16.
#[inline(always)]
pub(super) fn ln(x: f64) -> f64 {
    ln_ratio(x, 1.0)
}

/// ln(x / y) of positive normal numbers below 2^1023, whose ratio is between 2^-1022 and 2^1023, to a relative error of
/// 4.5e-16. Smoothed counts are far inside: they are at least 1e-10, and weights and pseudo-counts at most 1e100.
#[inline(always)]
pub(super) fn ln_ratio(x: f64, y: f64) -> f64 {
    ln_of_reduced(reduce_ratio(x, y))
}

/// The sum of [`ROUND_TO_INTEGER`] and the bias of binary exponents.
const ROUND_AND_BIAS: f64 = ROUND_TO_INTEGER + 1023.0;

/// z and n + [`ROUND_AND_BIAS`] for a ratio x / y = 2^n (1 + z) / (1 - z) with z in \[-1/5, 1/5\]. One division: the ratio
/// itself is never computed.
#[inline(always)]
fn reduce_ratio(x: f64, y: f64) -> (f64, f64) {
    let (scale, biased) = near_power(x, y);
    // A product with a power of two is exact, and so is the difference of two numbers within a factor of two.
    (y.mul_add(-scale, x) / y.mul_add(scale, x), biased)
}

/// A power of two, 2^n, within a factor of 3 / 2 of a ratio x / y, and n + [`ROUND_AND_BIAS`].
#[inline(always)]
fn near_power(x: f64, y: f64) -> (f64, f64) {
    /// The difference of the bits of two numbers is about 2^52 times the binary logarithm of their ratio. Half of 2^52
    /// rounds it to an integer; the rest is the bias of exponents.
    const ROUND: u64 = (1023 << 52) + (1 << 51);
    let bits = x.to_bits().wrapping_sub(y.to_bits()).wrapping_add(ROUND);
    let scale = f64::from_bits(bits & (0x7ff << 52));
    (scale, f64::from_bits((bits >> 52) | ROUND_TO_INTEGER.to_bits()))
}

/// The logarithm of a ratio from what [`reduce_ratio`] returns: n ln(2) + 2 (z + z^3 / 3 + z^5 / 5 + ...).
#[inline(always)]
fn ln_of_reduced((z, biased): (f64, f64)) -> f64 {
    /// The minimax polynomial of degree 6 in z^2 of (atanh(z) / z - 1) / z^2 for |z| <= 0.2005 (relative error of the
    /// logarithm 1.8e-17), from the highest power down.
    const COEFFICIENTS: [f64; 7] = [
        7.672_914_425_349_286e-2,
        7.626_812_643_217_934e-2,
        9.093_074_000_988_288e-2,
        0.111_110_723_870_416_82,
        0.142_857_146_488_915_54,
        0.199_999_999_984_410_9,
        0.333_333_333_333_354_13,
    ];
    let square = z * z;
    // Horner's scheme has the fewest operations; those of several cells overlap.
    let mut series = COEFFICIENTS[0];
    for coefficient in &COEFFICIENTS[1..] {
        series = series.mul_add(square, *coefficient);
    }
    (2.0 * z * square).mul_add(series, (biased - ROUND_AND_BIAS).mul_add(LN_2, 2.0 * z))
}

/// ln(1 + x / y) of x of at least 0 and y of at least 1e-10, both at most 1e110, to a relative error of 4.8e-16, also where
/// the sum x + y rounds off x. There is no branch, so that the compiler vectorises it.
#[inline(always)]
pub(super) fn ln_1p_ratio(x: f64, y: f64) -> f64 {
    let sum = y + x;
    // What the sum has lost of x. What it has lost of a smaller y is less than the rounding of the result.
    let lost = x - (sum - y);
    let (scale, biased) = near_power(sum, y);
    ln_of_reduced(((y.mul_add(-scale, sum) + lost) / y.mul_add(scale, sum), biased))
}

/// Replaces a positive normal number by its mantissa, in [1, 2), and returns its binary exponent.
#[inline(always)]
#[allow(clippy::cast_possible_wrap)]
pub(super) fn take_exponent(p: &mut f64) -> i64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = p.to_bits();
    *p = f64::from_bits((bits & MANTISSA) | (1023 << 52));
    (bits >> 52) as i64 - 1023
}

/// The logarithm of a product of many positive numbers, with one call of `ln` at the end.
pub(super) struct LogProduct {
    mantissa: f64,
    exponent: i64,
}

impl Default for LogProduct {
    fn default() -> Self {
        Self { mantissa: 1.0, exponent: 0 }
    }
}

impl LogProduct {
    #[inline(always)]
    pub(super) fn push(&mut self, factor: f64) {
        self.mantissa *= factor;
        self.exponent += take_exponent(&mut self.mantissa);
    }

    pub(super) fn ln(&self) -> f64 {
        self.mantissa.ln() + self.exponent as f64 * LN_2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_the_exponent_rounds_nothing() {
        for value in [1.0, 0.75, 3.0e-300, f64::MIN_POSITIVE, 1.5e300] {
            let mut mantissa = value;
            let exponent = take_exponent(&mut mantissa);
            assert!((1.0..2.0).contains(&mantissa));
            assert_eq!(mantissa * 2_f64.powi(i32::try_from(exponent).unwrap()), value);
        }
    }

    #[test]
    fn the_polynomials_are_the_exponential_and_the_logarithm() {
        for n in 0..=70_700 {
            let x = -f64::from(n) / 100.0 - 1e-3 * f64::from(n % 7);
            let (got, want) = (exp(x), x.exp());
            assert!((got - want).abs() <= 4.5e-16 * want, "{x}: {got} is not {want}");
        }
        for n in 1..=100_000 {
            let x = f64::from(n) * 1.3e-5;
            for x in [x, x.powi(9), x * 1e-20] {
                let (got, want) = (ln(x), x.ln());
                assert!((got - want).abs() <= 4.5e-16 * want.abs(), "{x}: {got} is not {want}");
                for y in [1.0 + x, 3.0 * x, 1.7] {
                    let (got, want) = (ln_ratio(x, y), (x / y).ln());
                    // The quotient is rounded, which changes its logarithm.
                    let rounded = 4.5e-16 * want.abs() + 1.2e-16;
                    assert!((got - want).abs() <= rounded, "{x} / {y}: {got} is not {want}");
                }
            }
        }
        for n in -3_000..=3_000 {
            let ratio = 10_f64.powf(f64::from(n) / 10.0) * 1.3;
            for y in [1.0, 1e-7, 1e7] {
                let x = ratio * y;
                if x.is_normal() {
                    let (got, want) = (ln_ratio(x, y), x.ln() - y.ln());
                    let scale = x.ln().abs() + y.ln().abs();
                    assert!(
                        (got - want).abs() <= 4.5e-16 * scale,
                        "{x} / {y}: {got} is not {want}"
                    );
                }
            }
        }
        // Where the error is largest: n ln(2) and 2 z partly cancel.
        for n in 0..20_000 {
            let x = 0.74 + 5e-7 * f64::from(n);
            assert!((ln(x) - x.ln()).abs() <= 4.5e-16 * x.ln().abs(), "{x}");
        }
        // Near 1 the difference is exact, but the quotient is not.
        for n in 1..20_000 {
            let (x, y) = (1.3 + 1.7e-6 * f64::from(n), 1.3);
            let want = ((x - y) / y).ln_1p();
            assert!((ln_ratio(x, y) - want).abs() <= 6e-16 * want, "{x} / {y}");
        }
        let (least, most) = (f64::MIN_POSITIVE, 2_f64.powi(1022));
        for (x, y) in [(most, 0.5), (least, 1.0), (1.0, most), (least, least), (most, most)] {
            let want = x.ln() - y.ln();
            assert!((ln_ratio(x, y) - want).abs() <= 4.5e-16 * want.abs(), "{x} / {y}");
        }
        assert_eq!([exp(0.0), exp(-1e4), exp(f64::NEG_INFINITY)], [1.0, 0.0, 0.0]);
        for n in 0..=4_000 {
            let x = 10_f64.powf(f64::from(n) / 40.0 - 50.0) * 1.7;
            for y in [1.0, 0.3, 1e-10, 7e20] {
                let (got, want) = (ln_1p_ratio(x, y), (x / y).ln_1p());
                assert!((got - want).abs() <= 1e-15 * want, "{x} / {y}: {got} is not {want}");
            }
        }
        for y in [1e-10, 1.0, 1e100] {
            assert_eq!(ln_1p_ratio(0.0, y), 0.0);
        }
    }
}
