//! The objects that tell the API server how to call the webhook: webhook configurations and CustomResourceDefinitions.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::ByteString;
use kube::api::ApiResource;
use reknit_apis::{Key, Scope, equality::are_equal};
use reknit_injection::{Cached, InformerState, Permission, Verb, internal::raw_json, select};
use reknit_reconciler::{Builder, Keys};
use serde::Serialize;
use serde_json::{Value, json};

use crate::admission::mutator::Mutator;

/// The label of namespaces for which the API server does not call Knative's webhooks.
const EXCLUDE_LABEL: &str = "webhooks.knative.dev/exclude";

/// Returns the cached object as JSON, or why it cannot be read.
pub(crate) type ReadObject = Box<dyn Fn() -> Result<Option<Value>, String> + Send + Sync>;

/// An object that tells the API server how to call the webhook.
pub(crate) struct Registration {
    pub(crate) name: String,
    /// The name of the entries of a webhook configuration that concern this webhook. By default the name of the object.
    pub(crate) entry: String,
    pub(crate) resource: ApiResource,
    /// The webhook's Service. Parts of the object that name another one belong to the webhook behind that Service.
    service: Key,
    path: &'static str,
    /// The rules of the entries. `None` for a CustomResourceDefinition.
    rules: Option<Value>,
    /// True if the entries leave out the namespaces with [`EXCLUDE_LABEL`].
    pub(crate) excludes_namespaces: bool,
    /// The mutator that the entries call, if it is not a step of the webhook's own.
    pub(crate) mutator: Option<Arc<dyn Mutator>>,
    /// Watches the object of this name, and returns a function that reads it. A change enqueues the key of the object
    /// and the key of the Secret, whose certificate may lack a new host.
    pub(crate) watch: fn(&mut Builder<Keys>, &str, &Key) -> ReadObject,
}

