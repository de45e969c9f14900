//! Redaction of recorded passes: the values of Secrets, tokens, and the values that the author of the program names.

use serde_json::{Value, json};

use super::{
    file::RecordedPass,
    removed::{REDACTED, REDACTED_BASE64, Removed, Texts},
};
use crate::client::ResourcePath;

/// Contains the manifest, and so each value, of an object that was applied with kubectl.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The values to remove from recorded passes, beside those of Secrets.
#[derive(Clone, Debug, Default)]
pub(super) struct Redaction {
    pointers: Vec<Vec<String>>,
}

impl Redaction {
    pub(crate) fn new(pointers: &[String]) -> Self {
        let segments = |pointer: &String| {
            let segments = pointer.trim_start_matches('/').split('/');
            segments.map(|segment| segment.replace("~1", "/").replace("~0", "~")).collect()
        };
        Self { pointers: pointers.iter().map(segments).collect() }
    }

    /// Removes the values from the pass. A removed text is removed everywhere else too, also in [another
    /// form](super::removed): a pass that reads a password may write it to a status or to another object.
    pub(super) fn apply(&self, pass: &mut RecordedPass) {
        let mut removed = Removed::default();
        for secret in &mut pass.hidden {
            self.redact(secret, true, &mut removed);
        }
        for object in &mut pass.objects {
            self.redact(object, false, &mut removed);
        }
        for request in &mut pass.requests {
            let path = request.uri.split('?').next().unwrap_or_default();
            let path = ResourcePath::parse(path);
            let is_secret = path.is_some_and(|path| path.group.is_empty() && path.plural == "secrets");
            let is_token =
                path.is_some_and(|path| path.subresource() == Some("token") || path.plural == "tokenreviews");
            self.find_manifests(&request.body, is_secret, &mut removed);
            if is_secret && request.body.is_string() {
                removed.replace(&mut request.body, REDACTED); // YAML
            }
            for body in [&mut request.body, &mut request.answer] {
                match is_token {
                    true => removed.replace(body, REDACTED),
                    false => self.redact(body, is_secret, &mut removed),
                }
            }
        }
        for (name, data) in &mut pass.config_maps {
            let mut object = json!({"kind": "ConfigMap", "metadata": {"name": name}, "data": &*data});
            self.redact(&mut object, false, &mut removed);
            *data = serde_json::from_value(object["data"].take()).unwrap_or_default();
        }
        let answers = pass.requests.iter().map(|request| &request.answer);
        pass.objects.iter().chain(answers).for_each(|value| self.find_manifests(value, false, &mut removed));
        let texts = pass.config_maps.values().flatten().flat_map(|data| data.values());
        texts.for_each(|text| self.find_manifests_in(text, false, &mut removed));
        // References to names would lead elsewhere.
        let texts = removed.texts(|text| !is_name(pass, text));
        pass.result = texts.scrubbed(&pass.result);
        for value in pass.lists.iter_mut().filter_map(|list| list.index_value.as_mut()) {
            *value = texts.scrubbed(value);
        }
        pass.requests.iter_mut().for_each(|request| request.uri = scrubbed_uri(&request.uri, &texts));
        let bodies = pass.requests.iter_mut().flat_map(|request| [&mut request.body, &mut request.answer]);
        pass.objects.iter_mut().chain(bodies).for_each(|value| scrub(value, &texts));
        for value in pass.config_maps.values_mut().flatten().flat_map(|data| data.values_mut()) {
            *value = texts.scrubbed(value);
        }
    }

    /// Finds the values of objects that are written as YAML or JSON within a text, such as the body of a request that
    /// the API server has refused. Nothing else contains these values, so the file would have them.
    fn find_manifests(&self, value: &Value, is_secret: bool, removed: &mut Removed) {
        match value {
            Value::String(text) => self.find_manifests_in(text, is_secret, removed),
            Value::Array(items) => {
                items.iter().for_each(|item| self.find_manifests(item, is_secret, removed));
            }
            Value::Object(fields) => {
                fields.values().for_each(|field| self.find_manifests(field, is_secret, removed));
            }
            _ => {}
        }
    }

