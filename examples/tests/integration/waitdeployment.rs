//! Tests of waitdeployment as a process.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use reknit::testing::eventually;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

use crate::{
    environment::Environment,
    support::{
        controller_of, file, replicas,
        wait::TIMEOUT,
        waitdeployment::{
            listener, probe_condition, probe_report, program::Waitdeployment, refusing_socket, waitdeployment,
        },
    },
};

/// A port at which connections to every loopback address time out: the listener accepts none, and its backlog is full.
struct BlackHole {
    port: u16,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    async fn open() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut queued = Vec::new();
        while let Ok(connected) =
            timeout(Duration::from_millis(500), TcpStream::connect((Ipv4Addr::LOCALHOST, port))).await
        {
            queued.push(connected.unwrap());
        }
        Self { port, _listener: listener, _queued: queued }
    }

    /// One of many addresses that never answer.
    fn address(&self, number: u32) -> String {
        format!("{}:{}", Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + number), self.port)
    }
}

impl Environment {
    async fn create(&self, name: &str, probe: Value) {
        self.api().create(&PostParams::default(), &waitdeployment(name, probe)).await.expect("it is created");
    }

    /// Waits until the Waitdeployment meets the condition, which `what` describes.
    async fn wait_until(
        &self,
        name: &str,
        what: &str,
        condition: impl Fn(&Waitdeployment) -> bool,
    ) -> Waitdeployment {
        let objects = self.api::<Waitdeployment>();
        eventually(format!("{name} {what}"), TIMEOUT, async || {
            let object = objects.get(name).await.map_err(|error| error.to_string())?;
            match condition(&object) {
                true => Ok(object),
                false => Err(format!("{:?}; the log:\n{}", object.status, self.process.last_lines())),
            }
        })
        .await
    }

    /// Waits until the condition `ProbeSucceeded` has these values.
    async fn wait_for_report(&self, name: &str, status: &str, reason: &str, message: &str) -> Waitdeployment {
        let expected = (status.to_owned(), reason.to_owned(), message.to_owned());
        self.wait_until(name, &format!("reports {expected:?}"), |object| probe_report(object) == expected)
            .await
    }

    /// Waits for the Deployment, and asserts that it was created before one long attempt at a silent address could end.
    async fn assert_created_soon(&self, name: &str, answered: Instant) {
        self.wait_for_deployment(name, "created", |_| true).await;
        let elapsed = answered.elapsed();
        println!("{name} has its Deployment after {elapsed:?}");
        assert!(
            elapsed < Duration::from_secs(40),
            "{elapsed:?}: the probe waited for others, which take a minute each"
        );
    }

    /// Waits until the Deployment's last status is in its owner's: no pass is about to apply the Deployment.
    async fn wait_until_mirrored(&self, name: &str) {
        let deployments = self.api::<Deployment>();
        eventually(format!("the status of {name} mirrors its Deployment's last one"), TIMEOUT, async || {
            let deployment = deployments.get(name).await.map_err(|error| error.to_string())?;
            let object = self.api::<Waitdeployment>().get(name).await.map_err(|error| error.to_string())?;
            let (spec, last) = (deployment.spec.unwrap_or_default(), deployment.status.unwrap_or_default());
            let is_last = last.observed_generation == deployment.metadata.generation
                && last.available_replicas == spec.replicas;
            let mut mirrored = object.status.unwrap_or_default();
            mirrored.conditions.iter_mut().for_each(|all| all.retain(|one| one.type_ != "ProbeSucceeded"));
            mirrored.observed_generation = last.observed_generation;
            (is_last && mirrored == last).then_some(()).ok_or_else(|| format!("{mirrored:?}, {last:?}"))
        })
        .await;
    }

    async fn assert_no_deployment(&self, name: &str) {
        assert_eq!(self.api::<Deployment>().get_opt(name).await.unwrap(), None);
    }
}

