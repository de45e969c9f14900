//! The types that an informer can cache.

use std::fmt::Debug;

use kube::{Resource, core::PartialObjectMeta};
use serde::de::DeserializeOwned;

/// A type that an informer can cache: any type that kube can watch. The trait is implemented for all such types.
pub trait Cached: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static {}

impl<K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Cached for K {}

/// The metadata of a Kind alone, for a fraction of the memory: `cx.get::<Informer<Metadata<Pod>>>()`.
pub type Metadata<K> = PartialObjectMeta<K>;
