//! Own writes: delivers the answers of the process's requests to its informers.
//!
//! The answer to a write, or to a read of one object, shows the object's newest state. It enters the caches before the
//! caller gets it, so a controller reads what it wrote. If an answer does not show what became of an object, the object
//! is [read back](super::read_back).

use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Status, StatusDetails};
use kube::{client::Body, core::PartialObjectMeta};
use reknit_apis::Key;
use serde::Deserialize;

use super::{
    read_back::read_back,
    resource_path::ResourcePath,
    transport::{Answer, Transport, collect, whole},
};
use crate::{
    informer::Informers,
    object::{RawObject, ResourceVersion},
};

/// Returns the same transport with the answers to writes, and to reads of one object, delivered to the informers.
pub(crate) fn read_own_writes(transport: &Transport, informers: &Informers) -> Transport {
    let (informers, below) = (informers.clone(), transport.clone());
    transport.with(move |request| {
        let tracked = TrackedRequest::of(&request, &informers);
        let answer = below.send(request);
        let Some(tracked) = tracked else { return answer };
        let (below, informers) = (below.clone(), informers.clone());
        async move { tracked.deliver(answer.await?, &below, &informers).await }.boxed()
    })
}

/// The outcome of a request of this process for one object.
pub(crate) enum Answered<'a> {
    /// The object of the answer, and its text. The answer to a `deletion` holds the last state if the object is gone.
    Object { raw: &'a RawObject<'a>, text: &'a str, deletion: bool },
    /// An item of a list. Items of built-in Kinds do not name their Kind.
    Item { raw: &'a RawObject<'a>, text: &'a str },
    /// A deletion that the API server confirmed without the object.
    Deleted { key: &'a Key, uid: Option<&'a str> },
    /// The absence of the object from a list of this version.
    Absent { key: &'a Key, version: Option<ResourceVersion<'a>> },
}

/// A request whose answer shows the newest state of something that informers cache.
struct TrackedRequest {
    path: String,
    is_write: bool,
    is_deletion: bool,
}

#[derive(Deserialize)]
struct List {
    items: Vec<PartialObjectMeta>,
}

impl TrackedRequest {
    fn of(request: &Request<Body>, informers: &Informers) -> Option<Self> {
        let (method, query) = (request.method(), request.uri().query().unwrap_or_default());
        let is_deletion = *method == Method::DELETE;
        let path = ResourcePath::read(request.uri().path())?;
        // A read with a resourceVersion may be answered from a cache, and one without a name is a list.
        let is_object = path.is_of_one() && path.subresource().is_none();
        let is_read = *method == Method::GET && query.is_empty() && is_object;
        let is_write = is_deletion || [Method::POST, Method::PUT, Method::PATCH].contains(method);
        if !(is_read || is_write) || is_dry_run(query) {
            return None;
        }
        // These answer with streams, or with what another server says. A token leaves its account unchanged.
        let is_foreign =
            matches!(path.subresource(), Some("proxy" | "exec" | "attach" | "portforward" | "token"));
        if is_foreign || !informers.has_informer_of(&path) || (is_deletion && is_dry_deletion(request.body()))
        {
            return None;
        }
        Some(Self { path: request.uri().path().to_owned(), is_write, is_deletion })
    }

    async fn deliver(
        self,
        answer: Answer,
        transport: &Transport,
        informers: &Informers,
    ) -> kube::Result<Answer> {
        if !answer.status().is_success() {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let body = collect(body).await?;
        if let Some(path) = ResourcePath::read(&self.path)
            && let Err(unknown) = self.deliver_body(&path, &body, informers)
        {
            Box::pin(read_back(transport, informers, &path, unknown)).await; // rare and large
        }
        Ok(Response::from_parts(head, whole(body)))
    }

    /// Delivers the body. The error holds the keys of the objects whose state the answer does not show.
    fn deliver_body(
        &self,
        path: &ResourcePath<'_>,
        body: &Bytes,
        informers: &Informers,
    ) -> Result<(), Vec<Key>> {
        let Ok(text) = std::str::from_utf8(body) else { return Ok(()) };
        if self.is_deletion
            && path.subresource().is_none()
            && let (Some(StatusDetails { uid, .. }), Some(key)) = (success(text), path.key())
        {
            informers.apply_answer(path, &Answered::Deleted { key: &key, uid: uid.as_deref() });
            return Ok(());
        }
        if self.is_deletion && !path.is_of_one() {
            return Err(deleted_keys(text));
        }
        let raw = RawObject::scan_text(text).ok();
        let is_known = raw.is_some_and(|raw| {
            informers.apply_answer(path, &Answered::Object { raw: &raw, text, deletion: self.is_deletion })
        });
        if is_known { Ok(()) } else { Err(path.key().filter(|_| self.is_write).into_iter().collect()) }
    }
}

/// The details of the success that answers a deletion without holding the object.
fn success(text: &str) -> Option<StatusDetails> {
    let status: Status = serde_json::from_str(text).ok()?;
    (status.status.as_deref() == Some("Success")).then(|| status.details.unwrap_or_default())
}

/// The keys of the objects in the answer to the deletion of a collection.
fn deleted_keys(text: &str) -> Vec<Key> {
    let deleted = serde_json::from_str::<List>(text);
    deleted.map(|list| list.items.iter().map(Key::of).collect()).unwrap_or_default()
}

fn is_dry_run(query: &str) -> bool {
    form_urlencoded::parse(query.as_bytes()).any(|(name, value)| name == "dryRun" && !value.is_empty())
}

/// Returns true if the options in the body of a deletion ask for a dry run. A body that cannot be read counts as one.
fn is_dry_deletion(body: &Body) -> bool {
    let Some(Some(Ok(bytes))) = body.try_clone().map(|body| body.collect_bytes().now_or_never()) else {
        return true;
    };
    serde_json::from_slice(&bytes)
        .is_ok_and(|options: DeleteOptions| options.dry_run.is_some_and(|stages| !stages.is_empty()))
}
