//! Tests of single passes of ingress, and a simulation.

use std::{cell::RefCell, net::IpAddr, process::Command, sync::Arc, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::{core::v1::ConfigMap, discovery::v1::EndpointSlice};
use reknit::{
    prelude::*,
    simulation::{Cluster, simulation},
    testing::{Given, each_permission_is_needed, given},
};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    permissions::failed_status_writes,
    support::ingress::{
        CLASS,
        program::{
            Route, controller,
            pb::{HostRoute, Path},
            prober::Probes,
            state::{Routes, State},
        },
        route, service, slice,
    },
};

const FINALIZER: &str = "demo.reknit.dev/route";
const POD: [u8; 4] = [10, 0, 0, 1];
const GATEWAY: [u8; 4] = [10, 9, 0, 1];

/// The Route `shop/a` of its third generation, with the finalizer.
fn shop() -> Route {
    let mut route = route("a", "a.example.com", "web");
    route.metadata.namespace = Some("shop".into());
    route.metadata.uid = Some("uid-a".into());
    route.metadata.generation = Some(3);
    route.metadata.finalizers = Some(vec![FINALIZER.into()]);
    route
}

/// The routes that gateways get for [`shop`], with these endpoints.
fn host_route(endpoints: &[&str]) -> HostRoute {
    let endpoints = endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect();
    HostRoute {
        name: "shop/a".into(),
        version: "uid-a/3".into(),
        host: "a.example.com".into(),
        paths: vec![Path { prefix: "/".into(), endpoints }],
        timeout_millis: 15_000,
    }
}

fn with_backend(given: Given) -> Given {
    given.and(service("shop", "web")).and(slice("shop", "web", &[POD.into()]))
}

/// Runs one pass of `shop/a`. Returns the written conditions as `(type, status, reason)`, the finalizers of the Route, and
/// the routes of the replica.
async fn pass(given: Given) -> (Vec<(String, String, String)>, Vec<String>, Vec<HostRoute>) {
    let state = State::default();
    let effects = given.provide(state.clone()).reconcile(controller, "shop/a").await;
    assert!(effects.result.is_ok(), "{:?}", effects.result);
    let stored = effects.object::<Route>("shop/a");
    let status = stored.as_ref().and_then(|route| route.status.clone()).unwrap_or_default();
    let conditions = status.conditions.iter();
    let conditions = conditions.map(|found| {
        (found.kind.clone(), format!("{:?}", found.status), found.reason.clone().unwrap_or_default())
    });
    let finalizers = stored.and_then(|route| route.metadata.finalizers).unwrap_or_default();
    let routes = state.subscribe().borrow().clone().expect("the routes are filled");
    (conditions.collect(), finalizers, routes.into_values().collect())
}

fn condition(kind: &str, status: &str, reason: &str) -> (String, String, String) {
    (kind.into(), status.into(), reason.into())
}

#[tokio::test]
async fn the_leader_publishes_the_endpoints_and_is_not_ready_before_the_gateways_are_probed() {
    let gateway = slice("ingress", "gateway", &[GATEWAY.into()]);
    let (conditions, finalizers, routes) = pass(with_backend(given(shop())).and(gateway)).await;
    assert_eq!(routes, [host_route(&["10.0.0.1:8080"])]);
    assert_eq!(finalizers, [FINALIZER]);
    let expected = [
        condition("BackendsResolved", "True", ""),
        condition("GatewaysReady", "Unknown", "Probing"),
        condition("Ready", "Unknown", "Probing"),
    ];
    assert_eq!(conditions, expected);
}

#[tokio::test]
async fn a_path_without_a_service_has_no_endpoints_and_is_reported() {
    let (conditions, _, routes) = pass(given(shop())).await;
    assert_eq!(routes, [host_route(&[])]);
    assert!(conditions.contains(&condition("Ready", "False", "ServiceNotFound")), "{conditions:?}");
}

