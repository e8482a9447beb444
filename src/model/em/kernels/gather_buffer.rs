//! A buffer into which entries from many blocks are copied, in groups, before they are used.
//!
//! # Why
//! The instances of a column, and the columns of an instance, are in random places in memory. Read one by one, each
//! needs two dependent reads: its position, then its entries. The buffer collects all positions first and then copies
//! all entries, so that the reads overlap.

/// Copies of entries, in groups.
pub struct GatherBuffer<T> {
    /// The requested spans: (block, begin, end).
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
    /// Removes all groups and requests; the capacity stays.
    #[inline]
    pub fn clear(&mut self) {
        self.places.clear();
        self.ends.clear();
        self.total = 0;
    }

    /// Requests the entries `begin..end` of a block for the current group.
    #[inline]
    pub fn request(&mut self, block: u32, begin: u32, end: u32) {
        self.total += (end - begin) as usize;
        self.places.push((block, begin, end));
    }

    /// Ends the current group.
    #[inline]
    pub fn end_group(&mut self) {
        self.ends.push(self.total);
    }

    /// Copies all requested entries; `block` returns the entries of a block.
    #[inline]
    pub fn gather<'a>(&mut self, block: impl Fn(usize) -> &'a [T])
    where
        T: 'a,
    {
        self.entries.resize(self.total, T::default());
        let mut rest = &mut self.entries[..];
        for (of, begin, end) in &self.places {
            let entries = &block(*of as usize)[*begin as usize..*end as usize];
            let (copies, others) = rest.split_at_mut(entries.len());
            copies.iter_mut().zip(entries).for_each(|(to, from)| *to = *from);
            rest = others;
        }
    }

    /// The copied entries of each call of [`GatherBuffer::request`], mutable.
    pub fn requested_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        let mut rest = &mut self.entries[..];
        self.places.iter().map(move |(_, begin, end)| {
            let (entries, others) = std::mem::take(&mut rest).split_at_mut((end - begin) as usize);
            rest = others;
            entries
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
