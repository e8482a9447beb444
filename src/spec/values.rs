//! The single values in the lists and sections of a table, by their key paths.

/// Calls `visit` with the key path of each single value in the lists and sections of a table, and with the value.
pub(super) fn for_each_value(
    table: &mut toml::Table,
    mut visit: impl FnMut(&str, &mut toml::Value),
) {
    fn walk(value: &mut toml::Value, path: &str, visit: &mut impl FnMut(&str, &mut toml::Value)) {
        match value {
            toml::Value::Array(items) => {
                for (i, item) in items.iter_mut().enumerate() {
                    walk(item, &format!("{path}[{i}]"), visit);
                }
            }
            toml::Value::Table(table) => {
                for (key, item) in table.iter_mut() {
                    walk(item, &join(path, key), visit);
                }
            }
            single => visit(path, single),
        }
    }
    for (key, value) in table.iter_mut() {
        walk(value, key, &mut visit);
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
