//! Defaulting and validation of objects at admission.

mod cause_type;
mod defaultable;
mod field_error;
mod request;
mod validatable;

pub use self::{
    cause_type::CauseType,
    defaultable::Defaultable,
    field_error::{FieldError, Level},
    request::{Operation, Request},
    validatable::Validatable,
};
