//! The replicas that share the buckets: how they announce themselves, and how the buckets are divided.

mod announcement;
mod assignment;
mod balance;
mod member;
mod membership;

pub use self::member::Member;
pub(crate) use self::{
    announcement::Announcement,
    balance::{Balance, Step},
    membership::Membership,
};
