//! Redaction of recorded passes: the [hidden values](Redaction), and tokens.

use serde_json::{Value, json};

use super::{
    file::RecordedPass,
    removed::{REDACTED, REDACTED_BASE64, Removed, Texts},
};
use crate::{
    client::ResourcePath,
    redaction::{Form, LAST_APPLIED, MAX_NESTING, Redaction, documents},
};

impl Redaction {
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
            if is_secret && let Value::String(yaml) = &request.body {
                self.redact_manifests(yaml, true, 0, &mut removed);
                removed.replace(&mut request.body, REDACTED);
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
        let texts = removed.texts(names(pass)); // References to names would lead elsewhere.
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

    /// Redacts an object, a list of objects, or a patch, and the objects within them.
    fn redact(&self, value: &mut Value, is_secret: bool, removed: &mut Removed) {
        if let Some(operations) = value.as_array_mut()
            && (is_secret || self.has_pointers())
        {
            // The value of a JSON patch may be a part of a value to redact, or contain one.
            let values = operations.iter_mut().filter_map(|operation| operation.get_mut("value"));
            values.for_each(|value| removed.replace(value, REDACTED));
        }
        self.redact_object(value, is_secret, removed);
        self.redact_within(value, 0, removed);
    }

    fn redact_object(&self, value: &mut Value, is_secret: bool, removed: &mut Removed) {
        self.hide_object(value, is_secret, &mut |value, form| match form {
            Form::Plain => removed.replace(value, REDACTED),
            Form::Base64 => removed.replace(value, REDACTED_BASE64),
            Form::Annotation => {} // a test needs the others
        });
        remove_last_applied(value);
    }

    /// Redacts each object of a Kind within the value, and in its texts. A text with a part that cannot be read may have
    /// more than is found: it is replaced, or if it is itself within a text, that one, for which this returns false.
    fn redact_within(&self, value: &mut Value, nesting: usize, removed: &mut Removed) -> bool {
        if value["kind"].is_string() {
            self.redact_object(value, false, removed);
        }
        let mut is_read = true;
        match value {
            Value::String(text) => {
                is_read = self.redact_manifests(text, false, nesting, removed);
                if !is_read {
                    REDACTED.clone_into(text);
                }
            }
            Value::Array(items) => {
                items.iter_mut().for_each(|item| is_read &= self.redact_within(item, nesting, removed));
            }
            Value::Object(fields) => {
                fields.values_mut().for_each(|field| is_read &= self.redact_within(field, nesting, removed));
            }
            _ => {}
        }
        is_read
    }

    /// Finds the values of objects that are written as YAML or JSON within a text, such as the body of a request that
    /// the API server has refused. Returns false if the text mentions values, but a part of it cannot be read.
    fn redact_manifests(&self, text: &str, is_secret: bool, nesting: usize, removed: &mut Removed) -> bool {
        if !is_secret && !text.contains("kind") {
            return true;
        }
        let documents = Some(text).filter(|_| nesting < MAX_NESTING).and_then(documents);
        let Some(mut documents) = documents else { return !self.is_mentioned_in(text) };
        let mut is_read = true;
        // A sentence is a document too, which consists of itself.
        documents.retain(|document| document.as_str() != Some(text.trim()));
        for document in &mut documents {
            if is_secret {
                self.redact_object(document, true, removed);
            }
            is_read &= self.redact_within(document, nesting + 1, removed);
        }
        is_read
    }
}

/// Removes the annotation of kubectl from an object, or from the objects of a list.
fn remove_last_applied(object: &mut Value) {
    let items = object.get_mut("items").and_then(Value::as_array_mut);
    items.into_iter().flatten().for_each(remove_last_applied);
    if let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") {
        annotations.remove(LAST_APPLIED);
    }
}

