//! Keeps the Secret, and what has to trust what is in it: a controller like any other, of which only the leader writes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::Secret,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::{Cached, Change, Context, Informer, select};
use reknit_reconciler::{Builder, Controller, Keys, Outcome, Permanent, ReconcileKey, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::secret::{Lifetime, Material, Step, step};
use crate::{
    certificates::configuration::{Entries, host, trusting, trusts},
    certificates::identity::Identity,
    certificates::service::Place,
    server::routes::CONVERSION,
};

/// How long API servers may take to learn of a bundle that was written, before a certificate that needs it is shown.
const SETTLE: Duration = Duration::from_secs(2);
/// How often it is looked whether they have.
const POLL: Duration = Duration::from_millis(250);

/// What trusts the certificate.
pub(crate) struct Kept {
    pub(crate) mutating: Vec<Entries>,
    pub(crate) validating: Vec<Entries>,
    /// The names of the CustomResourceDefinitions whose versions the webhook converts.
    pub(crate) conversions: Vec<String>,
}

/// Makes the certificates of a webhook, and has them trusted.
pub(crate) struct Keeper {
    client: Client,
    secret: Key,
    secrets: Informer<Secret>,
    service: Vec<String>,
    lifetime: Lifetime,
    trusting: Vec<Trusting>,
    /// Since when all clients have trusted this bundle.
    published: Mutex<Option<(String, Instant)>>,
}

/// An object by which the API server knows what certificate to trust.
enum Trusting {
    Mutating(Entries, Informer<MutatingWebhookConfiguration>),
    Validating(Entries, Informer<ValidatingWebhookConfiguration>),
    Conversion(String, Informer<CustomResourceDefinition>),
}

impl Keeper {
    /// The controller. The identity shows what is in the Secret, in every replica, as soon as it is there, and for as long as
    /// the informer is held.
    pub(crate) fn controller(
        cx: &Context,
        namespace: &str,
        place: &Place,
        lifetime: Lifetime,
        kept: Kept,
        identity: &Identity,
    ) -> (Controller, Informer<Secret>) {
        let mut build = Controller::named("webhook", cx);
        let secret = Key::new(namespace, &place.secret);
        let of_secret = select().namespace(namespace).field("metadata.name", &place.secret);
        let secrets: Informer<Secret> = cx.informer(of_secret);
        follow(&secrets, identity.clone());
        build.watch(&secrets).every_key();
        build.always(secret.clone());
        let mutating = kept.mutating.into_iter().map(|entries| {
            let informer = named(cx, &mut build, &entries.name, &secret);
            Trusting::Mutating(entries, informer)
        });
        let mut trusting: Vec<_> = mutating.collect();
        for entries in kept.validating {
            let informer = named(cx, &mut build, &entries.name, &secret);
            trusting.push(Trusting::Validating(entries, informer));
        }
        for name in kept.conversions {
            let informer = named(cx, &mut build, &name, &secret);
            trusting.push(Trusting::Conversion(name, informer));
        }
        let (client, service) = (build.client(), place.names(namespace));
        let published = Mutex::default();
        let keeper =
            Self { client, secret, secrets: secrets.clone(), service, lifetime, trusting, published };
        (build.reconciler(keeper), secrets)
    }

    fn held(&self) -> Option<Arc<Secret>> {
        self.secrets.get(&self.secret)
    }

    /// The names that clients know the webhook by.
    fn names(&self) -> Vec<String> {
        let hosts = self.trusting.iter().flat_map(Trusting::clients).filter_map(|client| host(&client));
        let mut names = self.service.clone();
        for host in hosts {
            if !names.contains(&host) {
                names.push(host);
            }
        }
        names
    }

    /// Whether all clients trust this, and have for long enough to know it.
    fn is_published(&self, bundle: &str) -> bool {
        let clients = self.trusting.iter().flat_map(Trusting::clients);
        let all = clients.into_iter().all(|client| trusts(&client, bundle));
        let mut published = self.published.lock();
        match &*published {
            _ if !all => *published = None,
            Some((before, since)) if before == bundle => return since.elapsed() >= SETTLE,
            _ => *published = Some((bundle.to_owned(), Instant::now())),
        }
        false
    }

    async fn keep_secret(&self) -> Result<Outcome> {
        let secret = self.held();
        let material = secret.as_deref().and_then(Material::from_secret);
        let is_published = material.as_ref().is_some_and(|material| self.is_published(&material.bundle()));
        match step(material.as_ref(), &self.names(), Timestamp::now(), self.lifetime, is_published)? {
            Step::Wait(wait) => Ok(Outcome::after(wait)),
            Step::Publish => Ok(Outcome::after(POLL)),
            Step::Write(material) => {
                self.write(secret.as_deref(), &material).await?;
                tracing::info!(secret = %self.secret, "the webhook has a new certificate, or trusts another authority");
                Ok(Outcome::after(POLL))
            }
        }
    }

    async fn write(&self, secret: Option<&Secret>, material: &Material) -> Result<()> {
        let namespace = self.secret.namespace.as_deref().unwrap_or_default();
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let name = &self.secret.name;
        match secret {
            None => {
                let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
                let secret = Secret { metadata, data: Some(material.data()), ..Secret::default() };
                api.create(&PostParams::default(), &secret).await?;
            }
            Some(secret) => {
                let version = &secret.metadata.resource_version;
                let patch = json!({"metadata": {"resourceVersion": version}, "data": material.data()});
                api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
        }
        Ok(())
    }

    /// Nothing where nothing is known yet.
    async fn keep_trust(&self, trusting: &Trusting) -> Result<Outcome> {
        let Some(material) = self.held().as_deref().and_then(Material::from_secret) else {
            return Ok(Outcome::skip());
        };
        let bundle = material.bundle();
        match trusting {
            Trusting::Mutating(entries, informer) => self.fill(entries, informer, &material).await,
            Trusting::Validating(entries, informer) => self.fill(entries, informer, &material).await,
            Trusting::Conversion(name, informer) => self.fill_conversion(name, informer, &bundle).await,
        }
    }

    async fn fill<K>(&self, entries: &Entries, informer: &Informer<K>, material: &Material) -> Result<Outcome>
    where
        K: Cached<DynamicType = ()> + Serialize,
    {
        let object = there(informer, &entries.name)?;
        let held = json(&*object, "/webhooks");
        if entries.clients(&held).is_empty() {
            let (kind, name) = (K::kind(&()), &entries.name);
            let why = format!(
                "{kind} {name:?} has no entry of that name: the API server does not ask this webhook"
            );
            return Err(why).permanent();
        }
        let webhooks = entries.filled(&held, &material.bundle(), |name| material.covers(name));
        if webhooks != held {
            self.patch(&*object, json!({"webhooks": webhooks})).await?;
        }
        Ok(Outcome::done())
    }

    async fn fill_conversion(
        &self,
        name: &str,
        informer: &Informer<CustomResourceDefinition>,
        bundle: &str,
    ) -> Result<Outcome> {
        let object = there(informer, name)?;
        let conversion = json(&*object, "/spec/conversion");
        if conversion["strategy"] != "Webhook" {
            let why = format!("custom resource {name:?} isn't configured for webhook conversion");
            return Err(why).permanent();
        }
        let mut filled = conversion.clone();
        trusting(&mut filled["webhook"]["clientConfig"], CONVERSION, bundle);
        if filled != conversion {
            self.patch(&*object, json!({"spec": {"conversion": filled}})).await?;
        }
        Ok(Outcome::done())
    }

    async fn patch<K>(&self, object: &K, mut patch: Value) -> Result<()>
    where
        K: Cached<DynamicType = ()>,
    {
        let meta = object.meta();
        patch["metadata"] = json!({"resourceVersion": meta.resource_version});
        let name = meta.name.as_deref().unwrap_or_default();
        let api: Api<K> = Api::all_with(self.client.clone(), &());
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        tracing::info!(object = name, "the API server is told what the webhook answers and whom to trust");
        Ok(())
    }
}

impl ReconcileKey for Keeper {
    async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
        if *key == self.secret {
            return self.keep_secret().await;
        }
        match self.trusting.iter().find(|trusting| trusting.name() == key.name) {
            Some(trusting) => self.keep_trust(trusting).await,
            None => Ok(Outcome::skip()),
        }
    }
}

impl Trusting {
    fn name(&self) -> &str {
        match self {
            Self::Mutating(entries, _) | Self::Validating(entries, _) => &entries.name,
            Self::Conversion(name, _) => name,
        }
    }

    /// How the API server is to call the webhook.
    fn clients(&self) -> Vec<Value> {
        let key = Key::new(None, self.name());
        let of = |entries: &Entries, object: Option<Value>| entries.clients(&object.unwrap_or_default());
        match self {
            Self::Mutating(entries, informer) => {
                of(entries, informer.get(&key).map(|held| json(&*held, "/webhooks")))
            }
            Self::Validating(entries, informer) => {
                of(entries, informer.get(&key).map(|held| json(&*held, "/webhooks")))
            }
            Self::Conversion(_, informer) => {
                let held =
                    informer.get(&key).map(|held| json(&*held, "/spec/conversion/webhook/clientConfig"));
                held.into_iter().filter(Value::is_object).collect()
            }
        }
    }
}

/// The one object of this name, which wakes the key of its name, and the Secret's: it may name a host that the certificate is
/// not for yet.
fn named<K: Cached<DynamicType = ()>>(
    cx: &Context,
    build: &mut Builder<Keys>,
    name: &str,
    secret: &Key,
) -> Informer<K> {
    let (informer, secret) = (cx.informer::<K>(select().field("metadata.name", name)), secret.clone());
    build.watch(&informer).keys(move |object| [Key::of(object), secret.clone()]);
    build.always(Key::new(None, name));
    informer
}

/// The object of this name. Without it the API server takes what the webhook would refuse, and says nothing.
fn there<K: Cached<DynamicType = ()>>(informer: &Informer<K>, name: &str) -> Result<Arc<K>> {
    let absent = || {
        format!("there is no {} {name:?}: without it the API server does not ask this webhook", K::kind(&()))
    };
    Ok(informer.get(&Key::new(None, name)).ok_or_else(absent)?)
}

/// What the Secret holds is what is shown. What cannot be shown is logged, and what was shown before stays.
fn follow(secrets: &Informer<Secret>, identity: Identity) {
    secrets.on(move |change| {
        let (Change::Added(secret) | Change::Updated { new: secret, .. }) = change else { return };
        let Some(Material { server, .. }) = Material::from_secret(secret) else { return };
        match identity.show(server.certificate.as_bytes(), server.key.as_bytes()) {
            Ok(()) => tracing::info!("the webhook shows the certificate of its Secret"),
            Err(error) => tracing::error!(%error, "what was shown before stays"),
        }
    });
}

fn json(object: &impl Serialize, pointer: &str) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    value.pointer_mut(pointer).map(Value::take).unwrap_or_default()
}
