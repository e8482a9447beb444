//! The numbers of integers, found by the integer itself.
//!
//! # Why
//! Integer ids are often those of a database or of the rows of a file: nearly all integers of a range. A list with a
//! position for every integer of the range takes no more memory than a hash table, and a lookup needs neither a hash nor the
//! key. Of ten million rows in random order, those of two million integers took 10 ns a row, most of it before the
//! table was direct, and 29 ns where it stayed a hash table; those of ten thousand 1.7 and 8 ns, and those of five 1.2
//! and 5.5 ns (one thread of an AMD EPYC, median of two runs).

use std::ops::RangeInclusive;

use arrow::array::{Array, Int64Array};

use crate::frame::annotations::offsets::number;
use crate::frame::ids::key::{IndexedKey, NULL, Packed};

/// The number of each integer of a range, if it has one.
pub(super) struct DirectTable {
    /// The integer of the first bucket.
    first: i64,
    /// A number + 1; 0 where the integer has none.
    buckets: Vec<u32>,
}

impl DirectTable {
    /// A table of so many buckets, at most 2^33, with the range in their middle: the next integers may be on either side.
    pub(super) fn around(range: &RangeInclusive<i64>, buckets: usize) -> Self {
        let (low, high) = (i128::from(*range.start()), i128::from(*range.end()));
        let first = low - (buckets as i128 - (high - low + 1)) / 2;
        // The integers of all buckets are of 64 bits, so that no distance from the first one can wrap.
        let last_first = i128::from(i64::MAX) - buckets as i128 + 1;
        let first = first.clamp(i128::from(i64::MIN), last_first);
        Self { first: i64::try_from(first).unwrap_or(i64::MIN), buckets: vec![0; buckets] }
    }

    /// Whether every integer of the range has a bucket.
    pub(super) fn covers(&self, range: &RangeInclusive<i64>) -> bool {
        [range.start(), range.end()].into_iter().all(|end| self.position(*end) < self.buckets.len())
    }

    /// The number of an integer.
    pub(super) fn get(&self, integer: i128) -> Option<u32> {
        let bucket = self.buckets.get(self.position(i64::try_from(integer).ok()?))?;
        bucket.checked_sub(1)
    }

    /// The position for the number of an integer: the number + 1, or 0; `None` where the range does not have the integer.
    pub(super) fn bucket(&mut self, key: Packed) -> Option<&mut u32> {
        let position = self.position(i64::try_from(key.as_integer()).ok()?);
        self.buckets.get_mut(position)
    }

    /// Writes the number of each value, [`NULL`] where it is null or new; returns the new values.
    pub(super) fn find(&self, integers: &Int64Array, numbers: &mut [u32]) -> Vec<IndexedKey> {
        for (number, integer) in numbers.iter_mut().zip(integers.values()) {
            let bucket = self.buckets.get(self.position(*integer)).copied().unwrap_or(0);
            // `NULL` for 0.
            *number = bucket.wrapping_sub(1);
        }
        if integers.null_count() > 0 {
            let rows = numbers.iter_mut().enumerate();
            rows.filter(|(row, _)| integers.is_null(*row)).for_each(|(_, number)| *number = NULL);
        }
        let unknown = numbers.iter().enumerate().filter(|(_, number)| **number == NULL);
        let new = unknown.filter(|(row, _)| integers.is_valid(*row));
        new.map(|(row, _)| (number(row), Packed::integer(integers.value(row).into()))).collect()
    }

    /// The keys of the integers, ascending, each with its number.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (Packed, u32)> {
        let numbers = self.buckets.iter().enumerate();
        numbers.filter(|(_, bucket)| **bucket != 0).map(|(position, bucket)| {
            (Packed::integer(i128::from(self.first) + position as i128), *bucket - 1)
        })
    }

    /// The position of an integer; no position of the table where it is out of the range.
    #[inline]
    fn position(&self, integer: i64) -> usize {
        integer.wrapping_sub(self.first).cast_unsigned() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the number `n - 1` of an integer of the range.
    fn set(table: &mut DirectTable, integer: i64, n: u32) {
        *table.bucket(Packed::integer(integer.into())).unwrap() = n;
    }

    #[test]
    fn every_integer_of_the_range_has_a_place_of_its_own_and_no_other_has_one() {
        let ends = [i64::MIN, -3, 5, i64::MAX - 4];
        for low in ends {
            let range = low..=low + 4;
            for buckets in [5, 6, 64] {
                let mut table = DirectTable::around(&range, buckets);
                assert!(table.covers(&range), "{low} {buckets}");
                range.clone().zip(1..).for_each(|(integer, n)| set(&mut table, integer, n));
                let found = |integer: i128| table.get(integer);
                let all: Vec<_> = (-1..6).map(|n| found(i128::from(low) + n)).collect();
                assert_eq!(all, [None, Some(0), Some(1), Some(2), Some(3), Some(4), None]);
                let others = ends.into_iter().filter(|other| *other != low);
                assert!(others.map(i128::from).all(|n| found(n).is_none()), "{low} {buckets}");
                let too_large = i128::from(u64::MAX);
                assert_eq!(found(too_large), None);
                assert!(table.bucket(Packed::integer(too_large)).is_none());
            }
        }
    }

    #[test]
    fn there_is_room_on_both_sides_of_the_range() {
        let table = DirectTable::around(&(10..=13), 12);
        assert!(table.covers(&(6..=17)));
        assert!(!table.covers(&(5..=13)) && !table.covers(&(10..=18)));
    }

    #[test]
    fn a_null_is_never_new_and_has_no_number_whatever_is_below_it() {
        let mut table = DirectTable::around(&(0..=9), 16);
        set(&mut table, 7, 1);
        let nulls = vec![true, false, true, false, true].into();
        let integers = Int64Array::new(vec![7, 7, 8, 8, -40].into(), Some(nulls));
        let mut numbers = [5; 5];
        let new = table.find(&integers, &mut numbers);
        assert_eq!(numbers, [0, NULL, NULL, NULL, NULL]);
        assert_eq!(new, [(2, Packed::integer(8)), (4, Packed::integer(-40))]);
        set(&mut table, 3, 2);
        let in_order: Vec<_> = table.in_order().collect();
        assert_eq!(in_order, [(Packed::integer(3), 1), (Packed::integer(7), 0)]);
    }
}
