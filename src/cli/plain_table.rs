//! A table without lines, as lists are printed.

use comfy_table::{ContentArrangement, Table as TextTable, presets::NOTHING};

pub(super) fn plain_table() -> TextTable {
    let mut table = TextTable::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table
}
