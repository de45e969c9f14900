//! Controllers for Knative Eventing's Sequence, a list of subscribers to call one after the other: they create a
//! channel in front of each subscriber, and the Subscriptions between them. There is no data plane: no events flow.

mod channel;
mod reconciler;
mod sequence;
mod subscription;
mod webhook;

use std::process::ExitCode;

use reknit::{prelude::*, sharedmain::NamespaceFlag};

pub use self::{
    channel::{InMemoryChannel, InMemoryChannelSpec, controller as channels},
    reconciler::controller as sequences,
    sequence::{ChannelTemplate, Sequence},
    subscription::{Subscription, controller as subscriptions},
    webhook::{ChannelDefaults, webhook},
};

/// The program: its controllers and flags.
pub fn program() -> Main {
    Main::new("sequence")
        .flags::<NamespaceFlag>()
        .controller(sequences)
        .controller(subscriptions)
        .controller(channels)
        .webhook(webhook)
        .plannable()
}

fn main() -> ExitCode {
    program().run()
}
