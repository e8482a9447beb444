//! Gives values provisional numbers as they arrive; [`Interner::finish`] then numbers them in sorted order.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type};
use arrow::util::display::array_value_to_string;
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use rayon::prelude::*;

use super::Ids;
use super::decode::{fits, to_array, to_shown_array};
use super::dictionary::dictionary;
use super::floats::finite;
use super::hash::Secret;
use super::key::{IdType, IndexedKey, Key, NULL, Packed, compare, for_each_key};
use super::run_ends::without_run_ends;
use super::table::{KeyTable, key};
use super::times::{stored, stored_type};
use super::untyped::{as_integers, integers as plain_integers, is_untyped, may_become_integers};
use crate::error::{Error, Result};
use crate::frame::offsets::number;
use crate::source::views::type_in_files;

/// Gives each distinct value a provisional number. New values get the next numbers in the order of the rows in which they
/// first occur, whatever their length and layout: callers recognise new values by their numbers.
///
/// # Why
/// Arrays are looked up in parallel, in a table that does not change meanwhile; then new values are inserted one after
/// the other. So numbers do not depend on threads, and lookups of known values, which most rows hold, are parallel.
///
/// DataFusion's group values do the same for group-bys. On one thread and ten million rows in random order (median of
/// three runs), two million text ids took 75 ns a row there and 29 ns here; as many integers of a small range 53 and
/// 9 ns; ten thousand text ids 9 and 11 ns, ten thousand integers 3.4 and 1.6 ns. A relation of annotations has a column
/// of each kind, and the large one takes most of the time.
pub struct Interner {
    column: String,
    data_type: DataType,
    untyped: bool,
    /// Whether untyped text becomes integers where every value is one.
    may_become_integers: bool,
    table: KeyTable,
    /// Bytes of the longest key.
    longest: usize,
    long: Vec<Box<[u8]>>,
    long_numbers: HashMap<Box<[u8]>, u32, SeedableRandomState>,
    /// Bytes of the long keys.
    long_bytes: usize,
}

/// The result of looking up the values of an array.
struct LookedUp {
    /// The number of each value, [`NULL`] where it is null or new.
    numbers: Vec<u32>,
    new: Vec<IndexedKey>,
    /// New long values, each with its index in `long`.
    new_long: Vec<(u32, u32)>,
    /// The distinct keys of new long values, in the order in which they first occur.
    long: Vec<Box<[u8]>>,
    /// The index of each row's value, for a dictionary.
    rows: Option<Vec<Option<usize>>>,
}

impl Interner {
    /// An empty interner for a column of this name (used in errors) and type.
    #[must_use]
    pub fn new(field: &Field) -> Self {
        let secret = Secret::draw();
        let data_type = stored_type(&type_in_files(field));
        let table = match IdType::of(&data_type) {
            IdType::Integer => KeyTable::of_integers(secret),
            _ => KeyTable::new(secret),
        };
        Self {
            column: field.name().clone(),
            data_type,
            untyped: is_untyped(field),
            may_become_integers: may_become_integers(field),
            table,
            longest: 0,
            long: Vec::new(),
            long_numbers: HashMap::with_hasher(SeedableRandomState::with_seed(
                secret.0[0],
                SharedSeed::global_random(),
            )),
            long_bytes: 0,
        }
    }

    /// The type that the values have in tables.
    #[must_use]
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// The number of distinct values so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes that it holds, with those that a batch of `more` new values may add.
    #[must_use]
    pub fn bytes(&self, more: usize) -> usize {
        // A long key is held twice, with the overhead of the allocator and the map.
        let long = 2 * self.long_bytes + self.long.len() * 80;
        self.table.bytes(more) + long
    }

    /// Appends the provisional number of each row of `array` to `numbers`, [`NULL`] where it is null.
    ///
    /// # Errors
    /// When the type is another [`IdType`] than this interner's, or there are more than 2^32 - 2 values.
    pub fn intern(&mut self, array: &ArrayRef, numbers: &mut Vec<u32>) -> Result<()> {
        self.intern_all(&[array], numbers)
    }

