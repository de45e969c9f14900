//! Defaulting of objects.

use std::{collections::BTreeMap, sync::Arc};

use kube::CustomResourceExt;
use reknit_apis::{Defaultable, Kind, Operation, Request};
use serde_json::{Value, json};

use super::{
    decoding::{Decoded, Decoder},
    merge::merge,
    review::{Change, GroupVersionKind, Review, deny},
    validation::Validated,
};

/// Sets the defaults that depend on the request.
type SetDefaults<K> = fn(&mut K, Option<&K>, &Request);

/// The Kinds with defaults.
#[derive(Clone, Default)]
pub(crate) struct Defaulting(BTreeMap<GroupVersionKind, Entry>);

#[derive(Clone)]
struct Entry {
    plural: String,
    default: Arc<dyn Fn(&Change) -> Result<json_patch::Patch, String> + Send + Sync>,
}

impl Defaulting {
    /// Adds a Kind whose defaults do not depend on the request.
    pub(crate) fn add<K: Kind + CustomResourceExt>(&mut self) {
        self.add_entry::<K>(|_, _, _| {});
    }

    /// Adds a Kind with defaults that depend on the request.
    pub(crate) fn add_by_request<K: Defaultable + CustomResourceExt>(&mut self) {
        self.add_entry::<K>(|object, old, request| object.set_request_defaults(old, request));
    }

    fn add_entry<K: Kind + CustomResourceExt>(&mut self, set_defaults: SetDefaults<K>) {
        let defaulter = Defaulter { decoder: Decoder::new(), set_defaults };
        let default = Arc::new(move |change: &Change| defaulter.patch(change));
        self.0.insert(GroupVersionKind::of::<K>(), Entry { plural: K::plural(&()).into(), default });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules of the webhook configuration.
    pub(crate) fn rules(&self) -> Value {
        let rule = |(kind, entry): (&GroupVersionKind, &Entry)| {
            kind.rule(&["CREATE", "UPDATE"], std::slice::from_ref(&entry.plural))
        };
        self.0.iter().map(rule).collect()
    }

    /// Whether the rules name this Kind or its subresource.
    pub(crate) fn has(&self, kind: &GroupVersionKind, subresource: Option<&str>) -> bool {
        subresource.is_none() && self.0.contains_key(kind)
    }

    pub(crate) fn answer(&self, review: Review) -> Validated {
        let Review { response, kind, change } = review;
        let Some(change) = change.filter(|change| change.request.operation != Operation::Delete) else {
            return response.into();
        };
        let entry = self.0.get(&kind).ok_or_else(|| format!("unhandled kind: {kind}"));
        let patched = match entry.and_then(|entry| (entry.default)(&change)) {
            Ok(patch) if patch.is_empty() => return response.into(),
            Ok(patch) => response.clone().with_patch(patch).map_err(|error| error.to_string()),
            Err(reason) => Err(reason),
        };
        patched.unwrap_or_else(|reason| deny(response, format!("mutation failed: {reason}"))).into()
    }
}

/// Sets the defaults of one Kind.
struct Defaulter<K> {
    decoder: Decoder<K>,
    set_defaults: SetDefaults<K>,
}

impl<K: Kind + CustomResourceExt> Defaulter<K> {
    /// The patch that gives the new object its defaults and annotations.
    fn patch(&self, change: &Change) -> Result<json_patch::Patch, String> {
        let object = change.new_object()?;
        let decoded = self.decoder.new_object(change)?;
        let old = self.decoder.old_object(change);
        let mut result = self.defaulted(object, decoded, old.as_ref(), &change.request)?;
        let old_defaulted = || {
            let decoded = Decoded::new(old.clone()?).ok()?;
            self.defaulted(change.old.as_ref()?, decoded, old.as_ref(), &change.request).ok()
        };
        // Defaults that are newer than the old object change its spec, but the user does not. That holds also if the API server
        // sends the defaulted object again.
        let old_spec = change.old.as_ref().map(|old| &old["spec"]);
        let is_new = |spec| old_spec != Some(spec);
        if is_new(&object["spec"])
            && is_new(&result["spec"])
            && old_defaulted().is_none_or(|old| old["spec"] != result["spec"])
        {
            annotate(&mut result, &change.request, &K::group(&()));
        }
        Ok(json_patch::diff(object, &result))
    }

    /// Sets the defaults of the decoded object and merges them into its JSON, which keeps unknown fields.
    fn defaulted(
        &self,
        raw: &Value,
        decoded: Decoded<K>,
        old: Option<&K>,
        request: &Request,
    ) -> Result<Value, String> {
        let Decoded { mut object, written: before } = decoded;
        object.default_in_place();
        (self.set_defaults)(&mut object, old, request);
        let after = Decoded::new(object)?.written;
        let mut result = raw.clone();
        merge(&mut result, &before, &after);
        Ok(result)
    }
}

/// Sets the annotations for the creator and the last modifier.
fn annotate(result: &mut Value, request: &Request, group: &str) {
    let Some(user) = &request.user.username else { return };
    let names = match (request.operation, &request.subresource) {
        (Operation::Create, None) => &["creator", "lastModifier"][..],
        (Operation::Update, None) => &["lastModifier"][..],
        _ => return,
    };
    let annotations = &mut result["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    for name in names {
        annotations[format!("{group}/{name}")] = json!(user);
    }
}
