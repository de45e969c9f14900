//! The spaces of one namespace.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use parking_lot::Mutex;
use reknit::prelude::*;
use tokio::{runtime::Handle, time::sleep};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};
use tonic::Status;

use super::{
    pb::{PodInfo, QueryOption},
    pod,
};

/// The wait before a failed deletion is retried.
const PAUSE: Duration = Duration::from_secs(1);

/// Creates spaces, waits for them, and deletes those for which no call waits any more.
#[derive(Clone)]
pub(crate) struct Spaces(Arc<Inner>);

struct Inner {
    namespace: String,
    api: Api<Pod>,
    pods: Informer<Pod>,
    /// The number of calls that wait for each request.
    waiting: Mutex<HashMap<PodInfo, usize>>,
    /// The waiting calls, and the deletions that follow from them.
    open: TaskTracker,
    runtime: Handle,
}

/// A call that waits for a space. When the last one is dropped before the space ever ran, the space is deleted.
struct Waiter {
    spaces: Spaces,
    request: PodInfo,
    _open: TaskTrackerToken,
}

impl Spaces {
    pub(crate) fn new(cx: &Context, namespace: &str, selection: Selection) -> Self {
        Self(Arc::new(Inner {
            namespace: namespace.into(),
            api: Api::namespaced(cx.client(), namespace),
            pods: cx.informer(selection),
            waiting: Mutex::default(),
            open: TaskTracker::new(),
            runtime: Handle::current(),
        }))
    }

    /// Completes once all existing spaces are in the cache.
    pub(crate) async fn known(&self) {
        self.0.pods.synced().await;
    }

    /// Completes once no call waits any more and abandoned spaces are deleted.
    pub(crate) async fn settled(&self) {
        self.0.open.close();
        self.0.open.wait().await;
    }

    /// Creates or finds the requested space, and waits until it runs.
    pub(crate) async fn running(&self, request: PodInfo) -> Result<Arc<Pod>, Status> {
        self.check_namespace(&request.namespace)?;
        let wanted = Arc::new(pod::wanted(&request)?);
        let mut waiter = self.waiter(request);
        loop {
            // If the call ends meanwhile, its waiter stays here until the result of the creation is known.
            let making = tokio::spawn(make(waiter, wanted.clone()));
            let (made, again) = making.await.map_err(|error| Status::internal(error.to_string()))?;
            let made = made?;
            waiter = again;
            if !pod::is_going(&made) {
                tracing::info!(space = made.name_any(), "waiting for it to run");
                return self.until_running(&made).await;
            }
            tracing::info!(space = made.name_any(), "waiting for an older pod of this name to go");
            self.until_gone(&made).await;
        }
    }

    async fn until_running(&self, made: &Pod) -> Result<Arc<Pod>, Status> {
        let (key, uid) = (Key::of(made), made.uid());
        let running = self.0.pods.until(&key, |now| {
            let aborted = |what: &str| {
                Some(Err(Status::aborted(format!("the space was {what} while it was waited for"))))
            };
            match now {
                Some(pod) if pod.uid() != uid => aborted("replaced"),
                Some(pod) if !pod::is_going(pod) => match pod::phase(pod) {
                    "Running" => Some(Ok(Arc::new(pod.clone()))),
                    phase @ ("Failed" | "Succeeded") => {
                        let said = format!("the pod is {phase}: {}", pod::cause(pod));
                        Some(Err(Status::failed_precondition(said)))
                    }
                    _ => None,
                },
                _ => aborted("deleted"),
            }
        });
        running.await
    }

    async fn until_gone(&self, going: &Pod) {
        let uid = going.uid();
        let is_it = |now: Option<&Pod>| now.is_some_and(|pod| pod.uid() == uid);
        self.0.pods.until(&Key::of(going), |now| (!is_it(now)).then_some(())).await;
    }

    /// Returns the space of this name from the cache.
    pub(crate) fn get(&self, query: &QueryOption) -> Result<Arc<Pod>, Status> {
        self.check(query)?;
        let key = Key::new(&*self.0.namespace, &query.name);
        self.0.pods.get(&key).ok_or_else(|| unknown(&query.name))
    }

