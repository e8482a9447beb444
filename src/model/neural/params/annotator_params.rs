//! The parameters of annotators and instances: tables on the host. A training step reads and updates only the rows of
//! the annotators and instances in its batch.
//!
//! # Why
//! Fifty thousand annotators with ten classes have five million such parameters, and a batch contains a few hundred
//! annotators. So the tables stay on the host, whatever device the classifier is on: a batch gathers the rows of its
//! annotators, the loss and its derivatives are computed over the flat list of annotations, and the optimiser
//! updates only the gathered rows, with moments and a step count for each row. A step does not depend on annotators
//! outside the batch, and no array of size batch x annotators x classes exists.

use std::collections::BTreeMap;

use super::param_table::{Owner, ParamTable};
use crate::error::{Error, Result};
use crate::model::neural::data::batch::Batch;
use crate::model::neural::net::optimiser::Optimiser;
use crate::model::neural::net::optimiser::moments::Moments;
use crate::model::saved::snapshot::Snapshot;

/// Every table of a model.
#[derive(Debug, Clone, Default)]
pub struct AnnotatorParams {
    /// The tables, in the order in which the model creates them.
    pub tables: Vec<ParamTable>,
}

/// The rows of a batch: for each table `[annotator of the batch, width]`, `[distinct instance of the batch, width]`, or
/// `[1, width]` where it belongs to the whole model.
pub type Gathered = Vec<Vec<f64>>;

impl AnnotatorParams {
    /// Copies the rows of the annotators and instances of a batch.
    #[must_use]
    pub fn gather(&self, batch: &Batch) -> Gathered {
        self.tables.iter().map(|table| table.gather(table.owner.rows(batch))).collect()
    }

    /// The table of this name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&ParamTable> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// Updates the rows of a batch by the optimiser's rule.
    pub(in crate::model::neural) fn step(
        &mut self,
        batch: &Batch,
        gradient: &Gathered,
        optimiser: &Optimiser,
        rate: f64,
    ) {
        let tables = self.tables.iter_mut().zip(gradient);
        for (table, gradient) in tables.filter(|(table, _)| table.is_updated()) {
            table.step(table.owner.rows(batch), gradient, optimiser, rate);
        }
    }

    /// The sum of the squared gradients of all trained parameters.
    pub(in crate::model::neural) fn squared_norm(&self, gradient: &Gathered) -> f64 {
        let updated = self.tables.iter().zip(gradient).filter(|(table, _)| table.is_updated());
        updated.flat_map(|(_, gradient)| gradient).map(|g| g * g).sum()
    }

    /// Whether all parameters outside fixed tables are finite numbers.
    pub(crate) fn is_finite(&self) -> bool {
        let trained = self.tables.iter().filter(|table| !table.is_fixed);
        trained.flat_map(|table| &table.values).all(|value| value.is_finite())
    }

    /// Sets the parameters of annotators, or instances, without training data to the mean over all others.
    pub(in crate::model::neural) fn average_unknown(&mut self, owner: Owner, unknown: &[bool]) {
        let own = |table: &&mut ParamTable| table.owner == owner && !table.is_fixed;
        self.tables.iter_mut().filter(own).for_each(|table| table.average_unknown(unknown));
    }

    /// Adds the values to a snapshot, in the order of the tables.
    pub(in crate::model::neural) fn save(&self, to: &mut Snapshot) {
        for (n, table) in self.tables.iter().enumerate() {
            let shape = match table.owner {
                Owner::Model => vec![table.width],
                Owner::Annotator | Owner::Instance => vec![table.steps.len(), table.width],
            };
            to.f32s(saved_name(n, table), shape, table.values.clone());
        }
    }

    /// Adds moments and step counts, which only a resumed training needs.
    pub(in crate::model::neural) fn save_moments(&self, to: &mut Snapshot) {
        for table in &self.tables {
            let name = format!("optimiser.crowd.{}", table.name);
            table.moments.save(&name, to);
            to.u32s(format!("{name}.steps"), table.steps.clone());
        }
    }

    /// Takes the values from a snapshot.
    ///
    /// # Errors
    /// When the snapshot belongs to another model.
    pub(in crate::model::neural) fn load(&mut self, from: &Snapshot) -> Result<()> {
        for (n, table) in self.tables.iter_mut().enumerate() {
            table.values = from.take_f32s(&saved_name(n, table), table.values.len())?;
        }
        Ok(())
    }

    /// Takes moments and steps from a snapshot.
    ///
    /// # Errors
    /// When the snapshot belongs to another model.
    pub(in crate::model::neural) fn load_moments(&mut self, from: &Snapshot) -> Result<()> {
        for table in &mut self.tables {
            let name = format!("optimiser.crowd.{}", table.name);
            table.moments = Moments::load(&name, from);
            table.steps = from.take_u32s(&format!("{name}.steps"), table.steps.len())?;
        }
        Ok(())
    }

    /// The tables that [`AnnotatorParams::save`] wrote to a snapshot.
    ///
    /// # Errors
    /// When a table has a shape that [`AnnotatorParams::save`] never writes.
    pub(in crate::model::neural) fn saved(from: &Snapshot) -> Result<Self> {
        let mut tables = BTreeMap::new();
        for owner in [Owner::Annotator, Owner::Instance] {
            for (name, shape, values) in from.f32s_with_prefix(prefix(owner)) {
                let (n, name) = name.split_once('.').unwrap_or((name, name));
                let table = match shape {
                    [_] => ParamTable::of_model(name, values.to_vec()),
                    [_, width] if *width > 0 => {
                        ParamTable::new(name, owner, *width, values.to_vec())
                    }
                    _ => {
                        return Err(Error::data("not a table of parameters")
                            .at("model.safetensors")
                            .found(format!("`{name}` of shape {shape:?}")));
                    }
                };
                tables.insert(n.to_owned(), table);
            }
        }
        Ok(Self { tables: tables.into_values().collect() })
    }

    /// Checks that every table of annotators has a row for each of so many.
    ///
    /// # Errors
    /// When one of them has fewer or more.
    pub(in crate::model::neural) fn check_annotators(&self, annotators: usize) -> Result<()> {
        let of_annotators = self.tables.iter().filter(|table| table.owner == Owner::Annotator);
        for table in of_annotators {
            let n = table.values.len() / table.width.max(1);
            if n != annotators {
                return Err(Error::data("the model's annotators are not those that it learned")
                    .at("model.json: sizes.annotators")
                    .found(format!(
                        "{annotators} there, {n} rows of `{}` in model.safetensors",
                        table.name
                    ))
                    .help("the files belong together: take both from the run that wrote them"));
            }
        }
        Ok(())
    }
}

/// The prefix of the names of tables in a snapshot.
fn prefix(owner: Owner) -> &'static str {
    match owner {
        Owner::Annotator | Owner::Model => "crowd.",
        Owner::Instance => "instances.",
    }
}

/// The name of a table in a snapshot; its number keeps the order of the tables.
fn saved_name(n: usize, table: &ParamTable) -> String {
    format!("{}{n:02}.{}", prefix(table.owner), table.name)
}
