//! Controllers that run within the test.

use std::time::Duration;

use kube::{Client, Config};
use reknit::{
    injection::{Shutdown, ShutdownTrigger},
    prelude::*,
    reconciler::{Drained, Run, leader::Leadership},
};
use tokio::task::JoinHandle;

/// A constructor of a controller.
pub(crate) type Make = Box<dyn FnOnce(&Context) -> Result<Controller>>;

/// Running controllers. They stop when [`stop`](Self::stop) is called, or on drop.
pub(crate) struct InProcess {
    trigger: ShutdownTrigger,
    running: Vec<JoinHandle<Drained>>,
}

impl InProcess {
    /// Starts the controllers as leaders, without leases.
    pub(crate) fn start(config: Config, made: impl IntoIterator<Item = Make>) -> Self {
        let (trigger, shutdown) = Shutdown::new();
        let client = Client::try_from(config).expect("a client");
        let cx = Context::builder("test", client).shutdown(shutdown.clone()).build();
        let controllers: Vec<_> =
            made.into_iter().map(|make| make(&cx.scoped()).expect("the constructor succeeds")).collect();
        let informers = cx.informers();
        drop(cx);
        informers.start();
        let run = |controller: Controller| {
            let run = Run {
                leadership: Leadership::always(),
                stop: shutdown.clone(),
                drain: Duration::from_secs(5),
                workers: None,
            };
            tokio::spawn(controller.run(run))
        };
        Self { trigger, running: controllers.into_iter().map(run).collect() }
    }

    /// Stops taking keys, and returns how many reconciles each controller dropped.
    pub(crate) async fn stop(mut self) -> Vec<Drained> {
        self.trigger.pull();
        let mut drained = Vec::new();
        for running in std::mem::take(&mut self.running) {
            drained.push(running.await.expect("a controller does not panic"));
        }
        drained
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.running.iter().for_each(JoinHandle::abort);
    }
}

/// Boxes a constructor, so that a list can hold several types.
pub(crate) fn make(make: impl FnOnce(&Context) -> Result<Controller> + 'static) -> Make {
    Box::new(make)
}
