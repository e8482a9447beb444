//! Offsets of a list that holds the items of many owners, one owner after the other.

use std::ops::Range;

/// The next free position of every owner, in a list in which an owner's items end where the next owner's begin.
pub(crate) struct Cursors(pub(crate) Vec<usize>);

impl Cursors {
    #[inline]
    pub(crate) fn next(&mut self, owner: u32) -> usize {
        let next = &mut self.0[owner as usize];
        *next += 1;
        *next - 1
    }

    /// The original offsets, once all positions are taken: an owner's next position is then the next owner's offset.
    pub(crate) fn offsets(self) -> Vec<usize> {
        let mut offsets = self.0;
        offsets.rotate_right(1);
        offsets[0] = 0;
        offsets
    }
}

/// The owner of each item, from the owners in their order and their offsets.
pub(super) fn owners(order: &[u32], offsets: &[usize]) -> Vec<u32> {
    let mut owners = Vec::with_capacity(offsets.last().copied().unwrap_or_default());
    for (owner, own) in order.iter().zip(offsets.windows(2)) {
        owners.extend(std::iter::repeat_n(*owner, own[1] - own[0]));
    }
    owners
}

/// The number of occurrences of each number below `n`.
pub(crate) fn count(numbers: &[u32], n: usize) -> Vec<u32> {
    let mut counts = vec![0; n];
    numbers.iter().for_each(|x| counts[*x as usize] += 1);
    counts
}

/// The offset of each owner's items, from the number of items of each owner, and the end of the last.
pub(crate) fn prefix_sum(counts: &[u32]) -> Vec<usize> {
    let mut offsets = Vec::with_capacity(counts.len() + 1);
    let mut sum = 0;
    offsets.push(0);
    for count in counts {
        sum += *count as usize;
        offsets.push(sum);
    }
    offsets
}

/// The number of an instance, annotator or label as `u32`: the interner has checked that it fits.
pub(in crate::frame) fn number(index: usize) -> u32 {
    index as u32
}

/// Splits `items` into the parts of `block` neighbouring owners each, as (range of owners, their items). Each unit of
/// `offsets` stands for `width` items.
pub fn split_by<'a, T>(
    mut items: &'a mut [T],
    offsets: &[usize],
    width: usize,
    block: usize,
) -> Vec<(Range<usize>, &'a mut [T])> {
    let owners = offsets.len().saturating_sub(1);
    let mut parts = Vec::with_capacity(owners.div_ceil(block));
    let mut start = 0;
    while start < owners {
        let end = (start + block).min(owners);
        let (part, rest) = items.split_at_mut((offsets[end] - offsets[start]) * width);
        parts.push((start..end, part));
        items = rest;
        start = end;
    }
    parts
}
