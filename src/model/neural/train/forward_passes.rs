//! The forward passes of all learners for a batch, and the way back.

use candle_core::backprop::GradStore;

use crate::error::Result;
use crate::model::neural::net::forward_pass::ForwardPass;
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::net::input::input_rows::InputRows;

/// The forward passes of a batch, and their outputs.
pub(super) struct ForwardPasses {
    /// The forward pass of each learner that the phase trains, or that reads a table of parameters.
    pub(super) passes: Vec<Option<ForwardPass>>,
    /// Whether the phase trains each learner.
    pub(super) are_trained: Vec<bool>,
    /// The outputs of the classifier.
    pub(super) out: Outputs,
    /// The outputs of the other learners.
    pub(super) others: Vec<Outputs>,
}

impl ForwardPasses {
    /// The gradients of the learners, given the gradients of the outputs. On a GPU these are copied together with the
    /// learners' inputs of the next batch, if there is one.
    pub(super) fn backward(
        &self,
        of_out: &Outputs,
        of_others: &[Outputs],
        next_inputs: &mut [InputRows],
    ) -> Result<LearnerGradients> {
        let of_outputs = std::iter::once(of_out).chain(of_others);
        let (mut all, mut next) = (LearnerGradients::default(), next_inputs.iter_mut());
        for ((pass, gradient), is_trained) in
            self.passes.iter().zip(of_outputs).zip(&self.are_trained)
        {
            let (next, mut none) = (next.next(), InputRows::default());
            let next = next.unwrap_or(&mut none);
            let store = pass.as_ref().map(|pass| pass.backward(gradient, next)).transpose()?;
            let of_input = match (pass, &store) {
                (Some(pass), Some(store)) => pass.of_input(store)?,
                _ => None,
            };
            all.of_inputs.push(of_input);
            all.of_parameters.push(store.filter(|_| *is_trained));
        }
        Ok(all)
    }
}

#[derive(Default)]
pub(super) struct LearnerGradients {
    /// The gradients of the parameters, for learners that are trained.
    pub(super) of_parameters: Vec<Option<GradStore>>,
    /// The gradients with respect to the input, `[row, column]`, for learners that read a table of parameters.
    pub(super) of_inputs: Vec<Option<Vec<f64>>>,
}
