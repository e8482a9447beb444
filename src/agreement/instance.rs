//! The labels of one instance: how many annotators gave each.

use super::Categories;

/// A label of an instance.
pub(super) struct Given {
    pub(super) category: u32,
    /// How many annotators gave it; one who gave several labels counts a part for each.
    pub(super) n: f64,
    /// The sum of the squares of these parts: of pairs that an annotator makes with itself.
    pub(super) own: f64,
}

/// The labels of one instance, counted.
#[derive(Default)]
pub(super) struct InstanceCounts {
    /// The labels, in the order in which annotators come.
    pub(super) given: Vec<Given>,
    /// (category, other category, product of the parts) of the annotators who gave several labels.
    pub(super) of_one: Vec<(u32, u32, f64)>,
    /// The number of annotators.
    pub(super) annotators: f64,
    parts: Vec<(u32, f64)>,
}

impl InstanceCounts {
    /// Counts the (annotator, label, weight) triples of an instance, in which those of one annotator are adjacent.
    pub(super) fn count(
        &mut self,
        categories: &Categories,
        triples: impl Iterator<Item = (u32, u32, f64)>,
    ) {
        self.given.clear();
        self.of_one.clear();
        self.parts.clear();
        self.annotators = 0.0;
        let mut last = None;
        for (annotator, label, weight) in triples {
            if last.replace(annotator) != Some(annotator) {
                self.end_annotator();
            }
            let Some(category) = categories.category(label) else { continue };
            match self.parts.iter_mut().find(|(other, _)| *other == category) {
                Some((_, sum)) => *sum += weight,
                None => self.parts.push((category, weight)),
            }
        }
        self.end_annotator();
    }

    fn end_annotator(&mut self) {
        match self.parts.as_slice() {
            [] => return,
            [(category, _)] => Self::add(&mut self.given, *category, 1.0),
            parts => {
                let total: f64 = parts.iter().map(|(_, weight)| weight).sum();
                for (n, (category, weight)) in parts.iter().enumerate() {
                    Self::add(&mut self.given, *category, weight / total);
                    for (other, more) in &parts[n + 1..] {
                        let product = weight / total * (more / total);
                        self.of_one.push((*category, *other, product));
                    }
                }
            }
        }
        self.annotators += 1.0;
        self.parts.clear();
    }

    fn add(given: &mut Vec<Given>, category: u32, part: f64) {
        let own = part * part;
        match given.iter_mut().find(|given| given.category == category) {
            Some(given) => (given.n, given.own) = (given.n + part, given.own + own),
            None => given.push(Given { category, n: part, own }),
        }
    }
}
