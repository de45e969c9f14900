//! The controller that writes the certificate to its Secret, and its CA bundle to the objects by which the API server
//! calls the webhook.
//!
//! Only the leader writes.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::core::v1::{Namespace, Secret},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::{Context, Informer, Permission, Verb};
use reknit_reconciler::{Controller, Error, Outcome, ReconcileKey, Result, ResultExt};
use serde_json::{Value, json};

use super::{
    identity::secret_informer,
    registration::{ReadObject, Registration, host},
    secret::{Certificates, IssueParams, Lifetime, Step, next_step},
    service::ServiceNames,
};

/// The name of the controller that keeps the certificate and the registrations up to date.
const CONTROLLER: &str = "webhook";
/// The time for API servers to learn of a new bundle before a certificate that needs it is served.
const PROPAGATION_TIME: Duration = Duration::from_secs(2);
/// The interval at which the bundles of the registrations are checked before a rotation.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Reconciles the Secret and the registrations.
pub(crate) struct CertificateReconciler {
    client: Client,
    secret: Key,
    secrets: Informer<Secret>,
    service_names: Vec<String>,
    /// True if the namespace of the Secret owns the webhook configurations.
    owned_by_namespace: bool,
    lifetime: Lifetime,
    registrations: Vec<(Registration, ReadObject)>,
    /// The bundle that all client configurations trust, and the time of the first check that found it.
    published: Mutex<Option<(String, Instant)>>,
    /// The labels of the last Secret, for the one that replaces it after a deletion.
    labels: Mutex<Option<BTreeMap<String, String>>>,
}

impl CertificateReconciler {
    /// Creates the controller.
    pub(crate) fn controller(
        cx: &Context,
        namespace: &str,
        names: &ServiceNames,
        lifetime: Lifetime,
        registrations: Vec<Registration>,
    ) -> Controller {
        let mut builder = Controller::named(CONTROLLER, cx);
        let secret = Key::new(namespace, &names.secret);
        let secrets = secret_informer(cx, &secret);
        // RBAC cannot restrict `create` to names.
        builder
            .allows(Permission::of::<Secret>([Verb::Patch]).names([&names.secret]).namespaces([namespace]));
        builder.allows(Permission::of::<Secret>([Verb::Create]).namespaces([namespace]));
        let has_configurations = registrations.iter().any(Registration::is_configuration);
        if names.owned_by_namespace && has_configurations {
            builder.allows(Permission::of::<Namespace>([Verb::Get]).names([namespace]));
        }
        builder.watch(&secrets).resync_every_key();
        builder.add_key(secret.clone());
        let registrations = registrations.into_iter().map(|registration| {
            let read = (registration.watch)(&mut builder, &registration.name, &secret);
            (registration, read)
        });
        let registrations = registrations.collect();
        let reconciler = Self {
            client: builder.client(),
            secret,
            secrets,
            service_names: names.dns_names(namespace),
            owned_by_namespace: names.owned_by_namespace,
            lifetime,
            registrations,
            published: Mutex::default(),
            labels: Mutex::default(),
        };
        builder.reconciler(reconciler)
    }

    fn certificates(&self) -> Option<Certificates> {
        self.secrets.get(&self.secret).and_then(|secret| Certificates::from_secret(&secret))
    }

    fn client_configs(&self) -> impl Iterator<Item = Value> {
        let objects = self.registrations.iter().map(|(registration, read)| (registration, read()));
        objects.flat_map(|(registration, object)| {
            registration.client_configs(object.ok().flatten().unwrap_or_default())
        })
    }

    /// Returns the names by which the API server calls the webhook.
    fn server_names(&self) -> Vec<String> {
        add_hosts(self.service_names.clone(), self.client_configs())
    }

    /// Checks whether all client configurations trust this bundle, and records since when. Returns true if the API
    /// servers have had time to learn of the bundle since then.
    fn check_published(&self, bundle: &str) -> bool {
        let is_trusted =
            self.registrations.iter().all(|(registration, read)| registration.trusts(read(), bundle));
        let mut published = self.published.lock();
        match &*published {
            _ if !is_trusted => *published = None,
            Some((trusted, since)) if trusted == bundle => return since.elapsed() >= PROPAGATION_TIME,
            _ => *published = Some((bundle.to_owned(), Instant::now())),
        }
        false
    }

    async fn reconcile_secret(&self) -> Result<Outcome> {
        let secret = self.secrets.get(&self.secret);
        if let Some(secret) = &secret {
            self.labels.lock().clone_from(&secret.metadata.labels);
        }
        let current = secret.as_deref().and_then(Certificates::from_secret);
        let is_published = current.as_ref().is_some_and(|current| self.check_published(&current.bundle()));
        let (names, now) = (self.server_names(), Timestamp::now());
        let params = IssueParams { names: &names, now, lifetime: self.lifetime };
        match next_step(current.as_ref(), params, is_published).context("failed to create a certificate")? {
            Step::Wait(wait) => Ok(Outcome::after(wait)),
            Step::AwaitTrust => Ok(Outcome::after(POLL_INTERVAL)),
            Step::Write(certificates) => {
                if let Some(current) = current.filter(|_| !is_published) {
                    self.warn_about_missing_trust(&current.bundle());
                }
                let written = self.write_secret(secret, &certificates).await;
                written.context(format_args!(
                    "failed to write new certificates to the Secret {}",
                    self.secret
                ))?;
                tracing::info!(secret = %self.secret, "updated the certificates of the webhook");
                Ok(Outcome::after(POLL_INTERVAL))
            }
        }
    }

