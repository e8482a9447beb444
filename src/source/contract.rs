//! The contract of the input relations: the names of their columns, and which are required.

use super::ColumnsSpec;

/// The input relations with one row per annotation or trusted class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// One row per annotation.
    Annotations,
    /// One row per trusted class.
    Gold,
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
    match relation {
        Relation::Annotations => ANNOTATIONS,
        Relation::Gold => GOLD,
    }
}

impl Relation {
    /// The relation that a table of this name provides by default.
    #[must_use]
    pub fn of_table(name: &str) -> Option<Self> {
        [Self::Annotations, Self::Gold].into_iter().find(|r| r.table() == name)
    }

    /// The table that provides this relation by default.
    #[must_use]
    pub fn table(self) -> &'static str {
        match self {
            Self::Annotations => "annotations",
            Self::Gold => "gold",
        }
    }
}

/// The name that a column of a relation has in a table with columns of these `names`; `None` if it has none.
pub(super) fn name_in<'a>(
    relation: Relation,
    column: &ContractColumn,
    columns: &ColumnsSpec,
    names: &'a [String],
) -> Option<&'a str> {
    let mapped = columns.mapped(column.name);
    // One mapping serves all relations; tables other than the annotations may also have the contract's own names.
    let own = (relation != Relation::Annotations).then_some(column.name);
    let fallback = column.fallback.filter(|_| mapped.is_none());
    let mut wanted = [mapped.or(Some(column.name)), own, fallback].into_iter().flatten();
    wanted.find_map(|wanted| names.iter().map(String::as_str).find(|name| *name == wanted))
}
