//! The CUDA kernels, and the arguments that an operation launches one with.

use candle_core::{Error, Result};

/// The source of all kernels, for the data type that its first lines choose.
pub(super) const SOURCE: &str = concat!(
    include_str!("kernels/prelude.cu"),
    include_str!("kernels/pointwise.cu"),
    include_str!("kernels/max_pool.cu"),
    include_str!("kernels/conv.cu"),
    include_str!("kernels/channels.cu"),
    include_str!("kernels/norm.cu"),
    include_str!("kernels/dropout.cu"),
    include_str!("kernels/optimiser.cu"),
    include_str!("kernels/copies.cu"),
);

/// The rows of patches that a thread writes.
pub(super) const ROWS: usize = 16;

/// The words of a block of the random stream; a thread of dropout computes one block.
pub(super) const BLOCK_WORDS: u64 = 16;

/// A kernel of `kernels/*.cu` with its arguments: the inputs, the output, the number of threads or groups, `numbers` and
/// `factors`.
pub(super) struct KernelCall {
    pub(super) name: &'static str,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(super) work: Work,
    pub(super) numbers: Vec<u32>,
    pub(super) factors: Vec<f32>,
}

/// How many threads a kernel has.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(super) enum Work {
    /// One for each of so many values.
    Threads(usize),
    /// A group of threads for each of so many sums.
    Groups(usize),
}

impl KernelCall {
    /// A kernel with one thread for each of so many values, and no other arguments.
    pub(super) fn for_each(name: &'static str, values: usize) -> Self {
        Self { name, work: Work::Threads(values), numbers: Vec::new(), factors: Vec::new() }
    }

    /// A kernel with a group of threads for each of so many sums, and no other arguments.
    pub(super) fn for_each_group(name: &'static str, groups: usize) -> Self {
        Self { work: Work::Groups(groups), ..Self::for_each(name, 0) }
    }

    /// The same kernel with these numbers.
    ///
    /// # Errors
    /// When one of them has more than 32 bits.
    pub(super) fn with(self, numbers: &[usize]) -> Result<Self> {
        let number = |n: &usize| u32::try_from(*n).map_err(Error::wrap);
        Ok(Self { numbers: numbers.iter().map(number).collect::<Result<_>>()?, ..self })
    }

    /// Compares the number and the types of the arguments, for so many inputs, with those of the kernel's parameters in the
    /// source.
    ///
    /// # Errors
    /// When a launch would pass others.
    pub(super) fn check(&self, inputs: usize) -> Result<()> {
        let declared = SOURCE.split_once(&format!("void {}(", self.name));
        let parameters = declared.and_then(|(_, rest)| rest.split_once(')')).unwrap_or_default().0;
        let types = parameters.split(',').filter_map(|p| p.trim().rsplit_once(' ').map(|(t, _)| t));
        let (numbers, factors) = (self.numbers.len(), self.factors.len());
        let [input, output, count] = ["const T*", "T*", "u64"];
        let wanted = [vec![input; inputs], vec![output, count], vec!["u32"; numbers]].concat();
        let wanted = wanted.into_iter().chain(vec!["float"; factors]);
        if !types.eq(wanted) {
            candle_core::bail!(
                "{inputs} inputs, {numbers} numbers and {factors} factors for {}({parameters})",
                self.name
            );
        }
        Ok(())
    }
}

/// The error for an input that is a view.
pub(super) fn not_contiguous() -> Error {
    Error::msg("an operation for a GPU reads contiguous tensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_arguments_than_the_parameters_are_found() {
        let kernel = |name| KernelCall::for_each(name, 4);
        kernel("relu").check(1).unwrap();
        kernel("max_pool").with(&[2, 2]).unwrap().check(1).unwrap();
        let error = kernel("max_pool").with(&[2]).unwrap().check(1).unwrap_err().to_string();
        assert!(error.starts_with("1 inputs, 1 numbers and 0 factors for max_pool(const T* x,"));
        assert!(kernel("relu").check(2).is_err() && kernel("moved").check(2).is_err());
        assert!(kernel("no_such_kernel").check(1).is_err());
    }
}
