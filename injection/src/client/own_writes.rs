//! Own writes: delivers the responses to the process's requests to its informers.
//!
//! The response to a write, or to a read of one object, contains the object's newest state. That state enters the
//! caches before the caller gets the response, so a controller reads its own writes. If the response to a write does
//! not contain the new state, the object is [read back](super::read_back).

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request, Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Status, StatusDetails};
use kube::client::Body;
use reknit_apis::Key;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    read_back::read_back,
    resource_path::ResourcePath,
    transport::{HttpResponse, Transport, collect_body, full_body},
    writers::WrittenState,
};
use crate::{
    fights::WriteRequest,
    informer::{Informers, StateBefore, writers},
    object::{RawObject, ResponseState},
    pass::CurrentPass,
};

/// Wraps a transport so that it delivers the responses to writes, and to reads of one object, to the informers.
pub(crate) fn deliver_own_writes(transport: &Transport, informers: &Informers) -> Transport {
    let (informers, inner) = (informers.clone(), transport.clone());
    transport.with_send(move |request| {
        let cacheable = CacheableRequest::of(&request, &informers);
        let response = inner.send(request);
        let Some(cacheable) = cacheable else { return response };
        let (inner, informers) = (inner.clone(), informers.clone());
        async move {
            cacheable.begin_write();
            cacheable.deliver(response.await?, &inner, &informers).await
        }
        .boxed()
    })
}

/// A request whose response shows the newest state of an object that informers cache.
struct CacheableRequest {
    is_write: bool,
    is_deletion: bool,
    /// The cached state of the object that the request changes. The pass is not known yet: a kube `Client` calls its
    /// layers in a task of its own.
    before: Option<StateBefore>,
    request: WriteRequest,
}

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

impl CacheableRequest {
    fn of(request: &Request<Body>, informers: &Informers) -> Option<Self> {
        let (method, query) = (request.method(), request.uri().query().unwrap_or_default());
        let is_deletion = *method == Method::DELETE;
        let path = ResourcePath::parse(request.uri().path())?;
        // A read without a name is a list. The API server may serve a read with a resourceVersion in its query from a
        // cache, whose state may be old.
        let is_object = !path.is_collection() && path.subresource().is_none();
        let is_read = *method == Method::GET && query.is_empty() && is_object;
        let is_write = is_deletion || [Method::POST, Method::PUT, Method::PATCH].contains(method);
        if !(is_read || is_write) {
            return None;
        }
        // These responses are streams or come from another server, and a `token` request does not change its
        // ServiceAccount.
        let has_no_object =
            matches!(path.subresource(), Some("proxy" | "exec" | "attach" | "portforward" | "token"));
        if has_no_object || !informers.has_informer_of(&path) || is_dry_run(request) {
            return None;
        }
        let before = is_write.then(|| informers.state_before(&path)).flatten();
        Some(Self { is_write, is_deletion, before, request: WriteRequest::of(request) })
    }

