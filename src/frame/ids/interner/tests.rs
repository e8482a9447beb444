//! Interned ids come back sorted and with their type, in whatever layout they were read.

use std::sync::Arc;

use super::*;
use arrow::array::{DictionaryArray, Int64Array, StringArray};
use arrow::datatypes::Int8Type;

fn text(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn interner(data_type: &DataType) -> Interner {
    Interner::new(&Field::new("id", data_type.clone(), true))
}

#[test]
fn numbers_follow_the_sorted_order_not_the_arrival() {
    // One case for each way to sort: keys that leave room for a number, packed ones, long ones.
    for last in ["z", "zwölf Zeichen", &"z".repeat(40)] {
        let mut interner = interner(&DataType::Utf8);
        let mut numbers = Vec::new();
        interner.intern(&text(&["b", "a", last, "b", "a\0", "dropped"]), &mut numbers).unwrap();
        let dropped = numbers[5];
        let (ids, rank) = interner.finish(|n| n != dropped).unwrap();
        let final_numbers: Vec<u32> = numbers.iter().map(|n| rank[*n as usize]).collect();
        assert_eq!(final_numbers, [2, 0, 3, 2, 1, NULL]);
        assert_eq!((0..4).map(|n| ids.text(n)).collect::<Vec<_>>(), ["a", "a\0", "b", last]);
    }
}

/// The prefix made one factor of a hash without a secret zero, so that all ids with the prefix had the same hash. With a
/// secret that makes this factor 1, 2, 3 or 2^32, the products of consecutive ids are as far apart as the ids.
#[test]
fn ids_with_a_chosen_prefix_spread_over_the_buckets() {
    let prefix = 0xd1b5_4a32_d192_ed03_u64;
    let ids: Vec<Vec<u8>> =
        (0..4096_u32).map(|n| [&prefix.to_be_bytes()[..], &n.to_be_bytes()].concat()).collect();
    let array: ArrayRef = Arc::new(arrow::array::BinaryArray::from_iter_values(&ids));
    let of_factor = |factor: u64| Secret([7, prefix ^ factor]);
    for secret in [Secret::draw(), of_factor(1), of_factor(2), of_factor(3), of_factor(1 << 32)] {
        let mut interner = Interner { table: KeyTable::new(secret), ..interner(&DataType::Binary) };
        interner.intern(&array, &mut Vec::new()).unwrap();
        let longest = interner.table.longest_search();
        assert!(longest < 100, "{secret:?}: a search passes {longest} of 4096 others");
    }
}

/// New packed and long values, and both again in another array of the same call and of the next call.
#[test]
fn a_value_has_one_number_in_all_arrays() {
    let long = "z".repeat(40);
    let mut interner = interner(&DataType::Utf8);
    let mut numbers = Vec::new();
    let none: ArrayRef = Arc::new(StringArray::from(vec![None, Some("b")]));
    let [first, second] = [text(&["b", "a", &long, "b"]), text(&["c", &long, "a"])];
    interner.intern_all(&[&first, &second, &none], &mut numbers).unwrap();
    interner.intern(&text(&[&long, "d", "c"]), &mut numbers).unwrap();
    let (ids, rank) = interner.finish(|_| true).unwrap();
    let final_numbers = numbers.iter().map(|n| rank.get(*n as usize).copied().unwrap_or(NULL));
    assert_eq!(final_numbers.collect::<Vec<_>>(), [1, 0, 4, 1, 2, 4, 0, NULL, 1, 4, 3, 2]);
    assert_eq!(ids.len(), 5);
}

/// Only the values that rows use count in a dictionary, in the order of their first use.
#[test]
fn new_values_are_numbered_as_they_come_whatever_their_length_and_layout() {
    let of = |n: usize, c: char| c.to_string().repeat(n);
    let texts = [of(40, 'a'), of(1, 'b'), of(16, 'c'), of(15, 'd'), of(17, 'e'), of(2, 'f')];
    let texts = texts.each_ref().map(String::as_str);
    let first = text(&[texts[0], texts[1], texts[2], texts[0], texts[3]]);
    let keys = arrow::array::Int8Array::from(vec![Some(2), None, Some(4), Some(3), Some(2)]);
    let values = text(&["unused", texts[2], texts[4], texts[0], texts[5]]);
    let second: ArrayRef = Arc::new(DictionaryArray::<Int8Type>::new(keys, values));
    let mut interner = interner(&DataType::Utf8);
    let mut numbers = Vec::new();
    interner.intern_all(&[&first, &second], &mut numbers).unwrap();
    assert_eq!(numbers, [0, 1, 2, 0, 3, 4, NULL, 5, 0, 4]);
    interner.intern(&text(&["g", &of(30, 'h'), "i", texts[1]]), &mut numbers).unwrap();
    assert_eq!(numbers[10..], [6, 7, 8, 1]);
}

/// The first key has the word of the second one, as if their hashes were equal.
#[test]
fn long_keys_with_the_same_hash_are_different_values() {
    let [first, second, third, other] =
        ["first", "second", "third", "other"].map(|name| format!("the text of the {name} key"));
    let mut interner = interner(&DataType::Utf8);
    let shared = word(&interner.hasher, second.as_bytes());
    assert_eq!(interner.enter_long(shared, first.as_bytes()).unwrap(), 0);
    let mut numbers = Vec::new();
    let rows = text(&["a", &second, "b", &second, &third, "a"]);
    interner.intern(&rows, &mut numbers).unwrap();
    assert_eq!(numbers, [1, 2, 3, 2, 4, 1]);
    assert_eq!(interner.find(&text(&[&other, &third, &second])).unwrap(), [NULL, 4, 2]);
    assert_eq!(interner.find_long(shared, first.as_bytes()), Some(0));
    assert_eq!(interner.enter_long(shared, first.as_bytes()).unwrap(), 0);
    let (ids, rank) = interner.finish(|_| true).unwrap();
    let texts = ["a", "b", &first, &second, &third];
    assert_eq!((0..5).map(|n| ids.text(n)).collect::<Vec<_>>(), texts);
    assert_eq!(rank, [2, 0, 3, 1, 4]);
}

#[test]
fn numbers_do_not_depend_on_the_secret() {
    let numbered = |secret| {
        let mut interner = Interner { table: KeyTable::new(secret), ..interner(&DataType::Utf8) };
        let long = "long enough to need a box of its own";
        let mut numbers = Vec::new();
        interner.intern(&text(&["b", "a", long, "c", "a"]), &mut numbers).unwrap();
        (numbers, interner.finish(|_| true).unwrap().1)
    };
    assert_eq!(numbered(Secret([1, 2])), numbered(Secret([u64::MAX, 7])));
    assert_ne!(Secret::draw().0, Secret::draw().0);
}

#[test]
fn the_same_id_in_another_type_is_refused() {
    let mut interner = interner(&DataType::Utf8);
    let error =
        interner.intern(&(Arc::new(Int64Array::from(vec![7])) as ArrayRef), &mut Vec::new());
    assert!(error.unwrap_err().to_string().contains("Int64 here, Utf8 there"));
}

/// Integers move to a direct table once there are enough of them for their range, and back to the hash table where the
/// range becomes too wide.
#[test]
fn integers_have_the_same_numbers_in_a_direct_table() {
    let dense: Vec<i64> = (0..5_000).map(|n| n * 7_919 % 5_000 - 2_000).collect();
    let more = [&dense[..], &[3_000, -2_001, 3_001]].concat();
    let far = [&[i64::MAX][..], &dense, &[i64::MIN]].concat();
    let parts = [&dense[..100], &dense, &dense[..9], &more, &far, &more];
    let wanted = [false, true, true, true, false, false];
    let (interner, are_direct) = interned(&parts, parts.len());
    assert_eq!(are_direct, wanted);
    assert_eq!(interner.len(), 5_000 + 3 + 2 + 1);
    // The direct table meets an integer beyond those of 64 bits, and one that it has.
    let (interner, are_direct) = interned(&parts, 4);
    assert_eq!(are_direct, wanted);
    assert_eq!(interner.len(), 5_000 + 3 + 2 + 1);
    let (interner, are_direct) = interned(&[&dense[..], &more[..]], 1);
    assert_eq!(are_direct, [true, false]);
    assert_eq!(interner.len(), 5_000 + 3 + 1);
}

/// Interns these integers, and the unsigned integers `u64::MAX` and 7 before the part with index `unsigned`. Checks that
/// values have the same number where they are equal, and new values the next number. Returns also whether the table was
/// direct after each part.
fn interned(parts: &[&[i64]], unsigned: usize) -> (Interner, Vec<bool>) {
    let mut interner = interner(&DataType::Int64);
    let (mut all, mut numbers, mut are_direct) = (Vec::new(), Vec::new(), Vec::new());
    let large: ArrayRef = Arc::new(arrow::array::UInt64Array::from(vec![u64::MAX, 7]));
    for n in 0..=parts.len() {
        if n == unsigned {
            all.extend([i128::from(u64::MAX), 7]);
            interner.intern(&large, &mut numbers).unwrap();
            assert!(interner.table.direct().is_none());
        }
        let Some(values) = parts.get(n) else { break };
        all.extend(values.iter().map(|value| i128::from(*value)));
        let array: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
        interner.intern(&array, &mut numbers).unwrap();
        are_direct.push(interner.table.direct().is_some());
    }
    assert_eq!(numbers.len(), all.len());
    let mut first_seen: Vec<i128> = Vec::new();
    for (value, n) in all.iter().zip(&numbers) {
        if *n as usize == first_seen.len() {
            first_seen.push(*value);
        }
        assert_eq!(first_seen[*n as usize], *value);
    }
    (interner, are_direct)
}

#[test]
fn integers_of_a_direct_table_are_numbered_in_their_order() {
    let mut interner = interner(&DataType::Int32);
    let array: ArrayRef = Arc::new(arrow::array::Int32Array::from(vec![7, -3, 9, 5, 7]));
    let mut numbers = Vec::new();
    interner.intern(&array, &mut numbers).unwrap();
    interner.intern(&array, &mut numbers).unwrap();
    assert!(interner.table.direct().is_some());
    assert_eq!(numbers, [0, 1, 2, 3, 0, 0, 1, 2, 3, 0]);
    let (ids, rank) = interner.finish(|n| n != 2).unwrap();
    assert_eq!((0..3).map(|n| ids.text(n)).collect::<Vec<_>>(), ["-3", "5", "7"]);
    assert_eq!(rank, [2, 0, NULL, 1]);
}

#[test]
fn the_least_and_the_largest_integers_have_a_direct_table_too() {
    for ends in [[i64::MIN, i64::MIN + 1], [i64::MAX, i64::MAX - 1]] {
        let mut interner = interner(&DataType::Int64);
        let array: ArrayRef = Arc::new(Int64Array::from(ends.to_vec()));
        let mut numbers = Vec::new();
        interner.intern_all(&[&array, &array], &mut numbers).unwrap();
        assert!(interner.table.direct().is_some());
        assert_eq!(numbers, [0, 1, 0, 1]);
    }
}
