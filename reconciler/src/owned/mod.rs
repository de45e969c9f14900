//! The objects that an object controls: [`Owned`] lists them, and its verbs write them.
//!
//! Each verb of `Owned`, such as `apply`, is a file in `verbs`. [`OwnedAny`] finds a Kind at run time and returns an
//! `Owned` with the same verbs.

mod any;
mod applied;
mod child_kind;
mod desired;
mod error;
mod existing;
mod lister;
mod options;
mod owner;
mod upgrade;
mod verbs;
mod writer;

pub use self::{
    any::OwnedAny, applied::Applied, desired::apply_body, error::NotApplied, lister::Owned,
    options::OwnedOptions, owner::controller_reference,
};
pub(crate) use self::{child_kind::ChildKind, owner::owner_key, writer::Writer};
