//! Makes objects of one version objects of another.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::core::Status;
use reknit_apis::{Convertible, Kind};
use serde::{Deserialize, Serialize};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

use crate::{admission::decoding::decode, admission::review::GroupVersionKind};

/// An object of the hub's version, as JSON. Between two versions there are two steps, and each is typed.
type Convert = Arc<dyn Fn(Value) -> Result<Value, String> + Send + Sync>;

/// The versions that are known, each with its way to the hub's and back.
#[derive(Clone, Default)]
pub(crate) struct Conversion {
    ways: BTreeMap<GroupVersionKind, Ways>,
    definitions: BTreeSet<String>,
}

/// A ConversionReview. kube's holds trees of all its objects, which take up to fifty times the memory of their text.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConversionReview<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow, skip_serializing)]
    pub(crate) request: Option<Request<'a>>,
    #[serde(skip_deserializing)]
    response: Option<Response>,
}

#[derive(Deserialize)]
pub(crate) struct Request<'a> {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    #[serde(borrow)]
    objects: Vec<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Response {
    uid: String,
    result: Status,
    converted_objects: Vec<Box<RawValue>>,
}

impl Response {
    pub(crate) fn is_success(&self) -> bool {
        self.result.is_success()
    }
}

impl ConversionReview<'_> {
    pub(crate) fn answered(self, response: Response) -> Self {
        Self { request: None, response: Some(response), ..self }
    }
}

#[derive(Clone)]
struct Ways {
    to_hub: Convert,
    /// Ends with the defaults of the version.
    from_hub: Convert,
}

impl Conversion {
    pub(crate) fn add<K: Convertible>(&mut self) {
        let hub =
            Ways { to_hub: Arc::new(Ok), from_hub: Arc::new(|value| written(decode::<K::Hub>(&value)?)) };
        let ways = Ways {
            to_hub: Arc::new(|value| {
                json(&decode::<K>(&value)?.into_hub().map_err(|error| error.to_string())?)
            }),
            from_hub: Arc::new(|value| {
                written(K::from_hub(decode::<K::Hub>(&value)?).map_err(|error| error.to_string())?)
            }),
        };
        self.ways.insert(GroupVersionKind::of::<K::Hub>(), hub);
        self.ways.insert(GroupVersionKind::of::<K>(), ways);
        self.definitions.insert(format!("{}.{}", K::plural(&()), K::group(&())));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// The names of the CustomResourceDefinitions.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = &String> {
        self.definitions.iter()
    }

    /// Each object, decoded by itself and so of no more than `most` bytes, in the order in which they came.
    pub(crate) fn answer(&self, asked: Request<'_>, most: usize) -> Response {
        let version = &asked.desired_api_version;
        let converted = asked.objects.into_iter().map(|object| self.convert_text(object, version, most));
        let (result, converted_objects) = match converted.collect() {
            Ok(converted) => (Status::success(), converted),
            Err(why) => (Status::failure(&why, "ConversionFailed"), vec![]),
        };
        Response { uid: asked.uid, result, converted_objects }
    }

    fn convert_text(&self, object: &RawValue, version: &str, most: usize) -> Result<Box<RawValue>, String> {
        let text = object.get();
        if text.len() > most {
            return Err(format!("an object has {} bytes, more than {most}", text.len()));
        }
        let undecodable = |error: serde_json::Error| format!("could not decode an object: {error}");
        let converted = self.convert(serde_json::from_str(text).map_err(undecodable)?, version)?;
        to_raw_value(&converted).map_err(|error| error.to_string())
    }

    fn convert(&self, object: Value, version: &str) -> Result<Value, String> {
        let (from, to) = (about(&object, None)?, about(&object, Some(version))?);
        if from == to {
            return Ok(object);
        }
        let ways = |about: &GroupVersionKind| {
            self.ways.get(about).ok_or_else(|| format!("no conversion support for {about}"))
        };
        let metadata = object["metadata"].clone();
        let failed = |why: String| {
            let name = metadata["name"].as_str().unwrap_or_default();
            format!("conversion failed to version {} for kind {} of {name:?}: {why}", to.version, to.kind)
        };
        let (there, back) = (&ways(&from)?.to_hub, &ways(&to)?.from_hub);
        let mut converted = there(object).and_then(|hub| back(hub)).map_err(failed)?;
        keep_metadata(&mut converted, metadata);
        Ok(converted)
    }
}

/// The API server lets nothing else of the metadata be changed, and the types may not know all of it.
fn keep_metadata(converted: &mut Value, mut metadata: Value) {
    for changeable in ["labels", "annotations"] {
        match converted["metadata"].get_mut(changeable).map(Value::take) {
            Some(value) => metadata[changeable] = value,
            None => drop(metadata.as_object_mut().and_then(|fields| fields.remove(changeable))),
        }
    }
    converted["metadata"] = metadata;
}

fn about(object: &Value, version: Option<&str>) -> Result<GroupVersionKind, String> {
    let version = version.or(object["apiVersion"].as_str()).unwrap_or_default();
    let (group, version) =
        version.split_once('/').ok_or_else(|| format!("{version:?} is no group and version"))?;
    let kind = object["kind"].as_str().unwrap_or_default();
    Ok(GroupVersionKind { group: group.into(), version: version.into(), kind: kind.into() })
}

fn written<K: Kind>(mut object: K) -> Result<Value, String> {
    object.default_in_place();
    json(&object)
}

fn json(object: &impl serde::Serialize) -> Result<Value, String> {
    serde_json::to_value(object).map_err(|error| error.to_string())
}