    fn find_manifests_in(&self, text: &str, is_secret: bool, removed: &mut Removed) {
        let is_manifest = |object: &Value| is_secret || object["kind"].is_string();
        if is_secret || text.contains("kind") {
            let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap_or_default();
            let objects = objects.into_iter().filter(is_manifest);
            objects.for_each(|mut object| self.redact(&mut object, is_secret, removed));
        }
    }

    /// Redacts an object, a list of objects, or a patch.
    fn redact(&self, value: &mut Value, is_secret: bool, removed: &mut Removed) {
        let is_secret = is_secret || matches!(value["kind"].as_str(), Some("Secret" | "SecretList"));
        if let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
            return items.iter_mut().for_each(|item| self.redact(item, is_secret, removed));
        }
        if let Some(operations) = value.as_array_mut() {
            // The value of a JSON patch may be a part of a value to redact, or contain one.
            let operations = operations.iter_mut().filter(|_| is_secret || !self.pointers.is_empty());
            let values = operations.filter_map(|operation| operation.get_mut("value"));
            return values.for_each(|value| removed.replace(value, REDACTED));
        }
        if let Some(annotations) = value.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
        if is_secret {
            for (field, replacement) in [("data", REDACTED_BASE64), ("stringData", REDACTED)] {
                if let Some(field) = value.get_mut(field) {
                    removed.replace(field, replacement);
                }
            }
        }
        for pointer in &self.pointers {
            redact_at(value, pointer, removed);
        }
    }
}

/// Returns true for the name or the namespace of an object of the file.
fn is_name(pass: &RecordedPass, text: &str) -> bool {
    let absent = pass.absent.iter().map(|absent| (Some(&*absent.name), absent.namespace.as_deref()));
    let metadata = pass.objects.iter().map(|object| &object["metadata"]);
    let present = metadata.map(|metadata| (metadata["name"].as_str(), metadata["namespace"].as_str()));
    absent.chain(present).any(|(name, namespace)| name == Some(text) || namespace == Some(text))
}

fn redact_at(value: &mut Value, pointer: &[String], removed: &mut Removed) {
    let Some((segment, rest)) = pointer.split_first() else { return removed.replace(value, REDACTED) };
    match value {
        Value::Object(fields) if segment == "*" => {
            fields.values_mut().for_each(|field| redact_at(field, rest, removed));
        }
        Value::Object(fields) => {
            fields.get_mut(segment).into_iter().for_each(|field| redact_at(field, rest, removed))
        }
        Value::Array(items) => {
            let items = items.iter_mut().enumerate();
            let named = items.filter(|(index, _)| segment == "*" || *segment == index.to_string());
            named.for_each(|(_, item)| redact_at(item, rest, removed));
        }
        _ => {}
    }
}

/// Removes the texts from the query, and from the path that the API server passes on to a proxied server. The rest of a path
/// consists of names.
fn scrubbed_uri(uri: &str, texts: &Texts) -> String {
    let path = uri.split('?').next().unwrap_or_default();
    let is_proxied = ResourcePath::parse(path).is_some_and(|path| path.subresource() == Some("proxy"));
    let names = path.find("/proxy/").filter(|_| is_proxied).unwrap_or(path.len());
    format!("{}{}", &uri[..names], texts.scrubbed(&uri[names..]))
}

