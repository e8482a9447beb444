//! The classes that annotators agree on, in their order, and the scale that they are on.

/// The scale of the labels, which decides the statistics that they have.
#[derive(Debug, Clone, PartialEq)]
pub enum Scale {
    /// Names without an order.
    Nominal,
    /// Classes in the order that the user listed them in.
    Ordered,
    /// Numbers.
    Numbers,
}

/// The classes, ascending by number where they are numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Categories {
    /// The category of each label; `None` for a label that is no class.
    of_label: Vec<Option<u32>>,
    /// The label of each category.
    labels: Vec<u32>,
    /// The number that each category is, or its position; empty for names.
    scores: Vec<f64>,
    scale: Scale,
    is_listed: bool,
}

impl Categories {
    /// Of the labels that are classes, as text in their order, and whether the user listed them.
    #[must_use]
    pub fn new(classes: &[String], is_listed: bool) -> Self {
        let mut labels: Vec<u32> = (0..classes.len() as u32).collect();
        let (scale, scores) = match numbers(classes) {
            Some(numbers) => {
                // Stable: equal numbers keep their order.
                labels.sort_by(|k, l| numbers[*k as usize].total_cmp(&numbers[*l as usize]));
                (Scale::Numbers, labels.iter().map(|l| numbers[*l as usize]).collect())
            }
            None if is_listed => {
                (Scale::Ordered, (0..classes.len()).map(|position| position as f64).collect())
            }
            None => (Scale::Nominal, Vec::new()),
        };
        let mut of_label = vec![None; classes.len()];
        labels.iter().enumerate().for_each(|(k, l)| of_label[*l as usize] = Some(k as u32));
        Self { of_label, labels, scores, scale, is_listed }
    }

    /// The same categories for a part of the annotations, in which perhaps not every class occurs; `classes` are those of
    /// the part, as text.
    #[must_use]
    pub fn of_part(&self, classes: &[String]) -> Self {
        if self.is_listed {
            return self.clone();
        }
        let of_label = match numbers(classes).filter(|_| self.scale == Scale::Numbers) {
            Some(numbers) => {
                let position = |x: &f64| self.scores.binary_search_by(|score| score.total_cmp(x));
                numbers.iter().map(|x| position(x).ok().map(|k| k as u32)).collect()
            }
            None => (0..classes.len().min(self.len()) as u32).map(Some).collect(),
        };
        Self { of_label, ..self.clone() }
    }

    /// The number of categories.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Their scale.
    #[must_use]
    pub fn scale(&self) -> &Scale {
        &self.scale
    }

    /// The category of a label.
    #[inline]
    pub(super) fn category(&self, label: u32) -> Option<u32> {
        self.of_label.get(label as usize).copied().flatten()
    }

    pub(super) fn label_of(&self, category: usize) -> u32 {
        self.labels[category]
    }

    /// The numbers of the categories, ascending; empty for names.
    pub(super) fn scores(&self) -> &[f64] {
        &self.scores
    }
}

/// The numbers that all texts are; `None` where one is none, or there is no text.
fn numbers(texts: &[String]) -> Option<Vec<f64>> {
    let number = |text: &String| text.trim().parse::<f64>().ok().filter(|x| x.is_finite());
    // No zero of a sign of its own.
    let all: Option<Vec<f64>> = texts.iter().map(|text| Some(number(text)? + 0.0)).collect();
    all.filter(|numbers| !numbers.is_empty())
}
