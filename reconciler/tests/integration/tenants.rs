//! Namespaces that share a controller, on a real API server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use reknit_apis::KReference;
use reknit_injection::select;
use reknit_reconciler::{Controller, Key, Kinds, Outcome, ReconcileKind, Result, TrackedAny};
use reknit_testing::{ControlPlane, Controllers, eventually};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The limit for an honest object, which other tests on the machine may delay further in two of ten cases.
const LIMIT: Duration = Duration::from_secs(1);
/// The limit for each of these cases.
const DELAYED_LIMIT: Duration = Duration::from_secs(5);

/// Kinds that the controller's account may not list.
const FORBIDDEN: [(&str, &str); 28] = [
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "Secret"),
    ("v1", "Endpoints"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "ReplicationController"),
    ("v1", "ResourceQuota"),
    ("v1", "LimitRange"),
    ("v1", "PodTemplate"),
    ("v1", "Event"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "ControllerRevision"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    ("autoscaling/v1", "HorizontalPodAutoscaler"),
    ("autoscaling/v2", "HorizontalPodAutoscaler"),
    ("networking.k8s.io/v1", "Ingress"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("coordination.k8s.io/v1", "Lease"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("storage.k8s.io/v1", "CSIStorageCapacity"),
    ("example.com/v1", "Unknown"),
];

/// Does what the data of a ConfigMap says: follows a reference, does not end, storms, or fails. Reports the ConfigMaps that
/// succeed.
struct Obedient {
    objects: TrackedAny,
    succeeded: mpsc::UnboundedSender<Key>,
    failures: Arc<AtomicUsize>,
    storms: Arc<AtomicUsize>,
    endless: Arc<AtomicUsize>,
    /// Closed to end the endless passes.
    end: Arc<Semaphore>,
}

impl ReconcileKind for Obedient {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let data = map.data.clone().unwrap_or_default();
        if let (Some(api_version), Some(kind)) = (data.get("apiVersion"), data.get("kind")) {
            let reference = KReference {
                api_version: api_version.clone(),
                kind: kind.clone(),
                name: "default".into(),
                ..KReference::default()
            };
            self.objects.get(map, &reference).await?;
        }
        if data.contains_key("endless") {
            self.endless.fetch_add(1, Ordering::Relaxed);
            let _ = self.end.acquire().await;
        }
        if data.contains_key("storms") {
            self.storms.fetch_add(1, Ordering::Relaxed);
            return Ok(Outcome::after(Duration::from_millis(10)));
        }
        if data.contains_key("fails") {
            self.failures.fetch_add(1, Ordering::Relaxed);
            return Err("as planned".into());
        }
        self.succeeded.send(Key::of(map))?;
        Ok(Outcome::done())
    }
}

async fn create(client: &Client, namespace: &str, name: &str, data: Value) {
    let map = json!({"metadata": {"name": name, "labels": {"tenants": "yes"}}, "data": data});
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
}

/// Lets the account read ConfigMaps and ServiceAccounts, and record events.
async fn permit(plane: &ControlPlane, namespace: &str) {
    let name = format!("tenants-{namespace}");
    let rules = json!([
        {"apiGroups": [""], "resources": ["configmaps", "serviceaccounts"], "verbs": ["list", "watch"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    ]);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name}, "rules": rules});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "controller"}]});
    plane.apply_yaml(&format!("{role}\n---\n{binding}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_failing_storming_and_endless_passes_and_forbidden_kinds_do_not_delay_another_namespace()
{
    let plane = ControlPlane::shared().await.unwrap();
    let (hostile, honest) =
        (plane.namespace("hostile").await.unwrap(), plane.namespace("honest").await.unwrap());
    permit(plane, &honest).await;
    let client = plane.client().unwrap();
    for (n, (api_version, kind)) in FORBIDDEN.into_iter().enumerate() {
        let data = json!({"apiVersion": api_version, "kind": kind});
        create(&client, &hostile, &format!("forbidden-{n}"), data).await;
    }
    let rest = (0..2000).map(|n| {
        let data = match n % 100 {
            0..=33 => json!({"storms": "yes"}),
            _ => json!({"fails": "yes"}),
        };
        let (client, hostile) = (client.clone(), hostile.clone());
        async move { create(&client, &hostile, &format!("other-{n}"), data).await }
    });
    stream::iter(rest).buffer_unordered(20).collect::<Vec<_>>().await;

    let (succeeded, mut successes) = mpsc::unbounded_channel();
    let [failures, storms, endless] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
    let end = Arc::new(Semaphore::new(0));
    let shared = (failures.clone(), storms.clone(), endless.clone(), end.clone());
    let controllers = Controllers::new(plane.client_as(&honest, "controller").await.unwrap());
    let controllers = controllers.controller(move |cx| {
        let mut build = Controller::selected::<ConfigMap>(cx, select().label("tenants", "yes"));
        let objects = build.track_any(Kinds::any());
        let (failures, storms, endless, end) = shared;
        let reconciler = Obedient { objects, succeeded, failures, storms, endless, end };
        Ok(build.reconciler(reconciler).build())
    });
    let running = controllers.start();
    running.synced(TIMEOUT).await;
    for (what, count) in [("failures", &failures), ("passes of storming objects", &storms)] {
        eventually(what, TIMEOUT, async || count.load(Ordering::Relaxed) > 100).await;
    }

    assert_no_delay(&client, &honest, "busy", &mut successes).await;

    for n in 0..4 {
        create(&client, &hostile, &format!("endless-{n}"), json!({"endless": "yes"})).await;
    }
    let of_workers = "passes that do not end, of both workers";
    eventually(of_workers, TIMEOUT, async || endless.load(Ordering::Relaxed) >= 2).await;
    // A further worker would take the other two, after the keys that were queued before.
    let (mut seen, mut since) = (0, Instant::now());
    let is_idle = || {
        let passes = failures.load(Ordering::Relaxed) + storms.load(Ordering::Relaxed);
        if passes != seen {
            (seen, since) = (passes, Instant::now());
        }
        std::future::ready(since.elapsed() >= Duration::from_secs(1))
    };
    eventually("a second without a pass of the others", TIMEOUT, is_idle).await;
    assert_no_delay(&client, &honest, "endless", &mut successes).await;
    end.close();
    running.stop().await;
}

/// Creates ConfigMaps whose names begin with this, one after another, and checks that each is reconciled in time.
async fn assert_no_delay(
    client: &Client,
    namespace: &str,
    prefix: &str,
    successes: &mut mpsc::UnboundedReceiver<Key>,
) {
    let mut times = Vec::new();
    for n in 0..10 {
        let (name, start) = (format!("{prefix}-{n}"), Instant::now());
        // The first one opens the informer of its Kind.
        create(client, namespace, &name, json!({"apiVersion": "v1", "kind": "ServiceAccount"})).await;
        let success = tokio::time::timeout(TIMEOUT, successes.recv()).await;
        assert_eq!(success.expect("it is reconciled"), Some(Key::new(namespace, &name)));
        times.push(start.elapsed());
    }
    println!("{prefix}: honest objects were reconciled after {times:.1?}");
    times.sort();
    assert!(times[7] < LIMIT && times[9] < DELAYED_LIMIT, "{prefix}: {times:?}");
}
