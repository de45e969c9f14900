//! Semantic equality: compares objects as JSON by their meaning in Kubernetes, like apimachinery's
//! `equality.Semantic`.
//!
//! The API server stores some values in another form than they were sent. These are equal:
//!
//! - numbers of the same value: `1` and `1.0`
//! - an absent field, a null, an empty list, and an empty map of labels, annotations, data or resources
//! - quantities of the same value, such as `1024Mi` and `1Gi`
//! - times of the same instant
//!
//! A text is a quantity or a time only by its place, which is decided by the names of fields in Kubernetes' types: the
//! entries of `limits` and `requests` for `cpu`, `memory`, `storage` and extended resources, for example, `sizeLimit`,
//! or `lastTransitionTime`. The values of labels, selectors, annotations and data are compared as text. Within
//! `values` and `parameters`, which may have any form, a null is not an absent field either.
//!
//! These differ, since their meanings do: an empty object such as `emptyDir: {}` and an absent one; the number 80 and the
//! text `80` of an int-or-string. Lists are compared in order: only the API server knows which lists are merged by a key.

mod quantity;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Number, Value};

use self::quantity::Quantity;
pub use self::quantity::compare_quantities;
use crate::json::to_json;

/// The meaning of a value, by its place in the object.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// A field of no special meaning.
    #[default]
    Field,
    /// A map of texts, or a text in it. An empty map is the same as none.
    Texts,
    /// A selector or values of any form, in which an empty value, a null and none differ.
    Verbatim,
    /// A map from the names of resources to quantities.
    Resources,
    /// A quantity.
    Quantity,
    /// A time.
    Time,
}

impl Place {
    /// The place of a field of the object at this place.
    pub fn field(self, name: &str) -> Self {
        match (self, name) {
            (Self::Texts, _) => Self::Texts,
            (_, "matchLabels") => Self::Texts,
            (Self::Verbatim, _) => Self::Verbatim,
            (Self::Resources, _) if is_resource(name) => Self::Quantity,
            (_, "labels" | "annotations" | "nodeSelector" | "data" | "binaryData" | "stringData") => {
                Self::Texts
            }
            (_, "selector" | "values" | "parameters" | "volumeAttributes") => Self::Verbatim,
            (
                _,
                "limits"
                | "requests"
                | "capacity"
                | "allocatable"
                | "allocatedResources"
                | "hard"
                | "used"
                | "overhead"
                | "podFixed"
                | "default"
                | "defaultRequest"
                | "max"
                | "min"
                | "maxLimitRequestRatio"
                | "usage",
            ) => Self::Resources,
            (_, "sizeLimit" | "divisor" | "averageValue" | "maximumVolumeSize") => Self::Quantity,
            _ if name.ends_with("Time") || name.ends_with("Timestamp") => Self::Time,
            _ => Self::Field,
        }
    }

    /// The place of an item of the list at this place.
    fn item(self) -> Self {
        match self {
            Self::Resources => Self::Field,
            place => place,
        }
    }

    /// Returns true if both values have the same meaning at this place. An absent value is given as null.
    pub fn are_equal(self, a: &Value, b: &Value) -> bool {
        self.compare(a, b, Extent::All)
    }

    /// Like [`are_equal`](Self::are_equal), of values that a merge patch (RFC 7396) writes: it cannot store a null, so a null
    /// field is an absent one everywhere.
    pub fn are_equal_once_merged(self, a: &Value, b: &Value) -> bool {
        self.compare(a, b, Extent::Merged)
    }

    /// Returns true if the value has the meaning of an absent one.
    fn is_absent(self, value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty() && matches!(self, Self::Texts | Self::Resources),
            _ => false,
        }
    }

    fn compare(self, a: &Value, b: &Value, extent: Extent) -> bool {
        match (a, b) {
            (Value::Object(a), Value::Object(b)) => self.compare_fields(a, b, extent),
            (Value::Array(a), Value::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.item().compare(a, b, extent))
            }
            _ if extent == Extent::Set && (a.is_null() || is_zero(a) && self.is_absent(b)) => true,
            _ if self.is_absent(a) && self.is_absent(b) => true,
            _ if self == Self::Quantity => {
                a == b || Quantity::of(a).is_some_and(|a| Some(a) == Quantity::of(b))
            }
            _ if self == Self::Time => a == b || time(a).is_some_and(|a| Some(a) == time(b)),
            (Value::Number(a), Value::Number(b)) => is_same_number(a, b),
            _ => a == b,
        }
    }

    fn compare_fields(self, a: &Map<String, Value>, b: &Map<String, Value>, extent: Extent) -> bool {
        let is_same = |(name, value): (&String, &Value)| {
            self.field(name).compare(value, b.get(name).unwrap_or(&Value::Null), extent)
        };
        let is_kept = |value: &Value| extent == Extent::All || !value.is_null();
        let has_keys_of = |a: &Map<String, Value>, b: &Map<String, Value>| {
            a.iter().filter(|(_, value)| is_kept(value)).all(|(name, _)| b.get(name).is_some_and(is_kept))
        };
        let has_same_keys = || has_keys_of(a, b) && has_keys_of(b, a);
        let is_absent = |(name, value): (&String, &Value)| self.field(name).is_absent(value);
        a.iter().all(is_same)
            && (extent == Extent::Set || self != Self::Verbatim || has_same_keys())
            && (extent == Extent::Set || b.iter().filter(|(name, _)| !a.contains_key(*name)).all(is_absent))
    }
}