/// The names and the namespaces of the objects of the file.
fn names(pass: &RecordedPass) -> impl Iterator<Item = &str> {
    let absent = pass.absent.iter().flat_map(|absent| [Some(&*absent.name), absent.namespace.as_deref()]);
    let metadata = pass.objects.iter().map(|object| &object["metadata"]);
    let present = metadata.flat_map(|metadata| [metadata["name"].as_str(), metadata["namespace"].as_str()]);
    absent.chain(present).flatten()
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
        let redaction = Redaction::default();
        redaction.set(&["/spec/token".into()]);
        redaction.apply(&mut pass);
        let text = pass.text().unwrap();
        for value in ["hunter22", "hunter33", "hunter44", "hunter55", "blue-moon"] {
            assert!(!text.contains(value), "{value}: {text}");
        }
        assert_eq!(pass.objects[0]["status"]["text"], "redacted, redacted, redacted");
        assert_eq!(pass.requests[2].body, lamp.replace("blue-moon", "redacted"));
    }

    /// Returns the text after the redaction of an object with it.
    fn redacted_text(text: &str) -> String {
        let map = json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": text}});
        let mut pass = RecordedPass { objects: vec![map], ..RecordedPass::default() };
        Redaction::default().apply(&mut pass);
        pass.objects[0]["data"]["a"].as_str().unwrap().to_owned()
    }

    #[test]
    fn the_values_of_a_secret_within_another_object_are_removed() {
        let secret = |value: &str| json!({"kind": "Secret", "stringData": {"p": value}});
        let list = json!({"kind": "SecretList", "items": [{"data": {"p": "aHVudGVyNTU="}}]});
        let map = |text: String| json!({"kind": "ConfigMap", "data": {"a": text}}).to_string();
        let texts = json!({
            "map": map(secret("hunter22").to_string()),
            "within": json!({"kind": "Other", "spec": [secret("hunter33")]}).to_string(),
            "list": json!([secret("hunter44")]).to_string(),
            "deep": map(map(map(map(secret("hunter88").to_string())))),
        });
        let work = json!({
            "kind": "ManifestWork",
            "metadata": {"annotations": texts},
            "spec": {"workload": {"manifests": [list, secret("abc"), {"kind": "Lamp", "spec": {"token": "hunter66"}}]}},
            "status": {"text": "hunter22 hunter33 hunter44 hunter55 hunter66"},
        });
        let answer = json!({"kind": "Secret", "items": [], "data": {"p": "aHVudGVyNzc="}});
        let request = json!({"method": "GET", "uri": "/api/v1/configmaps", "answer": answer});
        let mut pass = RecordedPass {
            objects: vec![work],
            requests: vec![serde_json::from_value(request).unwrap()],
            ..RecordedPass::default()
        };
        let redaction = Redaction::default();
        redaction.set(&["/spec/token".into()]);
        redaction.apply(&mut pass);
        let text = pass.text().unwrap();
        for value in ["hunter", "aHVudGVy", "abc"] {
            assert!(!text.contains(value), "{value}: {text}");
        }
        assert_eq!(pass.objects[0]["status"]["text"], "redacted redacted redacted redacted redacted");
        assert_eq!(
            pass.objects[0]["metadata"]["annotations"]["list"],
            json!([secret("redacted")]).to_string()
        );
    }

    #[test]
    fn a_text_is_removed_if_a_secret_in_it_cannot_be_read() {
        let secret = "kind: Secret\nstringData:\n  p: hunter22-long\n";
        let aliases = format!(
            "kind: A\na: &a {}\nb: &b [{}]\nc: [{}]",
            "x".repeat(999),
            "*a,".repeat(40),
            "*b,".repeat(40)
        );
        for text in [
            format!("{secret}---\n{{{{ .Values.x }}}}\n"),
            format!("{secret}  p: hunter33\n"),
            format!("{secret}---\na: {}{}\n", "[".repeat(99), "]".repeat(99)),
            format!("{secret}---\n{aliases}\n"),
            json!({"kind": "ConfigMap", "data": {"a": format!("{secret}---\n{{{{ .Values.x }}}}\n")}})
                .to_string(),
        ] {
            assert_eq!(redacted_text(&text), "redacted", "{text}");
        }
        for text in [
            "the kind: of: lamp",
            "the Secret: is: missing",
            "no matches for kind \"Secret\" in version \"v1\"",
            aliases.as_str(),
            "kind: Secret\nmetadata:\n  name: a\n",
        ] {
            assert_eq!(redacted_text(text), text);
        }
        let mut pass = RecordedPass {
            objects: vec![
                json!({"kind": "ConfigMap", "data": {"a": "kind: Lamp\nspec: {token: b, {{ .x }}: c}"}}),
            ],
            ..RecordedPass::default()
        };
        let redaction = Redaction::default();
        redaction.set(&["/spec/token".into()]);
        redaction.apply(&mut pass);
        assert_eq!(pass.objects[0]["data"]["a"], "redacted");
    }

    #[test]
    fn a_reference_stays_although_a_secret_contains_the_name_in_another_form() {
        let secret = json!({"kind": "Secret", "metadata": {"name": "my-application"}, "stringData": {
            "a": "my-application\n", "b": "\"my-application\"", "c": "other-application\n",
        }});
        let lamp =
            json!({"kind": "Lamp", "spec": {"secretName": "my-application", "other": "other-application"}});
        let mut pass = RecordedPass { objects: vec![secret, lamp], ..RecordedPass::default() };
        Redaction::default().apply(&mut pass);
        assert_eq!(pass.objects[1]["spec"], json!({"secretName": "my-application", "other": "redacted"}));
    }
}
