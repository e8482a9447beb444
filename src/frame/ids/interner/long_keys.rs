//! Keys that are too long to pack: their bytes, and their order.
//!
//! # Why
//! Every uuid has at least 16 bytes, so that long keys are as common as packed ones. In the table of keys, the hash of its
//! bytes stands for a long key, so that rows are looked up in the same passes as packed keys; the bytes are compared in
//! passes too. Bytes lie one key after the other: a key takes eight bytes more than its own. A majority vote over ten
//! million rows with two million uuids as text took 5.7 s, and 12.3 s with a hash map of boxed keys (medians of three, in
//! turn, on two busy cores); it held 0.58 and 0.80 GB.

use std::hash::{BuildHasher, Hasher};

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use rayon::prelude::*;

use super::hash::Secret;
use super::table::LOOKUP;
use crate::frame::ids::key::{Key, LONG, NULL, Packed, compare, with_bytes};
use crate::prefetch::prefetch;

/// The bytes of long keys, by the number of the key.
#[derive(Debug, Default)]
pub(in crate::frame) struct LongKeys {
    bytes: Vec<u8>,
    /// Where the bytes of each number end; a packed key has none here.
    ends: Vec<usize>,
}

impl LongKeys {
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds the bytes of the key `n`, which is above all numbers that are here.
    pub(super) fn push(&mut self, n: usize, bytes: &[u8]) {
        self.ends.resize(n, self.bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
    }

    /// Where the bytes of the key `n` start.
    fn start(&self, n: usize) -> usize {
        n.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    pub(super) fn get(&self, n: u32) -> &[u8] {
        let n = n as usize;
        &self.bytes[self.start(n)..self.ends[n]]
    }

    /// The key `n`, for which `word` stands in the table of keys.
    pub(in crate::frame) fn key(&self, n: u32, word: u128) -> Key<'_> {
        match word & LONG {
            LONG => Key::Long(self.get(n)),
            _ => Key::Packed(Packed(word)),
        }
    }

    /// Bytes that it holds, with those that it takes to make room for `more` keys as long as the present ones. How many of
    /// them are new is not known: their own bytes are counted where they come from.
    pub(super) fn held_bytes(&self, more: usize) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mean = self.bytes.len().div_ceil(self.ends.len());
        // The smaller list is still in memory while one of twice its size is filled.
        let grown = |length: usize, room: usize, more: usize| {
            if length + more > room { 3 * room } else { room }
        };
        let bytes = grown(self.bytes.len(), self.bytes.capacity(), more * mean);
        bytes + grown(self.ends.len(), self.ends.capacity(), more) * size_of::<usize>()
    }

    /// Starts loading the bytes of up to [`LOOKUP`] keys, which must be here.
    fn prefetch(&self, numbers: impl Iterator<Item = u32> + Clone) {
        numbers.clone().for_each(|n| prefetch(&self.ends, n as usize));
        numbers.for_each(|n| prefetch(&self.bytes, self.start(n as usize)));
    }

