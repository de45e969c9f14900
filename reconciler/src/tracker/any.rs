//! Tracked reads by references whose Kind is known only at run time.

use std::{fmt, sync::Arc};

use kube::{Resource, api::DynamicObject, core::Selector};
use reknit_apis::{KReference, Key, Reference};
use serde::de::DeserializeOwned;

use super::{duck::decode, dynamic_kinds::DynamicKinds, tracked::matching};
use crate::{Result, ResultExt, declared_kinds::DeclaredKinds};

/// Objects of any Kind for a pass to read by reference. A change of an object that was read enqueues the key of the
/// observer, the object whose pass read it, as with [`Tracked`](crate::Tracked).
///
/// Comes from [`Builder::track_any`](crate::Builder::track_any). The first reference to a Kind opens an informer for
/// it. The informer closes when no object of the controller refers to that Kind any more.
///
/// Anyone who can write a reference can make the controller watch a Kind in all the namespaces that it reads. Limit the
/// API groups with [`groups`](Self::groups), or validate references at admission.
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
    declared: DeclaredKinds,
}

impl fmt::Debug for TrackedAny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedAny")
            .field("namespaces", &self.kinds.namespaces().selected_namespaces())
            .field("informers", &self.kinds.open_informers())
            .finish_non_exhaustive()
    }
}

impl TrackedAny {
    pub(crate) fn new(kinds: DynamicKinds, declared: DeclaredKinds) -> Self {
        Self { kinds, declared }
    }

    /// Declares the resources to which references may lead, by API group and plural name, for the generated RBAC rules.
    /// As in RBAC rules, `""` is the core group, and the plural `*` is every resource of the group.
    ///
    /// This does not limit the references: a cluster may grant further permissions by a role of its own.
    /// [`groups`](Self::groups) limits them. Declare a cluster-scoped Kind of a controller of selected namespaces by
    /// [`Builder::allows`](crate::Builder::allows) instead.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use reknit_reconciler::{Builder, TrackedAny};
    ///
    /// fn sinks(build: &mut Builder<Pod>) -> TrackedAny {
    ///     build.track_any().resources([("", "services"), ("serving.knative.dev", "services")])
    /// }
    /// ```
    pub fn resources<G: Into<String>, R: Into<String>>(
        mut self,
        resources: impl IntoIterator<Item = (G, R)>,
    ) -> Self {
        self.declared.set_resources(resources);
        self
    }

    /// Allows only references to Kinds of these API groups. As in RBAC rules, `""` is the core group.
    ///
    /// A reference to any other group is a permanent error, and opens no informer.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use reknit_reconciler::{Builder, TrackedAny};
    ///
    /// fn sinks(build: &mut Builder<Pod>) -> TrackedAny {
    ///     build.track_any().groups(["", "serving.knative.dev", "messaging.knative.dev"])
    /// }
    /// ```
    pub fn groups<G: Into<String>>(mut self, groups: impl IntoIterator<Item = G>) -> Self {
        self.kinds.set_groups(groups);
        self
    }

    /// Returns the object that the reference names. A reference without a namespace leads to the observer's namespace.
    ///
    /// # Errors
    ///
    /// These errors are permanent: a malformed reference; an API group that is not [allowed](Self::groups); a
    /// namespaced Kind without a namespace in either the reference or the observer; a namespace that the controller
    /// does not select.
    ///
    /// These are retried at least every half minute: a Kind that the API server does not know; a Kind whose objects
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
        let namespace = self.kinds.namespace(observer, reference.namespace.as_deref(), &found).permanent()?;
        let observer = Key::of(observer);
        if let Some(labels) = &reference.selector {
            let selector: Selector = labels.clone().try_into().permanent()?;
            self.kinds.read(&found, |tracker| tracker.read_matching(&observer, namespace, &selector));
            found.first_list().await?;
            return Ok(matching(&found.informer, namespace, &selector).collect());
        }
        let target = Key::new(namespace, reference.name.as_deref().unwrap_or_default());
        self.kinds.read(&found, |tracker| tracker.read(&observer, &target));
        found.first_list().await?;
        Ok(found.informer.get(&target).into_iter().collect())
    }

    /// Returns the object that the reference names as a `T`, usually a [`Duck`](crate::Duck).
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use reknit_reconciler::{Duck, KReference, NoFields, Result, TrackedAny};
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize, Default)]
    /// struct SourceStatus {
    ///     #[serde(rename = "sinkUri")]
    ///     sink_uri: Option<String>,
    /// }
    ///
    /// async fn sink_of(sources: &TrackedAny, pod: &Pod, source: &KReference) -> Result<Option<String>> {
    ///     let source = sources.get_as::<Duck<NoFields, SourceStatus>>(pod, source).await?;
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
        found.map(|object| decode(&object)).transpose().permanent()
    }

    /// Returns the objects that the reference names or selects as `T`s, as [`get_as`](Self::get_as) does.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get_as`](Self::get_as).
    pub async fn all_as<T: DeserializeOwned>(
        &self,
        observer: &(impl Resource + Sync),
        reference: &Reference,
    ) -> Result<Vec<T>> {
        let found = self.all(observer, reference).await?;
        found.iter().map(|object| decode(object)).collect::<Result<_, _>>().permanent()
    }

    /// Returns the keys of the objects whose passes have read this object, by its name or by its labels. Corresponds to
    /// `GetObservers` of Knative's tracker. An object without `types` has none.
    pub fn observers(&self, object: &DynamicObject) -> Vec<Key> {
        self.kinds.observers(object)
    }

    /// Drops all reads by this observer before it is gone. Call it in `finalize_kind` if the observer may remain for
    /// some time.
    pub fn forget<O: Resource>(&self, observer: &O) {
        self.kinds.forget(&Key::of(observer));
    }
}
