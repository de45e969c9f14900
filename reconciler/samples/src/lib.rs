//! The sample controllers, one file a Kind.
