//! A hash table of the words of keys, with lookups of many keys at a time.

use std::ops::RangeInclusive;

use rayon::prelude::*;

use super::direct::DirectTable;
use super::hash::Secret;
use crate::error::{Error, Result};
use crate::frame::annotations::offsets::number;
use crate::frame::ids::key::{IndexedKey, NULL, Packed};
use crate::prefetch::prefetch;

/// The number of rows looked up together: their hashes and buckets stay in the level-1 cache.
pub(super) const LOOKUP: usize = 1024;

/// The words of the keys by number, and a hash table that finds the number of a word.
///
/// ```text
/// buckets  [ tag | number + 1 ]  open addressing, 8 bytes a bucket, at most half full
/// keys     [ word ]              by number: a packed key, or a word that stands for a long key
/// ```
/// # Why
/// A table of millions of ids lies in memory, not in the cache, and a lookup waits for memory twice: for the bucket and
/// for the key. Rows are looked up in passes (all hashes, all buckets, all keys), so that the processor waits for many
/// rows at once. The second pass goes on to the first bucket with the right tag, which is nearly always in the same cache
/// line: a quarter of the keys are not in their own bucket, and waiting for these keys one by one took 8 more ns a row
/// where there are two million. Only new keys and equal tags of different keys are then looked up row by row.
///
/// The upper bits of the hash, which the tag stores, are the index of the bucket where a search begins. So a larger table
/// has the same order, and is filled from the smaller one in one pass over both, without reading the keys.
///
/// Integers of a small range are found in a [`DirectTable`] as soon as it takes no more memory than the buckets would.
pub(super) struct KeyTable {
    /// The words of the buckets; none where there is a direct table.
    buckets: Vec<u64>,
    /// The number of buckets; for a direct table, the number of buckets that take the same memory.
    n_buckets: usize,
    /// The right shift that turns a hash, or the word of a bucket, into the index of the bucket where its search begins.
    shift: u32,
    keys: Vec<u128>,
    secret: Secret,
    /// The range of the keys, where all are integers of 64 bits.
    integers: Option<RangeInclusive<i64>>,
    direct: Option<DirectTable>,
}

/// The number of buckets of a direct table that take the memory of one bucket of the hash table.
const DIRECT: usize = size_of::<u64>() / size_of::<u32>();

/// The upper half of a hash or a bucket: compared before the key is read.
#[inline]
fn tag(word: u64) -> u64 {
    word & 0xffff_ffff_0000_0000
}

impl KeyTable {
    pub(super) fn new(secret: Secret) -> Self {
        let (buckets, shift) = empty(2);
        Self {
            buckets,
            n_buckets: 2,
            shift,
            keys: Vec::new(),
            secret,
            integers: None,
            direct: None,
        }
    }

