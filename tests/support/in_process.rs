//! Controllers that run within the test, for reconcilers that no sample would have.

use std::time::Duration;

use kube::{Client, Config};
use reknit::{
    injection::{Shutdown, ShutdownTrigger},
    prelude::*,
    reconciler::{Drained, Run, leader::Leadership},
};
use tokio::task::JoinHandle;

/// How a controller is made.
pub(crate) type Make = Box<dyn FnOnce(&Context) -> Result<Controller>>;

/// Controllers that run until they are stopped or dropped.
pub(crate) struct InProcess {
    trigger: ShutdownTrigger,
    running: Vec<JoinHandle<Drained>>,
}

impl InProcess {
    /// Leading, without leases.
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

    /// Stops taking keys, and answers how many passes were dropped.
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

/// Boxes a constructor, so that several of different types stand in one list.
pub(crate) fn make(make: impl FnOnce(&Context) -> Result<Controller> + 'static) -> Make {
    Box::new(make)
}
