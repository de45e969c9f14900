//! Items for the other crates of reknit. They are not part of the public API, and may change in any release.

pub use crate::schema::complete_schema;
pub use crate::{
    environment::{
        Environment, Seeded, host_name, now, random, random_range, random_uuid, suspended, variable, within,
    },
    hash::{HashMap, HashSet, HashState},
    kinds::built_in::BuiltInKind,
    visible::visible,
};
