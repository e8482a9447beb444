//! The contract of the input relations: the names of their columns, and which are required.

use crate::source::spec::{ColumnsSpec, SourceSpec};

/// The input relations whose columns have names in the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// One row per annotation.
    Annotations,
    /// One row per trusted class.
    Gold,
    /// One row per instance and class: P(class).
    Predictions,
    /// One row per annotator, class and label: P(label given class).
    Confusion,
    /// One row per pair of an instance and an annotator that the job asks about.
    Pairs,
}

/// One column of a relation's contract.
pub struct ContractColumn {
    /// Its name in the contract.
    pub name: &'static str,
    /// Whether the relation is unusable without it.
    pub required: bool,
    /// A second name that is accepted where the first is absent.
    pub fallback: Option<&'static str>,
}

const fn required(name: &'static str) -> ContractColumn {
    ContractColumn { name, required: true, fallback: None }
}

const fn optional(name: &'static str) -> ContractColumn {
    ContractColumn { name, required: false, fallback: None }
}

/// The columns of a relation, in the order that inline rows use.
#[must_use]
pub fn contract_columns(relation: Relation) -> &'static [ContractColumn] {
    const ANNOTATIONS: &[ContractColumn] = &[
        required("instance_id"),
        required("annotator_id"),
        required("label"),
        optional("weight"),
        optional("annotated_at"),
        optional("question"),
    ];
    const GOLD: &[ContractColumn] = &[
        required("instance_id"),
        // A truth table usually calls it `label`, as the labels table does.
        ContractColumn { name: "class", required: true, fallback: Some("label") },
        optional("role"),
        optional("question"),
    ];
    const PREDICTIONS: &[ContractColumn] = &[
        required("instance_id"),
        required("class"),
        required("probability"),
        optional("question"),
    ];
    const CONFUSION: &[ContractColumn] = &[
        required("annotator_id"),
        required("class"),
        required("label"),
        required("probability"),
        optional("question"),
    ];
    const PAIRS: &[ContractColumn] =
        &[required("instance_id"), required("annotator_id"), optional("question")];
    match relation {
        Relation::Annotations => ANNOTATIONS,
        Relation::Gold => GOLD,
        Relation::Predictions => PREDICTIONS,
        Relation::Confusion => CONFUSION,
        Relation::Pairs => PAIRS,
    }
}

impl Relation {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Annotations, Self::Gold, Self::Predictions, Self::Confusion, Self::Pairs];

    /// The relation that a table of this name provides by default.
    #[must_use]
    pub fn of_table(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.table() == name)
    }

    /// Whether a source gives it.
    #[must_use]
    pub fn is_in(self, source: &SourceSpec) -> bool {
        match self {
            Self::Annotations => source.has_annotations(),
            Self::Gold => source.has_gold(),
            Self::Predictions => source.predictions.is_some() || source.sql.predictions.is_some(),
            Self::Confusion => source.confusion.is_some() || source.sql.confusion.is_some(),
            Self::Pairs => source.pairs.is_some() || source.sql.pairs.is_some(),
        }
    }

    /// The table that provides this relation by default.
    #[must_use]
    pub fn table(self) -> &'static str {
        match self {
            Self::Annotations => "annotations",
            Self::Gold => "gold",
            Self::Predictions => "predictions",
            Self::Confusion => "confusion",
            Self::Pairs => "pairs",
        }
    }
}

/// The origin of the columns of a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A table beside others, for which the user's names are, too.
    Table,
    /// The only table that the user's names are for.
    OnlyTable,
    /// The user's query in `source.sql`.
    Query,
}

/// The name that a column of a relation has in a table or query with columns of these `names`; `None` if it has none.
pub(super) fn name_in<'a>(
    (relation, origin): (Relation, Origin),
    column: &ContractColumn,
    columns: &ColumnsSpec,
    names: &'a [String],
) -> Option<&'a str> {
    let mapped = columns.mapped(column.name);
    // A name that the user gives may be that of the annotations alone, where they have such a column: other tables, and
    // queries, may then have the contract's own name. Otherwise a name that is not there is a mistake.
    let in_annotations =
        contract_columns(Relation::Annotations).iter().any(|c| c.name == column.name);
    let may_differ = match origin {
        // A name of a class may be that of gold alone.
        Origin::Table => in_annotations || relation != Relation::Gold,
        Origin::OnlyTable => false,
        Origin::Query => true,
    };
    let own = (relation != Relation::Annotations && may_differ).then_some(column.name);
    let fallback = column.fallback.filter(|_| mapped.is_none());
    let mut wanted = [mapped.or(Some(column.name)), own, fallback].into_iter().flatten();
    wanted.find_map(|wanted| names.iter().map(String::as_str).find(|name| *name == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of `instance_id`, `class` and `role` in a table `instance_id, class, label, role`, where the user's names
    /// for all three are those of another table.
    #[test]
    fn a_name_that_is_not_there_is_a_mistake_unless_the_annotations_may_have_it() {
        let names = ["instance_id", "class", "label", "role"].map(str::to_owned);
        let columns = ColumnsSpec {
            instance: Some("item".to_owned()),
            class: Some("klass".to_owned()),
            role: Some("part".to_owned()),
            ..ColumnsSpec::default()
        };
        let found = |origin, columns: &ColumnsSpec| {
            let gold = contract_columns(Relation::Gold).iter().take(3);
            gold.map(|c| name_in((Relation::Gold, origin), c, columns, &names).map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let own = ["instance_id", "class", "role"].map(|name| Some(name.to_owned()));
        let instance_alone = [own[0].clone(), None, None];
        assert_eq!(found(Origin::Table, &columns), instance_alone);
        assert_eq!(found(Origin::OnlyTable, &columns), [const { None }; 3]);
        assert_eq!(found(Origin::Query, &columns), own);
        for origin in [Origin::Table, Origin::OnlyTable, Origin::Query] {
            assert_eq!(found(origin, &ColumnsSpec::default()), own, "{origin:?}");
        }
    }
}
