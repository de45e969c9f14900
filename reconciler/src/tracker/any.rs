//! Tracked reads by references whose Kind is known only at run time.

use std::{fmt, sync::Arc};

use kube::{Resource, api::DynamicObject, core::Selector};
use reknit_apis::{KReference, Key, Reference};
use serde::de::DeserializeOwned;

use super::{duck::decode, dynamic_kinds::DynamicKinds, tracked::matching};
use crate::{Result, ResultExt};

/// Objects of any Kind for a pass to read by reference. A change of an object that was read enqueues the key of the
/// observer, the object whose pass read it, as with [`Tracked`](crate::Tracked).
///
/// Comes from [`Builder::track_any`](crate::Builder::track_any). The first reference to a Kind opens an informer for
/// it. The informer closes when no object of the controller refers to that Kind any more.
///
/// A user who can write a reference can make the controller watch a Kind in all the namespaces that it reads. The
/// [`Kinds`](crate::Kinds) of the builder call limit this.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use reknit_reconciler::{KReference, Result, TrackedAny};
///
/// async fn sink_exists(sinks: &TrackedAny, pod: &Pod, sink: &KReference) -> Result<bool> {
///     Ok(sinks.get(pod, sink).await?.is_some())
/// }
/// ```
#[derive(Clone)]
pub struct TrackedAny {
    kinds: DynamicKinds,
}

impl fmt::Debug for TrackedAny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedAny")
            .field("namespaces", &self.kinds.namespaces.selected_namespaces())
            .field("informers", &self.kinds.open_informers())
            .finish_non_exhaustive()
    }
}

impl TrackedAny {
    pub(crate) fn new(kinds: DynamicKinds) -> Self {
        Self { kinds }
    }

    /// Returns the object that the reference names. A reference without a namespace leads to the observer's namespace.
    ///
    /// # Errors
    ///
    /// These errors are permanent: a malformed reference; a Kind that is not among the [`Kinds`](crate::Kinds) of the
    /// builder call; a namespaced Kind without a namespace in either the reference or the observer; a namespace that
    /// the controller does not select.
    ///
    /// These are retried at least every 15 seconds: a Kind that the API server does not know; a Kind whose objects
    /// cannot be listed, or not within ten seconds.
    pub async fn get<O: Resource + Sync>(
        &self,
        observer: &O,
        reference: &KReference,
    ) -> Result<Option<Arc<DynamicObject>>> {
        let reference = Reference::from(reference.clone());
        Ok(self.all(observer, &reference).await?.into_iter().next())
    }

    /// Returns the objects that the reference names or selects. A reference without a namespace leads to the observer's
    /// namespace.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get`](Self::get).
    pub async fn all<O: Resource + Sync>(
        &self,
        observer: &O,
        reference: &Reference,
    ) -> Result<Vec<Arc<DynamicObject>>> {
        reference.check_trackable().permanent()?;
        let found = self.kinds.find(&reference.api_version, &reference.kind).await?;
        let namespace = self.kinds.namespace(observer, reference.namespace.as_deref(), &found)?;
        let observer = Key::of(observer);
        if let Some(labels) = &reference.selector {
            let selector: Selector = labels.clone().try_into().permanent()?;
            self.kinds
                .record(&found, namespace, |reads| reads.read_matching(&observer, namespace, &selector))
                .await?;
            return Ok(matching(&found.informer, namespace, &selector).collect());
        }
        let target = Key::new(namespace, reference.name.as_deref().unwrap_or_default());
        self.kinds.record(&found, namespace, |reads| reads.record_read(&observer, &target)).await?;
        Ok(found.informer.get(&target).into_iter().collect())
    }

    /// Returns the object that the reference names as a `T`, usually a [`Duck`](crate::Duck).
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use reknit_reconciler::{Duck, KReference, Result, TrackedAny};
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize, Default)]
    /// struct SourceStatus {
    ///     #[serde(rename = "sinkUri")]
    ///     sink_uri: Option<String>,
    /// }
    ///
    /// async fn sink_of(sources: &TrackedAny, pod: &Pod, source: &KReference) -> Result<Option<String>> {
    ///     let source = sources.get_as::<Duck<SourceStatus>>(pod, source).await?;
    ///     Ok(source.and_then(|source| source.status.sink_uri))
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get`](Self::get). An object that cannot be decoded is a permanent error; its next change
    /// enqueues the observer.
    pub async fn get_as<T: DeserializeOwned>(
        &self,
        observer: &(impl Resource + Sync),
        reference: &KReference,
    ) -> Result<Option<T>> {
        let found = self.get(observer, reference).await?;
        found.map(|object| decode(&object)).transpose()
    }
}
