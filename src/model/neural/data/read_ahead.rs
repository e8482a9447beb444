//! The batches of an epoch, which another thread reads while the network computes.

use std::iter::Peekable;
use std::sync::mpsc::{IntoIter, Receiver};

use crate::model::neural::data::batch::Batch;
use crate::model::neural::net::input::input_rows::InputRows;

/// The number of batches that are read ahead. A training on a GPU takes one more, whose inputs it copies there.
pub(super) const READ_AHEAD: usize = 2;

/// A batch with its index in the epoch and the input of each learner.
pub struct ReadBatch {
    pub(crate) index: usize,
    pub(crate) batch: Batch,
    /// The input of each learner; nothing for one whose outputs are frozen or whose input is a table of parameters.
    pub(crate) inputs: Vec<InputRows>,
}

/// The batches that the network has not seen yet, in order.
pub struct ReadAhead(Peekable<IntoIter<ReadBatch>>);

impl ReadAhead {
    pub(super) fn new(receiver: Receiver<ReadBatch>) -> Self {
        Self(receiver.into_iter().peekable())
    }

    pub(super) fn next(&mut self) -> Option<ReadBatch> {
        self.0.next()
    }

    /// Waits for the next batch, and returns the input of each learner, or none after the last batch.
    pub(crate) fn next_inputs(&mut self) -> &mut [InputRows] {
        self.0.peek_mut().map(|next| &mut next.inputs[..]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use candle_core::Device;

    use super::*;

    /// Every batch comes in turn, with its inputs as they were left when it was the next one.
    #[test]
    fn the_next_inputs_are_those_of_the_next_batch() {
        let (sender, receiver) = sync_channel(3);
        for index in 0..3 {
            let inputs = vec![InputRows::from(vec![index as f32; 2])];
            sender.send(ReadBatch { index, batch: Batch::default(), inputs }).unwrap();
        }
        drop(sender);
        let mut ahead = ReadAhead::new(receiver);
        for index in 0..3 {
            let mut batch = ahead.next().unwrap();
            assert_eq!((batch.index, batch.inputs[0].is_copied()), (index, index > 0));
            let (values, _) = batch.inputs.remove(0).on_device(&Device::Cpu).unwrap();
            assert_eq!(values.to_vec1::<f32>().unwrap(), [index as f32; 2]);
            for next in ahead.next_inputs() {
                next.copy_with(vec![9.0], &Device::Cpu).unwrap();
            }
        }
        assert!(ahead.next_inputs().is_empty() && ahead.next().is_none());
    }
}
