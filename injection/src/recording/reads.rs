//! The state that a pass read, and its requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use kube::{
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use reknit_apis::Key;
use serde_json::{Value, json};

use super::{
    MAX_BYTES,
    file::{ConfigMapData, ListRead, ObjectName, RecordedKind, RecordedPass, RecordedRequest},
};
use crate::{client::ResourcePath, object::Object, shallow::decode_value};

/// The part of a recording that requests and ConfigMaps can take even if the pass read many objects.
const REQUESTS: usize = MAX_BYTES / 4;

/// About the bytes that a read takes in the file beside the object.
const OVERHEAD: usize = 250;

/// The maximum number of states of Secrets that are kept only to remove their values.
const MAX_HIDDEN: usize = 10_000;

/// The objects, ConfigMaps and requests of a pass. The first state of each object counts, since a test repeats the
/// writes of the pass. A state that is first read after the pass has written it is not kept.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    kinds: BTreeMap<(String, String), RecordedKind>,
    objects: BTreeMap<(String, String, Key), Read>,
    lists: BTreeSet<ListRead>,
    config_maps: BTreeMap<&'static str, ConfigMapData>,
    requests: Vec<RequestSent>,
    /// The indexes of the requests that were dropped since the pass has last sent one. If it goes on, it has given them up.
    dropped: Vec<usize>,
    /// The group, the plural and the key of the objects that the pass has written.
    written: BTreeSet<(String, String, Key)>,
    /// If anything is left out, the file is only to be read, so no more objects are kept.
    left_out: BTreeSet<String>,
    /// The states of Secrets that are left out, by key and resourceVersion. The rest may contain their values.
    hidden: BTreeMap<(Key, String), (Arc<ApiResource>, Object)>,
    /// True if the pass read Secrets whose values are not known here.
    has_unknown_secrets: bool,
    /// The first time that the pass read from the clock.
    time: Option<Timestamp>,
    bytes: usize,
}

#[derive(Debug)]
struct Read {
    kind: Arc<ApiResource>,
    /// `None` if the object was absent.
    object: Option<Object>,
    /// True if only the metadata was cached.
    is_metadata: bool,
}

/// The scope of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListScope<'a> {
    All,
    Namespace(&'a str),
    IndexValue(&'a str),
}

/// A request, and its response: the code and the body, or the error.
#[derive(Debug)]
pub(crate) struct RequestSent {
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) body: Bytes,
    pub(crate) answer: Result<(u16, Bytes), String>,
    /// True if the pass did not wait for the answer, for example because of a timeout of its own.
    pub(crate) is_given_up: bool,
}

impl Reads {
    /// Adds the read of an object.
    pub(crate) fn add_object(
        &mut self,
        kind: &Arc<ApiResource>,
        is_metadata: bool,
        key: &Key,
        object: Option<&Object>,
    ) {
        if !self.left_out.is_empty() {
            return self.hide(kind, is_metadata, key, object);
        }
        self.add_kind(kind);
        let id = (kind.api_version.clone(), kind.kind.clone(), key.clone());
        let is_known = self.objects.get(&id).is_some_and(|known| match &known.object {
            // Another informer may select the object that the first did not, or hold more than its metadata.
            None => object.is_none(),
            Some(_) => object.is_none() || is_metadata || !known.is_metadata,
        });
        if is_known || self.written.contains(&(kind.group.clone(), kind.plural.clone(), key.clone())) {
            return self.hide(kind, is_metadata, key, object);
        }
        if !self.reserve(object.map_or(0, Object::len) + OVERHEAD, MAX_BYTES - REQUESTS) {
            self.hide(kind, is_metadata, key, object);
            return self.leave_out(format!("objects of {} {}", kind.api_version, kind.kind));
        }
        self.objects.insert(id, Read { kind: kind.clone(), object: object.cloned(), is_metadata });
    }

