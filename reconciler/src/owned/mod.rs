//! The objects that an object controls: listed, applied, created, deleted and adopted.

mod any;
mod applied;
mod apply;
mod child_kind;
mod claim;
mod create_delete;
mod desired;
mod error;
mod lister;
mod owner;
mod update;
mod upgrade;
mod verbs;

pub use self::{
    any::OwnedAny, applied::Applied, desired::apply_body, error::NotApplied, lister::Owned,
    owner::controller_reference,
};
pub(crate) use self::{child_kind::ChildKind, owner::owner_key, verbs::APPLY_VERBS};
