//! JSON of any depth. serde_json refuses values that are nested deeper than 128 levels, and the API server stores them.

use std::{collections::BTreeMap, fmt};

use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};

/// The number of levels that are kept of a value that is nested too deep.
const MAX_DEPTH: usize = 100;

/// The fields of an object as they are written.
pub(crate) type RawFields<'a> = BTreeMap<String, &'a RawValue>;

/// Decodes an object, whose `managedFields` are nested as deep as its spec and its status. If they are nested too
/// deep, what lies deeper than a limit is null.
pub(crate) fn decode_object<T: DeserializeOwned>(json: &str) -> serde_json::Result<T> {
    serde_json::from_str(json).or_else(|_| {
        let mut fields: RawFields<'_> = serde_json::from_str(json)?;
        let metadata =
            fields.get("metadata").map(|metadata| to_raw_value(&read_levels(metadata))).transpose()?;
        fields.extend(metadata.as_deref().map(|metadata| ("metadata".into(), metadata)));
        serde_json::from_str(&serde_json::to_string(&fields)?)
    })
}

/// Returns the value. What lies deeper than serde_json decodes is null.
pub(crate) fn read_value(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_else(|_| read_levels(raw))
}

/// Returns the first levels of the value.
fn read_levels(raw: &RawValue) -> Value {
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    Levels(MAX_DEPTH).deserialize(&mut deserializer).unwrap_or_default()
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
    use crate::object_client::OnlyMetadata;

    #[test]
    fn an_object_is_decoded_however_deep_its_managed_fields_and_its_status_are_nested() {
        for levels in (110..140).chain([9000]) {
            let deep = format!(r#"{}{{}}{}"#, r#"{"f:a":"#.repeat(levels), "}".repeat(levels));
            let fields =
                format!(r#"{{"f:metadata": {{"f:finalizers": {{"v:\"a\"": {{}}}}}}, "f:status": {deep}}}"#);
            let metadata = format!(r#"{{"name": "x", "managedFields": [{{"fieldsV1": {fields}}}]}}"#);
            let json = format!(r#"{{"metadata": {metadata}, "status": {deep}}}"#);
            let OnlyMetadata { metadata } = decode_object(&json).unwrap();
            assert_eq!(metadata.name.as_deref(), Some("x"));
            let managed = metadata.managed_fields.unwrap();
            let fields = &managed[0].fields_v1.as_ref().unwrap().0;
            assert_eq!(fields["f:metadata"], json!({"f:finalizers": {"v:\"a\"": {}}}));
        }
        let error = decode_object::<OnlyMetadata>(r#"{"metadata": {"name": 1}}"#).err().unwrap();
        assert!(error.to_string().contains("expected a string"), "{error}");
    }

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
