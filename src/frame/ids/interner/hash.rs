//! Hashes of packed keys that an attacker cannot predict.

use std::hash::{BuildHasher, RandomState};

/// The random key of the hash function.
///
/// # Why
/// Ids are untrusted input. An attacker who can predict hashes can send ids whose probes all begin at one bucket, and a
/// lookup then walks past all of them. Every interner draws its own secret; numbers do not depend on hashes, so that
/// the secret changes no result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Secret(pub(super) [u64; 2]);

impl Secret {
    pub(super) fn draw() -> Self {
        let random = RandomState::new();
        Self([random.hash_one(0), random.hash_one(1)])
    }

    /// The hash of a key, whose upper bits choose the bucket.
    ///
    /// # Why
    /// Ids with a common prefix share one factor of the folded product, so that products of consecutive ids are equally far
    /// apart. With one secret of 230 this distance is so small or so regular that a search passes more than 200 of 4 096
    /// such ids, and up to all of them. After one more multiplication, searches are as short as with random hashes: at most
    /// 63 with 80 000 secrets (ids of an 8-byte prefix and a number of 4 bytes, in 8 192 buckets).
    #[inline]
    pub(super) fn hash(self, key: u128) -> u64 {
        fold(key as u64 ^ self.0[0], (key >> 64) as u64 ^ self.0[1]).wrapping_mul(GOLDEN_RATIO)
    }
}

/// 2^64 divided by the golden ratio, an odd number: the product carries low bits into the high ones, which choose the
/// bucket.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// Folded multiplication: both halves of a 128-bit product. Every input bit reaches every output bit, unless the other
/// factor is small or a power of two: see [`Secret::hash`].
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a).wrapping_mul(u128::from(b));
    (product as u64) ^ ((product >> 64) as u64)
}
