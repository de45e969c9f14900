//! The certificate of a webhook, from its issue to its renewal, and who trusts it.

mod authority;
mod keeper;
mod material;

pub(crate) use keeper::{Keeper, Kept};
pub(crate) use material::Lifetime;
