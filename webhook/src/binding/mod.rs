//! Injects into the subjects of bindings at admission, before the subjects are stored.

mod selection;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    batch::v1::Job,
};
use kube::{
    ResourceExt,
    api::{ApiResource, ObjectMeta},
    core::{Selector, SelectorExt},
};
use reknit_apis::{Kind, Operation, Reference};
use reknit_injection::{Context, select};
use reknit_reconciler::{
    Bindable,
    internal::{bind, subject_of, unbind, with_change},
};
use serde::Deserialize;
use serde_json::Value;

pub use self::selection::BindingSelection;
use crate::{
    admission::{
        denial::deny,
        review::{Change, GroupVersionKind, Review, ReviewOutcome},
    },
    webhook::Webhook,
};

/// Returns the object with the injection of every binding of one Kind that refers to it.
type Inject = Arc<dyn Fn(&GroupVersionKind, Value) -> serde_json::Result<Value> + Send + Sync>;

/// The Kinds of bindings, and the subjects for which the API server calls the webhook.
#[derive(Clone)]
pub(crate) struct Bindings {
    kinds: Vec<fn(&Context) -> Inject>,
    /// The injections of each Kind. Empty until [`Webhook::watch_bindings`] is called.
    open: Vec<Inject>,
    /// The resource of each Kind with a pod template.
    subjects: BTreeMap<GroupVersionKind, String>,
    selection: BindingSelection,
}

impl Bindings {
    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The expression of the label selectors of namespaces and objects.
    pub(crate) fn label_expression(&self) -> Value {
        self.selection.label_expression()
    }

    /// The rules of the webhook configuration.
    pub(crate) fn rules(&self) -> Value {
        let rules = self.subjects.iter();
        rules.map(|(kind, resource)| kind.rule(&["CREATE", "UPDATE"], vec![resource.clone()])).collect()
    }

    fn add_subject(&mut self, ApiResource { api_version, kind, plural, .. }: &ApiResource) {
        self.subjects.insert(GroupVersionKind::new(api_version, kind), plural.clone());
    }
}

/// The subjects of Knative's webhook.
impl Default for Bindings {
    fn default() -> Self {
        let (kinds, open, subjects) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut bindings = Self { kinds, open, subjects, selection: BindingSelection::default() };
        bindings.add_subject(&ApiResource::erase::<DaemonSet>(&()));
        bindings.add_subject(&ApiResource::erase::<Deployment>(&()));
        bindings.add_subject(&ApiResource::erase::<StatefulSet>(&()));
        bindings.add_subject(&ApiResource::erase::<Job>(&()));
        bindings
    }
}

impl Webhook {
    /// Injects into the subjects of bindings of this Kind, the objects whose pods they change. It does so when a
    /// subject is created and when its pod template is updated, so that no pod starts without the injection. In
    /// Knative's Go library this is `psbinding.NewAdmissionController`.
    ///
    /// The API server calls the webhook for Deployments, StatefulSets, DaemonSets and Jobs, and for the Kinds of
    /// [`binding_subject`](Self::binding_subject). The controller ([`Binder`](reknit_reconciler::Binder)) injects
    /// into subjects of other Kinds, and into subjects that are older than their binding. An update that keeps the pod
    /// template is left to the controller, since the API server would refuse a change of a Job's template. A binding
    /// that is being deleted withdraws its injection.
    ///
    /// The webhook reads the bindings of all namespaces from a cache, for which its service account needs the verbs
    /// `list` and `watch`. If a subject is created before its binding is in the cache, the controller binds it.
    ///
    /// Label the namespace of the webhook with `bindings.knative.dev/exclude: "true"`. Otherwise its Deployment cannot
    /// be updated while the webhook is down.
    pub fn binding<K: Bindable>(mut self) -> Self {
        self.bindings.kinds.push(open::<K>);
        self
    }

    /// Makes the API server call the webhook for another Kind with a pod template, too.
    ///
    /// ```
    /// use kube::{api::ApiResource, core::GroupVersionKind};
    /// use reknit_webhook::Webhook;
    ///
    /// let service = GroupVersionKind::gvk("serving.knative.dev", "v1", "Service");
    /// let webhook = Webhook::new("demo.reknit.dev").binding_subject(&ApiResource::from_gvk(&service));
    /// # drop(webhook);
    /// ```
    pub fn binding_subject(mut self, resource: &ApiResource) -> Self {
        self.bindings.add_subject(resource);
        self
    }

    /// Sets which labels select the namespaces and the objects for which the API server calls the webhook.
    pub fn binding_selection(mut self, selection: BindingSelection) -> Self {
        self.bindings.selection = selection;
        self
    }

