//! The outcome of a validation.

use crate::response::FieldError;

/// The errors of a value, and how many checks it has passed.
///
/// Of several alternatives, the API server reports the errors of the one whose checks were passed the most often. The count
/// is that of kube-openapi: each check that applies counts, and some count once more if they are passed.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) errors: Vec<FieldError>,
    pub(super) matches: usize,
}

impl Outcome {
    pub(super) fn passed() -> Self {
        Self { errors: Vec::new(), matches: 1 }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    /// Adds an error that is not reported yet.
    pub(super) fn add(&mut self, error: FieldError) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.matches += other.matches;
        other.errors.into_iter().for_each(|error| self.add(error));
    }
}

impl From<FieldError> for Outcome {
    fn from(error: FieldError) -> Self {
        Self { errors: vec![error], matches: 0 }
    }
}