/// Removes the texts from all strings, except those that identify an object.
fn scrub(value: &mut Value, texts: &Texts) {
    match value {
        Value::String(text) => *text = texts.scrubbed(text),
        Value::Array(items) => items.iter_mut().for_each(|item| scrub(item, texts)),
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                match (name.as_str(), field) {
                    ("apiVersion" | "kind", _) => {}
                    ("metadata", Value::Object(metadata)) => {
                        let identity = [
                            "name",
                            "namespace",
                            "uid",
                            "resourceVersion",
                            "ownerReferences",
                            "creationTimestamp",
                        ];
                        let others =
                            metadata.iter_mut().filter(|(name, _)| !identity.contains(&name.as_str()));
                        others.for_each(|(_, field)| scrub(field, texts));
                    }
                    (_, field) => scrub(field, texts),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::removed::in_url;

    #[test]
    fn a_value_is_removed_in_the_forms_in_which_other_texts_contain_it() {
        let (key, password) = ("-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n", "p\"a@s/1");
        let texts = json!({
            "json": json!({"key": key, "password": password}).to_string(),
            "yaml": "key: |\n  -----BEGIN KEY-----\n  MIIEvQIBADANBgkqhkiG\n",
            "url": format!("postgres://shop:{}@db", in_url(password)),
        });
        let map = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": texts});
        let secret =
            json!({"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": key, "p": password}});
        let request = |uri: String, body: Value| {
            serde_json::from_value(json!({"method": "PUT", "uri": uri, "body": body})).unwrap()
        };
        let proxy = "/api/v1/namespaces/n/services/db/proxy/login";
        let requests = vec![
            request(
                "/api/v1/namespaces/n/secrets/t".into(),
                json!("kind: Secret\nstringData:\n  t: token-number-22\n"),
            ),
            request(format!("{proxy}/{}?password={}", in_url(password), in_url(password)), Value::Null),
        ];
        let list = json!({"apiVersion": "v1", "kind": "Secret", "indexValue": password});
        let lists = vec![serde_json::from_value(list).unwrap()];
        let mut pass =
            RecordedPass { objects: vec![map, secret], lists, requests, ..RecordedPass::default() };
        Redaction::default().apply(&mut pass);
        assert_eq!(pass.requests[0].body, "redacted");
        assert_eq!(pass.requests[1].uri, format!("{proxy}/redacted?password=redacted"));
        assert_eq!(pass.lists[0].index_value.as_deref(), Some("redacted"));
        let expected = json!({
            "json": "{\"key\":\"redacted\",\"password\":\"redacted\"}",
            "yaml": "key: |\n  redacted\n",
            "url": "postgres://shop:redacted@db",
        });
        assert_eq!(pass.objects[0]["data"], expected);
    }

    #[test]
    fn the_values_of_an_object_that_is_sent_as_yaml_are_removed_although_the_api_server_has_refused_it() {
        let secret = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\nstringData:\n  p: hunter22-long\n";
        let lamp = "kind: Lamp\nmetadata:\n  name: a\nspec:\n  token: blue-moon\n";
        let request = |path: &str, body: Value, message: &str| {
            let uri = format!("/api/v1/namespaces/n/{path}/a");
            let answer = json!({"kind": "Status", "status": "Failure", "message": message});
            serde_json::from_value(
                json!({"method": "PATCH", "uri": uri, "body": body, "code": 422, "answer": answer}),
            )
            .unwrap()
        };
        let requests = vec![
            request("secrets", json!(secret), "Invalid value: \"hunter22-long\""),
            request("secrets", json!("stringData:\n  p: hunter44\n"), "Kind is missing: hunter44"),
            request("lamps", json!(lamp), "Invalid value: \"blue-moon\""),
            request(
                "configmaps",
                json!({"data": {"a": format!("---\n{}", secret.replace("22-long", "33"))}}),
                "hunter33",
            ),
        ];
        let objects = vec![json!({"kind": "Lamp", "status": {"text": "hunter22-long, hunter33, hunter55"}})];
        let mut pass =
            RecordedPass { objects, requests, result: "blue-moon".into(), ..RecordedPass::default() };
        let data = [("a".to_owned(), secret.replace("22-long", "55"))];
        pass.config_maps.insert("config".into(), Some(data.into()));
        Redaction::new(&["/spec/token".into()]).apply(&mut pass);
        let text = pass.text().unwrap();
        for value in ["hunter22", "hunter33", "hunter44", "hunter55", "blue-moon"] {
            assert!(!text.contains(value), "{value}: {text}");
        }
        assert_eq!(pass.objects[0]["status"]["text"], "redacted, redacted, redacted");
        assert_eq!(pass.requests[2].body, lamp.replace("blue-moon", "redacted"));
    }
}
