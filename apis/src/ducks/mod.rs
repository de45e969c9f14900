//! Duck types: the parts that objects of different Kinds have in common.

mod pod_specable;

pub use pod_specable::{PodSpecable, PodSpecableSpec};