    /// A table whose keys are all integers.
    #[allow(clippy::reversed_empty_ranges)]
    pub(super) fn of_integers(secret: Secret) -> Self {
        Self { integers: Some(i64::MAX..=i64::MIN), ..Self::new(secret) }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn keys(&self) -> &[u128] {
        &self.keys
    }

    /// The table in which integers are found by themselves, where there is one.
    pub(super) fn direct(&self) -> Option<&DirectTable> {
        self.direct.as_ref()
    }

    /// Replaces the key of every number. The buckets do not change, so that no lookup may follow.
    pub(super) fn replace_keys(&mut self, keys: Vec<u128>) {
        self.keys = keys;
    }

    pub(super) fn into_keys(self) -> Vec<u128> {
        self.keys
    }

    /// The keys for which `keep` holds, ascending, each with its number: words of [`Packed::numbered`]. No key may have
    /// more than [`Packed::NUMBERED`] bytes.
    pub(super) fn into_order(self, keep: impl Fn(u32) -> bool) -> Vec<u128> {
        let mut order = self.keys;
        if let Some(direct) = self.direct {
            // The table has all that is in the keys, so that their memory is free for the order.
            order.clear();
            let kept = direct.in_order().filter(|(_, n)| keep(*n));
            order.extend(kept.map(|(key, n)| key.numbered(n)));
            return order;
        }
        for (n, word) in order.iter_mut().enumerate() {
            *word = Packed(*word).numbered(number(n));
        }
        order.retain(|word| keep(Packed::of_numbered(*word).1));
        order.par_sort_unstable();
        order
    }

    /// Bytes that it holds, with those that `more` new keys may add.
    pub(super) fn bytes(&self, more: usize) -> usize {
        let now = self.n_buckets;
        // A direct table holds more keys than as many buckets would, so that its keys alone do not say that it grows.
        let then = if more > 0 { self.buckets_for(more) } else { now };
        // A smaller hash table is still in memory while a larger one is filled; a direct table is dropped before.
        let buckets = if then > now && self.direct.is_none() { now + then } else { then };
        // The smaller list of keys is still in memory while they are moved to a larger one.
        let (room, wanted) = (self.keys.capacity(), self.keys.len() + more);
        let keys = if wanted > room { room + wanted.max(2 * room) } else { room };
        buckets * size_of::<u64>() + keys * size_of::<u128>()
    }

    /// The number of buckets of which the present keys and `more` new ones take at most half.
    fn buckets_for(&self, more: usize) -> usize {
        let wanted = (2 * (self.keys.len() + more)).next_power_of_two();
        // The 32 bits of a tag can address 2^32 buckets; beyond 2^31 keys more than half of them are taken.
        wanted.min(1 << 32).max(self.n_buckets)
    }

    /// The number of a key, where it has one.
    pub(super) fn get(&self, key: Packed) -> Option<u32> {
        self.probe(self.secret.hash(key.0), key).ok()
    }

    /// Starts loading the buckets of up to [`LOOKUP`] keys.
    pub(super) fn prefetch(&self, keys: impl Iterator<Item = Packed>) {
        keys.for_each(|key| prefetch(&self.buckets, self.begin(self.secret.hash(key.0))));
    }

    /// Writes the numbers of known keys, and returns the rows of the other keys.
    pub(super) fn find(&self, mut rows: Vec<IndexedKey>, numbers: &mut [u32]) -> Vec<IndexedKey> {
        if let Some(direct) = &self.direct {
            rows.retain(|(row, key)| {
                let found = direct.get(key.as_integer());
                numbers[*row as usize] = found.unwrap_or(NULL);
                found.is_none()
            });
            return rows;
        }
        let (mut hashes, mut buckets) = ([0_u64; LOOKUP], [0_u64; LOOKUP]);
        for rows in rows.chunks(LOOKUP) {
            self.hash(rows.iter().map(|(_, key)| key.0), &mut hashes);
            for n in 0..rows.len() {
                buckets[n] = self.buckets[self.candidate(self.begin(hashes[n]), hashes[n])];
                prefetch(&self.keys, (buckets[n] as u32).wrapping_sub(1) as usize);
            }
            for (n, (row, key)) in rows.iter().enumerate() {
                let there = (buckets[n] as u32).wrapping_sub(1);
                let is_same = self.keys.get(there as usize) == Some(&key.0);
                numbers[*row as usize] = if is_same { there } else { NULL };
            }
            for (n, (row, key)) in rows.iter().enumerate() {
                if numbers[*row as usize] == NULL && buckets[n] != 0 {
                    numbers[*row as usize] = self.probe(hashes[n], *key).unwrap_or(NULL);
                }
            }
        }
        rows.retain(|(row, _)| numbers[*row as usize] == NULL);
        rows
    }

    /// Writes the numbers of keys; new keys get the next numbers, in order.
    ///
    /// # Errors
    /// When a direct table does not cover its keys, which is a defect.
    pub(super) fn insert(&mut self, rows: &[IndexedKey], numbers: &mut [u32]) -> Result<()> {
        self.reserve(rows)?;
        if let Some(direct) = &mut self.direct {
            for (row, key) in rows {
                let bucket = direct.bucket(*key).ok_or_else(not_covered)?;
                if *bucket == 0 {
                    self.keys.push(key.0);
                    *bucket = number(self.keys.len());
                }
                numbers[*row as usize] = *bucket - 1;
            }
            return Ok(());
        }
        let mut hashes = [0_u64; LOOKUP];
        for rows in rows.chunks(LOOKUP) {
            self.hash(rows.iter().map(|(_, key)| key.0), &mut hashes);
            for (hash, (row, key)) in hashes.iter().zip(rows) {
                numbers[*row as usize] = self.get_or_insert(*hash, *key);
            }
        }
        Ok(())
    }

    /// The number of a key, which gets the next one where it is new, and whether it is new.
    pub(super) fn insert_one(&mut self, key: Packed) -> Result<(u32, bool)> {
        self.reserve(&[(0, key)])?;
        let next = number(self.keys.len());
        let n = self.get_or_insert(self.secret.hash(key.0), key);
        Ok((n, n == next))
    }

    #[inline]
    fn get_or_insert(&mut self, hash: u64, key: Packed) -> u32 {
        match self.probe(hash, key) {
            Ok(there) => there,
            Err(free) => {
                self.keys.push(key.0);
                self.buckets[free] = tag(hash) | self.keys.len() as u64;
                number(self.keys.len() - 1)
            }
        }
    }

    /// The bucket where the search for a hash, or for the word of a bucket, begins.
    #[inline]
    fn begin(&self, word: u64) -> usize {
        (word >> self.shift) as usize
    }

    /// Hashes up to [`LOOKUP`] keys, and prefetches the buckets where their searches begin.
    fn hash(&self, keys: impl Iterator<Item = u128>, hashes: &mut [u64; LOOKUP]) {
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.secret.hash(key);
            prefetch(&self.buckets, self.begin(*hash));
        }
    }

