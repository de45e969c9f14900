//! Leases: what this process observed of them, and how it writes them.

mod announcement;
mod death;
mod error;
mod guard;
mod observed;
mod state;
mod table;
mod watch;

pub(crate) use self::{
    announcement::{Announcement, RunningControllers},
    death::proves_death,
    error::{LeaseError, asked_wait},
    guard::Guard,
    state::{LeaseState, TICK},
    table::{Leases, ObservedMember},
    watch::LeaseWatch,
};
