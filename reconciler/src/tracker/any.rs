//! Tracked reads by references whose Kind is known only at run time.

use std::{fmt, sync::Arc};

use kube::{
    Resource,
    api::{ApiResource, DynamicObject},
    core::Selector,
};
use reknit_apis::{KReference, Key, Reference};
use serde::de::DeserializeOwned;

use super::{
    duck::decode,
    dynamic_kinds::{DynamicKinds, FoundKind, Versions},
    tracked::matching,
};
use crate::{Error, Result, ResultExt};

/// Objects of any Kind for a pass to read by reference. A change of an object that was read enqueues the key of the
/// observer, the object whose pass read it, as with [`Tracked`](crate::Tracked).
///
/// Comes from [`Builder::track_any`](crate::Builder::track_any). The first reference to a Kind opens an informer for
/// it. The informer closes when no object of the controller refers to that Kind any more.
///
/// A user who can write a reference reads with the permissions of the controller, if only whether an object exists. So
/// a reference leads only to objects in the namespace of its observer, unless the controller allows more by
/// [`across_namespaces`](Self::across_namespaces), and only to the [`Kinds`](crate::Kinds) of the builder call.
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
    across_namespaces: bool,
    versions: Versions,
}

impl fmt::Debug for TrackedAny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedAny")
            .field("namespaces", &self.kinds.namespaces.selected_namespaces())
            .field("informers", &self.kinds.used.open_informers())
            .finish_non_exhaustive()
    }
}

impl TrackedAny {
    pub(crate) fn new(kinds: DynamicKinds) -> Self {
        Self { kinds, across_namespaces: false, versions: Versions::Named }
    }

    /// Lets references lead to any namespace that the controller selects, and to cluster-scoped Kinds. Every user who
    /// can write a reference then learns about objects of the [`Kinds`](crate::Kinds) in namespaces to which that user
    /// has no access.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use reknit_reconciler::{Builder, Kinds, TrackedAny};
    ///
    /// fn brokers(build: &mut Builder<Pod>) -> TrackedAny {
    ///     build.track_any(Kinds::of([("eventing.knative.dev", "brokers")])).across_namespaces()
    /// }
    /// ```
    #[must_use]
    pub fn across_namespaces(self) -> Self {
        Self { across_namespaces: true, ..self }
    }

    /// Lets a reference lead to an object in another version, if the API server no longer serves the version that the
    /// reference names. Without this, such a reference fails until somebody edits it.
    ///
    /// Use it if the fields that the controller reads are the same in all versions, as those of a duck type are.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use reknit_reconciler::{Builder, Kinds, TrackedAny};
    ///
    /// fn brokers(build: &mut Builder<Pod>) -> TrackedAny {
    ///     build.track_any(Kinds::of([("eventing.knative.dev", "brokers")])).in_any_version()
    /// }
    /// ```
    #[must_use]
    pub fn in_any_version(self) -> Self {
        Self { versions: Versions::Any, ..self }
    }

    /// Returns the object that the reference names. A reference without a namespace leads to the observer's namespace.
    ///
    /// # Errors
    ///
    /// These errors are permanent: a malformed reference; a Kind that is not among the [`Kinds`](crate::Kinds) of the
    /// builder call; a namespaced Kind without a namespace in either the reference or the observer; a namespace that
    /// the controller does not select. If the observer is in a namespace, and the controller does not allow references
    /// [across namespaces](Self::across_namespaces): another namespace; a cluster-scoped Kind, unless
    /// [`Kinds::of`](crate::Kinds::of) names its plural.
    ///
    /// Until the objects of a Kind are listed for the first time, the error [is waiting](crate::Error::is_waiting):
    /// return it, and the list enqueues the observer. It is never waited for, since that would delay other objects.
    ///
    /// These are retried with a backoff of at most 15 seconds: a Kind that the API server does not know; a Kind whose
    /// objects cannot be listed, or not within ten seconds. These are retried with the usual backoff: more than a hundred
    /// Kinds, more than 25 for the objects of one namespace, or more than 256 MiB of objects, of Kinds that are not named
    /// by the builder call.
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
        let (key, found) = (Key::of(observer), self.find(observer, reference).await?);
        let namespace = self.kinds.namespace(observer, reference.namespace.as_deref(), &found)?;
        if let Some(labels) = &reference.selector {
            let selector: Selector = labels.clone().try_into().permanent()?;
            self.kinds.record(&found, namespace, |reads| reads.read_matching(&key, namespace, &selector))?;
            return Ok(matching(&found.informer, namespace, &selector).collect());
        }
        let target = Key::new(namespace, reference.name.as_deref().unwrap_or_default());
        self.kinds.record(&found, namespace, |reads| reads.record_read(&key, &target))?;
        Ok(found.informer.get(&target).into_iter().collect())
    }

    /// Returns the objects with these labels, in all namespaces that the controller selects. The objects in the
    /// namespace of the reference have to be listed if it leads to one. Another that cannot be listed has none.
    pub(crate) async fn in_all_namespaces<O: Resource + Sync>(
        &self,
        observer: &O,
        reference: &Reference,
    ) -> Result<Vec<Arc<DynamicObject>>> {
        let (key, found) = (Key::of(observer), self.find(observer, reference).await?);
        let labels = reference.selector.clone().ok_or("the reference has no selector").permanent()?;
        let selector: Selector = labels.try_into().permanent()?;
        let named = self.kinds.namespace(observer, reference.namespace.as_deref(), &found).ok().flatten();
        for listed in [named, None] {
            self.kinds.record(&found, listed, |reads| reads.read_matching(&key, None, &selector))?;
        }
        Ok(matching(&found.informer, None, &selector).collect())
    }

    /// Finds the Kind of the reference, if the observer may refer to it.
    async fn find<O: Resource + Sync>(&self, observer: &O, reference: &Reference) -> Result<FoundKind> {
        let Reference { api_version, kind, .. } = reference;
        reference.check_trackable().permanent()?;
        self.check_namespace(observer, reference)?;
        let found = self.kinds.find(&Key::of(observer), api_version, kind, self.versions).await?;
        self.check_scope(observer, &found)?;
        Ok(found)
    }

    /// Refuses another namespace than that of an observer in a namespace, before any request.
    fn check_namespace<O: Resource>(&self, observer: &O, reference: &Reference) -> Result<()> {
        let Reference { api_version, kind, namespace, .. } = reference;
        let named = namespace.as_deref().filter(|named| !named.is_empty());
        match (observer.meta().namespace.as_deref(), named) {
            (Some(own), Some(named)) if !self.across_namespaces && named != own => {
                Err(Error::permanent(format!(
                    "the reference to a {kind} of {api_version} leads to the namespace {named}: {} may refer only to \
                     objects in its own namespace",
                    Key::of(observer)
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a cluster-scoped Kind to an observer in a namespace, unless the controller names just this Kind.
    fn check_scope<O: Resource>(&self, observer: &O, found: &FoundKind) -> Result<()> {
        let is_allowed = observer.meta().namespace.is_none()
            || found.kind.is_namespaced
            || self.across_namespaces
            || self.kinds.allowed.names(&found.kind.resource);
        let ApiResource { api_version, kind, .. } = &found.kind.resource;
        is_allowed
            .then_some(())
            .ok_or_else(|| {
                format!(
                    "the reference leads to a {kind} of {api_version}, which is cluster-scoped: {} may refer only to \
                     objects in its own namespace",
                    Key::of(observer)
                )
            })
            .permanent()
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