impl Registration {
    pub(crate) fn new<K>(name: String, service: Key, path: &'static str, rules: Option<Value>) -> Self
    where
        K: Cached<DynamicType = (), Scope: Scope> + Serialize,
    {
        let (entry, resource) = (name.clone(), ApiResource::erase::<K>(&()));
        Self {
            name,
            entry,
            resource,
            service,
            path,
            rules,
            excludes_namespaces: true,
            mutator: None,
            watch: watch::<K>,
        }
    }

    /// Returns true for a webhook configuration.
    pub(crate) fn is_configuration(&self) -> bool {
        self.rules.is_some()
    }

    /// Returns the client configurations (`clientConfig`) by which the API server calls the webhook.
    pub(crate) fn client_configs(&self, mut object: Value) -> Vec<Value> {
        self.entries(&mut object).into_iter().map(|entry| entry["clientConfig"].take()).collect()
    }

    /// Returns true if the object trusts exactly this bundle, or does not exist. An object that cannot be read counts as
    /// one that does not.
    pub(crate) fn trusts(&self, object: Result<Option<Value>, String>, bundle: &str) -> bool {
        let trusts = |object| {
            let client_configs = self.client_configs(object);
            client_configs.iter().all(|client_config| trusts(client_config, bundle))
        };
        object.is_ok_and(|object| object.is_none_or(trusts))
    }

    /// Returns the parts of the object that concern this webhook, each with a client configuration.
    fn entries<'a>(&self, object: &'a mut Value) -> Vec<&'a mut Value> {
        let entries = self.entries_of_name(object).into_iter();
        entries.filter(|entry| self.other_service(&entry["clientConfig"]).is_none()).collect()
    }

    /// Returns the entries of this name, or the conversion of a CustomResourceDefinition.
    fn entries_of_name<'a>(&self, object: &'a mut Value) -> Vec<&'a mut Value> {
        if self.rules.is_some() {
            let entries = object.get_mut("webhooks").and_then(Value::as_array_mut);
            return entries.into_iter().flatten().filter(|entry| entry["name"] == *self.entry).collect();
        }
        let conversion = object.pointer_mut("/spec/conversion");
        let conversion = conversion.filter(|conversion| conversion["strategy"] == "Webhook");
        conversion.and_then(|conversion| conversion.get_mut("webhook")).into_iter().collect()
    }

    /// Returns the Service of a client configuration, if it is not that of this webhook. It has a certificate of its own:
    /// two installations that both wrote their bundles would replace each other's for ever.
    fn other_service(&self, client_config: &Value) -> Option<Key> {
        let text = |field: &str| client_config["service"][field].as_str();
        let service = Key::new(text("namespace"), text("name")?);
        Some(service).filter(|service| *service != self.service)
    }

    /// Returns the Service that the object names for this webhook's entry, if it is that of another webhook.
    pub(crate) fn service_of_other(&self, object: &Value) -> Option<Key> {
        let mut object = object.clone();
        let entry = self.entries_of_name(&mut object).pop()?;
        self.other_service(&entry["clientConfig"])
    }

    /// Returns the merge patch that makes the API server call the webhook and trust this bundle, or `None` if the
    /// object needs no change. Fails if no part of the object concerns this webhook.
    ///
    /// `covers` tells whether the certificate covers a host. An entry gets its rules only once its host is covered:
    /// without rules, the API server does not call it.
    pub(crate) fn patch(
        &self,
        object: &Value,
        bundle: &str,
        covers: impl Fn(&String) -> bool,
    ) -> Result<Option<Value>, String> {
        let mut filled = object.clone();
        let entries = self.entries(&mut filled);
        if entries.is_empty() {
            let (kind, name, entry) = (&self.resource.kind, &self.name, &self.entry);
            return Err(match self.rules {
                Some(_) => {
                    format!(
                        "{kind} {name:?} has no entry {entry:?}: the API server does not call this webhook"
                    )
                }
                None => format!("custom resource {name:?} isn't configured for webhook conversion"),
            });
        }
        for entry in entries {
            let is_covered = host(&entry["clientConfig"]).as_ref().is_none_or(&covers);
            if let Some(rules) = self.rules.as_ref().filter(|_| is_covered) {
                entry["rules"].clone_from(rules);
            }
            self.select(entry);
            let client_config = &mut entry["clientConfig"];
            client_config["caBundle"] = ca_bundle(bundle);
            set_path(client_config, self.path);
        }
        let patch = match self.rules {
            Some(_) => json!({"webhooks": filled["webhooks"]}),
            None => json!({"spec": {"conversion": filled["spec"]["conversion"]}}),
        };
        Ok(Some(patch).filter(|_| !are_equal(&filled, object)))
    }
}

impl Registration {
    /// Sets the selectors of an entry, and what its mutator configures.
    fn select(&self, entry: &mut Value) {
        if self.is_configuration() && self.excludes_namespaces {
            exclude_labelled_namespaces(&mut entry["namespaceSelector"]);
        }
        if let Some(mutator) = &self.mutator {
            mutator.configure(entry);
        }
    }

    /// Returns the name, the path and the fields of the entries that [`patch`](Self::patch) sets, apart from the client
    /// configuration. `None` for a CustomResourceDefinition.
    pub(crate) fn entry(&self) -> Option<(&str, &'static str, Value)> {
        let mut entry = json!({"rules": self.rules.as_ref()?});
        self.select(&mut entry);
        Some((&self.entry, self.path, entry))
    }
}

fn watch<K>(builder: &mut Builder<Keys>, name: &str, secret: &Key) -> ReadObject
where
    K: Cached<DynamicType = (), Scope: Scope> + Serialize,
{
    builder.allows(Permission::of::<K>([Verb::Patch]).names([name]));
    // One Kind that cannot be listed must not keep the others from being registered.
    let (informer, watch) = builder.watch_optional::<K>(select().field("metadata.name", name));
    let secret = secret.clone();
    watch.keys(move |object| [Key::of(object), secret.clone()]);
    let key = Key::new(None, name);
    builder.add_key(key.clone());
    Box::new(move || match informer.state() {
        InformerState::Unavailable { reason, was_synced: false, .. } => Err(reason),
        // As it is stored: a patch replaces the whole list of entries, and must not remove fields of a newer Kubernetes.
        // If a newer state has just arrived, the API server refuses a patch of this one.
        _ => Ok(informer.get(&key).and_then(|object| {
            let stored = raw_json(&informer, &*object).and_then(|json| serde_json::from_str(&json).ok());
            stored.or_else(|| serde_json::to_value(&*object).ok())
        })),
    })
}

