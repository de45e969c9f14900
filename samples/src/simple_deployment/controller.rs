//! The controller of SimpleDeployment, which keeps a number of pods of an image running.

use std::sync::Arc;

use futures::{StreamExt, future::join_all, stream};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::{ResourceExt, api::ObjectMeta, core::Expression};
use reknit::{
    injection::{Selection, Verb},
    prelude::*,
    reconciler::{OwnedOptions, keys},
};

use super::{POD_OWNER, SimpleDeployment, SimpleDeploymentStatus, pods};

/// The name of the pods' container.
const CONTAINER: &str = "user-container";
/// The limit of concurrent requests in one pass.
const MAX_CONCURRENT: usize = 16;
/// The limit of pods that one pass creates: whoever writes the object chooses their number, and a pass does not see that
/// the object is deleted. The created pods start the next pass.
const MAX_CREATED: usize = 500;

/// Watches SimpleDeployments and the pods with the owner label.
pub fn controller(cx: &Context) -> Result<Controller> {
    let labelled = cx.get::<Selection>().labels([Expression::Exists(POD_OWNER.into())]);
    let pods = cx.informer::<Pod>(labelled);
    let mut build = Controller::of::<SimpleDeployment>(cx);
    build.watch(&pods).keys(keys::label(POD_OWNER)); // an orphan has no owner reference, and is adopted by its label
    let options = OwnedOptions::default().verbs([Verb::Create, Verb::Patch, Verb::Delete]);
    let pods = build.owns_in(&pods, options);
    Ok(build.reconciler(Reconciler { pods }).build())
}

struct Reconciler {
    pods: Owned<Pod>,
}

/// The error of creating or deleting pods.
#[derive(Debug, thiserror::Error)]
enum PodError {
    #[error("error creating: {0} of {1} pods are missing")]
    Create(usize, usize, #[source] kube::Error),
    #[error("error deleting pod {0}")]
    Delete(String, #[source] kube::Error),
}

impl ReconcileKind for Reconciler {
    type Kind = SimpleDeployment;

    async fn reconcile_kind(
        &self,
        object: &SimpleDeployment,
        status: &mut SimpleDeploymentStatus,
    ) -> Result<Outcome> {
        let result = self.scale(object).await;
        self.report(object, status, result.as_ref().err());
        result
    }
}

impl Reconciler {
    /// Adopts, releases, deletes and creates pods. The responses enter the cache, so the next pass counts the pods
    /// correctly.
    async fn scale(&self, object: &SimpleDeployment) -> Result<Outcome> {
        let claimed =
            self.pods.claim(object, |pod| pod.labels().get(POD_OWNER) == Some(&object.name_any())).await?;
        let alive = claimed.into_iter().filter(|pod| pods::is_alive(pod));
        let (current, outdated): (Vec<_>, Vec<_>) =
            alive.partition(|pod| pods::runs(pod, &object.spec.image));
        let desired = desired_replicas(object);
        let missing = desired.saturating_sub(current.len());
        let surplus = pods::least_useful(current, desired);
        self.delete(outdated.into_iter().chain(surplus)).await?;
        self.create(object, missing).await?;
        Ok(Outcome::done())
    }

    async fn delete(&self, pods: impl Iterator<Item = Arc<Pod>>) -> Result<()> {
        let deletions = pods.map(|pod| async move {
            self.pods.delete(&pod).await.map_err(|error| PodError::Delete(pod.name_any(), error))
        });
        let mut deletions = stream::iter(deletions.collect::<Vec<_>>()).buffer_unordered(MAX_CONCURRENT);
        let mut first_error = None;
        while let Some(result) = deletions.next().await {
            first_error = first_error.or(result.err());
        }
        first_error.map_or(Ok(()), |error| Err(Error::from(error).reason("FailedDelete")))
    }

    /// Creates missing pods in batches, up to [`MAX_CREATED`] or the first batch with an error. Batches begin with one pod and double,
    /// so that few requests are sent if the API server refuses pods.
    async fn create(&self, object: &SimpleDeployment, missing: usize) -> Result<()> {
        let (mut remaining, mut batch, last) = (missing, 1, missing.saturating_sub(MAX_CREATED));
        while remaining > last {
            let creations =
                (0..batch.min(remaining - last)).map(|_| self.pods.create(object, pod_of(object)));
            let results = join_all(creations).await;
            remaining -= results.iter().filter(|result| result.is_ok()).count();
            if let Some(error) = results.into_iter().find_map(Result::err) {
                let error = PodError::Create(
                    remaining,
                    desired_replicas(object),
                    without_generated_name(error, object),
                );
                return Err(Error::from(error).reason("FailedCreate"));
            }
            batch = (2 * batch).min(MAX_CONCURRENT);
        }
        Ok(())
    }

    /// Sets the ready replicas and the Ready condition.
    fn report(&self, object: &SimpleDeployment, status: &mut SimpleDeploymentStatus, error: Option<&Error>) {
        let current =
            self.pods.of(object).filter(|pod| pods::is_alive(pod) && pods::runs(pod, &object.spec.image));
        let ready = current.filter(|pod| pods::is_ready(pod)).count();
        let ready = i32::try_from(ready).unwrap_or(i32::MAX);
        status.ready_replicas = ready;
        match error {
            Some(error) if !error.is_conflict() => {
                status.mark_pods_refused(error.event_reason(), &error.in_full())
            }
            _ if ready < object.spec.replicas => status.mark_pods_not_ready(object.spec.replicas - ready),
            _ => status.mark_pods_ready(),
        }
    }
}

/// Replaces the generated name of the pod in the error by its prefix. The generated name differs for each request, so
/// the same failure would otherwise get a new message and a new event each time.
fn without_generated_name(mut error: kube::Error, object: &SimpleDeployment) -> kube::Error {
    if let kube::Error::Api(status) = &mut error
        && let Some(details) = status.details.as_ref().filter(|details| !details.name.is_empty())
    {
        status.message = status.message.replace(&details.name, &name_prefix(object));
    }
    error
}

fn desired_replicas(object: &SimpleDeployment) -> usize {
    usize::try_from(object.spec.replicas).unwrap_or_default()
}

fn name_prefix(object: &SimpleDeployment) -> String {
    format!("{}-", object.name_any())
}

fn pod_of(object: &SimpleDeployment) -> Pod {
    let image = Some(object.spec.image.clone());
    let container = Container { name: CONTAINER.into(), image, ..Container::default() };
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(name_prefix(object)),
            labels: Some([(POD_OWNER.to_owned(), object.name_any())].into()),
            annotations: Some([(pods::IMAGE.to_owned(), object.spec.image.clone())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
        ..Pod::default()
    }
}
