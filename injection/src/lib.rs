//! Informers, listers and configuration of a Kubernetes controller, injected by type.
//!
//! A [`Context`] exists while controllers are constructed and hands out the values that they share. An [`Informer`]
//! watches and caches a [`Selection`] of a Kind, and calls handlers with each [`Change`]. The cache holds the process's
//! own writes before the watch reports them. A [`Config`] is a ConfigMap as a typed value.
//!
//! ```no_run
//! use k8s_openapi::api::core::v1::Pod;
//! use reknit_apis::Key;
//! use reknit_injection::{Context, Informer, select};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), kube::Error> {
//! let pods = {
//!     let cx = Context::new("example", kube::Client::try_default().await?);
//!     let pods: Informer<Pod> = cx.informer(select().namespace("shop"));
//!     pods.on(|change| println!("{}", change.key()));
//!     cx.informers().start();
//!     pods
//! };
//! pods.synced().await;
//! let web = pods.get(&Key::new("shop", "web"));
//! # let _ = web;
//! # Ok(())
//! # }
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod cache;
mod client;
mod clock;
mod config;
mod context;
mod effects;
mod error_text;
mod features;
mod fights;
mod informer;
#[doc(hidden)]
pub mod internal;
mod log_limit;
mod metrics;
mod object;
mod ordered_watch;
mod pass;
mod permissions;
mod recording;
mod redaction;
mod reflector;
mod shallow;
mod shared_table;
mod stack_question;
#[cfg(test)]
mod testing;
mod timing;

pub use cache::DecodeError;
pub use clock::Clock;
pub use config::{Config, FromConfigMap, config_map_name};
pub use context::{Context, ContextBuilder, Inject, Missing, Shutdown, ShutdownTrigger};
pub use effects::Effects;
pub use features::{FeatureFlag, Features};
pub use informer::{
    Cached, Change, Filter, Index, Informer, InformerHandle, InformerState, Informers, Metadata, NotSynced,
    Selection, Unresolved, Unwatched, annotation, controlled_by, controller_name, label, named, namespace,
    select,
};
pub use permissions::{Permission, Verb};
