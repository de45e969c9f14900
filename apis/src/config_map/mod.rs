//! Values in Knative's ConfigMaps.

mod checksum;
mod duration;

pub use self::{
    checksum::{EXAMPLE_CHECKSUM_ANNOTATION, example_checksum},
    duration::{DurationError, parse_duration},
};
