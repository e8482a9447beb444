//! The posterior rows of a range of instances, which an E-step computes in chunks.

/// The posterior rows of a range of instances, or a buffer for those of one chunk if they are not stored.
pub(super) struct PosteriorRows<'a> {
    stored: Option<&'a mut [f64]>,
    buffer: Vec<f64>,
    n_classes: usize,
}

impl<'a> PosteriorRows<'a> {
    pub(super) fn new(stored: Option<&'a mut [f64]>, n_classes: usize) -> Self {
        let buffer = if stored.is_none() {
            vec![0.0; chunk_len(n_classes.max(1)) * n_classes]
        } else {
            Vec::new()
        };
        Self { stored, buffer, n_classes }
    }

    /// The rows of at most [`chunk_len`] of the range's `instances`, from `start` on.
    #[inline(always)]
    pub(super) fn chunk(&mut self, start: usize, instances: usize) -> &mut [f64] {
        let n = self.n_classes;
        let len = chunk_len(n.max(1)).min(instances - start);
        match &mut self.stored {
            Some(rows) => &mut rows[start * n..(start + len) * n],
            None => &mut self.buffer[..len * n],
        }
    }
}

/// The most instances that are processed together.
pub(super) const MAX_CHUNK: usize = 64;

/// How many instances of `n` classes are processed together: so many that their rows take at most 4 KB, and the
/// recomputed columns of five annotators each at most 20 KB, but at least 8, which share the fixed work of a chunk.
#[inline(always)]
pub(super) const fn chunk_len(n: usize) -> usize {
    let fitting = 512 / n;
    if fitting > MAX_CHUNK {
        MAX_CHUNK
    } else if fitting < 8 {
        8
    } else {
        fitting
    }
}
