//! waitdeployment as a process: a Deployment once something answers.

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
    place::Place,
    support::{
        controller_of, file, replicas,
        wait::SOON,
        waitdeployment::{listener, nobody, probed, program::Waitdeployment, said, waiting},
    },
};

/// A port at which each address of this machine swallows what comes: nobody accepts, and no more fit into the queue.
struct BlackHole {
    port: u16,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    async fn dig() -> Self {
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

    /// One of many that swallow everything.
    fn address(&self, number: u32) -> String {
        format!("{}:{}", Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + number), self.port)
    }
}

impl Place {
    async fn wait_for(&self, name: &str, probe: Value) {
        self.api().create(&PostParams::default(), &waiting(name, probe)).await.expect("it is created");
    }

    /// Waits for an object that looks so.
    async fn waiting(
        &self,
        name: &str,
        what: &str,
        looks: impl Fn(&Waitdeployment) -> bool,
    ) -> Waitdeployment {
        let objects = self.api::<Waitdeployment>();
        eventually(format!("{name} {what}"), SOON, async || {
            let found = objects.get(name).await.map_err(|error| error.to_string())?;
            match looks(&found) {
                true => Ok(found),
                false => Err(format!("{:?}; the log:\n{}", found.status, self.process.tail())),
            }
        })
        .await
    }

    async fn says(&self, name: &str, status: &str, reason: &str, message: &str) -> Waitdeployment {
        let expected = (status.to_owned(), reason.to_owned(), message.to_owned());
        self.waiting(name, &format!("says {expected:?}"), |object| said(object) == expected).await
    }

    /// Its Deployment comes sooner after its address answered than those that swallow everything give up.
    async fn made_soon(&self, name: &str, answered: Instant) {
        self.deployment(name, "made", |_| true).await;
        let took = answered.elapsed();
        println!("{name} has its Deployment after {took:?}");
        assert!(
            took < Duration::from_secs(20),
            "{took:?}: it waited for one of the others, which take a minute each"
        );
    }

    async fn has_no_deployment(&self, name: &str) {
        assert_eq!(self.api::<Deployment>().get_opt(name).await.unwrap(), None);
    }
}

#[tokio::test]
async fn it_waits_for_a_port_that_refuses_and_then_follows_the_spec() {
    let place = Place::of("waitdeployment").await;
    let (_nobody, first) = nobody("127.0.0.1:0");
    let (closed, second) = nobody("127.0.0.1:0");
    place.wait_for("late", json!({"address": first.to_string()})).await;
    let refused = |address| format!("cannot connect to {address}: connection refused");
    let since = place.says("late", "False", "ProbeFailed", &refused(first)).await;
    place.merge::<Waitdeployment>("late", json!({"waitProbe": {"address": second.to_string()}})).await;
    let still = place.says("late", "False", "ProbeFailed", &refused(second)).await;
    let time = |object: &Waitdeployment| probed(object).unwrap().last_transition_time;
    assert_eq!(time(&since), time(&still), "it has not succeeded since");
    place.has_no_deployment("late").await;

    let open = closed.listen(64).unwrap();
    place.says("late", "True", "Connected", &format!("connected to {second}")).await;
    let made = place.deployment("late", "of two", |made| replicas(made) == Some(2)).await;
    assert_eq!(controller_of(&made), Some(("Waitdeployment".into(), "late".into())));
    // As `kubectl wait` sees it: a status of an older generation says nothing.
    let available = |object: &Waitdeployment, count| {
        object.status.as_ref().is_some_and(|status| {
            status.observed_generation >= object.metadata.generation
                && status.available_replicas == Some(count)
        })
    };
    let mirrored = place.waiting("late", "has two available", |object| available(object, 2)).await;
    let conditions = mirrored.status.unwrap().conditions.unwrap();
    assert!(conditions.iter().any(|one| one.type_ == "Available" && one.status == "True"), "{conditions:?}");

    drop(open);
    let (closed, _) = nobody(&second.to_string());
    place.merge::<Waitdeployment>("late", json!({"spec": {"replicas": 3}})).await;
    place.waiting("late", "has three available", |object| available(object, 3)).await;
    place.merge::<Deployment>("late", json!({"spec": {"replicas": 1}})).await;
    place.deployment("late", "put back", |made| replicas(made) == Some(3)).await;

    place.api::<Deployment>().delete("late", &DeleteParams::default()).await.unwrap();
    let anew = place.says("late", "False", "ProbeFailed", &refused(second)).await;
    assert_eq!(anew.status.unwrap().available_replicas, None, "nothing is left of the Deployment's status");
    place.has_no_deployment("late").await;
    let _open = closed.listen(64).unwrap();
    place.deployment("late", "made anew", |again| again.uid() != made.uid()).await;
    place.process.stop().await;
}

