//! Leases: what this process observed of them, and how it writes them.

mod error;
mod guard;
mod observed;
mod state;
mod table;
mod watch;

pub(crate) use self::{
    error::LeaseError,
    guard::Guard,
    state::{LeaseState, holder},
    table::{Leases, ObservedMember},
    watch::LeaseWatch,
};
