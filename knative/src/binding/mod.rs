//! Bindings, which inject into the pod templates of other objects.

mod bindable;
mod binder;
mod bindings;
#[cfg(feature = "webhook")]
mod mutator;
mod order;
#[cfg(feature = "webhook")]
mod selection;
mod spec;

pub use self::{bindable::Bindable, binder::Binder, spec::BindingSpec};
#[cfg(feature = "webhook")]
pub use self::{mutator::BindingMutator, selection::BindingSelection};