    /// Watches the bindings. [`assemble`](Self::assemble) calls this. A test that calls [`admit`](Self::admit) calls it
    /// first, with a Context that contains the bindings.
    ///
    /// ```
    /// use reknit_injection::Context;
    /// use reknit_reconciler::Bindable;
    /// use reknit_testing::ApiServer;
    /// use reknit_webhook::Webhook;
    /// use serde_json::json;
    ///
    /// fn webhook_with<K: Bindable>(binding: &K) -> Webhook {
    ///     let cx = Context::preloaded("test", ApiServer::new().client(), vec![json!(binding)]);
    ///     Webhook::new("demo.reknit.dev").binding::<K>().watch_bindings(&cx)
    /// }
    /// ```
    pub fn watch_bindings(mut self, cx: &Context) -> Self {
        self.bindings.open = self.bindings.kinds.iter().map(|open| open(cx)).collect();
        self
    }

    /// Returns true if the webhook injects into objects of this Kind.
    pub(crate) fn binds(&self, kind: &GroupVersionKind) -> bool {
        self.bindings.subjects.contains_key(kind)
    }

    /// Answers a review of an object that may be a subject.
    pub(crate) fn bind_subject(&self, review: Review) -> ReviewOutcome {
        let Review { response, kind, change } = review;
        if !self.binds(&kind) {
            return deny(response, format!("unhandled kind: {kind}")).into();
        }
        let Some(object) = change.as_ref().and_then(object_with_changed_template) else {
            return response.into();
        };
        let inject = |object: Value, inject: &Inject| inject(&kind, object);
        let bound = match self.bindings.open.iter().try_fold(object.clone(), inject) {
            Ok(bound) => bound,
            Err(error) => return deny(response, format!("unable to decode object: {error}")).into(),
        };
        let patch = json_patch::diff(object, &bound);
        if patch.is_empty() {
            return response.into();
        }
        let with_patch = response.clone().with_patch(patch);
        with_patch
            .unwrap_or_else(|error| deny(response, format!("unable to create patch with binding: {error}")))
            .into()
    }
}

/// Returns the new object, if the object itself is created or its pod template is updated.
fn object_with_changed_template(change: &Change) -> Option<&Value> {
    let object = change.object.as_ref()?;
    let template = |object: &Value| object.pointer("/spec/template").cloned();
    let is_changed = match change.request.operation {
        Operation::Create => true,
        Operation::Update => change.old.as_ref().is_none_or(|old| template(old) != template(object)),
        Operation::Delete => false,
    };
    Some(object).filter(|_| is_changed && change.request.subresource.is_none())
}

/// Opens the informer of one Kind of bindings, and returns their injection. The informer is not a dependency of the
/// webhook's controller, which has to renew the certificate even if the CustomResourceDefinition of the bindings is
/// missing.
fn open<K: Bindable>(cx: &Context) -> Inject {
    let bindings = cx.scoped().informer::<K>(select());
    let by_subject = bindings.index(|binding| subject_of(binding).map(|subject| index_value(&subject)).ok());
    Arc::new(move |kind, object| {
        let metadata = ObjectMeta::deserialize(&object["metadata"])?;
        let subject = Reference {
            api_version: format!("{}/{}", kind.group, kind.version),
            kind: kind.kind.clone(),
            namespace: metadata.namespace.clone(),
            ..Reference::default()
        };
        let mut bindings: Vec<_> = by_subject.get(&index_value(&subject)).collect();
        bindings.retain(|binding| subject_of(&**binding).is_ok_and(|subject| refers_to(&subject, &metadata)));
        bindings.sort_by_key(|binding| binding.name_any());
        bindings.iter().try_fold(object, |object, binding| inject(&**binding, &object))
    })
}

fn inject<K: Bindable>(binding: &K, object: &Value) -> serde_json::Result<Value> {
    with_change(object, |subject| match (&binding.meta().deletion_timestamp, binding.read_status()) {
        (Some(_), _) => unbind(binding, subject),
        (None, Some(status)) => bind(binding, status, subject),
        (None, None) => bind(binding, &Default::default(), subject),
    })
}

/// The index value of the Kind and the namespace of a subject. The version does not matter, as in Knative.
fn index_value(subject: &Reference) -> String {
    let group = subject.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    format!("{group}/{}/{}", subject.kind, subject.namespace.as_deref().unwrap_or_default())
}

/// Returns true if the reference names or selects the object. The caller has compared the Kind and the namespace.
fn refers_to(subject: &Reference, metadata: &ObjectMeta) -> bool {
    match (subject.name.as_deref().unwrap_or_default(), &subject.selector) {
        ("", None) => false,
        ("", Some(labels)) => Selector::try_from(labels.clone())
            .is_ok_and(|selector| selector.matches(metadata.labels.as_ref().unwrap_or(&Default::default()))),
        (name, _) => metadata.name.as_deref() == Some(name),
    }
}