#[tokio::test]
async fn every_kind_of_address_and_timeout_is_tried_and_said() {
    let place = Place::of("waitdeployment").await;
    let hole = BlackHole::dig().await;
    let (closed, six) = nobody("[::1]:0");
    place.wait_for("six-refuses", json!({"address": six.to_string(), "timeout": "2s"})).await;
    place.wait_for("swallows", json!({"address": hole.address(0), "timeout": "1s"})).await;
    place.wait_for("swallows-too", json!({"address": hole.address(1), "timeout": 1_500_000_000})).await;
    place.wait_for("no-name", json!({"address": "no-such-host.invalid:80", "timeout": "1m"})).await;
    place.wait_for("too-long", json!({"address": six.to_string(), "timeout": "61s"})).await;
    let failed = |name: &'static str, message: String| {
        let place = &place;
        async move { place.says(name, "False", "ProbeFailed", &message).await }
    };
    failed("six-refuses", format!("cannot connect to {six}: connection refused")).await;
    failed("swallows", format!("cannot connect to {}: no answer within 1s", hole.address(0))).await;
    failed("swallows-too", format!("cannot connect to {}: no answer within 1.5s", hole.address(1))).await;
    let unresolved =
        place.waiting("no-name", "is not resolved", |object| said(object).1 == "ProbeFailed").await;
    assert!(said(&unresolved).2.starts_with("cannot connect to no-such-host.invalid:80: failed to lookup"));
    place.waiting("too-long", "is refused", |object| said(object).1 == "InvalidProbe").await;
    for name in ["six-refuses", "swallows", "swallows-too", "no-name", "too-long"] {
        place.has_no_deployment(name).await;
    }

    let _open = closed.listen(64).unwrap();
    place.merge::<Waitdeployment>("too-long", json!({"waitProbe": {"timeout": null}})).await;
    for name in ["six-refuses", "too-long"] {
        place.says(name, "True", "Connected", &format!("connected to {six}")).await;
        place.deployment(name, "made", |_| true).await;
    }
    place.process.stop().await;
}

#[tokio::test]
async fn a_thousand_that_wait_for_nothing_delay_none_whose_address_answers() {
    let place = Place::of("waitdeployment").await;
    let hole = BlackHole::dig().await;
    let began = Instant::now();
    // Most of them for one address, and more for others than are tried at once.
    let probes = (0..1000_u32).map(|number| (number, hole.address(number.saturating_sub(500))));
    stream::iter(probes)
        .for_each_concurrent(16, async |(number, address)| {
            place.wait_for(&format!("waits-{number}"), json!({"address": address, "timeout": "1m"})).await;
        })
        .await;
    for number in [0_u32, 500, 999] {
        let message = format!("connecting to {}", hole.address(number.saturating_sub(500)));
        place.says(&format!("waits-{number}"), "False", "Probing", &message).await;
    }
    println!("a thousand wait after {:?}", began.elapsed());
    let open = listener().await;
    let asked = Instant::now();
    place
        .wait_for("answers", json!({"address": open.local_addr().unwrap().to_string(), "timeout": "1m"}))
        .await;
    place.made_soon("answers", asked).await;

    let (closed, address) = nobody("127.0.0.1:0");
    place.wait_for("refuses", json!({"address": address.to_string(), "timeout": "1m"})).await;
    let refused = format!("cannot connect to {address}: connection refused");
    place.says("refuses", "False", "ProbeFailed", &refused).await;
    let (_open, opened) = (closed.listen(64).unwrap(), Instant::now());
    place.made_soon("refuses", opened).await;
    assert_eq!(place.api::<Deployment>().list(&Default::default()).await.unwrap().items.len(), 2);
    let all = DeleteParams::default();
    place.api::<Waitdeployment>().delete_collection(&all, &Default::default()).await.unwrap();
    place.process.stop().await;
}

#[tokio::test]
async fn a_deployment_of_somebody_else_is_told_of_and_left_alone() {
    let place = Place::of("waitdeployment").await;
    let theirs = Deployment {
        metadata: waiting("taken", json!({"address": ""})).metadata,
        spec: Some(waiting("taken", json!({"address": ""})).spec),
        status: None,
    };
    let theirs = place.api().create(&PostParams::default(), &theirs).await.unwrap();
    let open = listener().await;
    place.wait_for("taken", json!({"address": open.local_addr().unwrap().to_string()})).await;
    let (kind, message) = place.event("taken", "ErrResourceExists").await;
    assert_eq!(kind, "Warning");
    let namespace = &place.namespace;
    let expected = format!(
        "Deployment {namespace}/taken already exists and is not controlled by Waitdeployment {namespace}/taken"
    );
    assert!(message.starts_with(&expected), "{message}");
    let now = place.api::<Deployment>().get("taken").await.unwrap();
    assert_eq!((now.spec, now.metadata.owner_references), (theirs.spec, None));
    place.process.stop().await;
}

#[tokio::test]
async fn the_example_is_taken() {
    let place = Place::of("waitdeployment").await;
    let example = std::fs::read_to_string(file("waitdeployment", "example.yaml")).unwrap();
    let example: Waitdeployment = serde_yaml_ng::from_str(&example).unwrap();
    let (name, address) = (example.name_any(), example.wait_probe.address.clone());
    place.api().create(&PostParams::default(), &example).await.unwrap();
    place.waiting(&name, "is probed", |object| said(object).2.contains(&address)).await;
}
