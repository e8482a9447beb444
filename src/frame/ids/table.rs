//! A hash table of packed keys, with lookups of many keys at a time.

use super::hash::Secret;
use super::key::{Key, Packed};
use crate::frame::offsets::number;
use crate::prefetch::prefetch;

/// The number that stands for a null, or for an unknown value.
pub const NULL: u32 = u32::MAX;

/// A value's index in its array, and its key.
pub(super) type IndexedKey = (u32, Packed);

/// The low byte of a word that stands for a long key; a packed key's is its length, at most 15.
pub(super) const LONG: u128 = 0xff;

/// The number of rows looked up together: their hashes and slots stay in the level-1 cache.
const LOOKUP: usize = 1024;

/// The packed keys by number, and a hash table that finds the number of a key.
///
/// ```text
/// slots   [ tag | number + 1 ]  open addressing, 8 bytes a slot, at most half full
/// keys    [ packed key ]        by number; the word of a long key holds its index among the long keys
/// ```
/// # Why
/// A table of millions of ids lies in memory, not in the cache, and a lookup waits for memory twice: for the slot and
/// for the key. Rows are looked up in passes (all hashes, all slots, all keys), so that the processor waits for many
/// rows at once. Only new keys and collisions are then looked up row by row.
///
/// The upper bits of the hash, which the tag stores, are the index of the slot where a search begins. So a larger table
/// has the same order, and is filled from the smaller one in one pass over both, without reading the keys.
pub(super) struct KeyTable {
    slots: Vec<u64>,
    /// The right shift that turns a hash, or the word of a slot, into the index of the slot where its search begins.
    shift: u32,
    keys: Vec<u128>,
    secret: Secret,
}

/// The upper half of a hash or a slot: compared before the key is read.
#[inline]
fn tag(word: u64) -> u64 {
    word & 0xffff_ffff_0000_0000
}

