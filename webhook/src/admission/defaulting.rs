//! Defaulting of objects.

use std::sync::Arc;

use kube::CustomResourceExt;
use reknit_apis::{Defaultable, Kind, Operation, Request};
use reknit_reconciler::internal::merge_changes;
use serde_json::{Value, json};

use super::{
    decoding::{Decoded, Decoder},
    denial::{Denial, deny},
    review::{Change, GroupVersionKind, Review, ReviewOutcome},
};
use crate::webhook::Webhook;

/// Makes the patch that sets the defaults of the new object and, if the flag is true, its user annotations.
type MakePatch = Arc<dyn Fn(&Change, bool) -> Result<json_patch::Patch, Denial> + Send + Sync>;

/// Sets the defaults that depend on the request.
type SetRequestDefaults<K> = fn(&mut K, Option<&K>, &Request);

/// A Kind with defaults.
#[derive(Clone)]
pub(crate) struct DefaultedKind {
    plural: String,
    make_patch: MakePatch,
}

impl Webhook {
    /// Sets the defaults of a Kind when its objects are created or updated, and the annotations of
    /// [`user_annotations`](Self::user_annotations).
    ///
    /// The patch contains only what [`Kind::set_defaults`] changes. A value of `#[serde(default)]` is not a change: the
    /// decoded object has it already. Such a value comes from the schema of the derived CustomResourceDefinition, which
    /// has it as `default`, so the API server fills it in before it calls the webhook. A default of `None`, or one that
    /// `skip_serializing_if` skips, is not in the schema: the field stays absent.
    pub fn defaulting<K: Kind + CustomResourceExt>(self) -> Self {
        self.with_defaults::<K>(|_, _, _| {})
    }

    /// Sets the defaults of a Kind as [`defaulting`](Self::defaulting) does, and the defaults that depend on the
    /// request.
    pub fn defaulting_by_request<K: Defaultable + CustomResourceExt>(self) -> Self {
        self.with_defaults::<K>(|object, old, request| object.set_request_defaults(old, request))
    }

    /// Sets whether defaulting adds the annotations `<group>/creator` and `<group>/lastModifier` with the name of the
    /// user, as Knative does. The default is true. If it is false, annotations that an object already has stay.
    ///
    /// ```
    /// use reknit_webhook::Webhook;
    ///
    /// let webhook = Webhook::new("demo.reknit.dev").user_annotations(false);
    /// # let _ = webhook;
    /// ```
    pub fn user_annotations(mut self, enabled: bool) -> Self {
        self.user_annotations = enabled;
        self
    }

    fn with_defaults<K: Kind + CustomResourceExt>(
        mut self,
        set_request_defaults: SetRequestDefaults<K>,
    ) -> Self {
        let defaulter = Defaulter { decoder: self.decoder(), set_request_defaults };
        let make_patch = Arc::new(move |change: &Change, with_annotations: bool| {
            defaulter.make_patch(change, with_annotations)
        });
        let kind = DefaultedKind { plural: K::plural(&()).into(), make_patch };
        self.defaulting.insert(GroupVersionKind::of::<K>(), kind);
        self
    }

    pub(crate) fn defaulting_rules(&self) -> Value {
        let rules = self.defaulting.iter();
        rules.map(|(kind, handler)| kind.rule(&["CREATE", "UPDATE"], vec![handler.plural.clone()])).collect()
    }

    pub(crate) fn set_defaults(&self, review: Review) -> ReviewOutcome {
        let Review { response, kind, change } = review;
        let Some(change) = change.filter(|change| change.request.operation != Operation::Delete) else {
            return response.into();
        };
        let Some(handler) = self.defaulting.get(&kind) else {
            return deny(response, format!("mutation failed: unhandled kind: {kind}")).into();
        };
        let response_with_patch = match (handler.make_patch)(&change, self.user_annotations) {
            Ok(patch) if patch.is_empty() => return response.into(),
            Ok(patch) => response.clone().with_patch(patch).map_err(|error| Denial::from(error.to_string())),
            Err(denial) => Err(denial),
        };
        response_with_patch
            .unwrap_or_else(|denial| {
                denial.context("mutation failed").deny(response, &kind, &change.request.name)
            })
            .into()
    }
}

/// Sets the defaults of one Kind.
struct Defaulter<K> {
    decoder: Decoder<K>,
    set_request_defaults: SetRequestDefaults<K>,
}

impl<K: Kind + CustomResourceExt> Defaulter<K> {
    /// Makes the patch that sets the defaults of the new object and, `with_annotations`, its user annotations.
    fn make_patch(&self, change: &Change, with_annotations: bool) -> Result<json_patch::Patch, Denial> {
        let object = change.new_object()?;
        let decoded = self.decoder.new_object(change)?;
        let old = self.decoder.old_object(change);
        let mut defaulted = self.apply_defaults(object, decoded, old.as_ref(), &change.request)?;
        if with_annotations && self.user_changes_spec(change, &defaulted, old.as_ref()) {
            annotate(&mut defaulted, &change.request, &K::group(&()));
        }
        Ok(json_patch::diff(object, &defaulted))
    }

    /// Returns true if the user changes the spec.
    ///
    /// A default that was added to the Kind after the old object was stored also changes the spec, but not on the
    /// user's behalf, so the old object is compared with its defaults, too. If the API server calls the webhook twice,
    /// both results must be equal, so the new spec is compared with and without its defaults.
    fn user_changes_spec(&self, change: &Change, defaulted: &Value, old: Option<&K>) -> bool {
        let old_defaulted = || {
            let decoded = Decoded::new(old?.clone()).ok()?;
            self.apply_defaults(change.old.as_ref()?, decoded, old, &change.request).ok()
        };
        let old_spec = change.old.as_ref().map(|old| &old["spec"]);
        let differs_from_old = |spec: Option<&Value>| old_spec != spec;
        differs_from_old(change.object.as_ref().map(|object| &object["spec"]))
            && differs_from_old(Some(&defaulted["spec"]))
            && old_defaulted().is_none_or(|old| old["spec"] != defaulted["spec"])
    }

    /// Sets the defaults of the decoded object and merges them into its JSON, which keeps unknown fields.
    fn apply_defaults(
        &self,
        raw: &Value,
        decoded: Decoded<K>,
        old: Option<&K>,
        request: &Request,
    ) -> Result<Value, Denial> {
        let Decoded { mut object, encoded: before } = decoded;
        object.set_defaults();
        (self.set_request_defaults)(&mut object, old, request);
        let after = Decoded::new(object)?.encoded;
        let mut defaulted = raw.clone();
        merge_changes(&mut defaulted, &before, &after);
        Ok(defaulted)
    }
}

/// Sets the annotations for the creator and the last modifier.
fn annotate(object: &mut Value, request: &Request, group: &str) {
    let Some(user) = &request.user.username else { return };
    let names = match (request.operation, &request.subresource) {
        (Operation::Create, None) => &["creator", "lastModifier"][..],
        (Operation::Update, None) => &["lastModifier"][..],
        _ => return,
    };
    let annotations = &mut object["metadata"]["annotations"];
    for name in names {
        annotations[format!("{group}/{name}")] = json!(user);
    }
}
