//! Duck types: the spec and status fields that objects of different Kinds have in common.

mod auth;
mod binding;
mod channelable;
mod delivery;
mod pod_specable;
mod source;
mod subscribable;

pub use self::{
    auth::AuthStatus,
    binding::BindingSpec,
    channelable::{ChannelableSpec, ChannelableStatus},
    delivery::{BackoffPolicy, DeliveryFormat, DeliverySpec, DeliveryStatus},
    pod_specable::{PodSpecable, PodSpecableSpec},
    source::{CloudEventAttributes, CloudEventOverrides, SourceSpec, SourceStatus},
    subscribable::{SubscribableSpec, SubscribableStatus, SubscriberSpec, SubscriberStatus},
};
