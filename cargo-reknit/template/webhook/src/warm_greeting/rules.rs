//! The rules of WarmGreeting objects.

use reknit::prelude::*;

use super::WarmGreeting;

impl Validatable for WarmGreeting {
    fn validate(&self, _: &Request) -> FieldError {
        // For each rule that is broken: FieldError::invalid_value(value, "spec.field"), combined by `also`.
        FieldError::none()
    }
}