    /// Deletes the space of this name.
    pub(crate) async fn delete(&self, query: &QueryOption) -> Result<(), Status> {
        self.check(query)?;
        let found = self.0.api.get_opt(&query.name).await.map_err(refused)?;
        let space = found.filter(pod::is_space).ok_or_else(|| unknown(&query.name))?;
        let this = Preconditions { uid: space.uid(), resource_version: None };
        let deleted = self.0.api.delete(&query.name, &DeleteParams::default().preconditions(this)).await;
        deleted.map(drop).map_err(refused)
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

    fn waiter(&self, request: PodInfo) -> Waiter {
        *self.0.waiting.lock().entry(request.clone()).or_default() += 1;
        Waiter { spaces: self.clone(), request, _open: self.0.open.token() }
    }

    fn is_waited_for(&self, request: &PodInfo) -> bool {
        self.0.waiting.lock().contains_key(request)
    }

    /// Returns true if that was the last waiting call.
    fn leave(&self, request: &PodInfo) -> bool {
        let mut waiting = self.0.waiting.lock();
        let Some(count) = waiting.get_mut(request) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            waiting.remove(request);
        }
        last
    }

    /// Deletes a space for which no call waits any more, if it exists and never ran.
    async fn abandon(self, request: PodInfo) {
        while let Err(error) = self.delete_pending(&request).await {
            tracing::warn!(space = request.name, %error, "failed to delete an abandoned space, retrying");
            sleep(PAUSE).await;
        }
    }

    /// Deletes a pending space. The preconditions keep a pod that began to run meanwhile.
    async fn delete_pending(&self, request: &PodInfo) -> kube::Result<()> {
        while let Some(pod) = self.0.api.get_opt(&request.name).await? {
            let lonely = pod::is_of(&pod, request) && pod::is_pending(&pod) && !self.is_waited_for(request);
            if !lonely || pod::is_going(&pod) {
                return Ok(());
            }
            let seen = Preconditions { uid: pod.uid(), resource_version: pod.resource_version() };
            match self.0.api.delete(&request.name, &DeleteParams::default().preconditions(seen)).await {
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
                deleted => {
                    tracing::info!(space = request.name, "deleted an abandoned space");
                    return deleted.map(drop);
                }
            }
        }
        Ok(())
    }

    /// Creates the space, or returns an existing one of the same request, which may be terminating.
    async fn create(&self, request: &PodInfo, wanted: &Pod) -> Result<Pod, Status> {
        loop {
            match self.0.api.create(&PostParams::default(), wanted).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                made => return made.map_err(refused),
            }
            match self.0.api.get_opt(&request.name).await.map_err(refused)? {
                None => {}
                Some(found)
                    if pod::is_of(&found, request) || (pod::is_space(&found) && pod::is_going(&found)) =>
                {
                    return Ok(found);
                }
                Some(_) => {
                    let said = format!("the name {:?} is taken by a different pod", request.name);
                    return Err(Status::already_exists(said));
                }
            }
        }
    }
}

async fn make(waiter: Waiter, wanted: Arc<Pod>) -> (Result<Pod, Status>, Waiter) {
    let made = waiter.spaces.create(&waiter.request, &wanted).await;
    (made, waiter)
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let (spaces, request) = (self.spaces.clone(), std::mem::take(&mut self.request));
        let key = Key::new(&*spaces.0.namespace, &request.name);
        let ran = |pod: Arc<Pod>| pod::is_of(&pod, &request) && !pod::is_pending(&pod);
        if spaces.leave(&request) && !spaces.0.pods.get(&key).is_some_and(ran) {
            let inner = spaces.0.clone();
            inner.open.spawn_on(spaces.abandon(request), &inner.runtime);
        }
    }
}

fn unknown(name: &str) -> Status {
    Status::not_found(format!("there is no space {name:?}"))
}

/// Maps a refusal of the API server to a gRPC status.
fn refused(error: kube::Error) -> Status {
    let said = error.to_string();
    let kube::Error::Api(status) = error else { return Status::unavailable(said) };
    match status.code {
        400 | 422 => Status::invalid_argument(status.message),
        403 => Status::permission_denied(status.message),
        404 => Status::not_found(status.message),
        409 => Status::aborted(status.message),
        429 | 500.. => Status::unavailable(status.message),
        _ => Status::internal(status.message),
    }
}
