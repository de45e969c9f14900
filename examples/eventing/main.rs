//! Controllers for Knative Eventing's ContainerSource, SinkBinding, Trigger and Broker. There is no data plane: no
//! events flow.

mod broker;
mod container_source;
mod sink_binding;
mod trigger;
// The channels and Subscriptions that Brokers and Triggers create are those of the example `sequence`.
#[path = "../sequence/channel.rs"]
#[allow(clippy::duplicate_mod, reason = "a test includes this program and sequence in one crate")]
mod channel;
#[path = "../sequence/subscription.rs"]
#[allow(clippy::duplicate_mod, reason = "a test includes this program and sequence in one crate")]
mod subscription;

use std::process::ExitCode;

use reknit::{knative::BindingMutator, prelude::*, sharedmain::NamespaceFlag};

pub use self::{
    broker::{Broker, controller as brokers},
    channel::{InMemoryChannel, controller as channels},
    container_source::{ContainerSource, controller as container_sources},
    sink_binding::{SinkBinding, controller as sink_bindings},
    subscription::{Subscription, controller as subscriptions},
    trigger::{Trigger, controller as triggers},
};

/// The webhook: defaults and validation of ContainerSource, SinkBinding and Trigger. It also injects the sink into the
/// subjects of SinkBindings when they are admitted.
pub fn webhook(cx: &Context) -> Result<Webhook> {
    Ok(Webhook::new("eventing.knative.dev")
        .defaulting::<ContainerSource>()
        .defaulting::<SinkBinding>()
        .defaulting::<Trigger>()
        .validation::<ContainerSource>()
        .validation::<SinkBinding>()
        .validation::<Trigger>()
        .mutator(BindingMutator::of::<SinkBinding>(cx)))
}

/// The program: its controllers and flags.
pub fn program() -> Main {
    Main::new("eventing")
        .flags::<NamespaceFlag>()
        .controller(container_sources)
        .controller(sink_bindings)
        .controller(triggers)
        .controller(brokers)
        .controller(channels)
        .controller(subscriptions)
        .webhook(webhook)
        .plannable()
}

fn main() -> ExitCode {
    program().run()
}
