//! Things of many owners in one list: where each owner's begin.

use std::ops::Range;

/// Every owner's next free place; where the first one's begin, the next one's end.
pub(crate) struct Places(pub(crate) Vec<usize>);

impl Places {
    #[inline]
    pub(crate) fn next(&mut self, owner: u32) -> usize {
        let next = &mut self.0[owner as usize];
        *next += 1;
        *next - 1
    }

    /// The offsets that it was made of, when all places are taken: each stands where its neighbour's stood.
    pub(crate) fn offsets(self) -> Vec<usize> {
        let mut offsets = self.0;
        offsets.rotate_right(1);
        offsets[0] = 0;
        offsets
    }
}

/// The owner of each item, from who they are and their offsets.
pub(super) fn owners(order: &[u32], offsets: &[usize]) -> Vec<u32> {
    let mut owners = Vec::with_capacity(offsets.last().copied().unwrap_or_default());
    for (owner, own) in order.iter().zip(offsets.windows(2)) {
        owners.extend(std::iter::repeat_n(*owner, own[1] - own[0]));
    }
    owners
}

/// Occurrences of each number below `n`.
pub(crate) fn count(numbers: &[u32], n: usize) -> Vec<u32> {
    let mut counts = vec![0; n];
    numbers.iter().for_each(|x| counts[*x as usize] += 1);
    counts
}

/// Where each owner's items begin, of how many each has, and one past the last.
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

/// Numbers of instances, annotators and labels are below 2^32, since they were interned as such.
pub(super) fn number(index: usize) -> u32 {
    index as u32
}

/// Cuts `items`, of which there are `width` for each step of `offsets`, into the parts of `block` neighbouring owners
/// each: the owners' range, and their items.
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
