//! Conversion of objects between the versions of a Kind, and migration of stored objects.

pub(crate) mod hub;
mod partial;
pub(crate) mod storage_migration;
mod unknown_fields;
