//! Redaction of recorded passes: the values of Secrets, tokens, and the values that the author of the program names.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::file::RecordedPass;
use crate::client::ResourcePath;

/// The text that replaces a value, and its base64. A test that encodes or decodes it again gets the same.
const REDACTED: &str = "redacted";
const REDACTED_BASE64: &str = "cmVkYWN0ZWQ=";

/// The length in bytes from which a value is removed wherever it occurs. Shorter ones, such as `on`, occur by chance.
const MIN_LENGTH: usize = 4;

/// The length in bytes from which a line of a longer value is removed wherever it occurs, for example indented in YAML.
const MIN_LINE: usize = 16;

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

    /// Removes the values from the pass. A removed text is removed everywhere else too, also in base64, in JSON and in a
    /// URL: a pass that reads a password may write it to a status or to another object.
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
        let mut texts = removed.texts();
        // References to them would lead elsewhere.
        texts.retain(|(text, _)| !is_name(pass, text));
        pass.result = scrubbed(&pass.result, &texts);
        for value in pass.lists.iter_mut().filter_map(|list| list.index_value.as_mut()) {
            *value = scrubbed(value, &texts);
        }
        pass.requests.iter_mut().for_each(|request| request.uri = scrubbed_uri(&request.uri, &texts));
        let bodies = pass.requests.iter_mut().flat_map(|request| [&mut request.body, &mut request.answer]);
        pass.objects.iter_mut().chain(bodies).for_each(|value| scrub(value, &texts));
        for value in pass.config_maps.values_mut().flatten().flat_map(|data| data.values_mut()) {
            *value = scrubbed(value, &texts);
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

/// The texts that were removed, with their replacements.
#[derive(Default)]
struct Removed(BTreeMap<String, &'static str>);

impl Removed {
    /// Replaces each text within the value, so that it can still be decoded as its type. Numbers become 0, and booleans
    /// false.
    fn replace(&mut self, value: &mut Value, replacement: &'static str) {
        match value {
            Value::Null => {}
            Value::Bool(value) => *value = false,
            Value::Number(number) => {
                self.add(&number.to_string(), REDACTED);
                *number = 0.into();
            }
            Value::String(text) => {
                self.add(text, replacement);
                replacement.clone_into(text);
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item, replacement)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.replace(field, replacement)),
        }
    }

    /// Adds a text, its decoded form if it is base64, and the other forms of each.
    fn add(&mut self, text: &str, replacement: &'static str) {
        self.0.insert(text.to_owned(), replacement);
        let decoded = serde_json::from_value::<ByteString>(json!(text)).ok();
        let decoded = decoded.and_then(|bytes| String::from_utf8(bytes.0).ok());
        for text in [Some(text), decoded.as_deref()].into_iter().flatten() {
            for text in [text, text.trim()] {
                let lines = text.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE);
                let forms = [text.to_owned(), in_json(text), in_url(text)];
                for form in forms.into_iter().chain(lines.map(str::to_owned)) {
                    self.0.entry(form).or_insert(REDACTED);
                }
                let encoded = json!(ByteString(text.into()));
                self.0.entry(encoded.as_str().unwrap_or_default().to_owned()).or_insert(REDACTED_BASE64);
            }
        }
    }

    /// Returns the texts to remove everywhere with their replacements, the longest first, since one may contain
    /// another.
    fn texts(self) -> Vec<(String, &'static str)> {
        let is_replacement = |text: &str| REDACTED.contains(text) || REDACTED_BASE64.contains(text);
        let mut texts: Vec<_> = self.0.into_iter().collect();
        texts.retain(|(text, _)| text.len() >= MIN_LENGTH && !is_replacement(text));
        texts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        texts
    }
}

/// The text as it is within a string of JSON.
fn in_json(text: &str) -> String {
    let json = json!(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// The text as it is within a URL.
fn in_url(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn scrubbed(text: &str, removed: &[(String, &'static str)]) -> String {
    let found = removed.iter().filter(|(removed, _)| text.contains(removed));
    found.fold(text.to_owned(), |text, (removed, replacement)| text.replace(removed, replacement))
}

/// Removes the texts from the query, and from the path that the API server passes on to a proxied server. The rest of a path
/// consists of names.
fn scrubbed_uri(uri: &str, removed: &[(String, &'static str)]) -> String {
    let path = uri.split('?').next().unwrap_or_default();
    let is_proxied = ResourcePath::parse(path).is_some_and(|path| path.subresource() == Some("proxy"));
    let names = path.find("/proxy/").filter(|_| is_proxied).unwrap_or(path.len());
    format!("{}{}", &uri[..names], scrubbed(&uri[names..], removed))
}

/// Removes the texts from all strings, except those that identify an object.
fn scrub(value: &mut Value, removed: &[(String, &'static str)]) {
    match value {
        Value::String(text) => *text = scrubbed(text, removed),
        Value::Array(items) => items.iter_mut().for_each(|item| scrub(item, removed)),
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
                        others.for_each(|(_, field)| scrub(field, removed));
                    }
                    (_, field) => scrub(field, removed),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            "yaml": "key: |\n  redacted\n  redacted\n",
            "url": "postgres://shop:redacted@db",
        });
        assert_eq!(pass.objects[0]["data"], expected);
    }
}
