//! Events about objects, published in the background.

mod budget;
mod dropped;
mod event;
mod pending;
mod publisher;
mod recorder;
mod series;
#[cfg(test)]
mod tests;

pub(crate) use self::recorder::event_permission;
pub use self::{
    event::{Event, EventType},
    recorder::Recorder,
};
