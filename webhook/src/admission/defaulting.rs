//! Defaulting of objects.

use std::{collections::BTreeMap, sync::Arc};

use kube::CustomResourceExt;
use reknit_apis::{Kind, Operation, Request};
use reknit_reconciler::internal::merge_changes;
use serde_json::{Value, json};

use super::{
    change::Change,
    decoding::{Decoded, Decoder},
    denial::Denial,
    group_version_kind::GroupVersionKind,
    outcome::{ReviewOutcome, allow_with_patch},
    review::Review,
};

/// Makes the patch that sets the defaults of the new object and, if the flag is true, its user annotations.
type MakePatch = Arc<dyn Fn(&Change, bool) -> Result<json_patch::Patch, Denial> + Send + Sync>;

/// Returns the old object of an update with its defaults.
type DefaultOld = Arc<dyn Fn(&Change) -> Option<Value> + Send + Sync>;

/// Sets the defaults that depend on the request.
pub(crate) type SetRequestDefaults<K> = fn(&mut K, Option<&K>, &Request);

/// The Kinds with defaults.
#[derive(Clone)]
pub(crate) struct Defaulting {
    kinds: BTreeMap<GroupVersionKind, DefaultedKind>,
    /// True if the annotations for the creator and the last modifier are set, too.
    pub(crate) user_annotations: bool,
}

#[derive(Clone)]
struct DefaultedKind {
    plural: String,
    make_patch: MakePatch,
    default_old: DefaultOld,
}

impl Default for Defaulting {
    fn default() -> Self {
        Self { kinds: BTreeMap::new(), user_annotations: true }
    }
}

impl Defaulting {
    pub(crate) fn add<K: Kind + CustomResourceExt>(
        &mut self,
        decoder: Decoder<K>,
        set_request_defaults: SetRequestDefaults<K>,
    ) {
        let defaulter = Arc::new(Defaulter { decoder, set_request_defaults });
        let defaulter_of_old = defaulter.clone();
        let kind = DefaultedKind {
            plural: K::plural(&()).into(),
            make_patch: Arc::new(move |change, with_annotations| {
                defaulter.make_patch(change, with_annotations)
            }),
            default_old: Arc::new(move |change| {
                defaulter_of_old.default_old(change, defaulter_of_old.decoder.old_object(change).as_ref())
            }),
        };
        self.kinds.insert(GroupVersionKind::of::<K>(), kind);
    }

    pub(crate) fn contains(&self, kind: &GroupVersionKind) -> bool {
        self.kinds.contains_key(kind)
    }

    /// Returns the old object of an update with its defaults. `None` if the Kind has none, or if the old object cannot
    /// be decoded.
    pub(crate) fn with_defaults(&self, kind: &GroupVersionKind, change: &Change) -> Option<Value> {
        (self.kinds.get(kind)?.default_old)(change)
    }

    /// Sets today's defaults in the old object of an update, since the new object has them: a default that the Kind got
    /// after the object was stored is no change by the user. An update of a subresource sets no defaults.
    pub(crate) fn complete_old(&self, kind: &GroupVersionKind, change: &mut Change) {
        let Request { operation, subresource, .. } = &change.request;
        if *operation == Operation::Update
            && subresource.is_none()
            && let Some(old) = self.with_defaults(kind, change)
        {
            change.old = Some(old);
        }
    }

    /// The rules of the webhook configuration.
    pub(crate) fn rules(&self) -> Value {
        let rules = self.kinds.iter();
        rules.map(|(kind, handler)| kind.rule(&["CREATE", "UPDATE"], vec![handler.plural.clone()])).collect()
    }

    /// Answers a review with the patch that sets the defaults.
    pub(crate) fn review(&self, review: Review) -> ReviewOutcome {
        let Review { response, kind, change, .. } = review;
        let Some(change) = change.filter(|change| change.request.operation != Operation::Delete) else {
            return response.into();
        };
        let Some(handler) = self.kinds.get(&kind) else {
            return ReviewOutcome::unhandled(response, "mutation failed: ", &kind);
        };
        match (handler.make_patch)(&change, self.user_annotations) {
            Ok(patch) => allow_with_patch(response, patch),
            Err(denial) => {
                denial.context("mutation failed").deny(response, &kind, &change.request.name).into()
            }
        }
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
        let old_spec = change.old.as_ref().map(|old| &old["spec"]);
        let differs_from_old = |spec: Option<&Value>| old_spec != spec;
        differs_from_old(change.object.as_ref().map(|object| &object["spec"]))
            && differs_from_old(Some(&defaulted["spec"]))
            && self.default_old(change, old).is_none_or(|old| old["spec"] != defaulted["spec"])
    }

    /// Returns the old object with its defaults.
    fn default_old(&self, change: &Change, old: Option<&K>) -> Option<Value> {
        let decoded = Decoded::new(old?.clone()).ok()?;
        self.apply_defaults(change.old.as_ref()?, decoded, old, &change.request).ok()
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
