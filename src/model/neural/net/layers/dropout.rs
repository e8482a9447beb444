//! The random masks of dropout.

use rand::RngCore;

use crate::job_context::Rng;

/// The number of bits drawn for each value.
const BITS: u32 = 16;

/// A dropout mask: each value is zero with probability `share`, in steps of 2^-16, else `1 / (1 - share)`. It is kept as
/// its position in a random stream, from which host and GPU compute the same values.
#[derive(Debug, Clone)]
pub(crate) struct Mask {
    /// The stream, before the first draw of the mask.
    rng: Rng,
    /// A value is zero if the bits drawn for it are below this.
    below: u32,
    scale: f32,
}

impl Mask {
    /// Takes the draws of a mask of `len` values from the stream.
    pub(crate) fn draw(rng: &mut Rng, len: usize, share: f64) -> Self {
        let before = rng.clone();
        rng.set_word_pos(rng.get_word_pos() + len.div_ceil(2) as u128);
        // The share is at most 1, so the product is at most 2^16.
        #[allow(clippy::cast_sign_loss)]
        let below = (share * f64::from(1 << BITS)).round() as u32;
        Self { rng: before, below, scale: (1.0 / (1.0 - share)) as f32 }
    }

    /// The first `len` values.
    pub(crate) fn factors(&self, len: usize) -> Vec<f32> {
        let mut drawn = vec![0; 2 * len];
        self.rng.clone().fill_bytes(&mut drawn);
        let drawn = drawn.as_chunks::<2>().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)));
        drawn.map(|drawn| if drawn < self.below { 0.0 } else { self.scale }).collect()
    }
}

/// The parameters of the kernel that computes the mask.
impl Mask {
    /// The key of the stream.
    pub(crate) fn key(&self) -> [u32; 8] {
        let seed = self.rng.get_seed();
        std::array::from_fn(|n| {
            u32::from_le_bytes([seed[4 * n], seed[4 * n + 1], seed[4 * n + 2], seed[4 * n + 3]])
        })
    }

    /// The position of the mask's first word in the stream.
    pub(crate) fn first_word(&self) -> u64 {
        self.rng.get_word_pos() as u64
    }

    pub(crate) fn below(&self) -> u32 {
        self.below
    }

    pub(crate) fn scale(&self) -> f32 {
        self.scale
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;
    use crate::job_context::JobContext;

    /// What the kernel makes of its arguments: the low and then the high half of each word of the stream with this key,
    /// from the first word of the mask on, which is inside a block.
    #[test]
    fn a_kernel_has_what_it_needs_to_compute_the_mask() {
        let rng = &mut JobContext::new(1).rng("dropout");
        Mask::draw(rng, 75, 0.5);
        let mask = Mask::draw(rng, 133, 0.3);
        let key: Vec<u8> = mask.key().iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut stream = Rng::from_seed(key.try_into().unwrap());
        assert_eq!(mask.first_word(), 38);
        stream.set_word_pos(u128::from(mask.first_word()));
        let words = std::iter::repeat_with(|| stream.next_u32());
        let halves = words.flat_map(|word| [word & 0xffff, word >> 16]).take(133);
        let factors = halves.map(|half| if half < mask.below() { 0.0 } else { mask.scale() });
        assert_eq!(factors.collect::<Vec<_>>(), mask.factors(133));
    }

    #[test]
    fn a_mask_keeps_the_mean_by_its_scale() {
        let mask = Mask::draw(&mut JobContext::new(1).rng("dropout"), 10_000, 0.25).factors(10_000);
        assert!(mask.iter().all(|m| *m == 0.0 || (m - 4.0 / 3.0).abs() < 1e-6));
        let mean = mask.iter().sum::<f32>() / 10_000.0;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
    }

    /// Masks of odd lengths take the same draws, one after the other, as one mask does whose values leave the odd one
    /// out: a mask begins at a whole word of the stream.
    #[test]
    fn masks_follow_each_other_in_the_stream() {
        let rng = &mut JobContext::new(1).rng("dropout");
        let all = Mask::draw(&mut rng.clone(), 60, 0.5).factors(60);
        let (first, second) = (Mask::draw(rng, 33, 0.5), Mask::draw(rng, 26, 0.5));
        assert_eq!(first.factors(33), all[..33]);
        assert_eq!(second.factors(26), all[34..]);
    }
}
