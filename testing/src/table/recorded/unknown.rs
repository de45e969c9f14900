//! Finds the reads of a pass that its recording does not contain.

use std::collections::BTreeSet;

use kube::{core::GroupVersionKind, discovery::ApiResource};
use reknit_injection::internal::{
    ListRead, ObjectName, RecordedKind, RecordedPass, RecordedRequest, ResourcePath, path_segment,
};
use serde_json::Value;

use super::path_of;

/// Returns the paths of all objects that the pass read or looked for in the caches.
pub(super) fn paths(pass: &RecordedPass) -> BTreeSet<String> {
    names(pass).iter().filter_map(|name| path(&pass.kinds, name)).collect()
}

/// Returns what the second pass read and the recorded one did not, and what the test did not add.
pub(super) fn reads(recorded: &RecordedPass, added: &[Value], second: &RecordedPass) -> BTreeSet<String> {
    let mut known = paths(recorded);
    known.extend(added.iter().filter_map(|object| path(&second.kinds, &name_of(object)?)));
    known.extend(recorded.requests.iter().filter_map(absent_after));
    for request in recorded.requests.iter().chain(&second.requests).filter(|request| request.method != "GET")
    {
        known.extend(stored_at(path_of(&request.uri), &request.answer).map(|(_, path)| path));
    }
    // The Kind of an object that the pass gets without a cache is known only by the answer.
    let is_added = |object: &Value| {
        added.iter().any(|added| name_of(added).is_some_and(|name| Some(name) == name_of(object)))
    };
    let got = second.requests.iter().filter(|request| is_answered_read(request) && is_added(&request.answer));
    known.extend(got.filter_map(|request| Some(stored_at(path_of(&request.uri), &request.answer)?.1)));
    let is_listed = |list: &ListRead| recorded.lists.iter().any(|known| known.contains(list));
    let mut unknown = BTreeSet::new();
    for name in names(second) {
        let namespace = name.namespace.as_deref().unwrap_or_default();
        // A list without a selector shows which objects are absent.
        let mut lists =
            [String::new(), format!("namespace={namespace}")].into_iter().map(|selection| ListRead {
                api_version: name.api_version.clone(),
                kind: name.kind.clone(),
                selection,
                namespace: name.namespace.clone(),
                index_value: None,
            });
        let is_known = path(&second.kinds, &name).is_none_or(|path| known.contains(&path));
        if !is_known && !lists.any(|list| is_listed(&list)) {
            let namespace = name.namespace.map(|namespace| namespace + "/").unwrap_or_default();
            unknown.insert(format!("{} {namespace}{} of {}", name.kind, name.name, name.api_version));
        }
    }
    for list in second.lists.iter().filter(|list| !is_listed(list)) {
        let ListRead { kind, api_version, selection, namespace, index_value } = list;
        let parts = [
            namespace.as_ref().map(|namespace| format!(" in {namespace}")),
            index_value.as_ref().map(|value| format!(" with the index value {value}")),
            Some(format!(" [{selection}]")).filter(|_| !selection.is_empty()),
        ];
        let parts: String = parts.into_iter().flatten().collect();
        unknown.insert(format!("the list of {kind} of {api_version}{parts}"));
    }
    for kind in second.kinds.iter().filter(|kind| kind.namespaced.is_some() || kind.plural.is_none()) {
        let is_same =
            |known: &RecordedKind| (&known.api_version, &known.kind) == (&kind.api_version, &kind.kind);
        if !recorded.kinds.iter().any(is_same) {
            unknown.insert(format!("the Kind {} of {}", kind.kind, kind.api_version));
        }
    }
    let config_maps = second.config_maps.keys().filter(|name| !recorded.config_maps.contains_key(*name));
    unknown.extend(config_maps.map(|name| format!("ConfigMap {name}")));
    // From here on, since an object that the pass read from the API server alone is not in the caches of the test.
    known.extend(recorded.requests.iter().filter(|request| is_answered_read(request)).map(answered));
    for request in second.requests.iter().filter(|request| depends_on_object(request)) {
        let path = path_of(&request.uri);
        let object = ResourcePath::parse(path).and_then(|parsed| parsed.subresource());
        let object =
            object.map_or(path, |subresource| path.trim_end_matches(subresource).trim_end_matches('/'));
        let is_known = [path, object, &answered(request)].iter().any(|path| known.contains(*path));
        if !is_known {
            unknown.insert(format!("{} {}", request.method, request.uri));
        }
    }
    unknown
}

