//! Controllers that run within the test process.

use std::time::Duration;

use kube::{Client, Config};
use reknit::{
    injection::{Shutdown, ShutdownTrigger},
    prelude::*,
    reconciler::{Drained, Run, leader::Leadership},
};
use tokio::task::JoinHandle;

/// The boxed constructor of a controller, from [`constructor`].
pub(crate) type Constructor = Box<dyn FnOnce(&Context) -> Result<Controller>>;

/// Boxes a constructor, because a list may hold constructors of several types.
pub(crate) fn constructor(construct: impl FnOnce(&Context) -> Result<Controller> + 'static) -> Constructor {
    Box::new(construct)
}

/// Running controllers. They stop when [`stop`](Self::stop) is called, and are aborted on drop.
pub(crate) struct InProcessControllers {
    trigger: ShutdownTrigger,
    tasks: Vec<JoinHandle<Drained>>,
}

impl InProcessControllers {
    /// Starts the controllers as leaders, without leases.
    pub(crate) fn start(config: Config, constructors: impl IntoIterator<Item = Constructor>) -> Self {
        let (trigger, shutdown) = Shutdown::new();
        let client = Client::try_from(config).expect("a client");
        let cx = Context::builder("test", client).shutdown(shutdown.clone()).build();
        let controllers: Vec<_> = constructors
            .into_iter()
            .map(|construct| construct(&cx.scoped()).expect("the constructor succeeds"))
            .collect();
        let informers = cx.informers();
        drop(cx);
        informers.start();
        let spawn = |controller: Controller| {
            let run = Run {
                leadership: Leadership::always(),
                stop: shutdown.clone(),
                drain: Duration::from_secs(5),
                workers: None,
            };
            tokio::spawn(controller.run(run))
        };
        Self { trigger, tasks: controllers.into_iter().map(spawn).collect() }
    }

    /// Stops taking keys, and waits up to five seconds for the running reconciles. Returns for each controller how many
    /// of them were dropped.
    pub(crate) async fn stop(mut self) -> Vec<Drained> {
        self.trigger.pull();
        let mut drained = Vec::new();
        for task in std::mem::take(&mut self.tasks) {
            drained.push(task.await.expect("a controller does not panic"));
        }
        drained
    }
}

impl Drop for InProcessControllers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