    /// The values, given by row and bytes, whose bytes are not those of the key with the number of their row.
    pub(super) fn unequal<'a>(
        &self,
        values: &[(u32, &'a [u8])],
        numbers: &[u32],
    ) -> Vec<(u32, &'a [u8])> {
        let mut unequal = Vec::new();
        for values in values.chunks(LOOKUP) {
            let found = values.iter().map(|(row, bytes)| (*row, *bytes, numbers[*row as usize]));
            let found = found.filter(|(.., n)| *n != NULL);
            self.prefetch(found.clone().map(|(.., n)| n));
            let others = found.filter(|(_, bytes, n)| self.get(*n) != *bytes);
            unequal.extend(others.map(|(row, bytes, _)| (row, bytes)));
        }
        unequal
    }
}

/// Hashes the bytes of long keys so that an attacker cannot predict the hashes.
pub(super) fn hasher(secret: Secret) -> SeedableRandomState {
    SeedableRandomState::with_seed(secret.0[0], SharedSeed::global_random())
}

/// The word that stands for a long key in the table of keys, unless it stands for another key with the same hash.
pub(super) fn word(hasher: &SeedableRandomState, bytes: &[u8]) -> Packed {
    let mut hash = hasher.build_hasher();
    hash.write(bytes);
    Packed::of_hash(hash.finish())
}

/// The keys of these numbers, ascending: their numbers, and their bytes by their position in this order. `words` has the
/// word of each number.
///
/// # Why
/// A comparison that reads the bytes of both keys waits for memory twice. After the bytes that all keys begin with, the
/// next 15 bytes decide nearly always, and they are sorted with the number. Bytes are then moved to their position once, as
/// all that follows reads them in this order.
pub(super) fn in_order(
    mut kept: Vec<u32>,
    words: &[u128],
    long: &LongKeys,
) -> (Vec<u32>, LongKeys) {
    let key = |n: u32| long.key(n, words[n as usize]);
    let skipped = common_prefix(kept.iter().map(|n| key(*n)));
    let decisive = |n: u32| with_bytes(key(n), |bytes| first_bytes(&bytes[skipped..]));
    let mut order: Vec<(u128, u32)> = kept.par_iter().map(|n| (decisive(*n), *n)).collect();
    order.par_sort_unstable_by(|(a, m), (b, n)| a.cmp(b).then_with(|| compare(key(*m), key(*n))));
    kept.iter_mut().zip(&order).for_each(|(kept, (_, n))| *kept = *n);
    drop(order);
    let mut sorted = LongKeys::default();
    sorted.ends.reserve_exact(kept.len());
    sorted.bytes.reserve_exact(kept.iter().map(|n| key(*n).len()).sum());
    for numbers in kept.chunks(LOOKUP) {
        let is_long = |n: &u32| words[*n as usize] & LONG == LONG;
        long.prefetch(numbers.iter().copied().filter(is_long));
        for n in numbers {
            with_bytes(key(*n), |bytes| sorted.push(sorted.ends.len(), bytes));
        }
    }
    (kept, sorted)
}

/// The number of bytes with which all keys begin.
fn common_prefix<'a>(mut keys: impl Iterator<Item = Key<'a>>) -> usize {
    let Some(first) = keys.next() else { return 0 };
    with_bytes(first, |first| {
        let mut common = first.len();
        for key in keys {
            common = with_bytes(key, |bytes| {
                first[..common].iter().zip(bytes).take_while(|(a, b)| a == b).count()
            });
            if common == 0 {
                break;
            }
        }
        common
    })
}

/// The packed key of up to 15 bytes; of more, a word that is above the packed key of its first 15.
fn first_bytes(bytes: &[u8]) -> u128 {
    let first = &bytes[..bytes.len().min(Packed::MAX)];
    let word = Packed::new(first).map_or(0, |packed| packed.0);
    if bytes.len() > Packed::MAX { word | LONG } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_keys_between_long_ones_take_no_bytes() {
        let mut long = LongKeys::default();
        long.push(2, b"of the third number");
        long.push(5, b"of the sixth number");
        assert_eq!(
            (long.get(2), long.get(5)),
            (&b"of the third number"[..], &b"of the sixth number"[..])
        );
        assert_eq!((long.get(0), long.get(4), long.bytes.len()), (&[][..], &[][..], 38));
    }

    /// However long the keys are, rows that may repeat them ask for no more than room for as many again.
    #[test]
    fn rows_that_may_repeat_long_keys_count_as_one_growth() {
        let mut long = LongKeys::default();
        assert_eq!(long.held_bytes(1000), 0);
        long.push(0, &vec![7; 400_000]);
        let bytes = |times: usize| {
            times * (long.bytes.capacity() + long.ends.capacity() * size_of::<usize>())
        };
        assert_eq!(long.held_bytes(0), bytes(1));
        assert_eq!(long.held_bytes(100_000), bytes(3));
    }

    /// Keys that differ in their first bytes, beyond 15 bytes, only in their length, and after a common prefix.
    #[test]
    fn keys_of_any_length_are_in_the_order_of_their_bytes() {
        let texts = |prefix: &str| {
            let ends = [
                "",
                "b",
                "a",
                "a\0",
                "fifteen letters",
                "fifteen letters\0",
                "fifteen letters and more",
                "fifteen letters and less",
                "another long text of letters",
                "ä",
            ];
            ends.map(|end| format!("{prefix}{end}"))
        };
        for prefix in ["", "x", "a prefix of all keys: "] {
            let texts = texts(prefix);
            let hasher = hasher(Secret([3, 5]));
            let mut long = LongKeys::default();
            let words: Vec<u128> = texts
                .iter()
                .enumerate()
                .map(|(n, text)| {
                    let bytes = text.as_bytes();
                    Packed::new(bytes)
                        .unwrap_or_else(|| {
                            long.push(n, bytes);
                            word(&hasher, bytes)
                        })
                        .0
                })
                .collect();
            let kept: Vec<u32> = (0..texts.len() as u32).filter(|n| *n != 1).collect();
            let (order, sorted) = in_order(kept.clone(), &words, &long);
            let mut want = kept;
            want.sort_by_key(|n| texts[*n as usize].as_bytes());
            assert_eq!(order, want);
            for (position, n) in (0..).zip(order) {
                assert_eq!(sorted.get(position), texts[n as usize].as_bytes(), "{prefix}");
            }
        }
    }
}
