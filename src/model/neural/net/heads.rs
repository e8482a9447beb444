//! The outputs that a model reads from its network.

use std::sync::Arc;

/// The outputs that a network computes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heads {
    /// One logit for each class, from the last hidden layer.
    pub classifier: bool,
    /// The last hidden layer itself.
    pub hidden: bool,
    /// Further heads that the model defines.
    pub named: Vec<Head>,
}

/// A named head: a sequence of linear layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The prefix of its parameters' names.
    pub name: &'static str,
    /// The input of the first layer.
    pub from: HeadInput,
    /// The output width of each layer.
    pub widths: Vec<usize>,
}

/// The input of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadInput {
    /// The scaled features.
    Features,
    /// The last hidden layer.
    Hidden,
}

impl Heads {
    /// The classifier alone.
    pub const CLASSIFIER: Self = Self { classifier: true, hidden: false, named: Vec::new() };
    /// The last hidden layer alone.
    pub const HIDDEN: Self = Self { classifier: false, hidden: true, named: Vec::new() };
}

/// The outputs of all heads; an output that the model does not read is empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outputs {
    /// The number of rows.
    pub rows: usize,
    /// `[row, class]`
    pub logits: Vec<f64>,
    /// The softmax of `logits`.
    pub p: Vec<f64>,
    /// `[row, hidden]`
    pub hidden: Vec<f64>,
    /// `[row, unit]` of each named head, in the order of [`Heads::named`].
    pub named: Vec<Vec<f64>>,
    /// The model's constants of each row, where the training keeps them; else empty.
    pub constants: Vec<Arc<[f64]>>,
}

impl Outputs {
    fn heads(&self) -> impl Iterator<Item = &Vec<f64>> {
        [&self.logits, &self.p, &self.hidden].into_iter().chain(&self.named)
    }

    fn heads_mut(&mut self) -> impl Iterator<Item = &mut Vec<f64>> {
        [&mut self.logits, &mut self.p, &mut self.hidden].into_iter().chain(&mut self.named)
    }

    /// Zeros in the same shapes, without constants.
    #[must_use]
    pub fn zeros_like(&self) -> Self {
        let mut zeros = self.clone();
        zeros.heads_mut().for_each(|head| head.fill(0.0));
        zeros.constants.clear();
        zeros
    }

    /// How many values all heads hold.
    #[must_use]
    pub fn numbers(&self) -> usize {
        self.heads().map(Vec::len).sum()
    }

    /// Appends the rows of other outputs of the same network, none of which has constants.
    pub fn extend(&mut self, other: &Self) {
        self.rows += other.rows;
        self.named.resize(other.named.len(), Vec::new());
        for (head, more) in self.heads_mut().zip(other.heads()) {
            head.extend_from_slice(more);
        }
    }

    /// The outputs of these rows.
    #[must_use]
    pub fn select(&self, rows: &[usize]) -> Self {
        let named = vec![Vec::new(); self.named.len()];
        let mut selected = Self { rows: rows.len(), named, ..Self::default() };
        for (to, head) in selected.heads_mut().zip(self.heads()) {
            let width = head.len() / self.rows.max(1);
            rows.iter().for_each(|b| to.extend_from_slice(&head[b * width..(b + 1) * width]));
        }
        if !self.constants.is_empty() {
            selected.constants = rows.iter().map(|b| Arc::clone(&self.constants[*b])).collect();
        }
        selected
    }

    /// The classifier's probabilities for row `b`.
    #[must_use]
    pub fn p(&self, b: usize) -> &[f64] {
        let n = self.p.len() / self.rows.max(1);
        &self.p[b * n..(b + 1) * n]
    }

    /// The last hidden layer of row `b`.
    #[must_use]
    pub fn hidden(&self, b: usize) -> &[f64] {
        let n = self.hidden.len() / self.rows.max(1);
        &self.hidden[b * n..(b + 1) * n]
    }

    /// The outputs of a named head for row `b`.
    #[must_use]
    pub fn named(&self, head: usize, b: usize) -> &[f64] {
        let n = self.named[head].len() / self.rows.max(1);
        &self.named[head][b * n..(b + 1) * n]
    }
}
