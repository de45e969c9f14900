//! JSON of any depth as a value. serde_json refuses values that are nested deeper than 128 levels, and the API server stores
//! them.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, value::RawValue};

/// The number of levels that are kept of a value that is nested too deep.
const MAX_DEPTH: usize = 100;

/// Returns the value. What lies deeper than serde_json decodes is null.
pub(crate) fn read_value(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_else(|_| {
        let mut deserializer = serde_json::Deserializer::from_str(raw.get());
        Levels(MAX_DEPTH).deserialize(&mut deserializer).unwrap_or_default()
    })
}

/// Decodes this many levels of a value. An object or a list at the next level is null.
struct Levels(usize);

impl<'de> DeserializeSeed<'de> for Levels {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.0 {
            0 => IgnoredAny::deserialize(deserializer).map(|_| Value::Null),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Levels {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(Levels(self.0 - 1))? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(name) = fields.next_key()? {
            values.insert(name, fields.next_value_seed(Levels(self.0 - 1))?);
        }
        Ok(values.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_that_is_nested_too_deep_is_read_down_to_a_limit() {
        let deep = format!("{}1{}", "[".repeat(9000), "]".repeat(9000));
        let text = format!(r#"{{"a": {{"b": [1, -1, 0.5, "x", true, null]}}, "deep": {deep}}}"#);
        let value = read_value(&RawValue::from_string(text).unwrap());
        assert_eq!(value["a"], json!({"b": [1, -1, 0.5, "x", true, null]}));
        let mut levels = std::iter::successors(Some(&value["deep"]), |value| value.get(0));
        assert_eq!(levels.by_ref().filter(|value| value.is_array()).count(), MAX_DEPTH - 1);
        assert_eq!(read_value(&RawValue::from_string("[1]".into()).unwrap()), json!([1]));
    }
}
