//! Defaulting and validation of objects at admission.

mod defaultable;
mod field_error;
mod request;
mod validatable;

pub use self::{
    defaultable::Defaultable,
    field_error::{FieldError, Level},
    request::{Operation, Request},
    validatable::Validatable,
};