    /// As [`Interner::intern`], for several arrays in their order.
    ///
    /// # Errors
    /// As [`Interner::intern`].
    pub fn intern_all(&mut self, arrays: &[&ArrayRef], numbers: &mut Vec<u32>) -> Result<()> {
        let looked_up = match arrays {
            // On the calling thread, which may be outside the run's pool.
            [array] => vec![self.look_up(array)?],
            _ => arrays.par_iter().map(|array| self.look_up(array)).collect::<Result<_>>()?,
        };
        numbers.reserve(arrays.iter().map(Array::len).sum());
        for mut found in looked_up {
            if self.len() + found.new.len() + found.long.len() >= NULL as usize {
                return Err(Error::data(format!(
                    "`{}` has more than 2^32 distinct values",
                    self.column
                )));
            }
            let rows = found.rows.take();
            let mut of_value = self.enter(found)?;
            match rows {
                Some(rows) => {
                    numbers.extend(rows.into_iter().map(|r| r.map_or(NULL, |v| of_value[v])));
                }
                None => numbers.append(&mut of_value),
            }
        }
        Ok(())
    }

    /// As [`Interner::intern`], for a column of another source: text of a format without types, on either side, may
    /// stand for integers. Integers may be some that the type of this interner cannot hold: see [`Interner::outside`].
    ///
    /// # Errors
    /// As [`Interner::intern`].
    pub fn intern_other(
        &mut self,
        field: &Field,
        array: &ArrayRef,
        numbers: &mut Vec<u32>,
    ) -> Result<()> {
        let parts = self.with_own_type(field, array)?;
        parts.iter().try_for_each(|part| self.intern(part, numbers))
    }

    /// The number of each row of `array`, [`NULL`] where it is null or not one of the values.
    ///
    /// # Errors
    /// When the type is another [`IdType`] than this interner's.
    pub fn find(&self, array: &ArrayRef) -> Result<Vec<u32>> {
        let LookedUp { numbers, rows, .. } = self.look_up(array)?;
        Ok(match rows {
            Some(rows) => rows.into_iter().map(|r| r.map_or(NULL, |v| numbers[v])).collect(),
            None => numbers,
        })
    }

    /// As [`Interner::find`], for a column of another source: see [`Interner::intern_other`].
    ///
    /// # Errors
    /// As [`Interner::find`].
    pub fn find_other(&self, field: &Field, array: &ArrayRef) -> Result<Vec<u32>> {
        let parts = self.with_own_type(field, array)?;
        Ok(parts.iter().map(|part| self.find(part)).collect::<Result<Vec<_>>>()?.concat())
    }

    /// The values of a column of another source, with a type that this interner takes; several arrays hold the rows one
    /// after the other.
    fn with_own_type(&self, field: &Field, array: &ArrayRef) -> Result<Vec<ArrayRef>> {
        let integers = |t: &DataType| IdType::of(t) == IdType::Integer;
        if self.untyped && integers(array.data_type()) && !integers(&self.data_type) {
            let texts = cast(array, &self.data_type);
            return Ok(vec![texts.map_err(|_| self.another_type(field))?]);
        }
        if !is_untyped(field) || !integers(&self.data_type) {
            if IdType::of(array.data_type()) != IdType::of(&self.data_type) {
                return Err(self.another_type(field));
            }
            return Ok(vec![Arc::clone(array)]);
        }
        // As in a column of text alone, "007" is not an integer.
        let plain = plain_integers(array)?;
        let is_integer =
            plain.iter().flat_map(|part| (0..part.len()).map(|row| part.is_valid(row)));
        let other = is_integer.enumerate().find(|(row, is_one)| !is_one && array.is_valid(*row));
        if let Some((row, _)) = other {
            let text = array_value_to_string(array, row)?;
            let found = format!("`{text}` here, {} there", self.data_type);
            return Err(self.another_type(field).found(found));
        }
        Ok(plain)
    }