    /// Logs the objects that do not carry the bundle although a certificate that needs it is about to be served.
    fn warn_about_missing_trust(&self, bundle: &str) {
        for (registration, read) in &self.registrations {
            if !registration.trusts(read(), bundle) {
                let (kind, name) = (&registration.resource.kind, &registration.name);
                tracing::warn!(%kind, name, "the CA bundle could not be updated before the certificate was renewed");
            }
        }
    }

    async fn write_secret(&self, secret: Option<Arc<Secret>>, certificates: &Certificates) -> Result<()> {
        let namespace = self.secret.namespace.as_deref().unwrap_or_default();
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let (name, data) = (&self.secret.name, certificates.data());
        match secret {
            None => {
                let labels = self.labels.lock().clone();
                let metadata = ObjectMeta { name: Some(name.clone()), labels, ..ObjectMeta::default() };
                let secret = Secret { metadata, data: Some(data), ..Secret::default() };
                api.create(&PostParams::default(), &secret).await?;
            }
            Some(secret) => {
                let resource_version = &secret.metadata.resource_version;
                let patch = json!({"metadata": {"resourceVersion": resource_version}, "data": data});
                api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
        }
        Ok(())
    }

    /// Reconciles all registrations of this name: configurations of both kinds may have the same name, and one may have the
    /// entries of several steps. One that fails does not hold up the others. Returns the first error.
    async fn reconcile_registrations(&self, name: &str) -> Result<Outcome> {
        let mut result = Ok(Outcome::done());
        for (registration, read) in &self.registrations {
            if registration.name == name {
                let reconciled = self.reconcile_registration(registration, read).await;
                result = result.and(reconciled);
            }
        }
        result
    }

    /// Patches the registration if it needs a change. Does nothing until the Secret contains certificates.
    async fn reconcile_registration(
        &self,
        registration: &Registration,
        read: &ReadObject,
    ) -> Result<Outcome> {
        let Some(certificates) = self.certificates() else { return Ok(Outcome::skip()) };
        let (kind, name) = (&registration.resource.kind, &registration.name);
        // The creation of the object enqueues its key.
        let object = read()?.ok_or_else(|| {
            Error::permanent(format!(
                "there is no {kind} {name:?}: without it the API server does not call this webhook; add it to the manifests"
            ))
        })?;
        if let Some(service) = registration.service_of_other(&object) {
            tracing::warn!(
                %kind,
                name,
                %service,
                "the object names the Service of another webhook, and is left to it: correct it if this webhook is meant"
            );
            return Ok(Outcome::done());
        }
        let covers = |host: &String| certificates.covers(host);
        let patch = registration.patch(&object, &certificates.bundle(), covers).permanent()?;
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &registration.resource);
        let Some(mut patch) = patch else {
            self.set_owner(&api, registration, &object).await;
            return Ok(Outcome::done());
        };
        patch["metadata"] = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        // The event of this patch leads to the next reconcile, which sets the owner.
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        tracing::info!(%kind, name, "configured the API server to call and trust the webhook");
        Ok(Outcome::done())
    }

    /// Makes the system namespace the owner of a webhook configuration, so that the deletion of the namespace deletes it:
    /// a configuration without a webhook makes requests fail. A CustomResourceDefinition is never owned, since its deletion
    /// deletes all objects. A failure is only logged, since the webhook works without an owner.
    async fn set_owner(&self, api: &Api<DynamicObject>, registration: &Registration, object: &Value) {
        let name = &registration.name;
        if !registration.is_configuration() {
            return;
        }
        if let Err(error) = self.try_set_owner(api, name, &object["metadata"]).await {
            tracing::warn!(
                name,
                error = error.to_string(),
                "cannot make the system namespace the owner of the webhook configuration, which therefore stays when the \
                 namespace is deleted: grant `get` on the namespace and, if the API server requires it for an owner, \
                 `delete` on the configuration, or set WEBHOOK_OWNED_BY_NAMESPACE=false"
            );
        }
    }

    async fn try_set_owner(
        &self,
        api: &Api<DynamicObject>,
        name: &str,
        metadata: &Value,
    ) -> kube::Result<()> {
        let namespace = self.secret.namespace.as_deref().unwrap_or_default();
        let is_namespace = |owner: &Value| owner["kind"] == "Namespace" && owner["name"] == namespace;
        let current = metadata["ownerReferences"].as_array().cloned().unwrap_or_default();
        let mut owners: Vec<Value> = current.iter().filter(|owner| !is_namespace(owner)).cloned().collect();
        if self.owned_by_namespace {
            let namespaces: Api<Namespace> = Api::all(self.client.clone());
            let uid = namespaces.get(namespace).await?.metadata.uid;
            owners.push(json!({"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": uid}));
        }
        if owners != current {
            let patch = json!({"metadata": {
                "resourceVersion": metadata["resourceVersion"], "ownerReferences": owners,
            }});
            api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    }
}

impl ReconcileKey for CertificateReconciler {
    async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
        if *key == self.secret {
            return self.reconcile_secret().await;
        }
        self.reconcile_registrations(&key.name).await
    }
}

/// Adds the hosts in the URLs of the client configurations, each once.
fn add_hosts(mut names: Vec<String>, client_configs: impl Iterator<Item = Value>) -> Vec<String> {
    for host in client_configs.filter_map(|client_config| host(&client_config)) {
        if !names.contains(&host) {
            names.push(host);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_several_configurations_is_one_name_of_the_server() {
        let urls =
            ["https://a/defaulting", "https://b/validation", "https://a/conversion", "https://webhook/"];
        let client_configs = urls.iter().map(|url| json!({"url": url}));
        assert_eq!(add_hosts(vec!["webhook".into()], client_configs), ["webhook", "a", "b"]);
    }
}
