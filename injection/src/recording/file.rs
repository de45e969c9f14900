//! The file of a recorded pass.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::MAX_BYTES;

/// The version of the format. A change that older versions of reknit would misread gets another one.
pub(super) const FORMAT_VERSION: u32 = 1;

/// The data of a ConfigMap; `None` if the default was used.
pub type ConfigMapData = Option<BTreeMap<String, String>>;

/// A recorded pass, as it is in its file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedPass {
    /// The version of the format.
    pub format_version: u32,
    /// The name of the component, which is a part of field managers.
    pub component: String,
    /// The name of the controller.
    pub controller: String,
    /// The key of the object.
    pub key: String,
    /// True if the process did not lead the key.
    #[serde(default)]
    pub is_following: bool,
    /// The first time that the pass read from the clock, or the time at which it began.
    pub time: Timestamp,
    /// The error of the pass, or the reason why it was dropped.
    pub result: String,
    /// The namespace of the ConfigMaps.
    #[serde(default)]
    pub system_namespace: Option<String>,
    /// The parts of the pass that did not fit into the file.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// The Kinds that the pass read.
    pub kinds: Vec<RecordedKind>,
    /// The objects that the pass read, in their state at the first read.
    pub objects: Vec<Value>,
    /// The objects that the pass looked for and that did not exist.
    pub absent: Vec<ObjectName>,
    /// The lists that the pass read.
    pub lists: Vec<ListRead>,
    /// The ConfigMaps whose values the pass read, by their default name.
    pub config_maps: BTreeMap<String, ConfigMapData>,
    /// The requests of the pass, in order.
    pub requests: Vec<RecordedRequest>,
    /// The Secrets that the pass read and that are not in the file. Their values are removed from it.
    #[serde(skip)]
    pub(super) hidden: Vec<Value>,
}

/// A Kind that a pass read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedKind {
    /// The API version.
    pub api_version: String,
    /// The Kind.
    pub kind: String,
    /// The plural; `None` if the API server did not serve the Kind.
    pub plural: Option<String>,
    /// True for a namespaced Kind; `None` if the pass did not ask.
    pub namespaced: Option<bool>,
}

/// The name of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectName {
    /// The API version.
    pub api_version: String,
    /// The Kind.
    pub kind: String,
    /// The namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

/// A list that a pass read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListRead {
    /// The API version.
    pub api_version: String,
    /// The Kind.
    pub kind: String,
    /// The selection of the informer; empty if it selects everything.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selection: String,
    /// The namespace; `None` for a list of all that the informer selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The value that was looked up in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_value: Option<String>,
}

impl ListRead {
    /// Returns true if all objects of the other list are in this one too.
    pub fn contains(&self, other: &Self) -> bool {
        let of_kind = |list: &Self| (list.api_version.clone(), list.kind.clone(), list.selection.clone());
        of_kind(self) == of_kind(other)
            && (self.namespace.is_none() || self.namespace == other.namespace)
            && (self.index_value.is_none() || self.index_value == other.index_value)
    }
}

/// A request of a pass, and its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedRequest {
    /// The HTTP method.
    pub method: String,
    /// The path and the query.
    pub uri: String,
    /// The body that was sent.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub body: Value,
    /// The status code; `None` if there was no response.
    pub code: Option<u16>,
    /// The body of the response, or the error without a response.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub answer: Value,
    /// True if the pass did not wait for the answer. Such a request is not in the file, but the values of Secrets in it are
    /// removed from the rest.
    #[serde(skip)]
    pub is_given_up: bool,
}

impl RecordedPass {
    /// Returns the text of the file. If it is too long, the last objects and requests are left out, and then the rest of what
    /// the pass read.
    pub(super) fn text(&mut self) -> serde_json::Result<String> {
        let pretty = serde_json::to_string_pretty(self)?;
        if pretty.len() <= MAX_BYTES {
            return Ok(pretty);
        }
        loop {
            let text = serde_json::to_string(self)?;
            let (objects, requests) = (self.objects.len(), self.requests.len());
            if text.len() <= MAX_BYTES {
                return Ok(text);
            }
            if objects + requests == 0 {
                return self.text_without_reads();
            }
            self.objects.truncate(objects - objects.div_ceil(4));
            self.requests.truncate(requests - requests.div_ceil(4));
            let left_out = (objects - self.objects.len(), requests - self.requests.len());
            self.left_out.push(format!("{} objects and {} requests", left_out.0, left_out.1));
        }
    }

    /// Returns the text of a file whose objects and requests are left out, without the ConfigMaps, names, lists and Kinds.
    fn text_without_reads(&mut self) -> serde_json::Result<String> {
        let [maps, absent] =
            [std::mem::take(&mut self.config_maps).len(), std::mem::take(&mut self.absent).len()];
        let [lists, kinds] = [std::mem::take(&mut self.lists).len(), std::mem::take(&mut self.kinds).len()];
        self.left_out.push(format!(
            "{maps} ConfigMaps, the names of {absent} absent objects, {lists} lists and {kinds} Kinds"
        ));
        self.result.truncate(self.result.floor_char_boundary(MAX_BYTES / 8)); // a control character takes six bytes
        serde_json::to_string(self)
    }
}