    /// The values with these provisional numbers that the column's type cannot hold, as text.
    ///
    /// # Errors
    /// When a value cannot be decoded.
    pub fn outside(&self, numbers: impl Iterator<Item = u32>) -> Result<BTreeSet<String>> {
        let key = |n: u32| key(self.table.keys()[n as usize], &self.long);
        let keys = numbers.map(key).filter(|key| !fits(&self.data_type, *key));
        let shown = to_shown_array(&self.data_type, keys.collect::<Vec<_>>().into_iter())?;
        Ok((0..shown.len()).map(|n| array_value_to_string(&shown, n)).collect::<Result<_, _>>()?)
    }

    fn another_type(&self, of: &Field) -> Error {
        another_type(of.name(), of.data_type(), &self.data_type)
    }

    fn look_up(&self, array: &ArrayRef) -> Result<LookedUp> {
        if IdType::of(array.data_type()) != IdType::of(&self.data_type) {
            return Err(another_type(&self.column, array.data_type(), &self.data_type));
        }
        let plain = without_run_ends(array)?;
        let (values, rows) = match dictionary(&plain)? {
            Some((values, rows)) => (values, Some(rows)),
            None => (plain, None),
        };
        let values =
            stored(&finite(&values)).map_err(|e| e.about(&format!("`{}`", self.column)))?;
        let mut numbers = vec![NULL; values.len()];
        if let (Some(direct), Some(integers)) = (self.table.direct(), as_int64(&values)?) {
            let new = direct.find(&integers, &mut numbers);
            return Ok(LookedUp { numbers, new, new_long: Vec::new(), long: Vec::new(), rows });
        }
        let (mut keys, mut new_long) = (Vec::with_capacity(values.len()), Vec::new());
        let hasher = self.long_numbers.hasher().clone();
        let mut places: HashMap<Box<[u8]>, u32, _> = HashMap::with_hasher(hasher);
        for_each_key(&values, |value, key| match key {
            Some(Key::Packed(key)) => keys.push((number(value), key)),
            Some(Key::Long(bytes)) => {
                if let Some(known) = self.long_numbers.get(bytes) {
                    numbers[value] = *known;
                    return;
                }
                // A value may be large and occur in every row: it is held once.
                let next = number(places.len());
                let place = match places.get(bytes) {
                    Some(place) => *place,
                    None => *places.entry(bytes.into()).or_insert(next),
                };
                new_long.push((number(value), place));
            }
            None => {}
        })?;
        let mut long: Vec<(Box<[u8]>, u32)> = places.into_iter().collect();
        long.sort_unstable_by_key(|(_, place)| *place);
        let long = long.into_iter().map(|(bytes, _)| bytes).collect();
        let new = self.table.find(keys, &mut numbers);
        Ok(LookedUp { numbers, new, new_long, long, rows })
    }

    /// Numbers the new values of an array in the order of the rows; returns the numbers of all its values.
    fn enter(&mut self, found: LookedUp) -> Result<Vec<u32>> {
        let LookedUp { mut numbers, new, new_long, long, .. } = found;
        let lengths = new.iter().map(|(_, key)| Key::Packed(*key).len());
        self.longest = lengths.fold(self.longest, usize::max);
        let (mut rest, mut long, mut of_long) = (new.as_slice(), long.into_iter(), Vec::new());
        for (value, place) in new_long {
            if place as usize == of_long.len()
                && let Some(bytes) = long.next()
            {
                let before = rest.partition_point(|(row, _)| *row < value);
                self.table.insert(&rest[..before], &mut numbers)?;
                rest = &rest[before..];
                of_long.push(self.long_number(bytes));
            }
            numbers[value as usize] = of_long[place as usize];
        }
        self.table.insert(rest, &mut numbers)?;
        Ok(numbers)
    }