/// Returns true for a read whose answer shows what is stored, unlike a failure.
fn is_answered_read(request: &RecordedRequest) -> bool {
    request.method == "GET" && matches!(request.code, Some(200..=299 | 404))
}

/// Returns what the answer to a GET shows: the path, with the parameters that select the objects of a list.
fn answered(request: &RecordedRequest) -> String {
    let (path, query) = request.uri.split_once('?').unwrap_or((&request.uri, ""));
    let selects = |parameter: &&str| {
        let name = parameter.split('=').next().unwrap_or_default();
        ["labelSelector", "fieldSelector", "limit", "continue"].contains(&name) && !parameter.ends_with('=')
    };
    let selection: BTreeSet<_> = query.split('&').filter(selects).collect();
    match selection.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", Vec::from_iter(selection).join("&")),
    }
}

/// Returns the path of an object that a recorded request has shown to be absent, or has deleted.
fn absent_after(request: &RecordedRequest) -> Option<String> {
    let is_absent = match (&*request.method, request.code) {
        ("DELETE", Some(200..=299)) => true,
        ("POST", _) => false,
        (_, code) => code == Some(404),
    };
    let path = path_of(&request.uri);
    let is_object = |path: ResourcePath<'_>| path.subresource().is_none() && !path.is_collection();
    (is_absent && ResourcePath::parse(path).is_some_and(is_object)).then(|| path.to_owned())
}

/// Returns true if the answer is that of the API server in memory, and depends on objects that the file may not know: a
/// read, or a write of an object that this API server does not have. Another failure is one of the file.
fn depends_on_object(request: &RecordedRequest) -> bool {
    is_answered_read(request) || (request.method != "POST" && request.code == Some(404))
}

/// Returns the names of all objects that a pass read or looked for in the caches.
fn names(pass: &RecordedPass) -> Vec<ObjectName> {
    pass.objects.iter().filter_map(name_of).chain(pass.absent.iter().cloned()).collect()
}

fn name_of(object: &Value) -> Option<ObjectName> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(ObjectName {
        api_version: text(&object["apiVersion"])?,
        kind: text(&object["kind"])?,
        namespace: text(&object["metadata"]["namespace"]),
        name: text(&object["metadata"]["name"])?,
    })
}

/// Returns the path of an object. `None` if the API server does not serve its Kind.
fn path(kinds: &[RecordedKind], name: &ObjectName) -> Option<String> {
    let ObjectName { api_version, kind, namespace, name } = name;
    let known = kinds.iter().find(|known| (&known.api_version, &known.kind) == (api_version, kind));
    Some(object_path(api_version, namespace.as_deref(), known?.plural.as_deref()?, name))
}

fn object_path(api_version: &str, namespace: Option<&str>, plural: &str, name: &str) -> String {
    let root = if api_version.contains('/') { "/apis" } else { "/api" };
    let namespace = namespace.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
    format!("{root}/{api_version}{namespace}/{plural}/{}", path_segment(name))
}

/// Returns the resource and the path of the object in the answer to a request of this path.
pub(super) fn stored_at(path: &str, object: &Value) -> Option<(ApiResource, String)> {
    let request =
        ResourcePath::parse(path).filter(|path| matches!(path.subresource(), None | Some("status")))?;
    let ObjectName { api_version, kind, namespace, name } = name_of(object)?;
    let gvk = GroupVersionKind::gvk(request.group, request.version, &kind);
    let path = object_path(&api_version, namespace.as_deref(), request.plural, &name);
    Some((ApiResource::from_gvk_with_plural(&gvk, request.plural), path))
}
