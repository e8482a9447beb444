//! The content of a column of a text file: the kinds of its values, however they are nested.
//!
//! # Why
//! A line is deserialized directly into [`ColumnContent`], not into a tree of JSON values first: a map for each object
//! in a line of 60 MB would take gigabytes.

use std::collections::BTreeMap;
use std::fmt;

use arrow::datatypes::{DataType, Field};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::value_kinds::ValueKinds;

/// The content of a column, or of the values nested in it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ColumnContent {
    /// Single values.
    Values(ValueKinds),
    /// Lists, with the content of all their items together.
    Lists(Box<ColumnContent>),
    /// Objects, with the content of each field by name.
    Objects(BTreeMap<String, ColumnContent>),
    /// Nested values that no single Arrow type holds, described in words.
    Untyped(&'static str),
}

/// The most distinct fields over all objects of a column. Beyond that, the names are data, not fields.
const MAX_FIELDS: usize = 1 << 16;

const MIXED: &str = "single values beside lists or objects";

const TOO_WIDE: &str = "objects of more than 65536 different fields";

impl ColumnContent {
    pub(super) fn is_numeric(&self) -> bool {
        matches!(self, Self::Values(seen) if seen.is_numeric())
    }

    pub(super) fn has_numbers_among_others(&self) -> bool {
        matches!(self, Self::Values(seen) if seen.has_numbers_among_others())
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Values(seen) if seen.is_empty())
    }

    /// The union of two contents.
    ///
    /// # Errors
    /// Returns both unchanged where their shapes differ, such as single values and lists.
    pub(super) fn and(self, other: Self) -> Result<Self, (Self, Self)> {
        Ok(match (self, other) {
            (Self::Values(a), Self::Values(b)) => Self::Values(a.and(b)),
            // A column of nulls takes any type.
            (none, kind) | (kind, none) if none.is_null() => kind,
            (Self::Lists(a), Self::Lists(b)) => Self::Lists(Box::new(a.and_inside(*b))),
            (Self::Objects(mut all), Self::Objects(more)) => {
                for (name, kind) in more {
                    let both = match all.remove(&name) {
                        Some(known) => known.and_inside(kind),
                        None => kind,
                    };
                    all.insert(name, both);
                }
                if all.len() > MAX_FIELDS { Self::Untyped(TOO_WIDE) } else { Self::Objects(all) }
            }
            (Self::Untyped(what), _) | (_, Self::Untyped(what)) => Self::Untyped(what),
            both => return Err(both),
        })
    }

    /// As [`Self::and`] for nested content, where shapes that differ give [`Self::Untyped`].
    fn and_inside(self, other: Self) -> Self {
        self.and(other).unwrap_or(Self::Untyped(MIXED))
    }

    /// The Arrow type that holds all values exactly, if there is one.
    pub(super) fn data_type(&self) -> Option<DataType> {
        match self {
            Self::Values(seen) if seen.is_empty() => Some(DataType::Null),
            Self::Values(seen) => seen.data_type(),
            Self::Lists(items) => Some(DataType::new_list(items.data_type()?, true)),
            Self::Objects(fields) => {
                let field = |(name, kind): (&String, &Self)| {
                    Some(Field::new(name, kind.data_type()?, true))
                };
                Some(DataType::Struct(fields.iter().map(field).collect::<Option<_>>()?))
            }
            Self::Untyped(_) => None,
        }
    }

    /// The content in words, for error messages.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Values(seen) => seen.words(),
            Self::Lists(items) => format!("lists of {}", items.words()),
            Self::Objects(fields) => {
                match fields.iter().find(|(_, kind)| kind.data_type().is_none()) {
                    Some((name, kind)) => format!("objects whose `{name}` is {}", kind.words()),
                    None => "objects".to_owned(),
                }
            }
            Self::Untyped(what) => (*what).to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for ColumnContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = ColumnContent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<ColumnContent, E> {
                Ok(ColumnContent::Values(ValueKinds::default()))
            }

            fn visit_bool<E>(self, _: bool) -> Result<ColumnContent, E> {
                Ok(ColumnContent::Values(ValueKinds::BOOLEAN))
            }

            fn visit_i64<E>(self, value: i64) -> Result<ColumnContent, E> {
                Ok(ColumnContent::Values(ValueKinds::of_integer(value)))
            }

            fn visit_u64<E>(self, value: u64) -> Result<ColumnContent, E> {
                let kind = i64::try_from(value).map_or(ValueKinds::GREAT, ValueKinds::of_integer);
                Ok(ColumnContent::Values(kind))
            }

            fn visit_f64<E>(self, value: f64) -> Result<ColumnContent, E> {
                Ok(ColumnContent::Values(ValueKinds::of_double(value)))
            }

            fn visit_str<E>(self, _: &str) -> Result<ColumnContent, E> {
                Ok(ColumnContent::Values(ValueKinds::TEXT))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ColumnContent, A::Error> {
                let mut items = ColumnContent::Values(ValueKinds::default());
                while let Some(item) = seq.next_element()? {
                    items = items.and_inside(item);
                }
                Ok(ColumnContent::Lists(Box::new(items)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ColumnContent, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = map.next_entry()? {
                    fields.insert(name, value);
                    if fields.len() > MAX_FIELDS {
                        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                        return Ok(ColumnContent::Untyped(TOO_WIDE));
                    }
                }
                Ok(ColumnContent::Objects(fields))
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(json: &str) -> ColumnContent {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn nested_values_have_the_type_that_holds_them_all() {
        let text =
            |json: &str| content(json).data_type().map_or("none".to_owned(), |t| t.to_string());
        assert_eq!(text("[1, 2.5, null]"), DataType::new_list(DataType::Float64, true).to_string());
        assert_eq!(text("[]"), DataType::new_list(DataType::Null, true).to_string());
        let object = |fields: &[(&str, DataType)]| {
            let fields = fields.iter().map(|(name, t)| Field::new(*name, t.clone(), true));
            DataType::Struct(fields.collect())
        };
        let one = object(&[("a", DataType::Int64), ("b", DataType::Utf8)]);
        assert_eq!(text("{\"b\": \"x\", \"a\": 1}"), one.to_string());
        let items =
            DataType::new_list(object(&[("a", DataType::Int64), ("b", DataType::Boolean)]), true);
        assert_eq!(text("[{\"a\": 1}, {\"b\": true}, null]"), items.to_string());
        for mixed in ["[1, \"x\"]", "[1, [2]]", "[{}, 1]", "{\"a\": [1, {}]}"] {
            assert_eq!(text(mixed), "none", "{mixed}");
        }
        assert_eq!(
            content("[{\"a\": [1, {}]}]").words(),
            format!("lists of objects whose `a` is lists of {MIXED}")
        );
    }

    #[test]
    fn what_differs_from_row_to_row_is_joined() {
        let both = |a: &str, b: &str| content(a).and(content(b));
        assert_eq!(both("{\"a\": 1}", "{\"b\": null}"), Ok(content("{\"a\": 1, \"b\": null}")));
        assert_eq!(both("null", "[1]"), Ok(content("[1]")));
        assert_eq!(both("[1]", "[0.5]"), Ok(content("[1, 0.5]")));
        assert_eq!(both("[1]", "1"), Err((content("[1]"), content("1"))));
        assert_eq!(both("{\"a\": 1}", "{\"a\": []}").unwrap().data_type(), None);
    }

    #[test]
    fn objects_of_too_many_fields_have_no_type() {
        let fields: Vec<String> = (0..=MAX_FIELDS).map(|n| format!("\"{n}\": 1")).collect();
        assert_eq!(content(&format!("{{{}}}", fields.join(","))), ColumnContent::Untyped(TOO_WIDE));
        let half = |range: &[String]| content(&format!("{{{}}}", range.join(",")));
        let (one, other) = fields.split_at(MAX_FIELDS / 2);
        assert_eq!(half(one).and(half(other)), Ok(ColumnContent::Untyped(TOO_WIDE)));
    }
}
