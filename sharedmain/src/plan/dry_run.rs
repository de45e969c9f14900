//! The transport of a plan, below the delivery of own writes: sends each write as a dry run, and answers with the object
//! as it would be.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use futures::stream;
use http::{Method, Request, Response, StatusCode, request::Parts};
use http_body_util::StreamBody;
use kube::client::Body;
use parking_lot::Mutex;
use reknit_injection::{
    Effects, Informers,
    internal::{HttpResponse, ResourcePath, Transport, cached_json},
};
use serde_json::Value;
use tower::BoxError;

use super::{
    delete::Unsent,
    notes::{Finding, Notes},
    overlay::{Cause, Entry, Id, Overlay, Part},
    reply::{Reply, Write, param},
    selector::is_selected,
};

pub(super) type Result<T, E = BoxError> = std::result::Result<T, E>;

/// Returns the cached state of the object of a path, or `None` if objects of its resource are not cached.
type Cached = Box<dyn Fn(&ResourcePath<'_>) -> Option<Option<Value>> + Send + Sync>;

/// The planned writes of a process.
pub(super) struct DryRun {
    pub(super) live: Transport,
    watches: Watches,
    pub(super) cached: OnceLock<Cached>,
    overlay: tokio::sync::Mutex<Overlay>,
    pub(super) notes: Mutex<Notes>,
    /// The resources whose API servers are known to honour dry runs.
    pub(super) honoured: Mutex<BTreeSet<String>>,
}

/// The answer to a watch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watches {
    /// That of the API server.
    Live,
    /// A stream without events, so that informers list once.
    Silent,
}

impl DryRun {
    pub(super) fn new(live: Transport, watches: Watches) -> Arc<Self> {
        let (cached, overlay, notes, honoured) = Default::default();
        Arc::new(Self { live, watches, cached, overlay, notes, honoured })
    }

    /// Makes writes compare with the cached objects instead of reading the live ones first.
    pub(super) fn read_from(&self, informers: &Informers) {
        let _ = self.cached.set(Box::new(cached_json(informers)));
    }

    pub(super) fn transport(self: &Arc<Self>, namespace: &str) -> Transport {
        let this = self.clone();
        Transport::new(tower::service_fn(move |request| this.clone().answer(request)), namespace)
    }

    /// The effects outside the API server, which are recorded.
    pub(super) fn effects(self: &Arc<Self>) -> Effects {
        let this = self.clone();
        Effects::planned(move |object, text| this.notes.lock().add(Finding::Effect, object, text))
    }

    pub(super) async fn take_overlay(&self) -> Overlay {
        std::mem::take(&mut *self.overlay.lock().await)
    }

    /// The uids of the objects that are gone and leave their dependents to the garbage collector, and the causes.
    pub(super) async fn gone(&self) -> BTreeMap<String, Option<Cause>> {
        self.overlay.lock().await.gone.clone()
    }

    pub(super) fn cause(&self) -> Option<Cause> {
        self.notes.lock().cause.clone()
    }

    pub(super) async fn answer(self: Arc<Self>, request: Request<Body>) -> Result<HttpResponse> {
        let (head, body) = request.into_parts();
        let uri = head.uri.clone();
        match (ResourcePath::parse(uri.path()), &head.method) {
            (None, _) => Ok(self.live.send(Request::from_parts(head, body)).await?),
            (Some(path), &Method::GET) => self.read(head, body, &path).await,
            (Some(path), _) => {
                let answer = self.write(&Write::read(head, body).await?, &path).await;
                // A refusal is an error up to here, and a response to the caller.
                Ok(answer.or_else(|error| error.downcast().map(|refusal| *refusal))?.into_response())
            }
        }
    }

    async fn read(&self, head: Parts, body: Body, path: &ResourcePath<'_>) -> Result<HttpResponse> {
        let uri = head.uri.clone();
        if matches!(param(&uri, "watch").as_deref(), Some("true" | "1")) {
            return match self.watches {
                Watches::Live => Ok(self.live.send(Request::from_parts(head, body)).await?),
                Watches::Silent => Ok(Response::new(Box::new(StreamBody::new(stream::pending())) as _)),
            };
        }
        let overlay = self.overlay.lock().await;
        if let Some(name) = path.name() {
            let id = Id::new(path, &name);
            let entry = overlay.get(&id).filter(|_| path.subresource().is_none_or(|name| name == "status"));
            if let Some(entry) = entry.filter(|entry| entry.is_changed()) {
                let answer = entry.after().map_or_else(|| Reply::not_found(&id), |object| Reply::ok(&object));
                return Ok(answer.into_response());
            }
        }
        let is_listed =
            |(id, entry): &(&Id, &Entry)| path.is_collection() && id.is_in(path) && entry.is_changed();
        let planned: Vec<_> = overlay.entries.iter().filter(is_listed).collect();
        let response = self.live.send(Request::from_parts(head, body));
        if planned.is_empty() {
            drop(overlay);
            return Ok(response.await?);
        }
        let mut reply = Reply::read(response.await?).await?;
        if reply.is_success() {
            let mut list = reply.json()?;
            merge_into_list(&mut list, path, &planned, &uri);
            reply.body = list.to_string().into();
        }
        Ok(reply.into_response())
    }