#[tokio::test]
async fn a_generation_that_the_gateways_have_served_is_not_probed_again() {
    let mut served = shop();
    let status = served.status.get_or_insert_default();
    status.observed_generation = Some(3);
    Route::CONDITIONS.manage(status).mark_true("GatewaysReady");
    let (conditions, _, _) = pass(with_backend(given(served.clone()))).await;
    assert!(conditions.contains(&condition("Ready", "True", "")), "{conditions:?}");
    served.metadata.generation = Some(4);
    let (conditions, _, _) = pass(with_backend(given(served))).await;
    assert!(conditions.contains(&condition("Ready", "Unknown", "Probing")), "{conditions:?}");
}

#[tokio::test]
async fn a_follower_publishes_the_same_route_and_writes_nothing() {
    let state = State::default();
    let follower = with_backend(given(shop())).following().provide(state.clone());
    let effects = follower.reconcile(controller, "shop/a").await;
    assert_eq!(effects.writes(), [""; 0]);
    let routes = state.subscribe().borrow().clone().unwrap();
    assert_eq!(routes.into_values().collect::<Vec<_>>(), [host_route(&["10.0.0.1:8080"])]);
}

#[tokio::test]
async fn a_route_that_is_deleted_or_changes_its_class_is_withdrawn_in_each_replica() {
    let mut deleted = shop();
    deleted.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    let mut left = shop();
    left.metadata.annotations = Some([(CLASS.into(), "other".into())].into());
    for absent in [deleted, left] {
        let (_, finalizers, routes) = pass(with_backend(given(absent.clone()))).await;
        assert_eq!((finalizers, routes), (vec![], vec![]), "no gateway is left that could serve it");
        let (_, finalizers, routes) = pass(with_backend(given(absent.clone())).following()).await;
        assert_eq!((finalizers, routes), (vec![FINALIZER.into()], vec![]), "a follower");
        let gateway = slice("ingress", "gateway", &[GATEWAY.into()]);
        let (_, finalizers, routes) = pass(with_backend(given(absent)).and(gateway)).await;
        assert_eq!((finalizers, routes), (vec![FINALIZER.into()], vec![]), "a gateway is still to be probed");
    }
}

#[tokio::test]
async fn the_config_map_sets_the_timeout_and_the_gateways() {
    let config = |data: serde_json::Value| {
        let meta = json!({"namespace": "reknit-system", "name": "config-ingress"});
        serde_json::from_value::<ConfigMap>(json!({"metadata": meta, "data": data})).unwrap()
    };
    let config = config(json!({"request-timeout": "2s", "gateway": "edge/proxy"}));
    let (conditions, _, routes) = pass(with_backend(given(shop())).and(config)).await;
    assert_eq!(routes[0].timeout_millis, 2_000);
    assert!(conditions.contains(&condition("GatewaysReady", "Unknown", "Probing")), "{conditions:?}");
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    each_permission_is_needed(|| {
        failed_status_writes(controller, "routes", "shop/a", || {
            let mut new = shop();
            new.metadata.finalizers = None;
            with_backend(given(new))
        })
    })
    .await;
}

thread_local! {
    /// The routes of all replicas of the simulation that runs in this thread, with those of replicas that have crashed.
    static REPLICAS: RefCell<Vec<watch::Receiver<Routes>>> = const { RefCell::new(Vec::new()) };
}

/// The routes of the replicas that run.
fn running_replicas() -> Vec<Routes> {
    REPLICAS.with_borrow_mut(|replicas| {
        replicas.retain(|replica| replica.has_changed().is_ok());
        replicas.iter().map(|replica| replica.borrow().clone()).collect()
    })
}

/// The controller of a replica, whose gateways serve what the replica that started last streams.
fn replica(cx: &Context) -> Result<Controller> {
    let state = State::default();
    REPLICAS.with_borrow_mut(|replicas| replicas.push(state.subscribe()));
    cx.provide(state);
    cx.provide(Probes(Arc::new(|_, host| {
        async move { Ok(served_version(&host).unwrap_or_default()) }.boxed()
    })));
    controller(cx)
}

