//! The controller that keeps the certificate in its Secret and the objects that have the API server trust it.
//!
//! Only the leader writes. Every replica serves the certificate of the Secret.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::{Change, Context, Informer, select};
use reknit_reconciler::{Controller, Outcome, Permanent, ReconcileKey, Result};
use serde_json::{Value, json};

use super::{
    configuration::{Configuration, Read, host, trusts},
    identity::Identity,
    secret::{Certificates, Lifetime, Step, Terms, step},
    service::Place,
};

/// The time that API servers may take to learn of a new bundle before a certificate that needs it is served.
const SETTLE: Duration = Duration::from_secs(2);
/// The interval at which the bundles of the configurations are checked before a rotation.
const POLL: Duration = Duration::from_millis(250);

/// Reconciles the Secret and the configurations.
pub(crate) struct CertificateReconciler {
    client: Client,
    secret: Key,
    secrets: Informer<Secret>,
    service_names: Vec<String>,
    lifetime: Lifetime,
    configurations: Vec<(Configuration, Read)>,
    /// The bundle that all clients trust, and the time of the first check that found it.
    published: Mutex<Option<(String, Instant)>>,
}

impl CertificateReconciler {
    /// Creates the controller and the informer of the Secret. While the informer is held, the identity serves the certificate of the
    /// Secret in every replica.
    pub(crate) fn controller(
        cx: &Context,
        namespace: &str,
        place: &Place,
        lifetime: Lifetime,
        configurations: Vec<Configuration>,
        identity: &Identity,
    ) -> (Controller, Informer<Secret>) {
        let mut build = Controller::named("webhook", cx);
        let secret = Key::new(namespace, &place.secret);
        let secrets = cx.informer(select().namespace(namespace).field("metadata.name", &place.secret));
        serve_certificate(&secrets, identity.clone());
        build.watch(&secrets).every_key();
        build.always(secret.clone());
        let configurations = configurations.into_iter().map(|configuration| {
            let read = (configuration.watch)(cx, &mut build, &configuration.name, &secret);
            (configuration, read)
        });
        let configurations = configurations.collect();
        let reconciler = Self {
            client: build.client(),
            secret,
            secrets: secrets.clone(),
            service_names: place.names(namespace),
            lifetime,
            configurations,
            published: Mutex::default(),
        };
        (build.reconciler(reconciler), secrets)
    }

    fn certificates(&self) -> Option<Certificates> {
        self.secrets.get(&self.secret).and_then(|secret| Certificates::from_secret(&secret))
    }

    fn clients(&self) -> impl Iterator<Item = Value> {
        let objects = self.configurations.iter().map(|(configuration, read)| (configuration, read()));
        objects.flat_map(|(configuration, object)| configuration.clients(object.unwrap_or_default()))
    }

    /// The names by which clients call the webhook.
    fn names(&self) -> Vec<String> {
        let mut names = self.service_names.clone();
        names.extend(self.clients().filter_map(|client| host(&client)));
        names.dedup();
        names
    }

    /// Returns true if all clients have trusted this bundle for long enough for API servers to know it.
    fn is_published(&self, bundle: &str) -> bool {
        let is_trusted = self.clients().all(|client| trusts(&client, bundle));
        let mut published = self.published.lock();
        match &*published {
            _ if !is_trusted => *published = None,
            Some((before, since)) if before == bundle => return since.elapsed() >= SETTLE,
            _ => *published = Some((bundle.to_owned(), Instant::now())),
        }
        false
    }

    async fn reconcile_secret(&self) -> Result<Outcome> {
        let secret = self.secrets.get(&self.secret);
        let held = secret.as_deref().and_then(Certificates::from_secret);
        let is_published = held.as_ref().is_some_and(|held| self.is_published(&held.bundle()));
        let (names, now) = (self.names(), Timestamp::now());
        let terms = Terms { names: &names, now, lifetime: self.lifetime };
        match step(held.as_ref(), terms, is_published)? {
            Step::Wait(wait) => Ok(Outcome::after(wait)),
            Step::Publish => Ok(Outcome::after(POLL)),
            Step::Write(certificates) => {
                self.write(secret, &certificates).await?;
                tracing::info!(secret = %self.secret, "updated the certificates of the webhook");
                Ok(Outcome::after(POLL))
            }
        }
    }

    async fn write(&self, secret: Option<Arc<Secret>>, certificates: &Certificates) -> Result<()> {
        let namespace = self.secret.namespace.as_deref().unwrap_or_default();
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let (name, data) = (&self.secret.name, certificates.data());
        match secret {
            None => {
                let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
                let secret = Secret { metadata, data: Some(data), ..Secret::default() };
                api.create(&PostParams::default(), &secret).await?;
            }
            Some(secret) => {
                let version = &secret.metadata.resource_version;
                let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
                api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
        }
        Ok(())
    }

    /// Fills in the configuration. Does nothing until there are certificates.
    async fn reconcile_configuration(&self, configuration: &Configuration, read: &Read) -> Result<Outcome> {
        let Some(certificates) = self.certificates() else { return Ok(Outcome::skip()) };
        let (kind, name) = (&configuration.resource.kind, &configuration.name);
        let object = read().ok_or_else(|| {
            format!("there is no {kind} {name:?}: without it the API server does not call this webhook")
        })?;
        let covers = |host: &String| certificates.covers(host);
        let patch = configuration.patch(&object, &certificates.bundle(), covers).permanent()?;
        let Some(mut patch) = patch else { return Ok(Outcome::done()) };
        patch["metadata"] = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &configuration.resource);
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        tracing::info!(%kind, name, "configured the API server to call and trust the webhook");
        Ok(Outcome::done())
    }
}

impl ReconcileKey for CertificateReconciler {
    async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
        if *key == self.secret {
            return self.reconcile_secret().await;
        }
        match self.configurations.iter().find(|(configuration, _)| configuration.name == key.name) {
            Some((configuration, read)) => self.reconcile_configuration(configuration, read).await,
            None => Ok(Outcome::skip()),
        }
    }
}

/// Serves the certificate of the Secret after each change. If it cannot be served, the server keeps the one before.
fn serve_certificate(secrets: &Informer<Secret>, identity: Identity) {
    secrets.on(move |change| {
        let (Change::Added(secret) | Change::Updated { new: secret, .. }) = change else { return };
        let Some(Certificates { server, .. }) = Certificates::from_secret(secret) else { return };
        match identity.show(server.certificate.as_bytes(), server.key.as_bytes()) {
            Ok(()) => tracing::info!("serving the certificate of the webhook's Secret"),
            Err(error) => tracing::error!(%error, "failed to serve the certificate of the webhook's Secret: keeping the one before"),
        }
    });
}
