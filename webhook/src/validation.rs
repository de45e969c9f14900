//! Refuses objects that are not as their Kind says.

use std::{
    collections::BTreeMap,
    fmt::Display,
    future::{Future, ready},
    marker::PhantomData,
    sync::Arc,
};

use futures::{FutureExt, future::BoxFuture};
use kube::{
    CustomResourceExt,
    core::admission::{AdmissionRequest, AdmissionResponse},
};
use reknit_apis::{FieldError, Kind, Level, Operation, Request, Validatable};
use serde_json::Value;

use crate::{
    asked::{About, Asked, refuse},
    decode::{Decoder, leniently},
    raw::Raw,
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
    fn call(&self, object: &Value, request: &Request) -> BoxFuture<'static, Result<(), String>>;
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
            let parts = self.rules.get(about).map_or(&[][..], |rules| rules.subresources());
            let parts = parts.iter().map(|part| format!("{plural}/{part}"));
            let resources: Vec<_> = std::iter::once(plural.clone()).chain(parts).collect();
            about.rule(&["CREATE", "UPDATE", "DELETE"], &resources)
        };
        self.plurals.iter().map(rule).collect()
    }

    pub(crate) fn has(&self, about: &About) -> bool {
        self.plurals.contains_key(about)
    }

    /// The rules are asked at once, the callbacks when the answer is awaited.
    pub(crate) fn answer(&self, asked: AdmissionRequest<Raw>) -> BoxFuture<'static, AdmissionResponse> {
        let (mut response, about) = (AdmissionResponse::from(&asked), About::asked(&asked));
        let refused = |response, why| ready(refuse(response, why)).boxed();
        if !self.has(&about) {
            return refused(response, format!("decoding request failed: unhandled kind: {about}"));
        }
        let Some(asked) = Asked::new(asked).filter(|asked| !asked.lets_go()) else {
            return ready(response).boxed();
        };
        let wrong = match self.check(&about, &asked) {
            Ok(wrong) => wrong,
            Err(why) => return refused(response, format!("decoding request failed: {why}")),
        };
        response.warnings = warnings(&wrong);
        let errors = wrong.filter(Level::Error);
        if !errors.is_empty() {
            return refused(response, format!("validation failed: {errors}"));
        }
        let callbacks = self.callbacks.get(&about).cloned().unwrap_or_default();
        let called = call_back(callbacks, asked);
        called
            .map(|called| match called {
                Ok(()) => response,
                Err(why) => refuse(response, format!("validation callback failed: {why}")),
            })
            .boxed()
    }

    fn check(&self, about: &About, asked: &Asked) -> Result<FieldError, String> {
        if asked.request.operation != Operation::Delete && asked.object.is_none() {
            return Err("the new object may not be nil".into());
        }
        self.rules.get(about).map_or_else(|| Ok(FieldError::none()), |rules| rules.check(asked))
    }
}

/// A dry run must have no effect, and nobody knows what a callback does.
async fn call_back(callbacks: Vec<Arc<dyn Callback>>, asked: Asked) -> Result<(), String> {
    let object = asked.object.or(asked.old);
    let Some(object) = object.filter(|_| !asked.request.dry_run) else { return Ok(()) };
    for callback in callbacks {
        callback.call(&object, &asked.request).await?;
    }
    Ok(())
}

impl<K: Validatable + CustomResourceExt> Rules for Of<K> {
    fn subresources(&self) -> &'static [&'static str] {
        K::SUBRESOURCES
    }

    fn check(&self, asked: &Asked) -> Result<FieldError, String> {
        let request = &asked.request;
        // An object that is stored and cannot be read must keep neither a better one out nor itself in.
        let old = asked.old.as_ref().and_then(|old| leniently::<K>(old).ok()).map(|old| old.object);
        let Some(object) = asked.object.as_ref().filter(|_| request.operation != Operation::Delete) else {
            return Ok(old.map_or_else(FieldError::none, |old| old.validate_delete(request)));
        };
        let strict = self.0.strictly(object, asked.old.as_ref());
        let object = strict.map_err(|why| format!("cannot decode incoming new object: {why}"))?.object;
        Ok(match (&old, &request.subresource) {
            (Some(old), Some(_)) => object.validate_subresource(old, request),
            (Some(old), None) => object.validate_update(old, request),
            (None, _) => object.validate(request),
        })
    }
}

impl<K, F, C, E> Callback for Called<K, F>
where
    K: Kind,
    F: Fn(K, Request) -> C + Send + Sync,
    C: Future<Output = Result<(), E>> + Send + 'static,
    E: Display + 'static,
{
    fn call(&self, object: &Value, request: &Request) -> BoxFuture<'static, Result<(), String>> {
        match leniently::<K>(object) {
            Ok(decoded) => {
                let called = (self.call)(decoded.object, request.clone());
                Box::pin(async { called.await.map_err(|error| error.to_string()) })
            }
            // What is stored and cannot be read must not be there for ever.
            Err(_) if request.operation == Operation::Delete => Box::pin(ready(Ok(()))),
            Err(why) => Box::pin(ready(Err(why))),
        }
    }
}

/// A line each: a warning travels in an HTTP header.
fn warnings(wrong: &FieldError) -> Option<Vec<String>> {
    let warnings = wrong.clone().filter(Level::Warning).to_string();
    let lines: Vec<String> = warnings.lines().map(str::to_owned).collect();
    Some(lines).filter(|lines| !lines.is_empty())
}
