//! The approved schemas of all tables: other people's jobs read them by these names and types.

use std::fmt::Write as _;

use labelmill::tables::{ColumnType, SCHEMA_VERSION, TABLES};

#[test]
fn the_tables_have_the_approved_columns() {
    let mut text = format!("schema version {SCHEMA_VERSION}\n");
    for table in TABLES {
        write!(text, "\n{}\n", table.name).unwrap();
        for column in table.columns {
            let of = match &column.kind {
                ColumnType::Instance => "type of instance_id".to_owned(),
                ColumnType::Annotator => "type of annotator_id".to_owned(),
                ColumnType::Label => "type of label".to_owned(),
                ColumnType::Texts => "List(Utf8)".to_owned(),
                ColumnType::Fixed(fixed) => fixed.to_string(),
            };
            let null = if column.nullable { "null" } else { "" };
            let line = format!("  {:<18} {of:<20} {null:<5} {}", column.name, column.meaning);
            writeln!(text, "{}", line.trim_end()).unwrap();
        }
    }
    insta::assert_snapshot!("tables", text);
}