/// The fields that a comparison covers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// The fields of both objects.
    All,
    /// The fields of both objects that are not null.
    Merged,
    /// The fields that the first object sets.
    Set,
}

/// Returns true if two objects have the same meaning, as described in [the module](self).
///
/// ```
/// use reknit_apis::equality::are_equal;
/// use serde_json::json;
///
/// assert!(are_equal(&json!({"limits": {"memory": "1024Mi"}}), &json!({"limits": {"memory": "1Gi"}})));
/// assert!(!are_equal(&json!({"labels": {"memory": "1024Mi"}}), &json!({"labels": {"memory": "1Gi"}})));
/// ```
pub fn are_equal(a: &Value, b: &Value) -> bool {
    Place::default().are_equal(a, b)
}

/// Returns true if `stored` has every value that `wanted` sets, as apimachinery's `equality.Semantic.DeepDerivative`
/// does. Fields that only `stored` has do not count: the API server and other clients have set them.
///
/// Use it to compare a part of a child with the stored one, in which the API server has filled in defaults. Values are
/// compared as described in [the module](self). A false, a zero or an empty text in `wanted` is equal to an absent
/// field, since the API server drops many of them. Lists have to have the same length.
///
/// A field that `wanted` sets no longer is not found: the stored one counts as a default.
///
/// ```
/// use k8s_openapi::api::core::v1::PodSpec;
/// use reknit_apis::equality::has_set_fields;
/// use serde_json::json;
///
/// let wanted = PodSpec { host_network: Some(false), ..PodSpec::default() };
/// let stored = json!({"dnsPolicy": "ClusterFirst"});
/// assert!(has_set_fields(&stored, &wanted));
/// assert!(!has_set_fields(&stored, &PodSpec { dns_policy: Some("None".into()), ..wanted }));
/// ```
///
/// Values that do not serialize to JSON are different.
pub fn has_set_fields(stored: &impl Serialize, wanted: &impl Serialize) -> bool {
    let (Ok(stored), Ok(wanted)) = (to_json(stored), to_json(wanted)) else { return false };
    Place::default().compare(&wanted, &stored, Extent::Set)
}

/// Returns the paths of the fields that were sent in `sent` and that `stored` lacks altogether, such as
/// `status.lamp.watts`. A field that was sent without a value, or as a false or a zero, is not reported: the API server
/// may leave it out.
#[doc(hidden)]
pub fn dropped_fields(sent: &Value, stored: &Value) -> Vec<String> {
    let mut dropped = Vec::new();
    find_dropped(Place::default(), String::new(), sent, stored, &mut dropped);
    dropped
}

fn find_dropped(place: Place, path: String, sent: &Value, stored: &Value, dropped: &mut Vec<String>) {
    match (sent, stored) {
        _ if place.is_absent(sent) || is_zero(sent) => {}
        (_, Value::Null) => dropped.push(path),
        (Value::Object(sent), Value::Object(stored)) => {
            for (name, sent) in sent {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                find_dropped(
                    place.field(name),
                    path,
                    sent,
                    stored.get(name).unwrap_or(&Value::Null),
                    dropped,
                );
            }
        }
        (Value::Array(sent), Value::Array(stored)) if sent.len() == stored.len() => {
            for (index, (sent, stored)) in sent.iter().zip(stored).enumerate() {
                find_dropped(place.item(), format!("{path}[{index}]"), sent, stored, dropped);
            }
        }
        _ => {}
    }
}

