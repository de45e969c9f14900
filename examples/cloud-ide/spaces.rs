//! Creates, awaits and deletes the spaces of one namespace.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use parking_lot::Mutex;
use reknit::{
    injection::{Permission, Selection, Verb},
    prelude::*,
};
use tokio::{runtime::Handle, time::sleep};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};
use tonic::Status;

use super::{
    pb::{PodInfo, QueryOption},
    pod,
};

/// The delay before a failed deletion is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Creates spaces, waits until they run, and deletes abandoned ones. A space is abandoned if it never ran and no call
/// waits for it any more.
#[derive(Clone)]
pub(crate) struct Spaces(Arc<Inner>);

struct Inner {
    namespace: String,
    api: Api<Pod>,
    pods: Informer<Pod>,
    /// The number of waiting calls for each request.
    waiters: Mutex<HashMap<PodInfo, usize>>,
    /// The waiting calls, and the deletions of abandoned spaces.
    tasks: TaskTracker,
    runtime: Handle,
}

/// A call that waits for a space. When the last waiter of a request is dropped and the space never ran, the space is
/// deleted.
struct Waiter {
    spaces: Spaces,
    request: PodInfo,
    _task: TaskTrackerToken,
}

impl Spaces {
    pub(crate) fn new(cx: &Context, namespace: &str, selection: Selection) -> Self {
        let verbs = [Verb::Get, Verb::Create, Verb::Delete];
        cx.allows(Permission::of::<Pod>(verbs).namespaces([namespace]));
        Self(Arc::new(Inner {
            namespace: namespace.into(),
            api: Api::namespaced(cx.client(), namespace),
            pods: cx.informer(selection),
            waiters: Mutex::default(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
        }))
    }

    /// Completes once all existing spaces are in the cache.
    pub(crate) async fn synced(&self) {
        self.0.pods.synced().await;
    }

    /// Completes once no call waits any more and the abandoned spaces are deleted.
    pub(crate) async fn drained(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Creates the requested space, or joins the calls of an equal request, and waits until the space runs.
    pub(crate) async fn create_and_wait(&self, request: PodInfo) -> Result<Arc<Pod>, Status> {
        self.check_namespace(&request.namespace)?;
        let pod = Arc::new(pod::build(&request)?);
        let mut waiter = self.add_waiter(request);
        loop {
            // In a task: if the call ends meanwhile, the waiter stays until the result of the creation is known.
            let creation = tokio::spawn(create_for(waiter, pod.clone()));
            let (created, returned) = creation.await.map_err(|error| Status::internal(error.to_string()))?;
            let created = created?;
            waiter = returned;
            if !pod::is_terminating(&created) {
                tracing::info!(space = created.name_any(), "waiting for the space to run");
                return self.until_running(&created).await;
            }
            tracing::info!(space = created.name_any(), "waiting for an older pod of this name to be deleted");
            self.until_gone(&created).await;
        }
    }

    async fn until_running(&self, pod: &Pod) -> Result<Arc<Pod>, Status> {
        let (key, uid) = (Key::of(pod), pod.uid());
        let running = self.0.pods.until(&key, |current| {
            let aborted = |what: &str| {
                Some(Err(Status::aborted(format!("the space was {what} while the call waited for it"))))
            };
            match current {
                Some(pod) if pod.uid() != uid => aborted("replaced"),
                Some(pod) if !pod::is_terminating(pod) => match pod::phase(pod) {
                    "Running" => Some(Ok(Arc::new(pod.clone()))),
                    phase @ ("Failed" | "Succeeded") => {
                        let message = format!("the pod is {phase}: {}", pod::reason(pod));
                        Some(Err(Status::failed_precondition(message)))
                    }
                    _ => None,
                },
                _ => aborted("deleted"),
            }
        });
        running.await
    }

    async fn until_gone(&self, terminating: &Pod) {
        let uid = terminating.uid();
        let is_gone = |current: Option<&Pod>| current.is_none_or(|pod| pod.uid() != uid);
        self.0.pods.until(&Key::of(terminating), |current| is_gone(current).then_some(())).await;
    }

    /// Returns the space of this name from the cache.
    pub(crate) fn get(&self, query: &QueryOption) -> Result<Arc<Pod>, Status> {
        self.check(query)?;
        let key = Key::new(&*self.0.namespace, &query.name);
        self.0.pods.get(&key).ok_or_else(|| not_found(&query.name))
    }

    /// Deletes the space of this name.
    pub(crate) async fn delete(&self, query: &QueryOption) -> Result<(), Status> {
        self.check(query)?;
        let pod = self.0.api.get_opt(&query.name).await.map_err(to_status)?;
        let space = pod.filter(pod::is_space).ok_or_else(|| not_found(&query.name))?;
        let same_pod = Preconditions { uid: space.uid(), resource_version: None };
        let deleted = self.0.api.delete(&query.name, &DeleteParams::default().preconditions(same_pod)).await;
        deleted.map(drop).map_err(to_status)
    }

    fn check(&self, query: &QueryOption) -> Result<(), Status> {
        self.check_namespace(&query.namespace)?;
        pod::check_name(&query.name)
    }

    fn check_namespace(&self, namespace: &str) -> Result<(), Status> {
        match &*self.0.namespace {
            served if served == namespace => Ok(()),
            served => Err(Status::invalid_argument(format!(
                "namespace {namespace:?}: only {served:?} is served here"
            ))),
        }
    }

    fn add_waiter(&self, request: PodInfo) -> Waiter {
        *self.0.waiters.lock().entry(request.clone()).or_default() += 1;
        Waiter { spaces: self.clone(), request, _task: self.0.tasks.token() }
    }

    fn has_waiter(&self, request: &PodInfo) -> bool {
        self.0.waiters.lock().contains_key(request)
    }

    /// Returns true if that was the last waiter of this request.
    fn remove_waiter(&self, request: &PodInfo) -> bool {
        let mut waiters = self.0.waiters.lock();
        let Some(count) = waiters.get_mut(request) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            waiters.remove(request);
        }
        is_last
    }

    /// Deletes the space of this request if it is abandoned. Retries until that succeeds.
    async fn delete_abandoned(self, request: PodInfo) {
        while let Err(error) = self.try_delete_abandoned(&request).await {
            tracing::warn!(space = request.name, %error, "failed to delete an abandoned space, retrying");
            sleep(RETRY_DELAY).await;
        }
    }

    /// Deletes the space of this request if it is abandoned. A precondition keeps a pod that has started in the
    /// meantime.
    async fn try_delete_abandoned(&self, request: &PodInfo) -> kube::Result<()> {
        while let Some(pod) = self.0.api.get_opt(&request.name).await? {
            let is_abandoned =
                pod::is_created_by(&pod, request) && pod::is_pending(&pod) && !self.has_waiter(request);
            if !is_abandoned || pod::is_terminating(&pod) {
                return Ok(());
            }
            let same_version = Preconditions { uid: pod.uid(), resource_version: pod.resource_version() };
            match self.0.api.delete(&request.name, &DeleteParams::default().preconditions(same_version)).await
            {
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
                result => {
                    tracing::info!(space = request.name, "deleted an abandoned space");
                    return result.map(drop);
                }
            }
        }
        Ok(())
    }

    /// Creates the space, or returns the existing one of an equal request. The returned pod may be terminating; a
    /// terminating space of another request is returned too.
    async fn create(&self, request: &PodInfo, pod: &Pod) -> Result<Pod, Status> {
        loop {
            match self.0.api.create(&PostParams::default(), pod).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                result => return result.map_err(to_status),
            }
            match self.0.api.get_opt(&request.name).await.map_err(to_status)? {
                None => {}
                Some(existing)
                    if pod::is_created_by(&existing, request)
                        || (pod::is_space(&existing) && pod::is_terminating(&existing)) =>
                {
                    return Ok(existing);
                }
                Some(_) => {
                    let message = format!("the name {:?} is taken by a different pod", request.name);
                    return Err(Status::already_exists(message));
                }
            }
        }
    }
}

