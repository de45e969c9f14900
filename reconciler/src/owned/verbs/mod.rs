//! The verbs of [`Owned`](super::Owned), each with the permissions that it needs. A new verb gets a file here and a row
//! in the table of [`OwnedOptions::verbs`](super::OwnedOptions::verbs).

mod apply;
mod claim;
mod create;
mod create_or_update;
mod delete;