/// Sets the path that the API server calls, unless the client configuration has a URL with a path.
fn set_path(client_config: &mut Value, path: &str) {
    if client_config["service"].is_object() {
        client_config["service"]["path"] = path.into();
    } else if let Some(url) = client_config["url"].as_str()
        && url.parse().is_ok_and(|url: http::Uri| url.path() == "/")
    {
        client_config["url"] = (url.trim_end_matches('/').to_owned() + path).into();
    }
}

/// Returns true if a client configuration trusts exactly this bundle.
fn trusts(client_config: &Value, bundle: &str) -> bool {
    client_config["caBundle"] == ca_bundle(bundle)
}

fn ca_bundle(bundle: &str) -> Value {
    json!(ByteString(bundle.as_bytes().to_vec()))
}

/// Returns the host in the URL of a client configuration, if it has one. IP addresses are formatted as in certificates.
pub(crate) fn host(client_config: &Value) -> Option<String> {
    let url: http::Uri = client_config["url"].as_str()?.parse().ok()?;
    let host = url.host()?.trim_matches(['[', ']']);
    Some(host.parse().map_or_else(|_| host.to_owned(), |address: IpAddr| address.to_string()))
}

fn exclude_labelled_namespaces(selector: &mut Value) {
    let mut expressions = selector["matchExpressions"].as_array().cloned().unwrap_or_default();
    if !expressions.iter().any(|expression| expression["key"] == EXCLUDE_LABEL) {
        expressions.push(json!({"key": EXCLUDE_LABEL, "operator": "DoesNotExist"}));
    }
    selector["matchExpressions"] = expressions.into();
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
    use reknit_injection::Context;
    use reknit_reconciler::Controller;
    use reknit_testing::ApiServer;

    use super::*;

    fn registration() -> Registration {
        let rules = json!([{"resources": ["lamps"]}]);
        let service = Key::new("ns", "s");
        Registration::new::<MutatingWebhookConfiguration>("x.dev".into(), service, "/defaulting", Some(rules))
    }

    /// Returns the webhooks of the object after the patch.
    fn patched_webhooks(webhooks: &Value, covers: impl Fn(&String) -> bool) -> Value {
        let object = json!({"webhooks": webhooks});
        registration().patch(&object, "CA", covers).unwrap().unwrap_or(object)["webhooks"].take()
    }

    #[test]
    fn only_entries_with_the_name_of_the_object_are_patched() {
        let webhooks = json!([
            {"name": "other.dev", "clientConfig": {"url": "https://a/b"}},
            {"name": "x.dev", "timeoutSeconds": 3,
             "clientConfig": {"service": {"namespace": "ns", "name": "s", "port": 9}},
             "namespaceSelector": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}},
        ]);
        let patched = patched_webhooks(&webhooks, |_| true);
        assert_eq!(patched[0], webhooks[0]);
        let expected = json!({
            "name": "x.dev", "timeoutSeconds": 3, "rules": [{"resources": ["lamps"]}],
            "clientConfig": {
                "service": {"namespace": "ns", "name": "s", "port": 9, "path": "/defaulting"}, "caBundle": "Q0E=",
            },
            "namespaceSelector": {"matchExpressions": [
                {"key": "k", "operator": "Exists"}, {"key": EXCLUDE_LABEL, "operator": "DoesNotExist"},
            ]},
        });
        assert_eq!(patched[1], expected);
        let object = json!({"webhooks": patched});
        assert_eq!(registration().service_of_other(&object), None);
        assert_eq!(registration().patch(&object, "CA", |_| true), Ok(None));
        assert!(trusts(&registration().client_configs(object)[0], "CA"));
    }

    #[tokio::test]
    async fn fields_of_an_entry_that_a_newer_kubernetes_has_are_kept() {
        let webhook = json!({
            "name": "x.dev", "newer": {"field": 1}, "clientConfig": {"service": {"namespace": "ns", "name": "s"}},
        });
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "x.dev", "uid": "u", "resourceVersion": "1"}, "webhooks": [webhook],
        });
        let cx = Context::preloaded("test", ApiServer::new().client(), vec![object]);
        let mut builder = Controller::named("webhook", &cx);
        let read = watch::<MutatingWebhookConfiguration>(&mut builder, "x.dev", &Key::new("ns", "s"));
        let patch = registration().patch(&read().unwrap().unwrap(), "CA", |_| true).unwrap().unwrap();
        assert_eq!(patch["webhooks"][0]["newer"], webhook["newer"]);
        assert_eq!(patch["webhooks"][0]["clientConfig"]["caBundle"], "Q0E=");
    }

    #[test]
    fn an_object_that_names_the_service_of_another_installation_is_left_to_it() {
        let client_config = json!({"service": {"namespace": "other", "name": "s"}, "caBundle": "b3RoZXI="});
        let configuration = json!({"webhooks": [{"name": "x.dev", "clientConfig": client_config}]});
        let conversion = json!({"strategy": "Webhook", "webhook": {"clientConfig": client_config}});
        let definition = json!({"spec": {"conversion": conversion}});
        let of_definition = Registration { rules: None, ..registration() };
        for (registration, object) in [(registration(), configuration), (of_definition, definition)] {
            assert_eq!(registration.service_of_other(&object), Some(Key::new("other", "s")));
            assert!(registration.patch(&object, "CA", |_| true).is_err());
            assert!(registration.trusts(Ok(Some(object)), "CA"), "a rotation does not wait for it");
        }
    }

    #[test]
    fn a_webhook_that_no_label_turns_off_leaves_the_selector_alone() {
        let service = json!({"namespace": "ns", "name": "s"});
        let object = json!({"webhooks": [{"name": "x.dev", "clientConfig": {"service": service}}]});
        let patch = Registration { excludes_namespaces: false, ..registration() }
            .patch(&object, "CA", |_| true)
            .unwrap()
            .unwrap();
        assert_eq!(patch["webhooks"][0]["namespaceSelector"], Value::Null);
    }

    #[test]
    fn a_url_without_a_path_gets_the_path_of_the_webhook() {
        for url in ["https://127.0.0.1:8443", "https://127.0.0.1:8443/"] {
            let webhooks = json!([{"name": "x.dev", "clientConfig": {"url": url}}]);
            let patched = patched_webhooks(&webhooks, |_| true);
            assert_eq!(patched[0]["clientConfig"]["url"], "https://127.0.0.1:8443/defaulting");
            assert_eq!(patched_webhooks(&patched, |_| true), patched);
        }
    }

    #[test]
    fn the_url_of_an_entry_is_kept_and_its_host_is_read() {
        let webhooks = json!([{"name": "x.dev", "clientConfig": {"url": "https://[::1]:8443/other"}}]);
        let patched = patched_webhooks(&webhooks, |_| true);
        assert_eq!(patched_webhooks(&webhooks, |name| name != "::1")[0]["rules"], Value::Null);
        assert_eq!(
            patched[0]["clientConfig"],
            json!({"url": "https://[::1]:8443/other", "caBundle": "Q0E="})
        );
        assert_eq!(host(&patched[0]["clientConfig"]).as_deref(), Some("::1"));
        let long_form = json!({"url": "https://[0:0:0:0:0:0:0:1]:8443/other"});
        assert_eq!(host(&long_form).as_deref(), Some("::1"), "a certificate has the short form");
    }
}
