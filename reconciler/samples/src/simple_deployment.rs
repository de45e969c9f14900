//! The controller of SimpleDeployment, which keeps a number of pods of an image running.

use std::sync::Arc;

use futures::{StreamExt, future::join_all, stream};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::{ResourceExt, api::ObjectMeta, core::Expression};
use reknit::{prelude::*, sharedmain::NamespaceFlag};
use samples_apis::{POD_OWNER, SimpleDeployment, SimpleDeploymentStatus};

use crate::pods;

/// The name of the pods' container.
const CONTAINER: &str = "user-container";
/// The most requests of one pass that are in flight at once.
const AT_ONCE: usize = 16;

/// Watches SimpleDeployments and the pods with the owner label.
pub fn controller(cx: &Context) -> Result<Controller> {
    let selection = cx.get::<NamespaceFlag>().selection();
    let labelled = selection.clone().labels([Expression::Exists(POD_OWNER.into())]);
    let pods = cx.informer::<Pod>(labelled);
    let mut build = Controller::selected::<SimpleDeployment>(cx, selection);
    build.watch(&pods).keys(keys::label(POD_OWNER)); // also for pods without a controller
    let pods = build.owns_in(&pods);
    Ok(build.reconciler(Reconciler { pods }).build())
}

struct Reconciler {
    pods: Owned<Pod>,
}

/// The error of creating or deleting pods.
#[derive(Debug, thiserror::Error)]
enum Refused {
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
        let scaled = self.scale(object).await;
        self.report(object, status, scaled.as_ref().err());
        scaled
    }
}

impl Reconciler {
    /// Creates and deletes pods. The cache holds the results before the next pass, so the next pass counts correctly.
    async fn scale(&self, object: &SimpleDeployment) -> Result<Outcome> {
        let mine =
            self.pods.claim(object, |pod| pod.labels().get(POD_OWNER) == Some(&object.name_any())).await?;
        let alive = mine.into_iter().filter(|pod| pods::is_alive(pod));
        let (current, outdated): (Vec<_>, Vec<_>) =
            alive.partition(|pod| pods::runs(pod, &object.spec.image));
        let wanted = wanted(object);
        let missing = wanted.saturating_sub(current.len());
        let surplus = pods::least_useful(current, wanted);
        self.delete(outdated.into_iter().chain(surplus)).await?;
        self.create(object, missing).await?;
        Ok(Outcome::done())
    }

    async fn delete(&self, pods: impl Iterator<Item = Arc<Pod>>) -> Result<()> {
        let deletions = pods.map(|pod| async move {
            self.pods.delete(&pod).await.map_err(|error| Refused::Delete(pod.name_any(), error))
        });
        let mut deletions = stream::iter(deletions.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
        let mut failed = None;
        while let Some(deleted) = deletions.next().await {
            failed = failed.or(deleted.err());
        }
        failed.map_or(Ok(()), |error| Err(Error::from(error).reason("FailedDelete")))
    }

    /// Creates one pod first and then twice as many each time, so that few requests are made if pods are refused.
    async fn create(&self, object: &SimpleDeployment, missing: usize) -> Result<()> {
        let (mut left, mut at_once) = (missing, 1);
        while left > 0 {
            let creations = (0..left.min(at_once)).map(|_| self.pods.create(object, pod_of(object)));
            let answers = join_all(creations).await;
            left -= answers.iter().filter(|answer| answer.is_ok()).count();
            if let Some(error) = answers.into_iter().find_map(Result::err) {
                let error = Refused::Create(left, wanted(object), nameless(error, object));
                return Err(Error::from(error).reason("FailedCreate"));
            }
            at_once = (2 * at_once).min(AT_ONCE);
        }
        Ok(())
    }

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

/// Replaces the generated name of the pod in the error. It differs each time, so status and events would never repeat.
fn nameless(mut error: kube::Error, object: &SimpleDeployment) -> kube::Error {
    if let kube::Error::Api(answer) = &mut error
        && let Some(details) = answer.details.as_ref().filter(|details| !details.name.is_empty())
    {
        answer.message = answer.message.replace(&details.name, &prefix(object));
    }
    error
}

fn wanted(object: &SimpleDeployment) -> usize {
    usize::try_from(object.spec.replicas).unwrap_or_default()
}

fn prefix(object: &SimpleDeployment) -> String {
    format!("{}-", object.name_any())
}

fn pod_of(object: &SimpleDeployment) -> Pod {
    let image = Some(object.spec.image.clone());
    let container = Container { name: CONTAINER.into(), image, ..Container::default() };
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(prefix(object)),
            labels: Some([(POD_OWNER.to_owned(), object.name_any())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
        ..Pod::default()
    }
}
