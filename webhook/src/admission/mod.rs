//! Admission reviews: defaulting, validation and strict decoding of objects.
//!
//! | a rule | is in |
//! | --- | --- |
//! | about the object itself | `validation`, through `Validatable` of `reknit_apis` |
//! | that reads other objects | `validators`, and `deletion_validators` |
//! | about a ConfigMap | `config_maps` |
//! | that changes objects | `defaulting` of Kinds, `mutator` of others |
//!
//! A further step also needs a path, in `endpoints` of the crate, and a place in `test_request`.

pub(crate) mod caches;
pub(crate) mod change;
pub(crate) mod config_maps;
pub(crate) mod decoding;
pub(crate) mod defaulting;
pub(crate) mod deletion_validators;
pub(crate) mod denial;
mod fault_path;
pub(crate) mod group_version_kind;
pub(crate) mod mutator;
pub(crate) mod outcome;
pub(crate) mod ratchet;
pub(crate) mod request_values;
pub(crate) mod review;
pub(crate) mod test_request;
pub(crate) mod unknown_fields;
pub(crate) mod validation;
pub(crate) mod validators;
