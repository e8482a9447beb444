//! Numbers that lie scattered over blocks, brought together before they are used.
//!
//! # Why
//! A column's instances, and an instance's columns, are anywhere in memory. Taken one by one, each would wait for two
//! reads in turn: where its numbers are, and the numbers. Here all places are found first, and then all numbers are
//! copied, none of which waits for another.

/// Copies of entries, in groups.
pub struct GatherBuffer<T> {
    /// (block, begin, end)
    places: Vec<(u32, u32, u32)>,
    entries: Vec<T>,
    /// Where the entries of each group end.
    ends: Vec<usize>,
    total: usize,
}

impl<T> Default for GatherBuffer<T> {
    fn default() -> Self {
        Self { places: Vec::new(), entries: Vec::new(), ends: Vec::new(), total: 0 }
    }
}

impl<T: Copy + Default> GatherBuffer<T> {
    /// Forgets everything; the room stays.
    #[inline]
    pub fn clear(&mut self) {
        self.places.clear();
        self.ends.clear();
        self.total = 0;
    }

    /// The group at hand will have entries `begin` to `end` of a block, too.
    #[inline]
    pub fn want(&mut self, block: u32, begin: u32, end: u32) {
        self.total += (end - begin) as usize;
        self.places.push((block, begin, end));
    }

    /// The next group begins.
    #[inline]
    pub fn end_group(&mut self) {
        self.ends.push(self.total);
    }

    /// Copies all that is wanted.
    #[inline]
    pub fn gather<'a>(&mut self, block: impl Fn(usize) -> &'a [T])
    where
        T: 'a,
    {
        self.entries.resize(self.total, T::default());
        let mut rest = &mut self.entries[..];
        for (of, begin, end) in &self.places {
            let entries = &block(*of as usize)[*begin as usize..*end as usize];
            let (own, others) = rest.split_at_mut(entries.len());
            own.iter_mut().zip(entries).for_each(|(to, from)| *to = *from);
            rest = others;
        }
    }

    /// What was gathered for each [`GatherBuffer::want`], to change.
    pub fn wanted_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        let mut rest = &mut self.entries[..];
        self.places.iter().map(move |(_, begin, end)| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut((end - begin) as usize);
            rest = others;
            own
        })
    }

    /// The entries of the `n`-th group.
    #[inline]
    #[must_use]
    pub fn group(&self, n: usize) -> &[T] {
        let begin = if n == 0 { 0 } else { self.ends[n - 1] };
        &self.entries[begin..self.ends[n]]
    }
}
