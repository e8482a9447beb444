//! Ids interned as they arrive, then numbered once in sorted order.
//!
//! # Why
//! Numbering by arrival would make every sum depend on the order of rows and files. Sorted numbers make the whole
//! job independent of it, and let tables come out in the order that a person would sort them.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::datatypes::DataType;
use rayon::slice::ParallelSliceMut;
use rustc_hash::FxBuildHasher;

use super::key::{Family, Key, Packed, compare, dictionary, for_each_key, to_array};
use crate::error::{Error, Result};

/// Stands for a null in the numbers that [`Interner::intern`] gives.
pub const NULL: u32 = u32::MAX;

/// Gives each distinct value a provisional number, in order of arrival.
///
/// ```text
/// slots   [ tag | number + 1 ]  open addressing, 8 bytes a slot, at most half full
/// keys    [ packed key ]        by number; a long key's word names its place in `long`
/// ```
/// # Why
/// A table of millions of ids lies in memory, not in the cache, and a lookup waits for it twice: for the slot and for
/// the key. A batch is looked up in passes (all hashes, all slots, all keys), so that the processor waits for many
/// rows at once. Only what is new, or collides, is then looked up row by row.
pub struct Interner {
    column: String,
    data_type: DataType,
    slots: Vec<u64>,
    keys: Vec<u128>,
    long: Vec<Box<[u8]>>,
    long_numbers: HashMap<Box<[u8]>, u32, FxBuildHasher>,
}

/// The low byte of a word in `keys` that stands for a long key; a packed key's is its length, at most 15.
const LONG: u128 = 0xff;

/// Rows looked up together: their passes stay in the fastest cache.
const LOOKUP: usize = 1024;

impl Interner {
    /// An empty interner for the column of that name (used in errors) and type.
    #[must_use]
    pub fn new(column: &str, data_type: &DataType) -> Self {
        Self {
            column: column.to_owned(),
            data_type: data_type.clone(),
            slots: vec![0; 1024],
            keys: Vec::new(),
            long: Vec::new(),
            long_numbers: HashMap::default(),
        }
    }

    /// The column's type.
    #[must_use]
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// How many distinct values have come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Appends the provisional number of each row of `array` to `numbers`, [`NULL`] where it is null.
    ///
    /// # Errors
    /// When the type is of another family than this interner's, or there are more than 2^32 - 2 values.
    pub fn intern(&mut self, array: &ArrayRef, numbers: &mut Vec<u32>) -> Result<()> {
        self.accept(array.data_type())?;
        numbers.reserve(array.len());
        if let Some((values, rows)) = dictionary(array) {
            let mut of_value = Vec::with_capacity(values.len());
            self.intern_values(&values, &mut of_value)?;
            numbers.extend(rows.into_iter().map(|r| r.map_or(NULL, |v| of_value[v])));
        } else {
            self.intern_values(array, numbers)?;
        }
        if self.keys.len() >= NULL as usize {
            return Err(Error::data(format!(
                "`{}` has more than 2^32 distinct values",
                self.column
            )));
        }
        Ok(())
    }

    fn accept(&self, data_type: &DataType) -> Result<()> {
        if Family::of(data_type) == Family::of(&self.data_type) {
            return Ok(());
        }
        Err(Error::data(format!("`{}` has another type than the annotations have", self.column))
            .found(format!("{data_type} here, {} there", self.data_type))
            .help("the same id in two types is two ids: cast one of them in source.sql"))
    }

    fn intern_values(&mut self, array: &ArrayRef, numbers: &mut Vec<u32>) -> Result<()> {
        let first = numbers.len();
        let mut packed = Vec::with_capacity(array.len());
        for_each_key(array, |_, key| match key {
            Some(Key::Packed(key)) => {
                packed.push((number(numbers.len() - first), key));
                numbers.push(NULL);
            }
            Some(Key::Long(bytes)) => numbers.push(self.long_number(bytes)),
            None => numbers.push(NULL),
        })?;
        let numbers = &mut numbers[first..];
        for rows in packed.chunks(LOOKUP) {
            self.packed_numbers(rows, numbers);
        }
        Ok(())
    }

