//! Several bindings of one subject.

use reknit_apis::{KRShaped, Kind as _};

use super::*;
use crate::tone::{self, Tone, tone};

/// Waits until the subject of `blue` is taken by this binding.
async fn wait_until_taken(paints: &Api<Paint>, by: &str) {
    eventually("the taken subject", TIMEOUT, async || {
        let blue = paints.get("blue").await.ok()?;
        let condition = blue.status.as_ref()?.condition("Available")?;
        let message = condition.message.as_deref().unwrap_or_default();
        let is_taken = condition.reason.as_deref() == Some("SubjectTaken");
        (is_taken && message.contains(&format!("Paint {by} too"))).then_some(())
    })
    .await;
}

/// Else both would patch it in turn, for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_subject_of_two_bindings_is_bound_by_the_last_one_and_by_the_other_once_that_is_deleted() {
    let fixture = Fixture::new().await;
    fixture.create::<Deployment>(deployment("web")).await;
    for name in ["blue", "red"] {
        fixture.create::<Paint>(paint(name, "Deployment", "apps/v1")).await;
    }
    let paints = fixture.api::<Paint>();
    wait_until_taken(&paints, "red").await;
    fixture.wait_for_pods("web", Some("red")).await;
    paints.delete("red", &DeleteParams::default()).await.unwrap();
    fixture.wait_for_pods("web", Some("blue")).await;
    fixture.wait_for_condition("True").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_is_bound_again_while_the_binding_that_had_it_is_terminating() {
    let fixture = Fixture::new().await;
    let _server = fixture.plane.serve_webhook(&fixture.namespace, webhook).await.unwrap();
    fixture.create::<Deployment>(deployment("web")).await;
    let mut red = paint("red", "Deployment", "apps/v1");
    red["metadata"]["finalizers"] = json!(["example.com/hold"]);
    fixture.create::<Paint>(red).await;
    fixture.create::<Paint>(paint("blue", "Deployment", "apps/v1")).await;
    let paints = fixture.api::<Paint>();
    wait_until_taken(&paints, "red").await;
    fixture.wait_for_pods("web", Some("red")).await;
    paints.delete("red", &DeleteParams::default()).await.unwrap();
    fixture.wait_for_condition("True").await;
    fixture.wait_for_pods("web", Some("blue")).await;
    assert!(paints.get("red").await.unwrap().metadata.deletion_timestamp.is_some());
    let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    paints.patch("red", &PatchParams::default(), &released).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deletion_of_a_binding_that_was_never_bound_frees_its_subject() {
    let fixture = Fixture::new().await;
    let paints = fixture.api::<Paint>();
    fixture.create::<Paint>(paint(DRY, "Deployment", "apps/v1")).await;
    eventually("the finalizer", TIMEOUT, async || {
        paints.get(DRY).await.ok()?.metadata.finalizers.filter(|finalizers| !finalizers.is_empty())
    })
    .await;
    fixture.create::<Paint>(paint("blue", "Deployment", "apps/v1")).await;
    fixture.create::<Deployment>(deployment("web")).await;
    wait_until_taken(&paints, DRY).await;
    // Any change of the subject would reconcile the binding.
    let deployments = fixture.api::<Deployment>();
    eventually("the pods to be ready", TIMEOUT, async || {
        let web = deployments.get("web").await.map_err(|error| error.to_string())?;
        let ready = web.status.as_ref().and_then(|status| status.ready_replicas);
        if ready == Some(2) { Ok(()) } else { Err(format!("{web:?}")) }
    })
    .await;
    paints.delete(DRY, &DeleteParams::default()).await.unwrap();
    fixture.wait_for_condition("True").await;
    fixture.wait_for_pods("web", Some("blue")).await;
}

/// The program of a second Kind of bindings, which has set its variables in `web`.
async fn bind_tones<const N: usize>(fixture: &Fixture, tones: [(&str, &str); N]) -> RunningControllers {
    fixture.plane.install::<Tone>().await.unwrap();
    let program = Controllers::new(fixture.client.clone()).controller(tone::controller).start();
    for (name, variable) in tones {
        fixture.create::<Tone>(tone(name, variable)).await;
        wait_until_available::<Tone>(fixture, name).await;
    }
    program
}

async fn wait_until_available<K>(fixture: &Fixture, name: &str)
where
    K: KRShaped<Status = DuckStatus> + kube::Resource<Scope = NamespaceResourceScope>,
{
    let bindings = fixture.api::<K>();
    eventually(format!("the condition of {name}"), TIMEOUT, async || {
        let binding = bindings.get(name).await.map_err(|error| error.to_string())?;
        let condition = binding.read_status().and_then(|status| status.condition("Available"));
        let is_true = condition.is_some_and(|condition| condition.status == *"True");
        if is_true { Ok(()) } else { Err(format!("{condition:?}")) }
    })
    .await;
}

/// Waits until `web` was rolled out, which reconciles its bindings several times. Returns its variables and its generation.
async fn rolled_out(fixture: &Fixture) -> (Vec<String>, i64) {
    let deployments = fixture.api::<Deployment>();
    let web = eventually("the rollout", TIMEOUT, async || {
        let web = deployments.get("web").await.map_err(|error| error.to_string())?;
        let status = web.status.clone().unwrap_or_default();
        let is_observed = status.observed_generation == web.metadata.generation;
        let are_ready = [status.replicas, status.updated_replicas, status.ready_replicas] == [Some(2); 3];
        if is_observed && are_ready { Ok(web) } else { Err(format!("{web:?}")) }
    })
    .await;
    let template = web.spec.unwrap().template.spec.unwrap();
    let env = template.containers[0].env.iter().flatten();
    (env.map(|variable| variable.name.clone()).collect(), web.metadata.generation.unwrap())
}

/// Else each would move its variable to the end, and the subject would be rolled out without end.
#[tokio::test(flavor = "multi_thread")]
async fn the_bindings_of_two_programs_leave_each_others_injections_where_they_are() {
    let fixture = Fixture::new().await;
    fixture.create::<Deployment>(deployment("web")).await;
    fixture.create::<Paint>(paint("blue", "Deployment", "apps/v1")).await;
    wait_until_available::<Paint>(&fixture, "blue").await;
    let _program = bind_tones(&fixture, [("a", "TONE"), ("b", "SOUND")]).await;
    let names = ["COLOR", "TONE", "SOUND"].map(str::to_owned);
    assert_eq!(rolled_out(&fixture).await, (names.to_vec(), 4));
    let changed = Patch::Merge(json!({"spec": {"color": "green"}}));
    fixture.api::<Paint>().patch("blue", &PatchParams::default(), &changed).await.unwrap();
    fixture.wait_for_pods("web", Some("green")).await;
    let names = ["TONE", "SOUND", "COLOR"].map(str::to_owned);
    assert_eq!(rolled_out(&fixture).await, (names.to_vec(), 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_that_admission_injects_in_another_order_than_they_were_created_are_bound() {
    let fixture = Fixture::new().await;
    fixture.create::<Deployment>(deployment("web")).await;
    let _program = bind_tones(&fixture, [("b", "SOUND"), ("a", "TONE")]).await;
    let both = |cx: &Context| {
        Ok(Webhook::new("both.reknit.dev").mutator(BindingMutator::of::<Paint>(cx).and::<Tone>(cx)))
    };
    let _server = fixture.plane.serve_webhook(&fixture.namespace, both).await.unwrap();
    fixture.create::<Paint>(paint("blue", "Deployment", "apps/v1")).await;
    wait_until_available::<Paint>(&fixture, "blue").await;
    let names = ["SOUND", "TONE", "COLOR"].map(str::to_owned);
    assert_eq!(rolled_out(&fixture).await, (names.to_vec(), 4));
    for name in ["a", "b"] {
        wait_until_available::<Tone>(&fixture, name).await;
    }
}