fn served_version(host: &str) -> Option<String> {
    let routes = running_replicas().pop()??;
    routes.into_values().find(|route| route.host == host).map(|route| route.version)
}

/// The hosts of the Routes of this class.
fn hosts(cluster: &Cluster) -> Vec<String> {
    let own = |route: &Route| route.metadata.annotations.as_ref().is_some_and(|all| all[CLASS] == "reknit");
    cluster.list::<Route>().into_iter().filter(own).map(|route| route.spec.host).collect()
}

#[test]
fn all_replicas_have_the_routes_of_the_cluster_through_faults() {
    let [pod, other_pod, gateway]: [IpAddr; 3] = [POD.into(), [10, 0, 0, 2].into(), GATEWAY.into()];
    let create = |name: &'static str, class: &'static str| {
        move |cluster: &mut Cluster| {
            let mut route = route(name, &format!("{name}.example.com"), "web");
            route.metadata.namespace = Some("shop".into());
            route.metadata.annotations = Some([(CLASS.into(), class.into())].into());
            cluster.create(route);
        }
    };
    let class = |class: &str| json!({"metadata": {"annotations": {CLASS: class}}});
    let secs = Duration::from_secs;
    simulation([replica])
        .replicas(2)
        .given(slice("ingress", "gateway", &[gateway]))
        .given(service("shop", "web"))
        .at(secs(1), create("kept", "reknit"))
        .at(secs(1), create("deleted", "reknit"))
        .at(secs(2), create("leaves", "reknit"))
        .at(secs(2), create("comes", "other"))
        .at(secs(3), move |cluster| cluster.create(slice("shop", "web", &[pod])))
        .at(secs(20), |cluster| cluster.delete::<Route>("shop/deleted"))
        .at(secs(21), move |cluster| cluster.merge::<Route>("shop/leaves", &class("other")))
        .at(secs(22), move |cluster| cluster.merge::<Route>("shop/comes", &class("reknit")))
        .at(secs(30), move |cluster| {
            let endpoints = json!({"endpoints": slice("shop", "web", &[pod, other_pod]).endpoints});
            cluster.merge::<EndpointSlice>("shop/web-1", &endpoints);
        })
        .finally("each replica has the routes of the cluster", |cluster| {
            let replicas = running_replicas();
            let endpoints = |route: &HostRoute| route.paths[0].endpoints.len();
            let complete = |routes: &Routes| {
                let routes: Vec<_> = routes.iter().flat_map(|routes| routes.values()).collect();
                let all: Vec<_> = routes.iter().map(|route| route.host.clone()).collect();
                all == hosts(cluster) && routes.into_iter().all(|route| endpoints(route) == 2)
            };
            if replicas.len() == 2 && replicas.iter().all(complete) {
                Ok(())
            } else {
                Err(format!("{replicas:?}"))
            }
        })
        .finally("the routes are ready", |cluster| {
            let is_ready = |name: &str| {
                let mut status = cluster.get::<Route>(&format!("shop/{name}")).and_then(|route| route.status);
                status.as_mut().is_some_and(|status| Route::CONDITIONS.manage(status).is_happy())
            };
            is_ready("kept") && is_ready("comes")
        })
        // A Route that has left keeps the status of its last reconcile, if it had one.
        .any_final_state()
        .seeds(0..10)
        .run();
}

#[test]
fn the_example_has_at_most_450_lines_of_code() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/count-lines.sh");
    let output = Command::new(script).arg(concat!(env!("CARGO_MANIFEST_DIR"), "/ingress")).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let sum = printed.lines().find_map(|line| line.trim().strip_suffix(" in all")?.parse::<u32>().ok());
    assert!(sum.is_some_and(|sum| (300..=450).contains(&sum)), "{printed}");
}