    async fn write(&self, write: &Write, path: &ResourcePath<'_>) -> Result<Reply> {
        let part = match path.subresource() {
            None => Part::Main,
            Some("status") => Part::Status,
            Some(name) => return self.write_subresource(write, path, name).await,
        };
        let is_event = path.plural == "events" && matches!(path.group, "" | "events.k8s.io");
        // Such requests only ask a question.
        let is_review = matches!(path.group, "authentication.k8s.io" | "authorization.k8s.io");
        let mut overlay = self.overlay.lock().await;
        match (&write.head.method, path.name().as_deref()) {
            (&Method::POST, None) if is_event => {
                self.notes.lock().add_event(&write.body);
                Ok(Reply::new(StatusCode::CREATED, &write.body))
            }
            _ if is_event => Ok(Reply::ok(&write.body)), // the repetition of an event
            (&Method::POST, None) if !is_review => self.create(&mut overlay, write, path).await,
            (&Method::PUT | &Method::PATCH, Some(name)) => {
                self.change(&mut overlay, write, path, &Id::new(path, name), part).await
            }
            (&Method::DELETE, Some(name)) => self.delete(&mut overlay, write, &Id::new(path, name)).await,
            (&Method::DELETE, None) => {
                drop(overlay);
                self.delete_collection(write, path).await
            }
            _ => self.send(write).await,
        }
    }

    /// Sends a write to a subresource such as an eviction, whose effect on the object is not followed.
    async fn write_subresource(&self, write: &Write, path: &ResourcePath<'_>, name: &str) -> Result<Reply> {
        let (id, method) = (Id::new(path, &path.name().unwrap_or_default()), &write.head.method);
        if name != "token" {
            self.notes.lock().add(Finding::Effect, id.to_string(), format!("{method} {name}"));
        }
        if self.overlay.lock().await.is_planned(&id) {
            let message =
                format!("a plan has no answer to {method} {name} of {id}, which does not exist yet");
            return Err(Reply::failure(StatusCode::NOT_FOUND, "NotFound", &message).into());
        }
        self.send(write).await
    }

    /// Deletes the selected objects.
    async fn delete_collection(&self, write: &Write, path: &ResourcePath<'_>) -> Result<Reply> {
        let mut list = Request::new(Body::empty());
        *list.uri_mut() = write.head.uri.clone();
        let (head, body) = list.into_parts();
        let reply = Reply::read(Box::pin(self.read(head, body, path)).await?).await?.successful()?;
        let mut overlay = self.overlay.lock().await;
        let answer = self.dry_run(&overlay, &write.with_body(write.deletion_body())).await?;
        let mut deletion = write.with_body(write.body.clone());
        deletion.head.extensions.insert(Unsent);
        for item in reply.json()?["items"].as_array().into_iter().flatten() {
            let id = Id::of_item(path, item);
            self.delete(&mut overlay, &deletion, &id).await?;
            overlay.entry(&id).not_validated.extend(answer.as_ref().err().cloned());
        }
        Ok(reply)
    }
}

/// Replaces and removes the items that the plan has written. Adds to the last page those that are selected only because
/// of the plan. An item that the API server has selected stays if only the API server can evaluate the selectors.
fn merge_into_list(list: &mut Value, path: &ResourcePath<'_>, planned: &[(&Id, &Entry)], uri: &http::Uri) {
    let is_last = list["metadata"]["continue"].as_str().unwrap_or_default().is_empty();
    let Some(items) = list["items"].as_array_mut() else { return };
    for (id, entry) in planned {
        let count = items.len();
        items.retain(|item| Id::of_item(path, item) != **id);
        let is_listed = items.len() < count;
        let was_selected = || entry.live().is_some_and(|object| is_selected(uri, &object) == Some(true));
        let selected = entry.after().filter(|object| match is_selected(uri, object) {
            Some(true) => is_listed || is_last && !was_selected(),
            Some(false) => false,
            None => is_listed,
        });
        items.extend(selected);
    }
}
