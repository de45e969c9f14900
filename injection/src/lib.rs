//! What a Kubernetes controller reads: informers, listers and configuration, injected by type.
//!
//! A [`Context`] exists while controllers are constructed and hands out what they share. An [`Informer`] watches a
//! [`Selection`] of a Kind, keeps it, tells of each [`Change`], and knows what this process has written before the
//! watch says so. A [`Config`] is a ConfigMap as a typed value.
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

mod answer;
mod arena;
mod backoff;
mod cache;
mod change;
mod config;
mod context;
mod discovery;
mod extensions;
mod feed;
mod filter;
mod gone;
mod index;
mod informer;
mod inject;
mod intake;
mod list_watch;
mod metrics;
#[cfg(test)]
mod model;
mod own_writes;
mod place;
mod raw;
mod read_back;
mod record;
mod registry;
mod resource_path;
mod scan;
#[cfg(test)]
mod scripted;
mod selection;
mod shutdown;
mod source;
mod store;
mod table;
mod touched;
mod transport;
mod undecodable;
mod version;
mod waiters;

pub use change::{Change, Old};
pub use config::{Config, FromConfigMap, pinned};
pub use context::{Builder, Context};
pub use discovery::Unresolved;
pub use extensions::{Newest, NotRepeated, StatusWrite};
pub use feed::{Feed, FeedState};
pub use filter::{Filter, annotation, controlled_by, controller_name, label, named, namespace};
pub use index::Index;
pub use informer::{Cached, Informer, Metadata};
pub use inject::{Inject, Missing};
pub use registry::Informers;
pub use resource_path::ResourcePath;
pub use selection::{Selection, select};
pub use shutdown::{Shutdown, ShutdownTrigger};
pub use touched::Touched;
pub use transport::{Answer, Transport};
pub use undecodable::DecodeError;
