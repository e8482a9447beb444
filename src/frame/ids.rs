//! Ids interned as they arrive, then numbered once in sorted order.
//!
//! # Why
//! Numbering by arrival would make every sum depend on the order of rows and files. Sorted numbers make the whole
//! job independent of it, and let tables come out in the order that a person would sort them.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::datatypes::DataType;
use hashbrown::HashTable;
use rayon::slice::ParallelSliceMut;

use super::key::{Family, Key, Packed, compare, dictionary, for_each_key, to_array, with_bytes};
use crate::error::{Error, Result};

/// Stands for a null in the numbers that [`Interner::intern`] gives.
pub const NULL: u32 = u32::MAX;

/// Gives each distinct value a provisional number, in order of arrival.
pub struct Interner {
    column: String,
    data_type: DataType,
    packed: HashTable<(Packed, u32)>,
    long: HashTable<u32>,
    keys: Vec<Stored>,
}

#[derive(Debug, Clone)]
enum Stored {
    Packed(Packed),
    Long(Box<[u8]>),
}

impl Stored {
    fn key(&self) -> Key<'_> {
        match self {
            Self::Packed(p) => Key::Packed(*p),
            Self::Long(b) => Key::Long(b),
        }
    }
}

impl Interner {
    /// An empty interner for the column of that name (used in errors) and type.
    #[must_use]
    pub fn new(column: &str, data_type: &DataType) -> Self {
        Self {
            column: column.to_owned(),
            data_type: data_type.clone(),
            packed: HashTable::new(),
            long: HashTable::new(),
            keys: Vec::new(),
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
            for_each_key(&values, |_, key| of_value.push(key.map_or(NULL, |k| self.number(k))))?;
            numbers.extend(rows.into_iter().map(|r| r.map_or(NULL, |v| of_value[v])));
        } else {
            for_each_key(array, |_, key| numbers.push(key.map_or(NULL, |k| self.number(k))))?;
        }
        if self.keys.len() >= NULL as usize {
            return Err(Error::data(format!("`{}` has more than 2^32 distinct values", self.column)));
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

    #[allow(clippy::cast_possible_truncation)]
    fn number(&mut self, key: Key<'_>) -> u32 {
        let next = self.keys.len() as u32;
        match key {
            Key::Packed(key) => {
                let entry = self.packed.entry(hash(key), |(k, _)| *k == key, |(k, _)| hash(*k));
                match entry {
                    hashbrown::hash_table::Entry::Occupied(found) => found.get().1,
                    hashbrown::hash_table::Entry::Vacant(free) => {
                        free.insert((key, next));
                        self.keys.push(Stored::Packed(key));
                        next
                    }
                }
            }
            Key::Long(bytes) => {
                let keys = &self.keys;
                let of = |n: u32| with_bytes(keys[n as usize].key(), hash_long);
                let is = |n: &u32| with_bytes(keys[*n as usize].key(), |b| b == bytes);
                match self.long.entry(hash_long(bytes), is, |n| of(*n)) {
                    hashbrown::hash_table::Entry::Occupied(found) => *found.get(),
                    hashbrown::hash_table::Entry::Vacant(free) => {
                        free.insert(next);
                        self.keys.push(Stored::Long(bytes.into()));
                        next
                    }
                }
            }
        }
    }

    /// Numbers the values for which `keep(provisional)` holds, in sorted order.
    ///
    /// Returns the ids and, for each provisional number, its final one ([`NULL`] where not kept).
    ///
    /// # Errors
    /// When the values do not fit the column's type.
    #[allow(clippy::cast_possible_truncation)]
    pub fn finish(self, keep: impl Fn(u32) -> bool) -> Result<(Ids, Vec<u32>)> {
        let Self { data_type, keys, packed, long, .. } = self;
        drop((packed, long));
        let mut order: Vec<u32> = (0..keys.len() as u32).filter(|n| keep(*n)).collect();
        order.par_sort_unstable_by(|a, b| {
            compare(keys[*a as usize].key(), keys[*b as usize].key())
        });
        let mut rank = vec![NULL; keys.len()];
        for (position, number) in order.iter().enumerate() {
            rank[*number as usize] = position as u32;
        }
        let values = to_array(&data_type, order.iter().map(|n| keys[*n as usize].key()))?;
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

#[inline]
#[allow(clippy::cast_possible_truncation)]
fn hash(key: Packed) -> u64 {
    fold(key.0 as u64, (key.0 >> 64) as u64)
}

fn hash_long(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0_u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        fold(hash, u64::from_le_bytes(word))
    })
}

/// Folded multiplication: both halves of a 128-bit product, so that every input bit reaches every output bit.
#[inline]
#[allow(clippy::cast_possible_truncation)]
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
        let dictionary: DictionaryArray<Int8Type> = vec![Some("b"), None, Some("a")].into_iter().collect();
        let mut interner = Interner::new("label", dictionary.data_type());
        let mut numbers = Vec::new();
        interner.intern(&(Arc::new(dictionary) as ArrayRef), &mut numbers).unwrap();
        interner.intern(&text(&["a"]), &mut numbers).unwrap();
        assert_eq!(numbers, [0, NULL, 1, 1]);
    }

    #[test]
    fn the_same_id_in_another_type_is_refused() {
        let mut interner = Interner::new("gold.instance_id", &DataType::Utf8);
        let error = interner.intern(&(Arc::new(Int64Array::from(vec![7])) as ArrayRef), &mut Vec::new());
        assert!(error.unwrap_err().to_string().contains("Int64 here, Utf8 there"));
    }
}
