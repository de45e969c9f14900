//! Injects into the subjects of bindings at admission, before the subjects are stored.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    batch::v1::Job,
};
use kube::api::ApiResource;
use reknit_apis::{Kind, Request};
use reknit_injection::{Context, internal::optional_informer, select};
use reknit_webhook::Mutator;
use serde_json::Value;

use super::{
    bindable::{Bindable, ChangeError, bind, unbind, with_changes},
    bindings::Bindings,
    selection::BindingSelection,
};
use crate::pod_specable::PodSpecable;

/// Finds the bindings of one Kind that refer to the object. Returns their injections.
type Injections = Box<dyn Fn(&Value) -> serde_json::Result<Vec<Injection>> + Send + Sync>;

/// The change that one binding makes to a subject.
struct Injection {
    /// True if the binding is being deleted.
    is_withdrawn: bool,
    change: Box<dyn Fn(&mut PodSpecable)>,
}

/// Injects into the subjects of bindings, the objects whose pods they change, when a subject is created and when its
/// pod template is updated, so that no pod starts without the injection. In Knative's Go library this is
/// `psbinding.NewAdmissionController`.
///
/// The API server calls it for Deployments, StatefulSets, DaemonSets and Jobs, and for the Kinds of
/// [`subject`](Self::subject). The controller ([`Binder`](crate::Binder)) injects into subjects of other Kinds, and
/// into subjects that are older than their binding. An update that keeps the pod template is left to the controller,
/// since the API server would refuse a change of a Job's template. Bindings that are being deleted withdraw their
/// injections before the others inject theirs.
///
/// The bindings of all namespaces are read from a cache, for which the service account of the webhook needs the verbs
/// `list` and `watch`. A webhook that has just started denies subjects with 503 until it has listed the bindings, for a
/// minute at most. While the API server does not serve the Kind of the bindings, subjects are admitted with a warning. If a
/// subject is created before its binding is in the cache, the controller binds it, unless it is a Job.
///
/// Label the namespace of the webhook with `bindings.knative.dev/exclude: "true"`. Otherwise its Deployment cannot be
/// updated while the webhook is down.
///
/// ```
/// use reknit_injection::Context;
/// use reknit_knative::{Bindable, BindingMutator};
/// use reknit_reconciler::Result;
/// use reknit_webhook::Webhook;
///
/// fn webhook<K: Bindable>(cx: &Context) -> Result<Webhook> {
///     Ok(Webhook::new("demo.reknit.dev").mutator(BindingMutator::of::<K>(cx)))
/// }
/// ```
#[derive(derive_more::Debug)]
pub struct BindingMutator {
    #[debug(skip)]
    kinds: Vec<Injections>,
    /// The Kinds of the subjects.
    subjects: Vec<ApiResource>,
    selection: BindingSelection,
}

impl BindingMutator {
    /// Injects the bindings of this Kind.
    pub fn of<K: Bindable>(cx: &Context) -> Self {
        let subjects = vec![
            ApiResource::erase::<DaemonSet>(&()),
            ApiResource::erase::<Deployment>(&()),
            ApiResource::erase::<StatefulSet>(&()),
            ApiResource::erase::<Job>(&()),
        ];
        Self { kinds: Vec::new(), subjects, selection: BindingSelection::default() }.and::<K>(cx)
    }

    /// Injects the bindings of this Kind, too.
    pub fn and<K: Bindable>(mut self, cx: &Context) -> Self {
        self.kinds.push(injections::<K>(cx));
        self
    }

    /// Injects into subjects of another Kind with a pod template, too.
    ///
    /// ```
    /// use kube::{api::ApiResource, core::GroupVersionKind};
    /// use reknit_injection::Context;
    /// use reknit_knative::{Bindable, BindingMutator};
    ///
    /// fn mutator<K: Bindable>(cx: &Context) -> BindingMutator {
    ///     let service = GroupVersionKind::gvk("serving.knative.dev", "v1", "Service");
    ///     BindingMutator::of::<K>(cx).subject(ApiResource::from_gvk(&service))
    /// }
    /// ```
    pub fn subject(mut self, resource: ApiResource) -> Self {
        self.subjects.push(resource);
        self
    }

    /// Sets which labels select the namespaces and the objects for which the API server calls the webhook.
    pub fn selection(self, selection: BindingSelection) -> Self {
        Self { selection, ..self }
    }
}

impl Mutator for BindingMutator {
    fn path(&self) -> &'static str {
        "/bindings"
    }

    fn resources(&self) -> &[ApiResource] {
        &self.subjects
    }

    fn configure(&self, entry: &mut Value) {
        self.selection.select(entry);
    }

    fn mutate(&self, request: &Request, old: Option<&Value>, object: &mut Value) -> Result<(), String> {
        let template = |object: &Value| object.pointer("/spec/template").cloned();
        let is_template_kept = old.is_some_and(|old| template(old) == template(object));
        if request.subresource.is_some() || is_template_kept || template(object).is_none() {
            return Ok(());
        }
        let undecodable = |error| format!("unable to decode object: {error}");
        let injections = self.kinds.iter().map(|injections| injections(object));
        let injections = injections.collect::<Result<Vec<_>, _>>().map_err(undecodable)?;
        let mut injections: Vec<_> = injections.into_iter().flatten().collect();
        // A binding may withdraw names that another one injects in its place.
        injections.sort_by_key(|injection| !injection.is_withdrawn);
        let changes: Vec<_> = injections.into_iter().map(|injection| injection.change).collect();
        if !changes.is_empty() {
            *object = with_changes(object, &changes).map_err(|error| match error {
                ChangeError::Decode(error) => undecodable(error),
                too_large @ ChangeError::TooLarge => too_large.to_string(),
            })?;
        }
        Ok(())
    }
}

/// Opens the informer of one Kind of bindings, and returns their injections. Subjects are admitted even if the
/// CustomResourceDefinition of the bindings is missing.
fn injections<K: Bindable>(cx: &Context) -> Injections {
    let bindings = Bindings::<K>::new(&optional_informer(cx, select()));
    Box::new(move |object| Ok(bindings.of(object)?.into_iter().map(injection).collect()))
}

fn injection<K: Bindable>(binding: Arc<K>) -> Injection {
    Injection {
        is_withdrawn: binding.meta().deletion_timestamp.is_some(),
        change: Box::new(move |subject| inject(&*binding, subject)),
    }
}

fn inject<K: Bindable>(binding: &K, subject: &mut PodSpecable) {
    match (&binding.meta().deletion_timestamp, binding.read_status()) {
        (Some(_), _) => unbind(binding, subject),
        (None, Some(status)) => bind(binding, status, subject),
        (None, None) => bind(binding, &Default::default(), subject),
    }
}