    async fn deliver(
        self,
        response: HttpResponse,
        transport: &Transport,
        informers: &Informers,
    ) -> kube::Result<HttpResponse> {
        if !response.status().is_success() {
            self.end_failed_write(response.status());
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = collect_body(body).await?;
        self.count_creation(head.status);
        if let Some(path) = ResourcePath::parse(self.request.path())
            && let Err(unknown_keys) = self.deliver_body(&path, &body, informers)
        {
            // Boxed, since this future is large and rarely needed.
            Box::pin(read_back(transport, informers, &path, unknown_keys)).await;
            let text = std::str::from_utf8(&body).ok();
            if let Some(raw) = text.and_then(|text| RawObject::scan_text(text).ok()) {
                self.record_write(&raw);
            }
        }
        Ok(Response::from_parts(head, full_body(body)))
    }

    /// Delivers the body. The error contains the keys of the written objects whose state the body does not show.
    fn deliver_body(
        &self,
        path: &ResourcePath<'_>,
        body: &Bytes,
        informers: &Informers,
    ) -> Result<(), Vec<Key>> {
        let Ok(text) = std::str::from_utf8(body) else { return Ok(()) };
        let record = |state| {
            if self.is_write {
                writers(informers).record(state);
            }
        };
        if self.is_deletion
            && path.subresource().is_none()
            && let (Some(StatusDetails { uid, .. }), Some(key)) = (success_details(text), path.key())
        {
            record(uid.as_deref().map(WrittenState::deleted));
            informers.apply_response(path, &ResponseState::Deleted { key: &key, uid: uid.as_deref() });
            return Ok(());
        }
        if self.is_deletion && path.is_collection() {
            let deleted = deleted_objects(text);
            deleted.iter().for_each(|raw| record(raw.state().uid.map(WrittenState::deleted)));
            return Err(deleted.iter().map(RawObject::key).collect());
        }
        let raw = RawObject::scan_text(text).ok();
        if let Some(raw) = &raw {
            // The state that a write leaves as it is was written by whoever led to it.
            if self.before.as_ref().is_none_or(|before| !before.is_unchanged(raw)) {
                record(WrittenState::version(raw.resource_version()));
            }
            // A grace period or a finalizer may delay the deletion, which is this pass's all the same.
            if self.is_deletion || raw.is_gone(false) {
                record(raw.state().uid.map(WrittenState::deleted));
            }
        }
        let shows_state = raw.as_ref().is_some_and(|raw| {
            let state = ResponseState::Object { raw, text, is_deletion: self.is_deletion };
            informers.apply_response(path, &state)
        });
        if !shows_state {
            return Err(path.key().filter(|_| self.is_write).into_iter().collect());
        }
        raw.iter().for_each(|raw| self.record_write(raw));
        Ok(())
    }

    /// The state before the write and the pass that sends it, unless it is a deletion.
    fn write_of_pass(&self) -> Option<(&StateBefore, Arc<CurrentPass>)> {
        self.before.as_ref().zip(CurrentPass::get().filter(|_| !self.is_deletion))
    }

    fn begin_write(&self) {
        if let Some((before, pass)) = self.write_of_pass() {
            before.begin_write(&pass.controller);
        }
    }

    /// Ends a write that the API server has refused as a mistake of the client. It may have executed any other one that failed.
    fn end_failed_write(&self, status: StatusCode) {
        let is_refused = status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT;
        if let Some((before, pass)) = self.write_of_pass().filter(|_| is_refused) {
            before.end_refused_write(&pass.controller);
        }
    }

    /// Counts an object that the pass has created, also by an apply.
    fn count_creation(&self, status: StatusCode) {
        let is_object = |path: ResourcePath<'_>| path.subresource().is_none();
        if status == StatusCode::CREATED
            && ResourcePath::parse(self.request.path()).is_some_and(is_object)
            && let Some(pass) = CurrentPass::get()
        {
            pass.count_creation();
        }
    }

    /// Lets the pass know what its write has restored or changed, once the caches have the new state.
    fn record_write(&self, response: &RawObject<'_>) {
        let Some((before, pass)) = self.write_of_pass() else { return };
        if let Some(restored) = before.record_write(&pass.controller, &self.request, response) {
            pass.add_restored(restored);
        }
        if before.is_unchanged(response) {
            pass.add_no_op_write(before.resource());
        }
        pass.set_last_change(|| before.describe_change(&self.request, response));
    }
}

/// The details of a `Status` of success, the response to a deletion that does not contain the object.
fn success_details(text: &str) -> Option<StatusDetails> {
    let status: Status = serde_json::from_str(text).ok()?;
    (status.status.as_deref() == Some("Success")).then(|| status.details.unwrap_or_default())
}

/// The objects in the response to the deletion of a collection.
fn deleted_objects(text: &str) -> Vec<RawObject<'_>> {
    let items = serde_json::from_str::<RawList<'_>>(text).map(|list| list.items).unwrap_or_default();
    items.into_iter().filter_map(|item| RawObject::scan_text(item.get()).ok()).collect()
}

/// Returns true if the request changes nothing because it is a dry run.
pub fn is_dry_run(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes()).any(|(name, value)| name == "dryRun" && !value.is_empty())
        || (*request.method() == Method::DELETE && is_dry_run_deletion(request.body()))
}

/// Returns true if the options in the body of a deletion ask for a dry run. A body that cannot be read counts as a dry
/// run.
fn is_dry_run_deletion(body: &Body) -> bool {
    let Some(Some(Ok(bytes))) = body.try_clone().map(|body| body.collect_bytes().now_or_never()) else {
        return true;
    };
    serde_json::from_slice(&bytes)
        .is_ok_and(|options: DeleteOptions| options.dry_run.is_some_and(|stages| !stages.is_empty()))
}
