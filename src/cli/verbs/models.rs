//! `labelmill models`: lists the models, or the parameters of one.

use crate::cli::plain_table::plain_table;
use crate::cli::terminal::{print_json, print_result};
use crate::commands::models::{ModelParameter, as_json, models, parameters};
use crate::error::Result;
use crate::model::ModelKind;

#[derive(Debug, clap::Args)]
#[allow(missing_docs)]
pub struct ModelsArgs {
    /// One of the kinds
    pub kind: Option<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn command(args: &ModelsArgs) -> Result<()> {
    let kinds = models(args.kind.as_deref())?;
    if args.json {
        return print_json(&as_json(&kinds));
    }
    let mut table = plain_table();
    if args.kind.is_some() {
        for kind in kinds {
            parameters(kind).into_iter().for_each(|ModelParameter { path, default, meaning }| {
                table.add_row([path, default, meaning]);
            });
            let ModelKind { kind, summary, source, capabilities, .. } = kind;
            let facts = [vec![format!("{kind}: {summary}")], capabilities.limits()].concat();
            let facts = facts.join("; ");
            print_result(&format!("{facts}\n{source}\n\n{}", table.trim_fmt()))?;
        }
        return Ok(());
    }
    for kind in kinds {
        table.add_row([kind.kind, kind.summary, kind.source]);
    }
    print_result(&table.trim_fmt())
}
