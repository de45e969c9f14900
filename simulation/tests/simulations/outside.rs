//! Controllers that no simulation can run: they need what is outside of it, or never end a pass.

use std::{future::pending, pin::Pin, time::SystemTime};

use kube::{Client, Config};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Error, Event, Outcome, ReconcileKind, Result};
use reknit_simulation::{Simulation, simulation};

use crate::widgets::{Widget, WidgetStatus, life_of_a_widget};

/// The body of a pass.
type Act = fn() -> Pin<Box<dyn Future<Output = Result<Outcome>> + Send>>;

struct Acting(Act);

impl ReconcileKind for Acting {
    type Kind = Widget;

    async fn reconcile_kind(&self, _: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        (self.0)().await
    }
}

fn acting(act: Act) -> Simulation {
    let controller = move |cx: &Context| Ok(Controller::of::<Widget>(cx).reconciler(Acting(act)).build());
    life_of_a_widget(simulation([controller])).seeds(0..0)
}

#[test]
#[should_panic(
    expected = "violated: no pass panics\n  a pass of shop/a failed: the reconciler panicked: a simulation has no \
                threads"
)]
fn a_pass_that_blocks_a_thread_is_told_to_use_a_stub() {
    acting(|| {
        Box::pin(async {
            tokio::task::spawn_blocking(|| ()).await?;
            Ok(Outcome::done())
        })
    })
    .run();
}

#[test]
#[should_panic(expected = "\n  A simulation has no sockets: provide a stub")]
fn a_pass_with_a_client_of_its_own_is_told_to_use_a_stub() {
    acting(|| {
        Box::pin(async {
            let client = Client::try_from(Config::new(http::Uri::from_static("http://127.0.0.1:9")))?;
            client.apiserver_version().await?;
            Ok(Outcome::done())
        })
    })
    .run();
}

#[test]
#[should_panic(expected = "\n  in its body, note is \"")]
fn two_runs_with_the_time_of_the_machine_differ_in_a_request() {
    acting(|| {
        Box::pin(async {
            let now = format!("{:?}", SystemTime::now());
            Ok(Outcome::done().event(Event::normal("Reconciled", now)))
        })
    })
    .run();
}

#[test]
#[should_panic(
    expected = "violated: it comes to rest\n  a pass of widgets.demo.reknit.dev shop/a has run since 1."
)]
fn a_pass_that_never_ends_is_found() {
    acting(|| Box::pin(pending())).run();
}

#[test]
#[should_panic(
    expected = "have completed no pass (passes of: none): create an object of their Kind in a step, or leave \
                           them out\n  widgets.demo.reknit.dev shop/b: error: no such bucket"
)]
fn a_controller_that_always_fails_is_not_simulated() {
    acting(|| Box::pin(async { Err(Error::from("no such bucket")) })).run();
}
