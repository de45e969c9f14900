//! Refuses objects that are not as their Kind says.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Display,
    future::Future,
    marker::PhantomData,
    sync::Arc,
};

use futures::future::BoxFuture;
use kube::{
    CustomResourceExt,
    core::admission::{AdmissionRequest, AdmissionResponse},
};
use reknit_apis::{FieldError, Kind, Level, Operation, Request, Validatable};
use serde_json::Value;

use crate::{
    admission::decoding::{Decoder, decoded, without_status},
    admission::raw::Raw,
    admission::review::{About, Asked, refuse},
};

/// The Kinds with rules.
#[derive(Clone, Default)]
pub(crate) struct Validation {
    rules: BTreeMap<About, Arc<dyn Rules>>,
    callbacks: BTreeMap<About, Vec<Arc<dyn Callback>>>,
    /// The plural name of each of them.
    plurals: BTreeMap<About, String>,
}

/// What is the same for every Kind.
trait Rules: Send + Sync {
    fn check(&self, asked: &Asked) -> Result<FieldError, String>;
    fn subresources(&self) -> &'static [&'static str];
}

trait Callback: Send + Sync {
    /// Decodes the object, and calls nobody yet. None where nobody is to be called.
    fn prepare(self: Arc<Self>, object: &Value, request: &Request) -> Result<Option<Call>, String>;
}

/// Calls a callback that has its object. What it does at once may block a thread; what it answers must not.
pub(crate) type Call = Box<dyn FnOnce() -> BoxFuture<'static, Result<(), String>> + Send>;

/// What the rules say, and who has still to be called.
pub(crate) struct Judged {
    pub(crate) response: AdmissionResponse,
    /// In turn, and as long as nobody refuses.
    pub(crate) calls: VecDeque<Call>,
}

impl From<AdmissionResponse> for Judged {
    fn from(response: AdmissionResponse) -> Self {
        Self { response, calls: VecDeque::new() }
    }
}

impl Judged {
    /// Takes note of what a callback says.
    pub(crate) fn hear(mut self, said: Result<(), String>) -> Self {
        match said {
            Ok(()) => self,
            Err(why) => {
                self.calls.clear();
                let response = refuse(self.response, format!("validation callback failed: {why}"));
                Self { response, ..self }
            }
        }
    }
}

struct Of<K>(Decoder<K>);

struct Called<K, F> {
    call: F,
    kind: PhantomData<fn() -> K>,
}

impl Validation {
    pub(crate) fn add<K: Validatable + CustomResourceExt>(&mut self) {
        self.rules.insert(About::of::<K>(), Arc::new(Of(Decoder::<K>::new())));
        self.plurals.insert(About::of::<K>(), K::plural(&()).into());
    }

    pub(crate) fn call<K, F, C, E>(&mut self, call: F)
    where
        K: Kind,
        F: Fn(K, Request) -> C + Send + Sync + 'static,
        C: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + 'static,
    {
        let called = Called { call, kind: PhantomData };
        self.plurals.insert(About::of::<K>(), K::plural(&()).into());
        self.callbacks.entry(About::of::<K>()).or_default().push(Arc::new(called));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.plurals.is_empty()
    }

    /// What the API server is to ask about.
    pub(crate) fn rules(&self) -> Value {
        let rule = |(about, plural): (&About, &String)| {
            let parts = self.parts(about).iter().map(|part| format!("{plural}/{part}"));
            let resources: Vec<_> = std::iter::once(plural.clone()).chain(parts).collect();
            about.rule(&["CREATE", "UPDATE", "DELETE"], &resources)
        };
        self.plurals.iter().map(rule).collect()
    }

    /// Whether it is asked about this part of such an object, or about the whole.
    pub(crate) fn asks(&self, about: &About, part: Option<&str>) -> bool {
        self.has(about) && part.is_none_or(|part| self.parts(about).contains(&part))
    }

    fn parts(&self, about: &About) -> &'static [&'static str] {
        self.rules.get(about).map_or(&[], |rules| rules.subresources())
    }

    fn has(&self, about: &About) -> bool {
        self.plurals.contains_key(about)
    }

    /// The rules are asked, and the callbacks get their objects.
    pub(crate) fn answer(&self, asked: AdmissionRequest<Raw>) -> Judged {
        let (mut response, about) = (AdmissionResponse::from(&asked), About::asked(&asked));
        if !self.has(&about) {
            return refuse(response, format!("decoding request failed: unhandled kind: {about}")).into();
        }
        let Some(asked) = Asked::new(asked).filter(|asked| !asked.lets_go()) else {
            return response.into();
        };
        let wrong = match self.check(&about, &asked) {
            Ok(wrong) => wrong,
            Err(why) => return refuse(response, format!("decoding request failed: {why}")).into(),
        };
        response.warnings = warnings(&wrong);
        let errors = wrong.filter(Level::Error);
        if !errors.is_empty() {
            return refuse(response, format!("validation failed: {errors}")).into();
        }
        match self.calls(&about, &asked) {
            Ok(calls) => Judged { response, calls },
            Err(why) => Judged::from(response).hear(Err(why)),
        }
    }

    fn check(&self, about: &About, asked: &Asked) -> Result<FieldError, String> {
        if asked.request.operation != Operation::Delete && asked.object.is_none() {
            return Err("the new object may not be nil".into());
        }
        self.rules.get(about).map_or_else(|| Ok(FieldError::none()), |rules| rules.check(asked))
    }

    /// A dry run must have no effect, and nobody knows what a callback does.
    fn calls(&self, about: &About, asked: &Asked) -> Result<VecDeque<Call>, String> {
        let object = asked.object.as_ref().or(asked.old.as_ref());
        let Some(object) = object.filter(|_| !asked.request.dry_run) else { return Ok(VecDeque::new()) };
        let callbacks = self.callbacks.get(about).into_iter().flatten().cloned();
        callbacks.filter_map(|callback| callback.prepare(object, &asked.request).transpose()).collect()
    }
}

