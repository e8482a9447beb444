//! The classifier's outputs of several questions: it has logits of each class for each question.

use crate::model::neural::data::batch::Batch;
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::numerics::softmax;
use crate::model::neural::train::learners::Learners;

impl Learners {
    /// Keeps the logits of each row's question, where there are several; a class that the question does not have has the
    /// probability 0.
    pub(super) fn select_question(&self, out: &mut Outputs, batch: &Batch) {
        if batch.questions.is_empty() || out.logits.is_empty() {
            return;
        }
        let (width, mut logits) = (out.logits.len() / batch.len(), Vec::new());
        for (row, question) in out.logits.chunks_exact(width).zip(&batch.questions) {
            // Without features, equal logits of the classes are all there is.
            let first = if width > self.classes { question.index * self.classes } else { 0 };
            logits.extend_from_slice(&row[first..first + question.classes]);
            logits.extend((question.classes..self.classes).map(|_| f64::NEG_INFINITY));
        }
        out.p.resize(logits.len(), 0.0);
        let rows = logits.chunks_exact(self.classes).zip(out.p.chunks_exact_mut(self.classes));
        rows.for_each(|(logits, p)| {
            softmax(logits, p);
        });
        out.logits = logits;
    }

    /// The gradient of the classifier's outputs, given that of the logits of each row's question.
    pub(in crate::model::neural::train) fn spread_over_questions(
        &self,
        of_out: &mut Outputs,
        batch: &Batch,
    ) {
        if batch.questions.is_empty() || of_out.logits.is_empty() {
            return;
        }
        let mut logits = vec![0.0; batch.len() * self.classes * self.questions];
        let rows = logits.chunks_exact_mut(self.classes * self.questions);
        for ((row, own), question) in
            rows.zip(of_out.logits.chunks_exact(self.classes)).zip(&batch.questions)
        {
            let first = question.index * self.classes;
            row[first..first + question.classes].copy_from_slice(&own[..question.classes]);
        }
        of_out.logits = logits;
    }
}
