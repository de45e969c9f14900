//! The sample controller on kube-runtime: its `Controller`, a `reflector` for the Services that it reads, and one watch
//! of each Kind. Run as `bench-kube-runtime tuned` it follows kube's page on optimization: it drops managedFields
//! before caching, and ignores events that do not change the generation.
//!
//! `K_THREADS_PER_CONTROLLER` is the number of concurrent reconciles.

use std::{
    collections::{HashMap, HashSet},
    env,
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{Stream, StreamExt, future::ready};
use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Client, CustomResource, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        Controller, WatchStreamExt,
        controller::{Action, Config},
        predicates,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::sync::OnceCell;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "samples.knative.dev",
    version = "v1alpha1",
    kind = "AddressableService",
    namespaced,
    status = "AddressableServiceStatus"
)]
#[serde(rename_all = "camelCase")]
struct AddressableServiceSpec {
    service_name: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AddressableServiceStatus {
    observed_generation: Option<i64>,
    #[serde(default)]
    conditions: Vec<ReadyCondition>,
    address: Option<Address>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ReadyCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
struct Address {
    url: String,
}

/// The AddressableServices that name each Service.
type Referrers = HashMap<ObjectRef<Service>, HashSet<ObjectRef<AddressableService>>>;

struct Context {
    client: Client,
    services: Store<Service>,
    /// Set once the store of Services is ready. A store wakes only the last task that waits for it, so only one task
    /// waits.
    services_ready: OnceCell<()>,
    referrers: Arc<Mutex<Referrers>>,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the store of Services is closed: {0}")]
    Services(#[from] reflector::store::WriterDropped),
    #[error("{0}")]
    Api(#[from] kube::Error),
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let tuned = env::args().nth(1).as_deref() == Some("tuned");
    let workers = env::var("K_THREADS_PER_CONTROLLER")?.parse()?;
    let client = Client::try_default().await?;
    let (objects, services) = (reflector::store(), reflector::store());
    let trigger = events(Api::<AddressableService>::all(client.clone()), objects.1, tuned);
    let related = events(Api::<Service>::all(client.clone()), services.1, tuned);
    let trigger = match tuned {
        true => trigger.predicate_filter(predicates::generation, Default::default()).boxed(),
        false => trigger.boxed(),
    };
    let referrers = Arc::new(Mutex::new(Referrers::default()));
    let context = Arc::new(Context {
        client,
        services: services.0,
        services_ready: OnceCell::new(),
        referrers: referrers.clone(),
    });
    Controller::for_stream(trigger, objects.0)
        .watches_stream(related, move |service| referrers_of(&referrers, &service))
        .with_config(Config::default().concurrency(workers))
        .shutdown_on_signal()
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(5)), context)
        .for_each(|result| {
            ready(if let Err(error) = result {
                eprintln!("{error}")
            })
        })
        .await;
    Ok(())
}

/// Returns the stream of changed and deleted objects. The store applies each event before the stream yields its object,
/// but shows the objects of a list only once the list is complete.
fn events<K>(
    api: Api<K>,
    writer: reflector::store::Writer<K>,
    tuned: bool,
) -> impl Stream<Item = watcher::Result<K>> + Send
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    watcher(api, watcher::Config::default())
        .modify(move |object| {
            if tuned {
                object.managed_fields_mut().clear();
            }
        })
        .default_backoff()
        .reflect(writer)
        .touched_objects()
}

/// Returns the AddressableServices that name this Service.
fn referrers_of(referrers: &Mutex<Referrers>, service: &Service) -> Vec<ObjectRef<AddressableService>> {
    let referrers = referrers.lock().unwrap_or_else(PoisonError::into_inner);
    referrers.get(&ObjectRef::from_obj(service)).into_iter().flatten().cloned().collect()
}

async fn reconcile(object: Arc<AddressableService>, context: Arc<Context>) -> Result<Action, Failure> {
    context.services_ready.get_or_try_init(|| context.services.wait_until_ready()).await?;
    let namespace = object.namespace().unwrap_or_default();
    let service = ObjectRef::new(&object.spec.service_name).within(&namespace);
    {
        let mut referrers = context.referrers.lock().unwrap_or_else(PoisonError::into_inner);
        referrers.entry(service.clone()).or_default().insert(ObjectRef::from_obj(&*object));
    }
    let status = desired_status(&object, context.services.get(&service).as_deref());
    if !is_same_status(object.status.as_ref(), &status) {
        let api: Api<AddressableService> = Api::namespaced(context.client.clone(), &namespace);
        let patch = json!({"metadata": {"resourceVersion": object.resource_version()}, "status": status});
        api.patch_status(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    Ok(Action::await_change())
}

fn desired_status(object: &AddressableService, service: Option<&Service>) -> AddressableServiceStatus {
    let name = &object.spec.service_name;
    let url = service.map(|service| {
        format!("http://{name}.{}.svc.cluster.local", service.namespace().unwrap_or_default())
    });
    let missing = service.is_none();
    AddressableServiceStatus {
        observed_generation: object.metadata.generation,
        conditions: vec![ReadyCondition {
            kind: "Ready".into(),
            status: if missing { "False" } else { "True" }.into(),
            last_transition_time: Some(Time(Timestamp::now())),
            reason: missing.then(|| "ServiceUnavailable".into()),
            message: missing.then(|| format!("Service {name:?} wasn't found.")),
        }],
        address: url.map(|url| Address { url }),
    }
}

/// Compares two statuses without the transition times of their conditions.
fn is_same_status(stored: Option<&AddressableServiceStatus>, status: &AddressableServiceStatus) -> bool {
    let without_times = |status: &AddressableServiceStatus| -> Vec<_> {
        let conditions = status.conditions.iter();
        conditions
            .map(|condition| {
                let ReadyCondition { kind, status, reason, message, .. } = condition.clone();
                (kind, status, reason, message)
            })
            .collect()
    };
    stored.is_some_and(|stored| {
        stored.observed_generation == status.observed_generation
            && stored.address == status.address
            && without_times(stored) == without_times(status)
    })
}