    /// Adds the read of a list, and its objects.
    pub(crate) fn add_list<'o>(
        &mut self,
        kind: &Arc<ApiResource>,
        is_metadata: bool,
        selection: String,
        scope: ListScope<'_>,
        objects: impl IntoIterator<Item = &'o Object>,
    ) {
        self.add_kind(kind);
        let (namespace, index_value) = match scope {
            ListScope::All => (None, None),
            ListScope::Namespace(namespace) => (Some(namespace.to_owned()), None),
            ListScope::IndexValue(value) => (None, Some(value.to_owned())),
        };
        let (api_version, kind_name) = (kind.api_version.clone(), kind.kind.clone());
        let list = ListRead { api_version, kind: kind_name, selection, namespace, index_value };
        if !self.lists.contains(&list) {
            match self.reserve(OVERHEAD, MAX_BYTES - REQUESTS) {
                true => drop(self.lists.insert(list)),
                false => self.leave_out("lists".into()),
            }
        }
        for object in objects {
            if !self.left_out.is_empty() && !is_secret(kind) {
                return;
            }
            self.add_object(kind, is_metadata, &object.state().key(), Some(object));
        }
    }

    /// Adds the answer about a Kind that is known only at run time.
    pub(crate) fn add_resolved(&mut self, kind: &GroupVersionKind, found: Option<&(ApiResource, Scope)>) {
        let (api_version, name) = (kind.api_version(), kind.kind.clone());
        let id = (api_version.clone(), name.clone());
        let plural = found.map(|(resource, _)| resource.plural.clone());
        let namespaced = found.map(|(_, scope)| *scope == Scope::Namespaced);
        self.kinds.insert(id, RecordedKind { api_version, kind: name, plural, namespaced });
    }

    fn add_kind(&mut self, kind: &ApiResource) {
        let (api_version, name) = (kind.api_version.clone(), kind.kind.clone());
        self.kinds.entry((api_version.clone(), name.clone())).or_insert_with(|| RecordedKind {
            api_version,
            kind: name,
            plural: Some(kind.plural.clone()),
            namespaced: None,
        });
    }

    /// Adds a time that the pass read.
    pub(crate) fn add_time(&mut self, time: Timestamp) {
        self.time.get_or_insert(time);
    }

    /// Adds the first read of a typed ConfigMap.
    pub(crate) fn add_config_map(&mut self, name: &'static str, data: ConfigMapData) {
        let bytes = data.iter().flatten().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        match self.reserve(bytes + OVERHEAD, MAX_BYTES) {
            true => drop(self.config_maps.insert(name, data)),
            false => self.leave_out(format!("ConfigMap {name}")),
        }
    }

    /// Notes that the pass sends a request, so that it was not dropped with those that were dropped before.
    pub(crate) fn begin_request(&mut self) {
        for index in self.dropped.drain(..) {
            self.requests[index].is_given_up = true;
        }
    }

    /// Adds a request that was dropped before its answer.
    pub(crate) fn add_dropped(&mut self, request: RequestSent) {
        let index = self.requests.len();
        self.add_request(request);
        self.dropped.extend((self.requests.len() > index).then_some(index));
    }

    /// Adds a request with its answer. The body of an answer is empty if it is a stream or no JSON, such as protobuf.
    pub(crate) fn add_request(&mut self, request: RequestSent) {
        let answer = request.answer.as_ref().map_or_else(String::len, |(_, body)| body.len());
        let path = ResourcePath::parse(request.uri.split('?').next().unwrap_or_default());
        let is_of_secrets = path.is_some_and(|path| path.group.is_empty() && path.plural == "secrets");
        let is_unknown = matches!(&request.answer, Ok((200..=299, body)) if body.is_empty());
        self.has_unknown_secrets |= is_of_secrets && is_unknown;
        if !self.reserve(request.uri.len() + request.body.len() + answer + OVERHEAD, MAX_BYTES) {
            self.has_unknown_secrets |= is_of_secrets;
            return self.leave_out("requests".into());
        }
        self.written.extend(written_object(&request));
        self.requests.push(request);
    }

    /// Returns false if the recording would become larger than `max`.
    fn reserve(&mut self, bytes: usize, max: usize) -> bool {
        let fits = self.bytes + bytes <= max;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }

    fn leave_out(&mut self, what: String) {
        self.left_out.insert(what);
    }

    /// Keeps a state of a Secret that is left out. The clone shares the bytes of the cache.
    fn hide(&mut self, kind: &Arc<ApiResource>, is_metadata: bool, key: &Key, object: Option<&Object>) {
        let Some(object) = object.filter(|_| is_secret(kind) && !is_metadata) else { return };
        let state = (key.clone(), object.state().resource_version.to_owned());
        if self.hidden.len() < MAX_HIDDEN || self.hidden.contains_key(&state) {
            self.hidden.insert(state, (kind.clone(), object.clone()));
        } else {
            self.has_unknown_secrets = true;
        }
    }

    /// Writes the recording to the file of a pass. Requests were given up if the pass ended by itself.
    pub(super) fn write_to(mut self, pass: &mut RecordedPass, was_dropped: bool) {
        if !was_dropped {
            self.begin_request();
        }
        pass.time = self.time.unwrap_or(pass.time);
        if self.has_unknown_secrets {
            pass.result = "not shown: it may contain values of Secrets".into();
            pass.left_out = vec![
                "all that it read and sent, since the Secrets that it read do not fit or are not JSON".into(),
            ];
            return;
        }
        let json = |(kind, object): &(Arc<ApiResource>, Object)| object.to_value(kind);
        pass.hidden = self.hidden.values().filter_map(json).collect();
        pass.kinds = self.kinds.into_values().collect();
        for ((api_version, kind, Key { namespace, name }), read) in self.objects {
            match read.object.as_ref().map(|object| object.to_value(&read.kind)) {
                Some(Some(object)) => pass.objects.push(object),
                Some(None) => pass.left_out.push(format!("{kind} {name}, which is not JSON")),
                None => pass.absent.push(ObjectName { api_version, kind, namespace, name }),
            }
        }
        pass.lists = self.lists.into_iter().collect();
        pass.config_maps = self.config_maps.into_iter().map(|(name, data)| (name.to_owned(), data)).collect();
        pass.requests = self.requests.into_iter().map(RequestSent::into_recorded).collect();
        pass.left_out.extend(self.left_out);
    }
}

