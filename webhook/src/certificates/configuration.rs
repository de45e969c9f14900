//! The objects that tell the API server of a webhook, and what of them is the webhook's own to say.

use std::net::IpAddr;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

/// Namespaces with this label are none of the webhook's business, as in Knative.
const EXCLUDE: &str = "webhooks.knative.dev/exclude";

/// What the entries of a configuration that bear its name are to say.
#[derive(Clone, Debug)]
pub(crate) struct Entries {
    /// The name of the configuration and of its entries.
    pub(crate) name: String,
    pub(crate) path: &'static str,
    pub(crate) rules: Value,
}

impl Entries {
    /// The `webhooks` of the configuration, as they are to be. An entry gets its rules, by which it is called at all, once
    /// the certificate is for its host.
    pub(crate) fn filled(&self, webhooks: &Value, bundle: &str, covers: impl Fn(&String) -> bool) -> Value {
        let mut webhooks = webhooks.clone();
        for entry in self.own(&mut webhooks) {
            if host(&entry["clientConfig"]).as_ref().is_none_or(&covers) {
                entry["rules"].clone_from(&self.rules);
            }
            trusting(&mut entry["clientConfig"], self.path, bundle);
            exclude(&mut entry["namespaceSelector"]);
        }
        webhooks
    }

    fn own<'a>(&self, webhooks: &'a mut Value) -> impl Iterator<Item = &'a mut Value> {
        let name = self.name.clone();
        webhooks.as_array_mut().into_iter().flatten().filter(move |entry| entry["name"] == *name)
    }

    /// How the API server is to call it: one for each entry that is its own.
    pub(crate) fn clients(&self, webhooks: &Value) -> Vec<Value> {
        let mut webhooks = webhooks.clone();
        self.own(&mut webhooks).map(|entry| entry["clientConfig"].take()).collect()
    }
}

/// A client that trusts this bundle. Where it is a Service the path is said too; a URL has one.
pub(crate) fn trusting(client: &mut Value, path: &str, bundle: &str) {
    client["caBundle"] = json!(ByteString(bundle.as_bytes().to_vec()));
    if client["service"].is_object() {
        client["service"]["path"] = path.into();
    }
}

/// Whether this client trusts everything in the bundle, and nothing else.
pub(crate) fn trusts(client: &Value, bundle: &str) -> bool {
    client["caBundle"] == json!(ByteString(bundle.as_bytes().to_vec()))
}

/// The host of a client that is told a URL, an address as a certificate has it.
pub(crate) fn host(client: &Value) -> Option<String> {
    let url: http::Uri = client["url"].as_str()?.parse().ok()?;
    let host = url.host()?.trim_matches(['[', ']']);
    Some(host.parse().map_or_else(|_| host.to_owned(), |address: IpAddr| address.to_string()))
}

fn exclude(selector: &mut Value) {
    let expressions = &mut selector["matchExpressions"];
    if !expressions.is_array() {
        *expressions = json!([]);
    }
    let excluded =
        |expressions: &Vec<Value>| expressions.iter().any(|expression| expression["key"] == EXCLUDE);
    if let Some(expressions) = expressions.as_array_mut().filter(|expressions| !excluded(expressions)) {
        expressions.push(json!({"key": EXCLUDE, "operator": "DoesNotExist"}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Entries {
        Entries { name: "x.dev".into(), path: "/defaulting", rules: json!([{"resources": ["lamps"]}]) }
    }

    #[test]
    fn only_entries_of_its_own_name_are_filled_and_keep_what_is_not_its_to_say() {
        let webhooks = json!([
            {"name": "other.dev", "clientConfig": {"url": "https://a/b"}},
            {"name": "x.dev", "timeoutSeconds": 3, "clientConfig": {"service": {"name": "s", "port": 9}},
             "namespaceSelector": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}},
        ]);
        let filled = entries().filled(&webhooks, "CA", |_| true);
        assert_eq!(filled[0], webhooks[0]);
        let expected = json!({
            "name": "x.dev", "timeoutSeconds": 3, "rules": [{"resources": ["lamps"]}],
            "clientConfig": {"service": {"name": "s", "port": 9, "path": "/defaulting"}, "caBundle": "Q0E="},
            "namespaceSelector": {"matchExpressions": [
                {"key": "k", "operator": "Exists"}, {"key": EXCLUDE, "operator": "DoesNotExist"},
            ]},
        });
        assert_eq!(filled[1], expected);
        assert_eq!(entries().filled(&filled, "CA", |_| true), filled);
        assert!(trusts(&entries().clients(&filled)[0], "CA"));
    }

    #[test]
    fn a_url_is_left_as_it_is_and_its_host_known() {
        let webhooks = json!([{"name": "x.dev", "clientConfig": {"url": "https://[::1]:8443/other"}}]);
        let filled = entries().filled(&webhooks, "CA", |_| true);
        assert_eq!(entries().filled(&webhooks, "CA", |name| name != "::1")[0]["rules"], Value::Null);
        assert_eq!(filled[0]["clientConfig"], json!({"url": "https://[::1]:8443/other", "caBundle": "Q0E="}));
        assert_eq!(host(&filled[0]["clientConfig"]).as_deref(), Some("::1"));
        let long = json!({"url": "https://[0:0:0:0:0:0:0:1]:8443/other"});
        assert_eq!(host(&long).as_deref(), Some("::1"), "it would never be found in a certificate");
    }
}
