//! The objects that an object controls: [`Owned`] (`lister.rs`) lists them, and its verbs write them.
//!
//! Each verb of `Owned`, such as `apply`, is a file in `verbs`. [`OwnedAny`] finds a Kind at run time and returns an
//! `Owned` with the same verbs.

mod admitted;
mod annotation;
mod any;
mod applied;
mod creation;
mod desired;
mod dropped;
mod error;
mod existing;
mod get;
mod lister;
mod options;
mod owner;
mod restore;
mod reverted;
mod run_again;
mod terminating;
mod up_to_date;
mod upgrade;
mod verbs;

pub(crate) use self::owner::owner_key;
pub use self::{
    annotation::APPLIED, any::OwnedAny, applied::Applied, desired::apply_body, error::NotApplied,
    lister::Owned, options::OwnedOptions, owner::controller_reference,
};
