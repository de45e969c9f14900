//! The methods of [`Owned`](super::Owned) that write children.
//!
//! A method that writes a child by its name takes these steps; `apply` has all of them:
//!
//! 1. `desired` checks the names, and adds the owner.
//! 2. `find_in_cache` finds the child, and refuses one of another owner. `read_live` asks the API server for one that the cache
//!    lacks.
//! 3. A child that is up to date, or that is being deleted (`report_terminating`), needs no request.
//! 4. `take_over` adopts a child that was restored from a backup, with the fields of its earlier managers.
//! 5. `check_creation` or `check_update` refuses what a terminating owner, or the length of the name, forbids.
//! 6. The `ObjectClient` sends the request. Its answer enters the cache by itself.
//! 7. `report_dropped` reports values that were not stored, and the metrics count the result.
//!
//! `create` has no child to find, and `claim` and `delete` get the object that they write.
//!
//! No method declares its RBAC verbs: `owns` declares get, create and patch, and the user names others by
//! [`OwnedOptions::verbs`](super::OwnedOptions::verbs). A new method gets a file here, a row in the table there, and one in the
//! table of permissions of the crate.

mod apply;
mod claim;
mod create;
mod create_or_update;
mod delete;