    /// Looks up packed keys in passes; see [`Interner`].
    fn packed_numbers(&mut self, rows: &[(u32, Packed)], numbers: &mut [u32]) {
        self.reserve(rows.len());
        let mask = self.slots.len() - 1;
        let mut hashes = [0_u64; LOOKUP];
        let mut slots = [0_u64; LOOKUP];
        for (n, (_, key)) in rows.iter().enumerate() {
            hashes[n] = hash(key.0);
        }
        for n in 0..rows.len() {
            slots[n] = self.slots[place(hashes[n]) & mask];
        }
        for (n, (row, key)) in rows.iter().enumerate() {
            let there = (slots[n] as u32).wrapping_sub(1);
            let hit =
                tag(slots[n]) == tag(hashes[n]) && self.keys.get(there as usize) == Some(&key.0);
            numbers[*row as usize] = if hit { there } else { NULL };
        }
        for (n, (row, key)) in rows.iter().enumerate() {
            if numbers[*row as usize] == NULL {
                numbers[*row as usize] = self.probe(hashes[n], *key);
            }
        }
    }

    /// Walks the slots from the key's first; a free one takes it.
    fn probe(&mut self, hash: u64, key: Packed) -> u32 {
        let mask = self.slots.len() - 1;
        let mut at = place(hash) & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                self.keys.push(key.0);
                self.slots[at] = tag(hash) | self.keys.len() as u64;
                return number(self.keys.len() - 1);
            }
            let there = (slot as u32) - 1;
            if tag(slot) == tag(hash) && self.keys[there as usize] == key.0 {
                return there;
            }
            at = (at + 1) & mask;
        }
    }

    /// Room for `more` keys with at most half of the slots taken.
    fn reserve(&mut self, more: usize) {
        let wanted = 2 * (self.keys.len() + more);
        if wanted <= self.slots.len() {
            return;
        }
        self.slots = vec![0; (2 * wanted).next_power_of_two()];
        let mask = self.slots.len() - 1;
        for (n, key) in self.keys.iter().enumerate().filter(|(_, key)| **key & LONG != LONG) {
            let hash = hash(*key);
            let mut at = place(hash) & mask;
            while self.slots[at] != 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = tag(hash) | (n as u64 + 1);
        }
    }

    fn long_number(&mut self, bytes: &[u8]) -> u32 {
        if let Some(known) = self.long_numbers.get(bytes) {
            return *known;
        }
        let next = number(self.keys.len());
        self.keys.push(((self.long.len() as u128) << 8) | LONG);
        self.long.push(bytes.into());
        self.long_numbers.insert(bytes.into(), next);
        next
    }

    /// Numbers the values for which `keep(provisional)` holds, in sorted order.
    ///
    /// Returns the ids and, for each provisional number, its final one ([`NULL`] where not kept).
    ///
    /// # Errors
    /// When the values do not fit the column's type.
    pub fn finish(self, keep: impl Fn(u32) -> bool) -> Result<(Ids, Vec<u32>)> {
        let Self { data_type, keys, long, .. } = self;
        let key = |word: u128| match word & LONG {
            LONG => Key::Long(&long[(word >> 8) as usize]),
            _ => Key::Packed(Packed(word)),
        };
        let numbered = keys.iter().enumerate().map(|(n, word)| (*word, number(n)));
        let mut order: Vec<(u128, u32)> = numbered.filter(|(_, n)| keep(*n)).collect();
        if long.is_empty() {
            order.par_sort_unstable();
        } else {
            order.par_sort_unstable_by(|a, b| compare(key(a.0), key(b.0)));
        }
        let mut rank = vec![NULL; keys.len()];
        for (position, (_, provisional)) in order.iter().enumerate() {
            rank[*provisional as usize] = number(position);
        }
        let values = to_array(&data_type, order.iter().map(|(word, _)| key(*word)))?;
        Ok((Ids { values }, rank))
    }
}

