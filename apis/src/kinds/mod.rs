//! Kinds that a controller can reconcile, and their scopes.

pub(crate) mod built_in;
mod declare;
mod kind;
mod kr_shaped;
mod scope;

pub use self::{
    kind::{Kind, StatusOf},
    kr_shaped::KRShaped,
    scope::{OwnedBy, Scope, Sees},
};
