//! Several bindings of one subject.

use super::*;

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
    eventually("the taken subject", TIMEOUT, async || {
        let blue = paints.get("blue").await.ok()?;
        let condition = blue.status.as_ref()?.condition("Available")?;
        let message = condition.message.as_deref().unwrap_or_default();
        (condition.reason.as_deref() == Some("SubjectTaken") && message.contains("Paint red too"))
            .then_some(())
    })
    .await;
    fixture.wait_for_pods("web", Some("red")).await;
    paints.delete("red", &DeleteParams::default()).await.unwrap();
    fixture.wait_for_pods("web", Some("blue")).await;
    fixture.wait_for_condition("True").await;
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
