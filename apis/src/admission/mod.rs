//! Defaulting and validation of objects at admission.

mod field_error;
mod request;

pub use self::{
    field_error::{FieldError, Level},
    request::{Defaultable, Operation, Request, Validatable},
};
