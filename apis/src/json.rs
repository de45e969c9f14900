//! The JSON of an object as it is sent to the API server.

use std::borrow::Cow;

use serde::{Serialize, ser::Error as _};
use serde_content::{Data, Number, Serializer, Value as Content};
use serde_json::{Map, Value};

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
        let content = Serializer::new().human_readable().serialize(object);
        correct(&mut json, &content.map_err(serde_json::Error::custom)?);
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
pub(crate) fn shortest(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// Returns the key of a map as JSON has it.
fn key<'a>(content: &'a Content<'_>) -> Option<Cow<'a, str>> {
    Some(match content {
        Content::String(text) => (&**text).into(),
        Content::Bool(value) => value.to_string().into(),
        Content::Char(value) => value.to_string().into(),
        Content::Number(number) => integer(*number)?.into(),
        Content::Enum(value) => (&*value.variant).into(),
        Content::Struct(value) => match &value.data {
            Data::NewType { value } => return key(value),
            _ => return None,
        },
        _ => return None,
    })
}

fn integer(number: Number) -> Option<String> {
    Some(match number {
        Number::U8(value) => value.to_string(),
        Number::U16(value) => value.to_string(),
        Number::U32(value) => value.to_string(),
        Number::U64(value) => value.to_string(),
        Number::U128(value) => value.to_string(),
        Number::I8(value) => value.to_string(),
        Number::I16(value) => value.to_string(),
        Number::I32(value) => value.to_string(),
        Number::I64(value) => value.to_string(),
        Number::I128(value) => value.to_string(),
        _ => return None,
    })
}

/// Removes the nulls that are unset `Option` fields, and shortens each `f32`. `content` distinguishes them from other
/// nulls and numbers.
fn correct(json: &mut Value, content: &Content) {
    match (json, content) {
        (json, Content::Option(Some(inner))) => correct(json, inner),
        (json @ Value::Number(_), Content::Number(Number::F32(number))) => *json = shortest(*number),
        (Value::Object(fields), Content::Map(entries)) => {
            for (name, value) in entries {
                let Some(name) = key(name) else { continue };
                correct_field(fields, &name, value);
            }
        }
        (Value::Array(items), Content::Seq(contents) | Content::Tuple(contents)) => {
            correct_items(items, contents)
        }
        (json, Content::Struct(value)) => correct_data(json, &value.data),
        (Value::Object(fields), Content::Enum(value)) => {
            if let Some(json) = fields.get_mut(&*value.variant) {
                correct_data(json, &value.data);
            }
        }
        _ => {}
    }
}

/// Corrects the JSON of a struct, or of the data of a variant.
fn correct_data(json: &mut Value, data: &Data) {
    match (json, data) {
        (json, Data::NewType { value }) => correct(json, value),
        (Value::Array(items), Data::Tuple { values }) => correct_items(items, values),
        (Value::Object(fields), Data::Struct { fields: contents }) => {
            contents.iter().for_each(|(name, value)| correct_field(fields, name, value));
        }
        _ => {}
    }
}

fn correct_field(fields: &mut Map<String, Value>, name: &str, content: &Content) {
    if matches!(content, Content::Option(None)) {
        fields.remove(name);
    } else if let Some(field) = fields.get_mut(name) {
        correct(field, content);
    }
}

fn correct_items(items: &mut [Value], contents: &[Content]) {
    items.iter_mut().zip(contents).for_each(|(item, content)| correct(item, content));
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

    /// A value of each form that serde knows, beside an unset field.
    #[derive(Serialize)]
    struct Forms {
        unset: Option<u32>,
        wide: u128,
        negative: i128,
        letter: char,
        nothing: (),
        unit: Unit,
        nested: Option<Option<u8>>,
        pair: (f32, Option<u8>),
        variants: [Variant; 4],
        by_number: BTreeMap<i128, Zone>,
        by_variant: BTreeMap<Unit, Zone>,
    }

    #[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
    struct Unit;

    #[derive(Serialize)]
    enum Variant {
        Unit,
        Newtype(Zone),
        Tuple(f32, Option<u8>),
        Struct { size: Option<u8>, ratio: f32 },
    }

    #[test]
    fn a_value_of_each_form_serializes_beside_an_unset_field() {
        let forms = Forms {
            unset: None,
            wide: 7,
            negative: -7,
            letter: 'a',
            nothing: (),
            unit: Unit,
            nested: Some(Some(1)),
            pair: (0.1, None),
            variants: [
                Variant::Unit,
                Variant::Newtype(Zone { size: None }),
                Variant::Tuple(0.1, None),
                Variant::Struct { size: None, ratio: 0.1 },
            ],
            by_number: BTreeMap::from([(-1, Zone { size: None })]),
            by_variant: BTreeMap::new(),
        };
        let expected = json!({"wide": 7, "negative": -7, "letter": "a", "nothing": null, "unit": null, "nested": 1,
            "pair": [0.1, null],
            "variants": ["Unit", {"Newtype": {}}, {"Tuple": [0.1, null]}, {"Struct": {"ratio": 0.1}}],
            "by_number": {"-1": {}}, "by_variant": {}});
        assert_eq!(to_json(&forms).unwrap(), expected);
    }

    #[test]
    fn a_number_that_json_cannot_have_is_an_error() {
        assert!(to_json(&(u128::MAX, None::<u8>)).is_err());
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
