//! The methods of [`Owned`](super::Owned) that write children.
//!
//! No method declares its RBAC verbs: the user names them by [`OwnedOptions::verbs`](super::OwnedOptions::verbs). A new
//! method gets a file here, a row in the table there, and one in the table of permissions of the crate.

mod apply;
mod claim;
mod create;
mod create_or_update;
mod delete;
