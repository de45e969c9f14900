//! The types of Knative Eventing: sources, channels, delivery, destinations, addresses and bindings.
//!
//! JSON names and validation messages are the same as in Knative's Go libraries, so each side can read the objects of
//! the other. [`AddressResolver`] finds the address of a [`Destination`]. [`Binder`] and [`BindingMutator`] inject the
//! objects of a [`Bindable`] Kind into pod templates, as a SinkBinding does.
//!
//! ```
//! use reknit_apis::kind;
//! use reknit_knative::{SourceSpec, SourceStatus};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! /// Sends an event to a sink every minute.
//! #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
//! #[kube(group = "demo.reknit.dev", version = "v1", kind = "MinuteSource", namespaced, status = "SourceStatus")]
//! pub struct MinuteSourceSpec {
//!     /// The sink, and changes to each event.
//!     #[serde(flatten)]
//!     pub source: SourceSpec,
//! }
//!
//! kind!(MinuteSource { status: SourceStatus, conditions: knative(["SinkProvided"]) });
//! ```

mod addressable;
mod auth;
mod binding;
mod channelable;
mod delivery;
mod destination;
mod pod_specable;
mod resolver;
mod source;
mod subscribable;
mod url;

#[cfg(feature = "webhook")]
pub use self::binding::{BindingMutator, BindingSelection};
pub use self::{
    addressable::{AddressStatus, Addressable},
    auth::AuthStatus,
    binding::{Bindable, Binder, BindingSpec},
    channelable::{ChannelableSpec, ChannelableStatus},
    delivery::{BackoffPolicy, DeliveryFormat, DeliverySpec, DeliveryStatus},
    destination::Destination,
    pod_specable::{PodSpecable, PodSpecableSpec},
    resolver::AddressResolver,
    source::{CloudEventAttributes, CloudEventOverrides, SourceSpec, SourceStatus},
    subscribable::{SubscribableSpec, SubscribableStatus, SubscriberSpec, SubscriberStatus},
    url::{Url, UrlError},
};
