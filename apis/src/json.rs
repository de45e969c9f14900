//! The JSON of an object as it is sent to the API server.

use std::borrow::Cow;

use serde::{Serialize, ser::Error as _};
use serde_json::Value;
use serde_value::Value as Serialized;

/// Serializes an object without its unset `Option` fields, and with each `f32` as its shortest decimal.
///
/// An unset field would serialize to null, which the API server refuses for an enum, for example, and which in a patch
/// takes the field from its manager. A null in free-form JSON, such as a [`Value`], is kept.
///
/// [`serde_json::to_value`] turns an `f32` of 0.1 into 0.10000000149011612, which exceeds a maximum of 0.1. Here it stays
/// 0.1, as in the text that [`serde_json::to_string`] writes.
///
/// ```
/// use reknit_apis::to_json;
/// use serde::Serialize;
/// use serde_json::{Value, json};
///
/// #[derive(Serialize)]
/// struct Chart {
///     name: Option<String>,
///     values: Value,
///     ratio: f32,
/// }
///
/// let chart = Chart { name: None, values: json!({"replicas": null}), ratio: 0.1 };
/// assert_eq!(to_json(&chart)?, json!({"values": {"replicas": null}, "ratio": 0.1}));
/// # Ok::<_, serde_json::Error>(())
/// ```
///
/// # Errors
///
/// Returns the error of a value that does not serialize to JSON.
pub fn to_json(object: &(impl Serialize + ?Sized)) -> serde_json::Result<Value> {
    let mut json = serde_json::to_value(object)?;
    if is_ambiguous(&json) {
        correct(&mut json, &serde_value::to_value(object).map_err(serde_json::Error::custom)?);
    }
    Ok(json)
}

/// Returns true if a null may be an unset field, or a fraction an `f32`. Most objects have neither, and need not be
/// serialized a second time.
fn is_ambiguous(json: &Value) -> bool {
    match json {
        Value::Null => true,
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(is_ambiguous),
        Value::Object(fields) => fields.values().any(is_ambiguous),
        _ => false,
    }
}

/// The number with the fewest digits that distinguish it from other `f32`. Null if it is not finite.
fn shortest(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// Returns the key of a map as JSON has it.
fn key(serialized: &Serialized) -> Option<Cow<'_, str>> {
    Some(match serialized {
        Serialized::String(text) => text.into(),
        Serialized::Newtype(inner) => return key(inner),
        Serialized::Bool(value) => value.to_string().into(),
        Serialized::Char(value) => value.to_string().into(),
        Serialized::U8(value) => value.to_string().into(),
        Serialized::U16(value) => value.to_string().into(),
        Serialized::U32(value) => value.to_string().into(),
        Serialized::U64(value) => value.to_string().into(),
        Serialized::I8(value) => value.to_string().into(),
        Serialized::I16(value) => value.to_string().into(),
        Serialized::I32(value) => value.to_string().into(),
        Serialized::I64(value) => value.to_string().into(),
        _ => return None,
    })
}

/// Removes the nulls that are unset `Option` fields, and shortens each `f32`. `serialized` distinguishes them from other
/// nulls and numbers.
fn correct(json: &mut Value, serialized: &Serialized) {
    match (json, serialized) {
        (json, Serialized::Option(Some(inner)) | Serialized::Newtype(inner)) => correct(json, inner),
        (json @ Value::Number(_), Serialized::F32(number)) => *json = shortest(*number),
        (Value::Object(fields), Serialized::Map(serialized)) => {
            for (name, value) in serialized {
                let Some(name) = key(name) else { continue };
                if matches!(value, Serialized::Option(None)) {
                    fields.remove(&*name);
                } else if let Some(field) = fields.get_mut(&*name) {
                    correct(field, value);
                }
            }
        }
        (Value::Array(items), Serialized::Seq(serialized)) => {
            items.iter_mut().zip(serialized).for_each(|(item, serialized)| correct(item, serialized));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, iter};

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Serialize)]
    struct Zone {
        size: Option<u32>,
    }

    #[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
    struct Name(&'static str);

    #[test]
    fn unset_fields_are_removed_below_keys_of_any_type() {
        let zone = || Zone { size: None };
        assert_eq!(to_json(&BTreeMap::from([(Name("a"), zone())])).unwrap(), json!({"a": {}}));
        assert_eq!(to_json(&BTreeMap::from([(-7_i64, zone())])).unwrap(), json!({"-7": {}}));
        assert_eq!(to_json(&BTreeMap::from([(true, zone())])).unwrap(), json!({"true": {}}));
    }
    #[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
    enum Share {
        Part(f32),
        Parts { each: Vec<f32>, rest: Option<f64> },
        Pair(f32, f64),
    }

    /// Numbers in [0, 1) of 24 and 53 random bits.
    fn fractions() -> impl Iterator<Item = (f32, f64)> {
        let next = |state: &u64| {
            Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "the numbers have no more bits than the fractions hold"
        )]
        let fraction = |state| ((state >> 40) as f32 / 2_f32.powi(24), (state >> 11) as f64 / 2_f64.powi(53));
        iter::successors(Some(1), next).take(10_000).map(fraction)
    }

    #[test]
    fn fractions_are_written_and_read_as_the_same_numbers() {
        for (small, large) in fractions() {
            let shares = [
                Share::Part(small),
                Share::Parts { each: vec![small], rest: Some(large) },
                Share::Pair(small, large),
            ];
            for share in shares {
                let json = to_json(&share).unwrap();
                assert_eq!(
                    json,
                    serde_json::from_str::<Value>(&serde_json::to_string(&share).unwrap()).unwrap()
                );
                assert_eq!(json, serde_json::from_str::<Value>(&json.to_string()).unwrap());
                assert_eq!(serde_json::from_value::<Share>(json).unwrap(), share);
            }
        }
    }

    /// Without the feature `float_roundtrip` of serde_json, this text is read as 0.9215686321258544.
    #[test]
    fn a_fraction_of_sixteen_digits_is_read_exactly() {
        let text = "0.9215686321258545";
        assert_eq!(serde_json::from_str::<Value>(text).unwrap().to_string(), text);
    }

    #[test]
    fn numbers_that_are_not_finite_are_null() {
        assert_eq!(to_json(&[f32::NAN, f32::INFINITY]).unwrap(), json!([null, null]));
    }
}