#[tokio::test]
async fn the_deployment_is_created_once_the_port_is_open_and_then_follows_the_spec() {
    let env = Environment::start("waitdeployment").await;
    let (_first_socket, first) = refusing_socket("127.0.0.1:0");
    let (socket, second) = refusing_socket("127.0.0.1:0");
    env.create("late", json!({"address": first.to_string()})).await;
    let refused = |address| format!("cannot connect to {address}: connection refused");
    let before = env.wait_for_report("late", "False", "ProbeFailed", &refused(first)).await;
    env.merge_patch::<Waitdeployment>("late", json!({"waitProbe": {"address": second.to_string()}})).await;
    let after = env.wait_for_report("late", "False", "ProbeFailed", &refused(second)).await;
    let transition_time = |object: &Waitdeployment| probe_condition(object).unwrap().last_transition_time;
    assert_eq!(transition_time(&before), transition_time(&after), "the probe has failed all the time");
    env.assert_no_deployment("late").await;

    let listener = socket.listen(64).unwrap();
    env.wait_for_report("late", "True", "Connected", &format!("connected to {second}")).await;
    let deployment = env
        .wait_for_deployment("late", "with two replicas", |deployment| replicas(deployment) == Some(2))
        .await;
    assert_eq!(controller_of(&deployment), Some(("Waitdeployment".into(), "late".into())));
    // Ignores the status of an older generation, as `kubectl wait` does.
    let has_available = |object: &Waitdeployment, count| {
        object.status.as_ref().is_some_and(|status| {
            status.observed_generation >= object.metadata.generation
                && status.available_replicas == Some(count)
        })
    };
    let mirrored = env.wait_until("late", "has two available", |object| has_available(object, 2)).await;
    let conditions = mirrored.status.unwrap().conditions.unwrap();
    assert!(
        conditions.iter().any(|condition| condition.type_ == "Available" && condition.status == "True"),
        "{conditions:?}"
    );

    drop(listener);
    let (socket, _) = refusing_socket(&second.to_string());
    env.merge_patch::<Waitdeployment>("late", json!({"spec": {"replicas": 3}})).await;
    env.wait_until("late", "has three available", |object| has_available(object, 3)).await;
    env.merge_patch::<Deployment>("late", json!({"spec": {"replicas": 1}})).await;
    env.wait_for_deployment("late", "with three replicas again", |deployment| {
        replicas(deployment) == Some(3)
    })
    .await;

    // A pass that still saw the Deployment could apply it after the deletion, and so create it without a probe.
    env.wait_until_mirrored("late").await;
    env.api::<Deployment>().delete("late", &DeleteParams::default()).await.unwrap();
    let object = env.wait_for_report("late", "False", "ProbeFailed", &refused(second)).await;
    assert_eq!(object.status.unwrap().available_replicas, None, "the Deployment's status is removed");
    env.assert_no_deployment("late").await;
    let _listener = socket.listen(64).unwrap();
    env.wait_for_deployment("late", "created again", |current| current.uid() != deployment.uid()).await;
    env.process.stop().await;
}

#[tokio::test]
async fn each_kind_of_address_and_timeout_is_probed_and_reported() {
    let env = Environment::start("waitdeployment").await;
    let hole = BlackHole::open().await;
    let (socket, ipv6) = refusing_socket("[::1]:0");
    env.create("ipv6-refuses", json!({"address": ipv6.to_string(), "timeout": "2s"})).await;
    env.create("silent", json!({"address": hole.address(0), "timeout": "1s"})).await;
    env.create("silent-too", json!({"address": hole.address(1), "timeout": 1_500_000_000})).await;
    env.create("no-name", json!({"address": "no-such-host.invalid:80", "timeout": "1m"})).await;
    env.create("too-long", json!({"address": ipv6.to_string(), "timeout": "61s"})).await;
    let failed = |name: &'static str, message: String| {
        let env = &env;
        async move { env.wait_for_report(name, "False", "ProbeFailed", &message).await }
    };
    failed("ipv6-refuses", format!("cannot connect to {ipv6}: connection refused")).await;
    failed("silent", format!("cannot connect to {}: no answer within 1s", hole.address(0))).await;
    failed("silent-too", format!("cannot connect to {}: no answer within 1.5s", hole.address(1))).await;
    let unresolved =
        env.wait_until("no-name", "is not resolved", |object| probe_report(object).1 == "ProbeFailed").await;
    assert!(
        probe_report(&unresolved)
            .2
            .starts_with("cannot connect to no-such-host.invalid:80: failed to lookup")
    );
    env.wait_until("too-long", "is refused", |object| probe_report(object).1 == "InvalidProbe").await;
    for name in ["ipv6-refuses", "silent", "silent-too", "no-name", "too-long"] {
        env.assert_no_deployment(name).await;
    }

    let _listener = socket.listen(64).unwrap();
    env.merge_patch::<Waitdeployment>("too-long", json!({"waitProbe": {"timeout": null}})).await;
    for name in ["ipv6-refuses", "too-long"] {
        env.wait_for_report(name, "True", "Connected", &format!("connected to {ipv6}")).await;
        env.wait_for_deployment(name, "created", |_| true).await;
    }
    env.process.stop().await;
}