/// Returns true for the zero values of Go, which its encoder omits from many fields.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(is_set) => !is_set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn is_same_number(a: &Number, b: &Number) -> bool {
    // Integers are not compared as floating-point numbers, which are not exact beyond 2^53.
    a == b || (a.is_f64() || b.is_f64()) && a.as_f64() == b.as_f64()
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// Returns true if the name is one of a resource with a quantity: `cpu`, `requests.memory`, `example.com/gpu`, or a number of
/// objects in a quota.
fn is_resource(name: &str) -> bool {
    let name = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
    let is_count = matches!(
        name,
        "pods"
            | "services"
            | "services.loadbalancers"
            | "services.nodeports"
            | "replicationcontrollers"
            | "resourcequotas"
            | "secrets"
            | "configmaps"
            | "persistentvolumeclaims"
    );
    matches!(name, "cpu" | "memory" | "storage" | "ephemeral-storage")
        || is_count
        || name.starts_with("hugepages-")
        || name.starts_with("attachable-volumes-")
        || name.contains('/')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn assert_equal(a: Value, b: Value, expected: bool) {
        assert_eq!(are_equal(&a, &b), expected, "{a} and {b}");
        assert_eq!(are_equal(&b, &a), expected, "{b} and {a}");
    }

    #[test]
    fn values_of_the_same_meaning_are_equal() {
        for (a, b) in [
            (json!({"a": 1, "b": [2.0]}), json!({"a": 1.0, "b": [2]})),
            (json!({"a": null, "b": []}), json!({})),
            (json!({"metadata": {"labels": {}}, "data": {}}), json!({"metadata": {}})),
            (
                json!({"resources": {"limits": {"memory": "1024Mi", "cpu": "0.5"}}}),
                json!({"resources": {"limits": {"memory": "1Gi", "cpu": "500m"}}}),
            ),
            (
                json!({"resources": {"requests": {"cpu": 1}}}),
                json!({"resources": {"requests": {"cpu": "1"}, "limits": {}}}),
            ),
            (
                json!({"hard": {"requests.storage": "1000M", "example.com/gpu": "2"}}),
                json!({"hard": {"requests.storage": "1G", "example.com/gpu": "2.0"}}),
            ),
            (
                json!({"hard": {"services": "1000", "services.nodeports": "0", "count/jobs.batch": "1000"}}),
                json!({"hard": {"services": "1k", "services.nodeports": "0.0", "count/jobs.batch": "1k"}}),
            ),
            (
                json!({"limits": [{"type": "Pod", "max": {"cpu": "1000m"}}]}),
                json!({"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}),
            ),
            (json!({"emptyDir": {"sizeLimit": "0.5Gi"}}), json!({"emptyDir": {"sizeLimit": "512Mi"}})),
            (
                json!({"startTime": "2026-01-01T00:00:00Z"}),
                json!({"startTime": "2026-01-01T01:00:00.000000+01:00"}),
            ),
        ] {
            assert_equal(a, b, true);
        }
    }

    #[test]
    fn values_that_only_look_alike_differ() {
        for (a, b) in [
            (json!({"labels": {"memory": "1Gi"}}), json!({"labels": {"memory": "1024Mi"}})),
            (
                json!({"metadata": {"annotations": {"limits": "1.0"}}}),
                json!({"metadata": {"annotations": {"limits": "1"}}}),
            ),
            (
                json!({"data": {"startTime": "2026-01-01T00:00:00Z"}}),
                json!({"data": {"startTime": "2026-01-01T01:00:00+01:00"}}),
            ),
            (
                json!({"selector": {"matchLabels": {"sizeLimit": "1.0"}}}),
                json!({"selector": {"matchLabels": {"sizeLimit": "1"}}}),
            ),
            (json!({"args": ["1Gi"]}), json!({"args": ["1024Mi"]})),
            (json!({"image": "1.0"}), json!({"image": "1"})),
            (json!({"limits": {"version": "1.0"}}), json!({"limits": {"version": "1"}})),
            (json!({"targetPort": 80}), json!({"targetPort": "80"})),
            (json!({"emptyDir": {}}), json!({})),
            (json!({"podSelector": {}}), json!({})),
            (json!({"selector": {}}), json!({})),
            (json!({"values": {"a": null, "b": {}}}), json!({"values": {"b": {}}})),
            (json!({"parameters": {"sizeLimit": "1.0"}}), json!({"parameters": {"sizeLimit": "1"}})),
            (json!({"ingress": [{}]}), json!({"ingress": []})),
            (json!([1, 2]), json!([2, 1])),
            (json!({"a": false}), json!({})),
            (json!({"a": ""}), json!({})),
            (json!(9_007_199_254_740_993_u64), json!(9_007_199_254_740_992_u64)),
        ] {
            assert_equal(a, b, false);
        }
    }

    #[test]
    fn only_fields_that_are_set_are_compared() {
        let stored = json!({"a": {"set": 1, "default": 2}, "list": [{"name": "x", "default": true}]});
        for (wanted, expected) in [
            (json!({"a": {"set": 1}, "list": [{"name": "x", "hostIPC": false}]}), true),
            (json!({"a": {"set": 2}}), false),
            (json!({"a": {"other": 1}}), false),
            (json!({"b": {}}), false),
            (json!({"b": [], "c": null}), true),
            (json!({"list": []}), false),
            (json!({"list": [{"name": "x"}, {"name": "y"}]}), false),
        ] {
            assert_eq!(has_set_fields(&stored, &wanted), expected, "{wanted}");
        }
    }

    #[test]
    fn dropped_fields_are_named_by_their_paths() {
        let sent = json!({"status": {"watts": 3, "off": false, "none": null, "list": [{"a": 1, "b": 2}], "same": "x"}});
        let stored = json!({"status": {"list": [{"a": 1}], "same": "y"}});
        assert_eq!(dropped_fields(&sent, &stored), ["status.list[0].b", "status.watts"]);
        assert_eq!(dropped_fields(&sent, &json!({})), ["status"]);
    }
}
