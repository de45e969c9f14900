//! Fills in what objects leave open.

use std::{collections::BTreeMap, sync::Arc};

use kube::{
    CustomResourceExt,
    core::admission::{AdmissionRequest, AdmissionResponse},
};
use reknit_apis::{Defaultable, Kind, Operation, Request};
use serde_json::{Value, json};

use crate::{
    admission::decoding::{Decoded, Decoder},
    admission::merge::graft,
    admission::raw::Raw,
    admission::review::{About, Asked, refuse},
};

/// Fills in what one Kind leaves open.
type Fill<K> = fn(&mut K, Option<&K>, &Request);

/// The Kinds with defaults.
#[derive(Clone, Default)]
pub(crate) struct Defaulting(BTreeMap<About, Arc<dyn Fills>>);

/// What is the same for every Kind.
trait Fills: Send + Sync {
    fn fill(&self, asked: &Asked, object: &Value) -> Result<Value, String>;
    /// As rules of a configuration name it.
    fn resource(&self) -> &str;
}

struct Of<K> {
    plural: String,
    group: String,
    decoder: Decoder<K>,
    fill: Fill<K>,
}

impl Defaulting {
    /// Objects of this Kind get the defaults of the Kind itself.
    pub(crate) fn add<K: Kind + CustomResourceExt>(&mut self) {
        self.add_filled::<K>(|_, _, _| {});
    }

    /// They get also those that depend on the request.
    pub(crate) fn add_by_request<K: Defaultable + CustomResourceExt>(&mut self) {
        self.add_filled::<K>(|object, old, request| object.set_request_defaults(old, request));
    }

    fn add_filled<K: Kind + CustomResourceExt>(&mut self, fill: Fill<K>) {
        let of = Of {
            plural: K::plural(&()).into(),
            group: K::group(&()).into(),
            decoder: Decoder::<K>::new(),
            fill,
        };
        self.0.insert(About::of::<K>(), Arc::new(of));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the API server is to ask about.
    pub(crate) fn rules(&self) -> Value {
        let rule = |(about, of): (&About, &Arc<dyn Fills>)| {
            about.rule(&["CREATE", "UPDATE"], &[of.resource().into()])
        };
        self.0.iter().map(rule).collect()
    }

    /// Whether it is asked about this part of such an object, or about the whole.
    pub(crate) fn asks(&self, about: &About, part: Option<&str>) -> bool {
        part.is_none() && self.0.contains_key(about)
    }

    pub(crate) fn answer(&self, asked: AdmissionRequest<Raw>) -> AdmissionResponse {
        let (response, about) = (AdmissionResponse::from(&asked), About::asked(&asked));
        match self.patch(&about, asked) {
            Ok(None) => response,
            Ok(Some(patch)) => match response.clone().with_patch(patch) {
                Ok(patched) => patched,
                Err(error) => refuse(response, format!("mutation failed: {error}")),
            },
            Err(why) => refuse(response, format!("mutation failed: {why}")),
        }
    }

    /// What makes the object one with defaults; none where it is one.
    fn patch(
        &self,
        about: &About,
        asked: AdmissionRequest<Raw>,
    ) -> Result<Option<json_patch::Patch>, String> {
        let changes = |asked: &Asked| asked.request.operation != Operation::Delete && !asked.lets_go();
        let Some(asked) = Asked::new(asked).filter(changes) else { return Ok(None) };
        let kind = self.0.get(about).ok_or_else(|| format!("unhandled kind: {about}"))?;
        let object = asked.object.as_ref().ok_or("the new object may not be nil")?;
        let patch = json_patch::diff(object, &kind.fill(&asked, object)?);
        Ok(Some(patch).filter(|patch| !patch.is_empty()))
    }
}

impl<K: Kind + CustomResourceExt> Fills for Of<K> {
    fn resource(&self) -> &str {
        &self.plural
    }

    fn fill(&self, asked: &Asked, object: &Value) -> Result<Value, String> {
        let strict = self.decoder.strictly(object, asked.old.as_ref(), &asked.request);
        let decoded = strict.map_err(|why| format!("cannot decode incoming new object: {why}"))?;
        // An object that is stored and cannot be read must not keep a better one out.
        let old = asked.old.as_ref().and_then(|old| self.decoder.stored(old).ok());
        let mut result = self.filled(object, decoded, old.as_ref(), &asked.request)?;
        let was = || {
            let (raw, kept) = (asked.old.as_ref()?, old.as_ref()?);
            let decoded = Decoded::of(kept.clone()).ok()?;
            self.filled(raw, decoded, old.as_ref(), &asked.request).ok()
        };
        if changed_spec(asked, object, &result, was) {
            sign(&mut result, &asked.request, &self.group);
        }
        Ok(result)
    }
}

impl<K: Kind> Of<K> {
    fn filled(
        &self,
        raw: &Value,
        decoded: Decoded<K>,
        old: Option<&K>,
        request: &Request,
    ) -> Result<Value, String> {
        let mut filled = decoded.object;
        filled.default_in_place();
        (self.fill)(&mut filled, old, request);
        let after = serde_json::to_value(&filled).map_err(|error| error.to_string())?;
        let mut result = raw.clone();
        graft(&mut result, &decoded.written, &after);
        Ok(result)
    }
}

/// Whether who asks changes the spec: defaults that are newer than the object change it too, also where the API server asks a
/// second time about an object that has them by now.
fn changed_spec(asked: &Asked, object: &Value, result: &Value, was: impl FnOnce() -> Option<Value>) -> bool {
    let old = asked.old.as_ref().map(|old| &old["spec"]);
    old != Some(&object["spec"])
        && old != Some(&result["spec"])
        && was().is_none_or(|was| was["spec"] != result["spec"])
}

/// Notes who made the object, and who changed its spec last.
fn sign(result: &mut Value, request: &Request, group: &str) {
    let Some(user) = &request.user.username else { return };
    let notes = match (request.operation, &request.subresource) {
        (Operation::Create, None) => &["creator", "lastModifier"][..],
        (Operation::Update, None) => &["lastModifier"][..],
        _ => return,
    };
    let metadata = &mut result["metadata"];
    if !metadata["annotations"].is_object() {
        metadata["annotations"] = json!({});
    }
    for note in notes {
        metadata["annotations"][format!("{group}/{note}")] = json!(user);
    }
}
