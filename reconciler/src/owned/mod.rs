//! The objects that an object controls: listed, applied, created, deleted and adopted.

mod applied;
mod apply;
mod claim;
mod create_delete;
mod desired;
mod error;
mod lister;
mod owner;

pub(crate) use self::owner::owner_key;
pub use self::{applied::Applied, desired::applied, error::NotApplied, lister::Owned};
