//! Controllers that run in the process of a test, against an API server.

use std::{pin::Pin, thread, time::Duration};

use kube::Client;
use reknit_injection::{Context, InformerHandle, Shutdown, ShutdownTrigger};
use reknit_leadership::Leadership;
use reknit_reconciler::{Controller, Drained, Health, Result, Run};
use tokio::task::{JoinHandle, JoinSet};

use crate::eventually;

/// The time that running reconciles get after [`RunningControllers::stop`].
const DRAIN: Duration = Duration::from_secs(5);

type Construct = Box<dyn FnOnce(&Context) -> Result<Controller>>;
type RunTask = Pin<Box<dyn Future<Output = Result<()>> + Send>>;
type ConstructTask = Box<dyn FnOnce(&Context) -> Result<RunTask>>;

/// Adds one value to the context.
type Provide = Box<dyn FnOnce(&Context)>;

/// Runs controllers in the process of a test, as leaders without leases. Add their constructors, then
/// [`start`](Self::start) them.
///
/// With the client of a [service account](crate::ControlPlane::client_as), they have only the permissions that RBAC
/// grants to it.
///
/// ```no_run
/// use std::time::Duration;
///
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Result};
/// use reknit_testing::{ControlPlane, Controllers, FakeClock, eventually};
/// # fn controller(cx: &Context) -> Result<Controller> { Err("".into()) }
///
/// const TIMEOUT: Duration = Duration::from_secs(30);
///
/// #[tokio::test]
/// # async fn hidden() {}
/// async fn settings_are_created() -> Result<(), Box<dyn std::error::Error>> {
///     let plane = ControlPlane::shared().await?;
///     plane.apply_path("config/200-rbac.yaml").await?;
///     let clock = FakeClock::at("2026-11-25T10:00:00Z");
///     let controllers = Controllers::new(plane.client_as("example", "controller").await?)
///         .controller(controller)
///         .provide(clock.clock())
///         .start();
///     controllers.synced(TIMEOUT).await; // fails with the reason, such as a missing permission
///
///     let maps: kube::Api<ConfigMap> = kube::Api::namespaced(plane.client()?, "example");
///     eventually("the settings", TIMEOUT, async || maps.get("settings").await).await;
///     controllers.stop().await;
///     Ok(())
/// }
/// ```
#[must_use = "nothing runs before `.start()`"]
pub struct Controllers {
    client: Client,
    system_namespace: Option<String>,
    provided: Vec<Provide>,
    constructors: Vec<Construct>,
    tasks: Vec<ConstructTask>,
    following: bool,
}

/// Running controllers, from [`Controllers::start`]. They are aborted when this is dropped.
///
/// A test that drops it, or [stops](Self::stop) it, fails if one of the controllers has panicked. (A panic of a
/// reconciler is an error of its reconcile, and does not end the controller.)
pub struct RunningControllers {
    trigger: ShutdownTrigger,
    running: Vec<RunningController>,
    tasks: JoinSet<Result<()>>,
}

struct RunningController {
    health: Health,
    task: JoinHandle<Drained>,
}

impl Controllers {
    /// Creates an empty list. The controllers that are added to it send their requests through this client.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            system_namespace: None,
            provided: Vec::new(),
            constructors: Vec::new(),
            tasks: Vec::new(),
            following: false,
        }
    }

    /// Adds a controller by its constructor, which is the one that the program uses.
    pub fn controller(mut self, constructor: impl FnOnce(&Context) -> Result<Controller> + 'static) -> Self {
        self.constructors.push(Box::new(constructor));
        self
    }

    /// Adds a task by its constructor, which is the one that the program passes to `Main::task`. As in a program, the
    /// constructors of tasks run after those of controllers. The tasks end, or are aborted, with the controllers.
    pub fn task<T: IntoFuture<Output = Result<()>, IntoFuture: Send + 'static>>(
        mut self,
        constructor: impl FnOnce(&Context) -> Result<T> + 'static,
    ) -> Self {
        self.tasks.push(Box::new(|cx| Ok(Box::pin(constructor(cx)?.into_future()))));
        self
    }

    /// Runs the controllers as in a replica that leads nothing: they only observe.
    pub fn following(mut self) -> Self {
        self.following = true;
        self
    }

    /// Adds a value to the constructors' [`Context`]. It replaces the value that would be injected.
    pub fn provide<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.provided.push(Box::new(|cx| cx.provide(value)));
        self
    }

    /// Sets the namespace of the process's ConfigMaps. The default is none.
    pub fn system_namespace(mut self, namespace: &str) -> Self {
        self.system_namespace = Some(namespace.into());
        self
    }

    /// Starts the controllers. Must be called within a tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics if a constructor fails.
    pub fn start(self) -> RunningControllers {
        let (trigger, shutdown) = Shutdown::new();
        let cx = Context::builder("test", self.client)
            .system_namespace(self.system_namespace)
            .shutdown(shutdown.clone())
            .build();
        self.provided.into_iter().for_each(|provide| provide(&cx));
        let controllers: Vec<_> =
            self.constructors.into_iter().map(|construct| build(construct, &cx.scoped())).collect();
        let constructed = self.tasks.into_iter().map(|construct| construct(&cx.scoped()));
        #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
        let tasks = constructed
            .map(|task| task.unwrap_or_else(|error| panic!("the constructor of a task failed: {error:#}")))
            .collect::<Vec<_>>();
        cx.informers().start();
        let following = self.following;
        let running = controllers.into_iter().map(|controller| spawn(controller, &shutdown, following));
        RunningControllers { trigger, running: running.collect(), tasks: tasks.into_iter().collect() }
    }
}