    /// The next bucket, from `at` on, that has the hash's tag or is free.
    #[inline]
    fn candidate(&self, mut at: usize, hash: u64) -> usize {
        let mask = self.buckets.len() - 1;
        while self.buckets[at] != 0 && tag(self.buckets[at]) != tag(hash) {
            at = (at + 1) & mask;
        }
        at
    }

    /// Searches the buckets from the key's first one on; returns its number, or the free bucket for it.
    fn probe(&self, hash: u64, key: Packed) -> Result<u32, usize> {
        let mask = self.buckets.len() - 1;
        let mut at = self.begin(hash);
        loop {
            at = self.candidate(at, hash);
            let bucket = self.buckets[at];
            if bucket == 0 {
                return Err(at);
            }
            let there = (bucket as u32) - 1;
            if self.keys[there as usize] == key.0 {
                return Ok(there);
            }
            at = (at + 1) & mask;
        }
    }

    /// Makes room for new keys. A hash table grows so that they leave at most half of its buckets taken. It becomes a
    /// direct table as soon as their range takes at most half of that table, so that the range can grow by a half on
    /// either side. A direct table that does not cover their range is made again, or becomes a hash table.
    fn reserve(&mut self, rows: &[IndexedKey]) -> Result<()> {
        let buckets = self.buckets_for(rows.len());
        self.integers = self.integers.take().and_then(|range| widened(range, rows));
        let covers =
            |direct: &DirectTable| self.integers.as_ref().is_some_and(|r| direct.covers(r));
        if self.direct.as_ref().map_or(buckets == self.n_buckets, covers) {
            return Ok(());
        }
        self.n_buckets = buckets;
        let width = |range: &RangeInclusive<i64>| range.end().abs_diff(*range.start());
        if let Some(range) = self.integers.clone().filter(|range| width(range) < buckets as u64) {
            self.buckets = Vec::new();
            // The old table is dropped before the new one is made.
            self.direct = None;
            let mut direct = DirectTable::around(&range, DIRECT * buckets);
            for (key, n) in self.keys.iter().zip(1..) {
                *direct.bucket(Packed(*key)).ok_or_else(not_covered)? = n;
            }
            self.direct = Some(direct);
        } else if self.direct.take().is_some() {
            self.fill_from_keys(buckets);
        } else {
            self.fill_from_buckets(buckets);
        }
        Ok(())
    }