/// Creates the space of this waiter, and keeps the waiter until the result is known.
async fn create_for(waiter: Waiter, pod: Arc<Pod>) -> (Result<Pod, Status>, Waiter) {
    let created = waiter.spaces.create(&waiter.request, &pod).await;
    (created, waiter)
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let (spaces, request) = (self.spaces.clone(), std::mem::take(&mut self.request));
        let key = Key::new(&*spaces.0.namespace, &request.name);
        let has_run = |pod: Arc<Pod>| pod::is_created_by(&pod, &request) && !pod::is_pending(&pod);
        if spaces.remove_waiter(&request) && !spaces.0.pods.get(&key).is_some_and(has_run) {
            let inner = spaces.0.clone();
            inner.tasks.spawn_on(spaces.delete_abandoned(request), &inner.runtime);
        }
    }
}

fn not_found(name: &str) -> Status {
    Status::not_found(format!("there is no space {name:?}"))
}

/// Maps an error of a request to the API server to a gRPC status.
fn to_status(error: kube::Error) -> Status {
    let message = error.to_string();
    let kube::Error::Api(status) = error else { return Status::unavailable(message) };
    match status.code {
        400 | 422 => Status::invalid_argument(status.message),
        403 => Status::permission_denied(status.message),
        404 => Status::not_found(status.message),
        409 => Status::aborted(status.message),
        429 | 500.. => Status::unavailable(status.message),
        _ => Status::internal(status.message),
    }
}