/// The distinct values of a column, sorted: the number of a value is its place here.
#[derive(Debug, Clone)]
pub struct Ids {
    values: ArrayRef,
}

impl Ids {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The values, with the type that they came with.
    #[must_use]
    pub fn values(&self) -> &ArrayRef {
        &self.values
    }

    /// Ids in the given order, whatever their own: classes that the user listed.
    #[must_use]
    pub fn in_order(values: ArrayRef) -> Self {
        Self { values }
    }

    /// One value as text.
    #[must_use]
    pub fn text(&self, index: usize) -> String {
        datafusion::arrow::util::display::array_value_to_string(&self.values, index)
            .unwrap_or_else(|_| format!("#{index}"))
    }

    /// The number of every row of `array`, `None` where it is null or not among these.
    ///
    /// # Errors
    /// When the type is of another family.
    pub fn lookup(&self, column: &str, array: &ArrayRef) -> Result<Vec<Option<u32>>> {
        let mut interner = Interner::new(column, self.values.data_type());
        let mut known = Vec::new();
        interner.intern(&self.values, &mut known)?;
        let mut numbers = Vec::new();
        interner.intern(array, &mut numbers)?;
        Ok(numbers.into_iter().map(|n| ((n as usize) < known.len()).then_some(n)).collect())
    }
}

impl From<Ids> for ArrayRef {
    fn from(ids: Ids) -> Self {
        Arc::clone(&ids.values)
    }
}

/// There are fewer than 2^32 values: [`Interner::intern`] sees to it.
#[inline]
fn number(index: usize) -> u32 {
    index as u32
}

#[inline]
fn hash(key: u128) -> u64 {
    fold(key as u64, (key >> 64) as u64)
}

/// The upper half of a hash or a slot: compared before the key is looked at.
#[inline]
fn tag(word: u64) -> u64 {
    word & 0xffff_ffff_0000_0000
}

/// Where a key's search begins: bits that are not in the tag come first.
#[inline]
fn place(hash: u64) -> usize {
    hash as usize
}

/// Folded multiplication: both halves of a 128-bit product, so that every input bit reaches every output bit.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product =
        u128::from(a ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(u128::from(b ^ 0xd1b5_4a32_d192_ed03));
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{DictionaryArray, Int64Array, StringArray};
    use datafusion::arrow::datatypes::Int8Type;

    fn text(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    #[test]
    fn numbers_follow_the_sorted_order_not_the_arrival() {
        let mut interner = Interner::new("instance_id", &DataType::Utf8);
        let mut numbers = Vec::new();
        let long = "z".repeat(40);
        interner.intern(&text(&["b", "a", &long, "b", "y"]), &mut numbers).unwrap();
        let (ids, rank) = interner.finish(|_| true).unwrap();
        let final_numbers: Vec<u32> = numbers.iter().map(|n| rank[*n as usize]).collect();
        assert_eq!(final_numbers, [1, 0, 3, 1, 2]);
        assert_eq!(ids.text(0), "a");
    }

    #[test]
    fn a_dictionary_is_the_same_ids_as_its_values() {
        let dictionary: DictionaryArray<Int8Type> =
            vec![Some("b"), None, Some("a")].into_iter().collect();
        let mut interner = Interner::new("label", dictionary.data_type());
        let mut numbers = Vec::new();
        interner.intern(&(Arc::new(dictionary) as ArrayRef), &mut numbers).unwrap();
        interner.intern(&text(&["a"]), &mut numbers).unwrap();
        assert_eq!(numbers, [0, NULL, 1, 1]);
    }

    #[test]
    fn the_same_id_in_another_type_is_refused() {
        let mut interner = Interner::new("gold.instance_id", &DataType::Utf8);
        let error =
            interner.intern(&(Arc::new(Int64Array::from(vec![7])) as ArrayRef), &mut Vec::new());
        assert!(error.unwrap_err().to_string().contains("Int64 here, Utf8 there"));
    }
}
