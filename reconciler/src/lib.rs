//! What turns a key into a status: queue, driver, finalizers, events, tracker, leadership.

mod backoff;
mod builder;
mod concluding;
mod controller;
mod driver;
mod endpoint;
mod error;
mod event;
mod every;
mod finalizer;
pub mod keys;
pub mod leader;
mod limits;
mod metrics;
mod outcome;
mod queue;
mod recorder;
mod roles;
mod span;
mod status;
mod tracker;
mod watch;

pub use builder::{Builder, Keys, WithReconciler};
pub use controller::{Controller, Drained, Health, Run, Working};
pub use error::{Error, Permanent, Result};
pub use event::Event;
pub use outcome::Outcome;
pub use queue::Queue;
pub use recorder::Recorder;
pub use reknit_apis::{KReference, Key, Reference};
pub use roles::{FinalizeKind, ObserveDeletion, ObserveKind, ReconcileKey, ReconcileKind};
pub use tracker::{Owned, Tracked, TrackedAny};
pub use watch::Watch;

/// Makes a controller: what `main` is given a list of.
pub type ControllerConstructor = fn(&reknit_injection::Context) -> Result<Controller>;