#[expect(clippy::panic, reason = "a failed assertion of a test panics")]
fn build(construct: Construct, cx: &Context) -> Controller {
    let controller = construct(cx).and_then(|controller| controller.check().map(|()| controller));
    controller.unwrap_or_else(|error| panic!("the constructor failed: {error:#}"))
}

fn spawn(controller: Controller, shutdown: &Shutdown, following: bool) -> RunningController {
    let health = controller.health();
    let leadership = match following {
        // A bucket that nobody leads.
        true => reknit_leadership::internal::elected(vec!["other".into()]).0,
        false => Leadership::always(),
    };
    let run = Run { leadership, stop: shutdown.clone(), drain: DRAIN, workers: None };
    RunningController { health, task: tokio::spawn(controller.run(run)) }
}

impl RunningControllers {
    /// Waits until every informer has received its first list. Each controller starts to reconcile as soon as its own
    /// informers are synced.
    ///
    /// # Panics
    ///
    /// Panics if this takes longer than `limit`. The message names the informers without a first list, and the reason,
    /// such as a missing permission or a CRD that is not installed.
    pub async fn synced(&self, limit: Duration) {
        let waiting = || {
            let informers = self.running.iter().flat_map(|running| running.health.informers());
            informers.filter_map(|informer| reason_to_wait(&**informer)).collect::<Vec<_>>()
        };
        eventually("the sync of all informers", limit, async || match waiting() {
            waiting if waiting.is_empty() => Ok(()),
            waiting => Err(waiting.join("; ")),
        })
        .await;
    }

    /// Stops taking keys, and waits up to five seconds for the running reconciles. Returns how many reconciles were
    /// dropped.
    ///
    /// # Panics
    ///
    /// Panics if a controller has panicked.
    #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
    pub async fn stop(mut self) -> usize {
        self.trigger.start();
        let mut dropped = 0;
        for RunningController { health, task } in std::mem::take(&mut self.running) {
            let ended = task.await;
            dropped += ended.unwrap_or_else(|error| panic!("{} failed: {error}", health.name())).dropped;
        }
        let tasks = std::mem::take(&mut self.tasks);
        // A task that does not end is aborted.
        let ended = tokio::time::timeout(DRAIN, tasks.join_all()).await.unwrap_or_default();
        ended.into_iter().for_each(|result| {
            result.unwrap_or_else(|error| panic!("a task failed: {error:#}"));
        });
        dropped
    }
}

/// The name of an informer that is not synced, and why.
fn reason_to_wait(informer: &dyn InformerHandle) -> Option<String> {
    let state = informer.state();
    let reason = state.reason().unwrap_or("no list yet");
    (!state.is_synced()).then(|| format!("{}: {reason}", informer.name()))
}

impl Drop for RunningControllers {
    #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
    fn drop(&mut self) {
        // A controller ends only after `stop`, unless it panicked.
        let ended = self.running.iter().find(|running| running.task.is_finished());
        let failed = ended.map(|running| running.health.name().to_owned());
        self.running.iter().for_each(|running| running.task.abort());
        if let Some(name) = failed
            && !thread::panicking()
        {
            panic!("{name} ended before it was stopped");
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use reknit_reconciler::{ObserveKind, Outcome, ReconcileKind};
    use tokio::sync::mpsc::{self, UnboundedSender};

    use super::*;
    use crate::ApiServer;

    /// Sends the role that each pass has.
    struct Roles(UnboundedSender<&'static str>);

    impl ReconcileKind for Roles {
        type Kind = ConfigMap;

        async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
            self.0.send("reconciles")?;
            Ok(Outcome::done())
        }
    }

    impl ObserveKind for Roles {
        async fn observe_kind(&self, _: &ConfigMap) -> Result<Outcome> {
            self.0.send("observes")?;
            Ok(Outcome::done())
        }
    }

    #[tokio::test]
    async fn controllers_observe_as_followers_and_reconcile_otherwise() {
        for (following, role) in [(true, "observes"), (false, "reconciles")] {
            let server = ApiServer::new();
            let mut map = ConfigMap::default();
            map.metadata.name = Some("x".into());
            map.metadata.namespace = Some("default".into());
            server.insert(&map);
            let (sender, mut received) = mpsc::unbounded_channel();
            let controllers = Controllers::new(server.client()).controller(move |cx| {
                let build = Controller::of::<ConfigMap>(cx).reconciler(Roles(sender));
                Ok(build.observing_as_follower().build())
            });
            let running = if following { controllers.following() } else { controllers }.start();
            assert_eq!(received.recv().await, Some(role));
            running.stop().await;
            assert_eq!(received.recv().await, None, "one pass");
        }
    }

    #[tokio::test]
    async fn a_task_runs_beside_the_controllers_with_the_values_of_their_constructors() {
        let (sender, mut received) = mpsc::unbounded_channel();
        let task = move |cx: &Context| {
            let (shutdown, value) = (cx.shutdown(), cx.provided::<&str>()?);
            Ok(async move {
                sender.send(value)?;
                shutdown.wait().await;
                sender.send("stopped")?;
                Ok(())
            })
        };
        let running = Controllers::new(ApiServer::new().client()).provide("shared").task(task).start();
        assert_eq!(received.recv().await, Some("shared"));
        running.stop().await;
        assert_eq!(received.recv().await, Some("stopped"));
    }
}