impl<K: Validatable + CustomResourceExt> Rules for Of<K> {
    fn subresources(&self) -> &'static [&'static str] {
        K::SUBRESOURCES
    }

    fn check(&self, asked: &Asked) -> Result<FieldError, String> {
        let request = &asked.request;
        // An object that is stored and cannot be read must keep neither a better one out nor itself in.
        let Some(object) = asked.object.as_ref().filter(|_| request.operation != Operation::Delete) else {
            let old = asked.old.as_ref().and_then(|old| self.0.stored(old).ok());
            return Ok(old.map_or_else(FieldError::none, |old| old.validate_delete(request)));
        };
        let old = asked.old.as_ref().and_then(|old| self.0.stored(old).ok());
        let strict = self.0.strictly(object, asked.old.as_ref(), request);
        let object = strict.map_err(|why| format!("cannot decode incoming new object: {why}"))?.object;
        Ok(match (&old, &request.subresource) {
            (old, Some(_)) => object.validate_subresource(old.as_ref().unwrap_or(&object), request),
            (Some(old), None) => object.validate_update(old, request),
            (None, None) => object.validate(request),
        })
    }
}

impl<K, F, C, E> Callback for Called<K, F>
where
    K: Kind,
    F: Fn(K, Request) -> C + Send + Sync + 'static,
    C: Future<Output = Result<(), E>> + Send + 'static,
    E: Display + 'static,
{
    fn prepare(self: Arc<Self>, object: &Value, request: &Request) -> Result<Option<Call>, String> {
        // A callback's Kind need not have a definition that says whether its status is a subresource, as Kubernetes' own are.
        let rest = || {
            let rest = without_status(object).filter(|_| request.subresource.is_none());
            rest.and_then(|rest| decoded(&rest).ok())
        };
        let object = match decoded::<K>(object).or_else(|why| rest().ok_or(why)) {
            Ok(object) => object,
            // What is stored and cannot be read must not be there for ever.
            Err(_) if request.operation == Operation::Delete => return Ok(None),
            Err(why) => return Err(why),
        };
        let request = request.clone();
        Ok(Some(Box::new(move || {
            let called = (self.call)(object, request);
            Box::pin(async { called.await.map_err(|error| error.to_string()) })
        })))
    }
}

/// A line each: a warning travels in an HTTP header.
fn warnings(wrong: &FieldError) -> Option<Vec<String>> {
    let warnings = wrong.clone().filter(Level::Warning).to_string();
    let lines: Vec<String> = warnings.lines().map(str::to_owned).collect();
    Some(lines).filter(|lines| !lines.is_empty())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Namespace;
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;

    #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
    struct LampSpec {}

    #[derive(Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    struct LampStatus {}

    impl Kind for Lamp {
        type Status = ();
    }

    impl Validatable for Lamp {
        const SUBRESOURCES: &'static [&'static str] = &["status"];

        fn validate(&self, _: &Request) -> FieldError {
            FieldError::none()
        }
    }

    #[test]
    fn it_is_asked_of_each_kind_also_when_one_is_deleted_and_of_the_parts_that_the_kind_names() {
        let mut validation = Validation::default();
        validation.add::<Lamp>();
        validation.call(async |_: Lamp, _| Ok::<_, String>(()));
        validation.call(async |_: Namespace, _| Ok::<_, String>(()));
        let rule = |group, resources: &[&str]| {
            json!({
                "operations": ["CREATE", "UPDATE", "DELETE"], "apiGroups": [group], "apiVersions": ["v1"],
                "resources": resources, "scope": "*",
            })
        };
        let expected =
            json!([rule("", &["namespaces"]), rule("demo.reknit.dev", &["lamps", "lamps/status"])]);
        assert_eq!(validation.rules(), expected);
        let asks = |about: &About, part| validation.asks(about, part);
        let (lamp, namespace) = (About::of::<Lamp>(), About::of::<Namespace>());
        assert!(asks(&lamp, None) && asks(&lamp, Some("status")) && !asks(&lamp, Some("scale")));
        assert!(asks(&namespace, None) && !asks(&namespace, Some("status")));
    }
}