impl RequestSent {
    fn into_recorded(self) -> RecordedRequest {
        let (code, answer) = match self.answer {
            Ok((code, body)) => (Some(code), without_managed_fields(parse(&body))),
            Err(error) => (None, json!(error)),
        };
        let Self { method, uri, is_given_up, .. } = self;
        RecordedRequest { method, uri, body: parse(&self.body), code, answer, is_given_up }
    }
}

fn is_secret(kind: &ApiResource) -> bool {
    kind.group.is_empty() && kind.kind == "Secret"
}

/// Parses JSON. Other text becomes a string.
fn parse(body: &[u8]) -> Value {
    match &*String::from_utf8_lossy(body) {
        "" => Value::Null,
        text => decode_value(text).unwrap_or_else(|_| json!(text)),
    }
}

/// Removes the managed fields of an object, or of those of a list. They are often half of an object.
fn without_managed_fields(mut answer: Value) -> Value {
    if let Some(metadata) = answer.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if let Some(items) = answer.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(|item| *item = without_managed_fields(item.take()));
    }
    answer
}

/// Returns the group, the plural and the key of the object that a successful request has written.
fn written_object(request: &RequestSent) -> Option<(String, String, Key)> {
    let Ok((200..=299, answer)) = &request.answer else { return None };
    if request.method == "GET" {
        return None;
    }
    let path = request.uri.split('?').next().unwrap_or_default();
    let path = ResourcePath::parse(path)?;
    let created = || {
        let name = parse(answer)["metadata"]["name"].as_str()?.to_owned();
        Some(Key::new(path.namespace, &name))
    };
    Some((path.group.into(), path.plural.into(), path.key().or_else(created)?))
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;

    use super::*;
    use crate::{object::RawObject, redaction::Redaction};

    fn kind_of(kind: &str) -> Arc<ApiResource> {
        Arc::new(ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind)))
    }

    fn read(reads: &mut Reads, kind: &str, data: &str) {
        read_from(reads, kind, false, json!({"k": data}));
    }

    fn read_from(reads: &mut Reads, kind: &str, is_metadata: bool, data: Value) {
        let (kind, key) = (kind_of(kind), Key::new("shop", "a"));
        let text = json!({"metadata": {"namespace": "shop", "name": "a"}, "data": data}).to_string();
        let object = RawObject::scan_text(&text).unwrap().encode::<DynamicObject>(&kind, false).unwrap();
        reads.add_object(&kind, is_metadata, &key, Some(&object));
    }

    fn send(reads: &mut Reads, uri: &str, body: String) {
        let (answer, is_given_up) = (Ok((200, Bytes::from("{}"))), false);
        let (method, uri, body) = ("PATCH".into(), uri.into(), body.into());
        reads.add_request(RequestSent { method, uri, body, answer, is_given_up });
    }

    fn file(reads: Reads) -> String {
        let mut pass = RecordedPass { result: "hunter22 is wrong".into(), ..RecordedPass::default() };
        reads.write_to(&mut pass, false);
        Redaction::default().apply(&mut pass);
        pass.text().unwrap()
    }

    #[test]
    fn the_values_of_each_state_of_a_secret_that_the_pass_read_are_not_in_the_file() {
        let mut reads = Reads::default();
        ["Zmlyc3QtMjI=", "aHVudGVyMjI="].iter().for_each(|data| read(&mut reads, "Secret", data));
        read_from(&mut reads, "Secret", true, Value::Null);
        send(
            &mut reads,
            "/api/v1/namespaces/shop/configmaps/b",
            json!({"data": "first-22, hunter22"}).to_string(),
        );
        let text = file(reads);
        assert!(text.contains("\"redacted, redacted\"") && !text.contains("hunter22"), "{text}");
    }

    #[test]
    fn the_values_of_a_secret_that_is_left_out_are_not_in_the_file() {
        let mut reads = Reads::default();
        read(&mut reads, "ConfigMap", &"x".repeat(MAX_BYTES));
        read(&mut reads, "Secret", "aHVudGVyMjI=");
        send(&mut reads, "/api/v1/namespaces/shop/configmaps/b", json!({"data": "hunter22"}).to_string());
        let text = file(reads);
        assert!(!text.contains("hunter22") && text.contains("configmaps/b"), "{text}");

        let mut reads = Reads::default();
        read(&mut reads, "ConfigMap", "aHVudGVyMjI=");
        send(
            &mut reads,
            "/api/v1/namespaces/shop/secrets/a",
            json!({"data": "x".repeat(MAX_BYTES)}).to_string(),
        );
        let text = file(reads);
        assert!(!text.contains("hunter22") && !text.contains("aHVudGVyMjI="), "{text}");
        assert!(text.contains("the Secrets that it read do not fit"), "{text}");
    }

    #[test]
    fn nothing_is_recorded_of_a_pass_that_read_secrets_in_another_format() {
        let mut reads = Reads::default();
        let (answer, is_given_up) = (Ok((200, Bytes::new())), false);
        let (method, uri) = ("GET".into(), "/api/v1/namespaces/shop/secrets/a".into());
        reads.add_request(RequestSent { method, uri, body: Bytes::new(), answer, is_given_up });
        send(&mut reads, "/api/v1/namespaces/shop/configmaps/b", json!({"data": "hunter22"}).to_string());
        let text = file(reads);
        assert!(!text.contains("hunter22") && text.contains("not JSON"), "{text}");
    }
}
