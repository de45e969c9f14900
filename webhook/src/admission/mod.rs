//! Admission reviews: defaulting, validation and strict decoding of objects.

pub(crate) mod config_maps;
pub(crate) mod decoding;
pub(crate) mod defaulting;
mod merge;
pub(crate) mod review;
pub(crate) mod test_request;
pub(crate) mod validation;