    fn fill_from_keys(&mut self, buckets: usize) {
        (self.buckets, self.shift) = empty(buckets);
        for (n, key) in self.keys.iter().enumerate() {
            let hash = self.secret.hash(*key);
            put(&mut self.buckets, self.shift, tag(hash) | (n as u64 + 1));
        }
    }

    fn fill_from_buckets(&mut self, buckets: usize) {
        let (new, shift) = empty(buckets);
        let old = std::mem::replace(&mut self.buckets, new);
        self.shift = shift;
        old.into_iter()
            .filter(|bucket| *bucket != 0)
            .for_each(|bucket| put(&mut self.buckets, shift, bucket));
    }

    /// The largest number of buckets that a search passes before it finds its key.
    #[cfg(test)]
    pub(super) fn longest_search(&self) -> usize {
        let mask = self.buckets.len() - 1;
        let taken = self.buckets.iter().enumerate().filter(|(_, bucket)| **bucket != 0);
        let searches = taken.map(|(at, bucket)| {
            let key = self.keys[*bucket as u32 as usize - 1];
            at.wrapping_sub(self.begin(self.secret.hash(key))) & mask
        });
        searches.max().unwrap_or(0)
    }
}

fn not_covered() -> Error {
    Error::bug("an id is outside the range of its direct table")
}

/// So many free buckets, a power of two, and their shift.
fn empty(buckets: usize) -> (Vec<u64>, u32) {
    (vec![0; buckets], 64 - buckets.ilog2())
}

/// Stores the word of a bucket in the first free bucket from its own on.
#[inline]
fn put(buckets: &mut [u64], shift: u32, word: u64) {
    let mask = buckets.len() - 1;
    let mut at = (word >> shift) as usize;
    while buckets[at] != 0 {
        at = (at + 1) & mask;
    }
    buckets[at] = word;
}

/// The range with further keys; `None` where one of them is no integer of 64 bits.
fn widened(range: RangeInclusive<i64>, rows: &[IndexedKey]) -> Option<RangeInclusive<i64>> {
    rows.iter().try_fold(range, |range, (_, key)| {
        let integer = i64::try_from(key.as_integer()).ok()?;
        Some(integer.min(*range.start())..=integer.max(*range.end()))
    })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn insert(table: &mut KeyTable, integers: Range<i64>) {
        let keys = integers.map(|integer| Packed::integer(integer.into()));
        let rows: Vec<IndexedKey> = (0..).zip(keys).collect();
        table.insert(&rows, &mut vec![NULL; rows.len()]).unwrap();
    }

    /// Bytes of so many buckets, and of the list of keys as it is.
    fn bytes(buckets: usize, table: &KeyTable) -> usize {
        buckets * size_of::<u64>() + table.keys.capacity() * size_of::<u128>()
    }

    /// 5 000 keys need 2^14 buckets, and 15 000 keys need 2^15. The direct table of 2^15 positions has the first integer at
    /// about -14 000, so that it covers 15 000 but not 32 000; a million is too far for a direct table.
    #[test]
    fn only_a_table_that_may_grow_counts_more_buckets_than_it_has() {
        let mut table = KeyTable::of_integers(Secret([1, 2]));
        insert(&mut table, 0..5_000);
        insert(&mut table, 5_000..15_000);
        assert!(table.direct().is_some());
        assert_eq!(table.bytes(0), bytes(1 << 14, &table));
        // The table that covers more is made after this one is dropped.
        assert_eq!(table.bytes(1), bytes(1 << 15, &table));
        insert(&mut table, 32_000..32_001);
        assert!(table.direct().is_some());
        assert_eq!(table.bytes(0), bytes(1 << 15, &table));
        insert(&mut table, 1_000_000..1_000_001);
        assert!(table.direct().is_none());
        assert_eq!(table.bytes(0), bytes(1 << 15, &table));
        assert_eq!(table.bytes(1), bytes(1 << 15, &table));
        // A larger hash table is filled from this one, and a larger list of keys from this one.
        let room = table.keys.capacity();
        let grown = bytes((1 << 15) + (1 << 16), &table) + 2 * room * size_of::<u128>();
        assert_eq!(table.bytes(room + 1 - table.len()), grown);
    }
}