#[tokio::test]
async fn a_thousand_silent_addresses_do_not_delay_the_probe_of_one_that_answers() {
    let env = Environment::start("waitdeployment").await;
    let hole = BlackHole::open().await;
    let began = Instant::now();
    // Half of them wait for one address. The others wait for more addresses than are probed at once.
    let probes = (0..1000_u32).map(|number| (number, hole.address(number.saturating_sub(500))));
    stream::iter(probes)
        .for_each_concurrent(16, async |(number, address)| {
            env.create(&format!("waits-{number}"), json!({"address": address, "timeout": "1m"})).await;
        })
        .await;
    for number in [0_u32, 500, 999] {
        let message = format!("connecting to {}", hole.address(number.saturating_sub(500)));
        env.wait_for_report(&format!("waits-{number}"), "False", "Probing", &message).await;
    }
    println!("a thousand wait after {:?}", began.elapsed());
    let listener = listener().await;
    let created = Instant::now();
    env.create("answers", json!({"address": listener.local_addr().unwrap().to_string(), "timeout": "1m"}))
        .await;
    env.assert_created_soon("answers", created).await;

    let (socket, address) = refusing_socket("127.0.0.1:0");
    env.create("refuses", json!({"address": address.to_string(), "timeout": "1m"})).await;
    let refused = format!("cannot connect to {address}: connection refused");
    env.wait_for_report("refuses", "False", "ProbeFailed", &refused).await;
    let (_listener, opened) = (socket.listen(64).unwrap(), Instant::now());
    env.assert_created_soon("refuses", opened).await;
    assert_eq!(env.api::<Deployment>().list(&Default::default()).await.unwrap().items.len(), 2);
    let params = DeleteParams::default();
    env.api::<Waitdeployment>().delete_collection(&params, &Default::default()).await.unwrap();
    env.process.stop().await;
}

#[tokio::test]
async fn a_deployment_of_another_owner_is_reported_and_not_changed() {
    let env = Environment::start("waitdeployment").await;
    let foreign = Deployment {
        metadata: waitdeployment("taken", json!({"address": ""})).metadata,
        spec: Some(waitdeployment("taken", json!({"address": ""})).spec),
        status: None,
    };
    let foreign = env.api().create(&PostParams::default(), &foreign).await.unwrap();
    let listener = listener().await;
    env.create("taken", json!({"address": listener.local_addr().unwrap().to_string()})).await;
    let (kind, message) = env.wait_for_event("taken", "ErrResourceExists").await;
    assert_eq!(kind, "Warning");
    let namespace = &env.namespace;
    let expected = format!(
        "Deployment {namespace}/taken already exists and is not controlled by Waitdeployment {namespace}/taken"
    );
    assert!(message.starts_with(&expected), "{message}");
    let current = env.api::<Deployment>().get("taken").await.unwrap();
    assert_eq!((current.spec, current.metadata.owner_references), (foreign.spec, None));
    env.process.stop().await;
}

#[tokio::test]
async fn the_address_of_the_example_is_probed() {
    let env = Environment::start("waitdeployment").await;
    let example = std::fs::read_to_string(file("waitdeployment", "example.yaml")).unwrap();
    let example: Waitdeployment = serde_saphyr::from_str(&example).unwrap();
    let (name, address) = (example.name_any(), example.wait_probe.address.clone());
    env.api().create(&PostParams::default(), &example).await.unwrap();
    env.wait_until(&name, "is probed", |object| probe_report(object).2.contains(&address)).await;
}