impl KeyTable {
    pub(super) fn new(secret: Secret) -> Self {
        Self { slots: vec![0; 2], shift: 63, keys: Vec::new(), secret }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn keys(&self) -> &[u128] {
        &self.keys
    }

    /// Replaces the key of every number. The slots do not change, so that no lookup may follow.
    pub(super) fn replace_keys(&mut self, keys: Vec<u128>) {
        self.keys = keys;
    }

    pub(super) fn into_keys(self) -> Vec<u128> {
        self.keys
    }

    /// Bytes that it holds, with those that `more` new keys may add.
    pub(super) fn bytes(&self, more: usize) -> usize {
        let (now, then) = (self.slots.len(), self.slots_for(more));
        // The smaller table is still in memory while a larger one is filled.
        let slots = if then > now { now + then } else { now };
        // The same holds for the list of keys.
        let (room, wanted) = (self.keys.capacity(), self.keys.len() + more);
        let keys = if wanted > room { room + wanted.max(2 * room) } else { room };
        slots * size_of::<u64>() + keys * size_of::<u128>()
    }

    /// The number of slots of which the present keys and `more` new ones take at most half.
    fn slots_for(&self, more: usize) -> usize {
        let wanted = (2 * (self.keys.len() + more)).next_power_of_two();
        // The 32 bits of a tag can address 2^32 slots; beyond 2^31 keys more than half of them are taken.
        wanted.min(1 << 32).max(self.slots.len())
    }

    /// Adds the word of the long key with index `long`; returns its number.
    pub(super) fn push_long(&mut self, long: usize) -> u32 {
        self.keys.push(((long as u128) << 8) | LONG);
        number(self.keys.len() - 1)
    }

    /// Writes the numbers of known keys, and returns the rows of the other keys.
    pub(super) fn find(&self, mut rows: Vec<IndexedKey>, numbers: &mut [u32]) -> Vec<IndexedKey> {
        let (mut hashes, mut slots) = ([0_u64; LOOKUP], [0_u64; LOOKUP]);
        for rows in rows.chunks(LOOKUP) {
            self.hash(rows.iter().map(|(_, key)| key.0), &mut hashes);
            for n in 0..rows.len() {
                slots[n] = self.slots[self.begin(hashes[n])];
                prefetch(&self.keys, (slots[n] as u32).wrapping_sub(1) as usize);
            }
            for (n, (row, key)) in rows.iter().enumerate() {
                let there = (slots[n] as u32).wrapping_sub(1);
                let is_same = tag(slots[n]) == tag(hashes[n])
                    && self.keys.get(there as usize) == Some(&key.0);
                numbers[*row as usize] = if is_same { there } else { NULL };
            }
            for (n, (row, key)) in rows.iter().enumerate() {
                if numbers[*row as usize] == NULL && slots[n] != 0 {
                    numbers[*row as usize] = self.probe(hashes[n], *key).unwrap_or(NULL);
                }
            }
        }
        rows.retain(|(row, _)| numbers[*row as usize] == NULL);
        rows
    }

    /// Writes the numbers of keys; new keys get the next numbers, in order.
    pub(super) fn insert(&mut self, rows: &[IndexedKey], numbers: &mut [u32]) {
        self.reserve(rows.len());
        let mut hashes = [0_u64; LOOKUP];
        for rows in rows.chunks(LOOKUP) {
            self.hash(rows.iter().map(|(_, key)| key.0), &mut hashes);
            for (hash, (row, key)) in hashes.iter().zip(rows) {
                numbers[*row as usize] = match self.probe(*hash, *key) {
                    Ok(there) => there,
                    Err(free) => {
                        self.keys.push(key.0);
                        self.slots[free] = tag(*hash) | self.keys.len() as u64;
                        number(self.keys.len() - 1)
                    }
                };
            }
        }
    }

    /// The slot where the search for a hash, or for the word of a slot, begins.
    #[inline]
    fn begin(&self, word: u64) -> usize {
        (word >> self.shift) as usize
    }

    /// Hashes up to [`LOOKUP`] keys, and prefetches the slots where their searches begin.
    fn hash(&self, keys: impl Iterator<Item = u128>, hashes: &mut [u64; LOOKUP]) {
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.secret.hash(key);
            prefetch(&self.slots, self.begin(*hash));
        }
    }

    /// Searches the slots from the key's first one on; returns its number, or the free slot for it.
    fn probe(&self, hash: u64, key: Packed) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut at = self.begin(hash);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Err(at);
            }
            let there = (slot as u32) - 1;
            if tag(slot) == tag(hash) && self.keys[there as usize] == key.0 {
                return Ok(there);
            }
            at = (at + 1) & mask;
        }
    }

    /// Grows the table so that `more` new keys leave at most half of the slots taken.
    fn reserve(&mut self, more: usize) {
        let slots = self.slots_for(more);
        if slots == self.slots.len() {
            return;
        }
        let old = std::mem::replace(&mut self.slots, vec![0; slots]);
        self.shift = 64 - slots.ilog2();
        let mask = slots - 1;
        for slot in old.into_iter().filter(|slot| *slot != 0) {
            let mut at = self.begin(slot);
            while self.slots[at] != 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = slot;
        }
    }

    /// The largest number of slots that a search passes before it finds its key.
    #[cfg(test)]
    pub(super) fn longest_search(&self) -> usize {
        let mask = self.slots.len() - 1;
        let taken = self.slots.iter().enumerate().filter(|(_, slot)| **slot != 0);
        let searches = taken.map(|(at, slot)| {
            let key = self.keys[*slot as u32 as usize - 1];
            at.wrapping_sub(self.begin(self.secret.hash(key))) & mask
        });
        searches.max().unwrap_or(0)
    }
}

/// The key that a word of the table stands for.
pub(super) fn key(word: u128, long: &[Box<[u8]>]) -> Key<'_> {
    match word & LONG {
        LONG => Key::Long(&long[(word >> 8) as usize]),
        _ => Key::Packed(Packed(word)),
    }
}
