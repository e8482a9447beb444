//! The outputs that a model reads from its network.

/// What a network computes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heads {
    /// One logit for each class, from the last hidden layer.
    pub classifier: bool,
    /// The last hidden layer itself.
    pub hidden: bool,
    /// Heads of the model's own.
    pub named: Vec<Head>,
}

/// Linear layers, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// What the names of its parameters begin with.
    pub name: &'static str,
    /// What the first layer is computed from.
    pub from: HeadInput,
    /// Numbers that each layer gives.
    pub widths: Vec<usize>,
}

/// What a head is computed from.
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

/// The outputs of each head; those that the model does not read are empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outputs {
    /// Rows.
    pub rows: usize,
    /// `[row, class]`
    pub logits: Vec<f64>,
    /// The softmax of `logits`.
    pub p: Vec<f64>,
    /// `[row, hidden]`
    pub hidden: Vec<f64>,
    /// `[row, number]` of each named head, in their order.
    pub named: Vec<Vec<f64>>,
}

impl Outputs {
    fn heads(&self) -> impl Iterator<Item = &Vec<f64>> {
        [&self.logits, &self.p, &self.hidden].into_iter().chain(&self.named)
    }

    fn heads_mut(&mut self) -> impl Iterator<Item = &mut Vec<f64>> {
        [&mut self.logits, &mut self.p, &mut self.hidden].into_iter().chain(&mut self.named)
    }

    /// As many zeros.
    #[must_use]
    pub fn zeros_like(&self) -> Self {
        let mut zeros = self.clone();
        zeros.heads_mut().for_each(|head| head.fill(0.0));
        zeros
    }

    /// How many numbers all heads hold.
    #[must_use]
    pub fn numbers(&self) -> usize {
        self.heads().map(Vec::len).sum()
    }

    /// Appends the rows of other outputs of the same network.
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

    /// The numbers of a named head for row `b`.
    #[must_use]
    pub fn named(&self, head: usize, b: usize) -> &[f64] {
        let n = self.named[head].len() / self.rows.max(1);
        &self.named[head][b * n..(b + 1) * n]
    }
}
