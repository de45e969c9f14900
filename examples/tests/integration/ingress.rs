//! Tests of two replicas of ingress as processes, and a gateway.

use std::{
    net::{IpAddr, UdpSocket},
    sync::{Arc, Mutex},
};

use hyper_util::{
    client::legacy::{Client as Http, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{coordination::v1::Lease, core::v1::ConfigMap},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit::{prelude::*, testing::eventually};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::{
    environment::{plane_with_nodes, restricted_kubeconfig},
    support::{
        ingress::{
            program::{
                Route,
                pb::{Snapshot, WatchRequest, gateway_client::GatewayClient},
            },
            route, service, slice,
        },
        process::{Process, example},
        wait::TIMEOUT,
    },
};

/// The objects of a test.
struct Objects {
    namespace: String,
    client: Client,
}

impl Objects {
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create<K>(&self, object: K)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        self.api().create(&PostParams::default(), &object).await.expect("it is created");
    }

    async fn config_map(&self, name: &str, data: serde_json::Value) {
        let map = json!({"metadata": {"name": name}, "data": data});
        self.create::<ConfigMap>(serde_json::from_value(map).unwrap()).await;
    }

    /// Changes the time limit of requests while the replicas run.
    async fn set_request_timeout(&self, timeout: &str) {
        let patch = Patch::Merge(json!({"data": {"request-timeout": timeout}}));
        let maps = self.api::<ConfigMap>();
        maps.patch("config-ingress", &PatchParams::default(), &patch).await.expect("it is patched");
    }

    async fn wait_until_ready(&self, name: &str, replica: &Process) {
        eventually(format!("the Route {name} is ready"), TIMEOUT, async || {
            let status = self.api::<Route>().get(name).await.map_err(|error| error.to_string())?.status;
            let is_ready =
                status.clone().is_some_and(|mut status| Route::CONDITIONS.manage(&mut status).is_happy());
            is_ready.then_some(()).ok_or_else(|| format!("{status:?}; the log:\n{}", replica.last_lines()))
        })
        .await;
    }
}

/// The routes that a replica streams. The stream ends when this is dropped.
struct Stream {
    newest: Arc<Mutex<Snapshot>>,
    task: JoinHandle<()>,
}

impl Stream {
    async fn from(replica: &Process) -> Self {
        let http = Http::builder(TokioExecutor::new()).http2_only(true).build_http::<tonic::body::Body>();
        let origin = format!("http://{}", replica.address("gRPC").await).parse().expect("a URL");
        let mut client: GatewayClient<Http<HttpConnector, _>> = GatewayClient::with_origin(http, origin);
        let mut stream = client.watch_routes(WatchRequest {}).await.expect("a stream").into_inner();
        let newest = Arc::<Mutex<Snapshot>>::default();
        let received = newest.clone();
        let task = tokio::spawn(async move {
            while let Ok(Some(snapshot)) = stream.message().await {
                *received.lock().unwrap() = snapshot;
            }
        });
        Self { newest, task }
    }

    /// The version of this host, as a gateway of this stream serves it.
    fn version_of(newest: &Mutex<Snapshot>, host: &str) -> Option<String> {
        let routes = newest.lock().unwrap().routes.clone();
        routes.into_iter().find(|route| route.host == host).map(|route| route.version)
    }

    async fn wait_for_hosts(&self, hosts: &[&str]) -> Snapshot {
        eventually(format!("the hosts {hosts:?} are streamed"), TIMEOUT, async || {
            let newest = self.newest.lock().unwrap().clone();
            let all: Vec<_> = newest.routes.iter().map(|route| route.host.as_str()).collect();
            if all == hosts { Ok(newest) } else { Err(format!("{newest:?}")) }
        })
        .await
    }

    /// Waits until the first route has this time limit.
    async fn wait_for_timeout(&self, millis: u64) {
        eventually(format!("the time limit of {millis} ms is streamed"), TIMEOUT, async || {
            let newest = self.newest.lock().unwrap().clone();
            let first = newest.routes.first().map(|route| route.timeout_millis);
            if first == Some(millis) { Ok(()) } else { Err(format!("{newest:?}")) }
        })
        .await;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers probes with the versions of these routes.
async fn serve_probes(listener: TcpListener, routes: Arc<Mutex<Snapshot>>) {
    while let Ok((mut connection, _)) = listener.accept().await {
        answer(&mut connection, &routes).await.ok();
    }
}

async fn answer(connection: &mut TcpStream, routes: &Mutex<Snapshot>) -> std::io::Result<()> {
    let mut host = String::new();
    let mut lines = BufReader::new(&mut *connection).lines();
    while let Some(line) = lines.next_line().await?.filter(|line| !line.is_empty()) {
        if let Some(value) = line.strip_prefix("host: ") {
            host = value.into();
        }
    }
    let version = Stream::version_of(routes, &host).map(|version| format!("route-version: {version}\r\n"));
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n";
    connection.write_all(format!("{head}{}\r\n", version.unwrap_or_default()).as_bytes()).await
}

/// An address of this machine that an EndpointSlice may have: not the loopback.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect("198.51.100.1:9").expect("a network"); // sends nothing
    socket.local_addr().expect("an address").ip()
}

#[tokio::test]
async fn two_replicas_stream_the_same_routes_and_the_other_leads_after_a_crash() {
    let plane = plane_with_nodes().await;
    let namespace = plane.namespace("ingress").await.expect("a namespace");
    let kubeconfig = restricted_kubeconfig(plane, "ingress", &namespace).await;
    let objects = Objects { namespace: namespace.clone(), client: plane.client().expect("a client") };
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port().to_string();
    let election = json!({"lease-duration": "15s", "renew-deadline": "10s", "retry-period": "2s"});
    objects.config_map("config-leader-election", election).await;
    let gateway = json!({"gateway": format!("{namespace}/gateway"), "probe-port": port});
    objects.config_map("config-ingress", gateway).await;
    objects.create(service(&namespace, "web")).await;
    objects.create(slice(&namespace, "web", &[[10, 0, 0, 1].into()])).await;
    objects.create(slice(&namespace, "gateway", &[own_address()])).await;
    let start = async |pod: &str| {
        let program = example("ingress", &kubeconfig).in_namespace(&namespace);
        let replica = program.with_leader_election(&namespace, pod).args(["--grpc-address", ":0"]).spawn();
        replica.wait_until_ready().await;
        replica
    };

    let leader = start("first").await;
    leader.wait_for_line("the lead", |line| line["message"] == "became leader").await;
    let other = start("second").await;
    let (from_leader, from_other) = (Stream::from(&leader).await, Stream::from(&other).await);
    let _gateway = tokio::spawn(serve_probes(listener, from_other.newest.clone()));
    objects.create(route("a", "a.example.com", "web")).await;
    let streamed = from_leader.wait_for_hosts(&["a.example.com"]).await;
    assert_eq!(streamed.routes[0].paths[0].endpoints, ["10.0.0.1:8080"]);
    assert_eq!(from_other.wait_for_hosts(&["a.example.com"]).await, streamed);
    objects.wait_until_ready("a", &leader).await;
    assert_eq!(streamed.routes[0].timeout_millis, 15_000);
    objects.set_request_timeout("20s").await;
    for stream in [&from_leader, &from_other] {
        stream.wait_for_timeout(20_000).await;
    }
    objects.api::<Route>().delete("a", &DeleteParams::default()).await.unwrap();
    from_other.wait_for_hosts(&[]).await;

    drop((leader, from_leader));
    objects.create(route("b", "b.example.com", "web")).await;
    from_other.wait_for_hosts(&["b.example.com"]).await;
    objects.wait_until_ready("b", &other).await;
    let leases = objects.api::<Lease>().list(&ListParams::default()).await.unwrap().items;
    let holders: Vec<_> = leases.into_iter().filter_map(|lease| lease.spec?.holder_identity).collect();
    assert!(holders.iter().any(|holder| holder.contains("second")), "{holders:?}");
    other.stop().await;
}