    fn long_number(&mut self, bytes: Box<[u8]>) -> u32 {
        if let Some(known) = self.long_numbers.get(&bytes) {
            return *known;
        }
        self.longest = self.longest.max(bytes.len());
        self.long_bytes += bytes.len();
        let next = self.table.push_long(self.long.len());
        self.long.push(bytes.clone());
        self.long_numbers.insert(bytes, next);
        next
    }

    /// All values for messages, by provisional number, with those that the column's type cannot hold.
    ///
    /// # Errors
    /// When a value cannot be decoded.
    pub fn shown_values(&self) -> Result<ArrayRef> {
        to_shown_array(&self.data_type, self.table.keys().iter().map(|word| key(*word, &self.long)))
    }

    /// Numbers the values for which `keep(provisional)` holds, in sorted order.
    ///
    /// Returns the ids and, for each provisional number, its final one ([`NULL`] where not kept).
    ///
    /// # Errors
    /// When the values do not fit the column's type.
    pub fn finish(mut self, keep: impl Fn(u32) -> bool) -> Result<(Ids, Vec<u32>)> {
        if self.may_become_integers
            && let Some(integers) = as_integers(self.table.keys(), &self.long, &keep)
        {
            self.long.clear();
            self.longest = Key::Packed(Packed::integer(0)).len();
            self.table.replace_keys(integers);
            self.data_type = DataType::Int64;
        }
        let Self { data_type, table, longest, long, untyped, .. } = self;
        let all = table.len();
        if longest <= Packed::NUMBERED {
            let order = table.into_order(keep);
            let order = order.iter().map(|word| Packed::of_numbered(*word));
            return ranked(
                (&data_type, untyped),
                all,
                &order.map(|(key, n)| (Key::Packed(key), n)),
            );
        }
        let keys = table.into_keys();
        let key = |word: u128| key(word, &long);
        let numbered = keys.iter().enumerate().map(|(n, word)| (*word, number(n)));
        let mut order: Vec<(u128, u32)> = numbered.filter(|(_, n)| keep(*n)).collect();
        if long.is_empty() {
            order.par_sort_unstable();
        } else {
            order.par_sort_unstable_by(|a, b| compare(key(a.0), key(b.0)));
        }
        ranked((&data_type, untyped), all, &order.iter().map(|(word, n)| (key(*word), *n)))
    }
}

/// `here` is the type of the column, and `there` that of the annotations.
pub(super) fn another_type(column: &str, here: &DataType, there: &DataType) -> Error {
    Error::data(format!("`{column}` has another type than the annotations have"))
        .found(format!("{here} here, {there} there"))
        .help("the same value in two types is two values: cast one of the columns in source.sql")
}

/// The ids in this order, and the final number of each of `all` provisional numbers.
fn ranked<'a>(
    (data_type, is_untyped): (&DataType, bool),
    all: usize,
    order: &(impl ExactSizeIterator<Item = (Key<'a>, u32)> + Clone + Sync),
) -> Result<(Ids, Vec<u32>)> {
    let (rank, values) = rayon::join(
        || {
            let mut rank = vec![NULL; all];
            for (position, (_, provisional)) in order.clone().enumerate() {
                rank[provisional as usize] = number(position);
            }
            rank
        },
        || to_array(data_type, order.clone().map(|(key, _)| key)),
    );
    Ok((Ids { values: values?, is_untyped }, rank))
}

/// Integers as such of 64 bits, where their type holds no others.
fn as_int64(array: &ArrayRef) -> Result<Option<Int64Array>> {
    let data_type = array.data_type();
    if !data_type.is_integer() || *data_type == DataType::UInt64 {
        return Ok(None);
    }
    Ok(Some(cast(array, &DataType::Int64)?.as_primitive::<Int64Type>().clone()))
}

#[cfg(test)]
mod tests;
