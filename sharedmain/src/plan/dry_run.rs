//! The transport of a plan, below the delivery of own writes: sends each write as a dry run, and answers with the object
//! as it would be.
//!
//! A dry run sees only the live object. So later writes to an object are merged into its planned state, and the
//! difference from the live object is sent. A planned object, which the API server does not know, is created anew.

use std::sync::Arc;

use futures::stream;
use http::{Method, Request, Response, StatusCode, request::Parts};
use http_body_util::StreamBody;
use kube::client::Body;
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::{
    Effects,
    internal::{HttpResponse, ResourcePath, Transport, header_warnings, now},
};
use serde_json::{Value, json};
use tower::BoxError;

use super::{
    keyed::merge,
    overlay::{
        Cause, Entry, Id, Layer, Overlay, Part, difference, is_finalized, is_terminating, with_fields,
    },
    reply::{Reply, Write, changed, is_selected, param},
};

type Result<T, E = BoxError> = std::result::Result<T, E>;

const STATUS_OF_PLANNED: &str = "its status, since the object does not exist yet";
const BY_WEBHOOK: &str = "the object, since an admission webhook answers no dry runs or cannot be called";
const IN_PLANNED_NAMESPACE: &str = "the object, since its namespace does not exist yet";

/// The planned writes of a process.
pub(super) struct DryRun {
    live: Transport,
    watches: Watches,
    overlay: tokio::sync::Mutex<Overlay>,
    pub(super) notes: Mutex<Notes>,
}

/// The answer to a watch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watches {
    /// That of the API server.
    Live,
    /// A stream without events, so that informers list once.
    Silent,
}

/// The findings of a plan beside the objects.
#[derive(Default)]
pub(super) struct Notes {
    /// The time at which the plan began, in RFC 3339.
    pub(super) since: String,
    /// The pass that runs.
    pub(super) cause: Option<Cause>,
    /// The paths of objects whose live state is newer than the caches.
    pub(super) outdated: Vec<String>,
    pub(super) effects: Vec<Note>,
    pub(super) events: Vec<Note>,
    pub(super) refused: Vec<Note>,
    pub(super) warnings: Vec<Note>,
}

/// A text about an object, with the pass that caused it.
pub(super) struct Note {
    pub(super) cause: Option<Cause>,
    pub(super) object: String,
    pub(super) text: String,
}

impl Notes {
    fn note(&self, object: String, text: impl Into<String>) -> Note {
        Note { cause: self.cause.clone(), object, text: text.into() }
    }
}

impl DryRun {
    pub(super) fn new(live: Transport, watches: Watches) -> Arc<Self> {
        let notes = Mutex::new(Notes { since: now().to_string(), ..Notes::default() });
        Arc::new(Self { live, watches, overlay: Default::default(), notes })
    }

    pub(super) fn transport(self: &Arc<Self>, namespace: &str) -> Transport {
        let this = self.clone();
        Transport::new(tower::service_fn(move |request| this.clone().answer(request)), namespace)
    }

    /// The effects outside the API server, which are recorded.
    pub(super) fn effects(self: &Arc<Self>) -> Effects {
        let this = self.clone();
        Effects::planned(move |object, text| {
            let mut notes = this.notes.lock();
            let note = notes.note(object, text);
            notes.effects.push(note);
        })
    }

    pub(super) async fn take_overlay(&self) -> Overlay {
        std::mem::take(&mut *self.overlay.lock().await)
    }

    pub(super) async fn answer(self: Arc<Self>, request: Request<Body>) -> Result<HttpResponse> {
        let (head, body) = request.into_parts();
        let uri = head.uri.clone();
        match (ResourcePath::parse(uri.path()), &head.method) {
            (None, _) => Ok(self.live.send(Request::from_parts(head, body)).await?),
            (Some(path), &Method::GET) => self.read(head, body, &path).await,
            (Some(path), _) => Ok(self.write(&Write::read(head, body).await?, &path).await?.into_response()),
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
        if let Some(name) = path.name {
            let id = Id::new(path, name);
            let entry = overlay.get(&id).filter(|_| path.subresource().is_none_or(|name| name == "status"));
            if let Some(entry) = entry {
                return Ok(entry
                    .after
                    .as_ref()
                    .map_or_else(|| Reply::not_found(&id), Reply::ok)
                    .into_response());
            }
        }
        let planned: Vec<_> =
            overlay.entries.iter().filter(|(id, _)| path.name.is_none() && id.is_in(path)).collect();
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
        let mut overlay = self.overlay.lock().await;
        let is_event = path.plural == "events" && matches!(path.group, "" | "events.k8s.io");
        let part = match path.subresource() {
            None => Part::Main,
            Some("status") => Part::Status,
            Some(_) => return self.write_subresource(write, path).await,
        };
        match (&write.head.method, path.name) {
            (method, _) if is_event => Ok(self.note_event(method, &write.body)),
            (&Method::POST, None) if is_review(path) => self.send(write).await,
            (&Method::POST, None) => self.create(&mut overlay, write, path).await,
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

    /// Notes an event instead of recording it.
    fn note_event(&self, method: &Method, event: &Value) -> Reply {
        if method != Method::POST {
            return Reply::ok(event); // its repetition
        }
        let text = |field: &str| event[field].as_str().unwrap_or_default();
        let regarding = &event["regarding"];
        let key = Key::new(regarding["namespace"].as_str(), regarding["name"].as_str().unwrap_or_default());
        let object = format!("{} {key}", regarding["kind"].as_str().unwrap_or_default());
        let mut notes = self.notes.lock();
        let note = notes.note(object, format!("{} {}: {}", text("type"), text("reason"), text("note")));
        notes.events.push(note);
        Reply::new(StatusCode::CREATED, event)
    }

    /// Sends a write to a subresource such as an eviction, whose effect on the object is not followed.
    async fn write_subresource(&self, write: &Write, path: &ResourcePath<'_>) -> Result<Reply> {
        let reply = self.send(write).await?;
        if reply.is_success() && path.subresource() != Some("token") {
            let mut notes = self.notes.lock();
            let subresource = path.subresource().unwrap_or_default();
            let object = Id::new(path, path.name.unwrap_or_default()).to_string();
            let note = notes.note(object, format!("{} {subresource}", write.head.method));
            notes.effects.push(note);
        }
        Ok(reply)
    }

    async fn create(&self, overlay: &mut Overlay, write: &Write, path: &ResourcePath<'_>) -> Result<Reply> {
        let name = path.name.or(write.body["metadata"]["name"].as_str()).filter(|name| !name.is_empty());
        let mut request = write.with_body(write.body.clone());
        if let Some((name, entry)) = name.and_then(|name| Some((name, overlay.get(&Id::new(path, name))?))) {
            if entry.after.is_some() {
                let message = format!("{} already exists", Id::new(path, name));
                return Ok(Reply::failure(StatusCode::CONFLICT, "AlreadyExists", &message));
            }
            if entry.before.is_some() {
                // The live object still has the name.
                request =
                    write.to(Method::POST, &path.collection_path(), under_another_name(request.body))?;
            }
        }
        let is_in_planned =
            path.namespace.is_some_and(|namespace| overlay.is_planned(&Id::of_namespace(namespace)));
        let mut not_validated = is_in_planned.then_some(IN_PLANNED_NAMESPACE);
        let mut object = if is_in_planned {
            self.emulate(overlay, write, path)
        } else {
            let reply = self.send(&request).await?;
            if reply.is_webhook_failure() {
                not_validated = Some(BY_WEBHOOK);
                self.emulate(overlay, write, path)
            } else if reply.is_success() {
                reply.json()?
            } else {
                return Ok(reply);
            }
        };
        if let Some(name) = name {
            object["metadata"]["name"] = json!(name);
        }
        let id = Id::new(path, object["metadata"]["name"].as_str().unwrap_or_default());
        let layer = Layer::of(Part::Main, write.manager(), &write.body);
        let object = overlay.create(&id, object, layer, self.cause());
        overlay.entry(&id).not_validated.extend(not_validated);
        Ok(Reply::new(StatusCode::CREATED, &object))
    }

    /// Returns the object that a request would create, without asking the API server.
    fn emulate(&self, overlay: &mut Overlay, write: &Write, path: &ResourcePath<'_>) -> Value {
        let (mut object, number) = (write.body.clone(), overlay.next());
        let metadata = &mut object["metadata"];
        if metadata["name"].is_null() {
            metadata["name"] =
                json!(format!("{}{number}", metadata["generateName"].as_str().unwrap_or_default()));
        }
        metadata["namespace"] = json!(path.namespace);
        metadata["uid"] = json!(format!("planned-{number}"));
        (metadata["generation"], metadata["creationTimestamp"]) = (json!(1), json!(now()));
        object
    }

    async fn change(
        &self,
        overlay: &mut Overlay,
        write: &Write,
        path: &ResourcePath<'_>,
        id: &Id,
        part: Part,
    ) -> Result<Reply> {
        if let Some(failure) = self.load(overlay, write, id).await? {
            return Ok(failure);
        }
        let entry = overlay.entry(id);
        let Some(current) = entry.after.clone() else {
            return match write.is_apply() && part == Part::Main {
                true => self.create(overlay, write, path).await,
                false => Ok(Reply::not_found(id)),
            };
        };
        if let Some(conflict) = write.precondition_error(id, &current) {
            self.notes.lock().outdated.push(id.path());
            return Ok(conflict);
        }
        let manager = write.manager();
        let is_first = !entry.is_planned && entry.layers_beside(part, manager.as_deref()).next().is_none();
        let live = entry.before.clone().filter(|_| !entry.is_planned);
        let (layer, wanted, is_validated) = match live {
            // The API server applies the request to the live object.
            Some(live) if is_first || manager.is_some() => {
                let body = with_version_of(&live, write.body.clone());
                let reply = self.send(&write.with_body(body)).await?;
                if reply.is_webhook_failure() {
                    entry.not_validated.insert(BY_WEBHOOK);
                    let wanted = match changed(write, part, &current) {
                        Ok(wanted) => wanted,
                        Err(reply) => return Ok(reply),
                    };
                    (Layer::between(part, manager.as_deref(), &live, &wanted), wanted, true)
                } else {
                    let answer = match self.answer_of(overlay, write, id, reply).await? {
                        Ok(answer) => answer,
                        Err(reply) => return Ok(reply),
                    };
                    let layer = Layer::between(part, manager.as_deref(), &live, &answer);
                    let wanted = if is_first { answer } else { merged(&live, overlay.entry(id), &layer) };
                    (layer, wanted, is_first)
                }
            }
            _ if manager.is_some() => {
                let layer = Layer::of(part, manager, &write.body);
                let wanted = merged(&json!({}), entry, &layer);
                (layer, wanted, false)
            }
            _ => match changed(write, part, &current) {
                Ok(wanted) => (Layer::between(part, None, &current, &wanted), wanted, false),
                Err(reply) => return Ok(reply),
            },
        };
        let answer = if is_validated {
            wanted
        } else {
            let reply = self.validate(overlay, write, id, part, &wanted).await?;
            if reply.is_webhook_failure() {
                overlay.entry(id).not_validated.insert(BY_WEBHOOK);
                wanted
            } else {
                match self.answer_of(overlay, write, id, reply).await? {
                    Ok(answer) => answer,
                    Err(reply) => return Ok(reply),
                }
            }
        };
        overlay.entry(id).add_layer(layer);
        Ok(Reply::ok(&overlay.commit(id, part, &answer, self.cause())))
    }

    /// Sends the difference of a planned state from the live object, or creates the planned object. Returns the planned
    /// state as the API server would store it.
    async fn validate(
        &self,
        overlay: &mut Overlay,
        write: &Write,
        id: &Id,
        part: Part,
        wanted: &Value,
    ) -> Result<Reply> {
        let entry = overlay.entry(id);
        let Some(live) = entry.before.as_ref().filter(|_| !entry.is_planned) else {
            if part == Part::Status {
                entry.not_validated.insert(STATUS_OF_PLANNED);
            }
            if part == Part::Status || entry.not_validated.contains(IN_PLANNED_NAMESPACE) {
                return Ok(Reply::ok(wanted));
            }
            let body = part.of(wanted);
            let body = if entry.before.is_some() { under_another_name(body) } else { body };
            return self.send(&write.to(Method::POST, &id.collection_path(), body)?).await;
        };
        let patch = difference(&part.of(live), &part.of(wanted));
        if patch == json!({}) {
            return Ok(Reply::ok(live));
        }
        let path = if part == Part::Status { format!("{}/status", id.path()) } else { id.path() };
        self.send(&write.to(Method::PATCH, &path, patch)?).await
    }

    async fn delete(&self, overlay: &mut Overlay, write: &Write, id: &Id) -> Result<Reply> {
        if let Some(failure) = self.load(overlay, write, id).await? {
            return Ok(failure);
        }
        let entry = overlay.entry(id);
        let Some(current) = entry.after.clone() else { return Ok(Reply::not_found(id)) };
        if let Some(conflict) = write.precondition_error(id, &current) {
            self.notes.lock().outdated.push(id.path());
            return Ok(conflict);
        }
        if !entry.is_planned {
            let mut options = write.body.clone();
            if let Some(Value::Object(preconditions)) = options.get_mut("preconditions") {
                preconditions.remove("resourceVersion"); // it may be an invented one
            }
            let reply = self.send(&write.to(Method::DELETE, &id.path(), options)?).await?;
            if reply.is_webhook_failure() {
                overlay.entry(id).not_validated.insert(BY_WEBHOOK);
            } else if !reply.is_success() {
                return Ok(reply);
            }
        }
        if is_terminating(&current) {
            return Ok(Reply::ok(&current));
        }
        if is_finalized(&current) {
            let mut deleted = current.clone();
            deleted["metadata"]["deletionTimestamp"] = json!(now());
            deleted["metadata"]["deletionGracePeriodSeconds"] = json!(0);
            return Ok(Reply::ok(&overlay.store(id, deleted, self.cause())));
        }
        overlay.remove(id, self.cause());
        let details = with_fields(json!({ "name": id.key.name }), &current["metadata"], &["uid"]);
        let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
        Ok(Reply::ok(&status))
    }

    /// Deletes each of the selected objects.
    async fn delete_collection(&self, write: &Write, path: &ResourcePath<'_>) -> Result<Reply> {
        let mut list = Request::new(Body::empty());
        *list.uri_mut() = write.head.uri.clone();
        let (head, body) = list.into_parts();
        let reply = Reply::read(Box::pin(self.read(head, body, path)).await?).await?;
        if !reply.is_success() {
            return Ok(reply);
        }
        for item in reply.json()?["items"].as_array().into_iter().flatten() {
            let mut overlay = self.overlay.lock().await;
            let id = Id::of_item(path, item);
            let deleted = self.delete(&mut overlay, write, &id).await?;
            if !deleted.is_success() {
                return Ok(deleted);
            }
        }
        Ok(reply)
    }

    /// Reads the live object unless the plan knows it. Returns the response if that fails.
    async fn load(&self, overlay: &mut Overlay, write: &Write, id: &Id) -> Result<Option<Reply>> {
        if overlay.get(id).is_some() {
            return Ok(None);
        }
        let live = match self.read_live(write, id).await? {
            Ok(live) => live,
            Err(reply) => return Ok(Some(reply)),
        };
        *overlay.entry(id) = Entry { before: live.clone(), after: live, ..Entry::default() };
        Ok(None)
    }

    /// Reads the live object by a list, for which the permission to list suffices. The error is the response.
    async fn read_live(&self, write: &Write, id: &Id) -> Result<Result<Option<Value>, Reply>> {
        let mut request = Request::new(Body::empty());
        let selector: String =
            form_urlencoded::byte_serialize(format!("metadata.name={}", id.key.name).as_bytes()).collect();
        *request.uri_mut() = format!("{}?fieldSelector={selector}", id.collection_path()).parse()?;
        *request.extensions_mut() = write.head.extensions.clone();
        let reply = Reply::read(self.live.send(request).await?).await?;
        if !reply.is_success() {
            return Ok(Err(reply));
        }
        let mut list = reply.json()?;
        let kind = list["kind"].as_str().unwrap_or_default().trim_end_matches("List").to_owned();
        let mut live = list["items"].get_mut(0).map(Value::take);
        if let Some(live) = &mut live {
            // Items of built-in Kinds do not name their Kind.
            (live["apiVersion"], live["kind"]) = (list["apiVersion"].take(), json!(kind));
        }
        Ok(Ok(live))
    }

    /// Returns the object in the response to the dry run of a change. The error is the response to the change. If the
    /// live object has changed since the plan read it, the planned writes move to its new state, and the error is a
    /// conflict, so that the pass runs again.
    async fn answer_of(
        &self,
        overlay: &mut Overlay,
        write: &Write,
        id: &Id,
        reply: Reply,
    ) -> Result<Result<Value, Reply>> {
        let answer = reply.json()?;
        let entry = overlay.entry(id);
        let known = entry.before.as_ref().filter(|_| !entry.is_planned);
        let known = known.and_then(version).map(str::to_owned);
        let is_moved = match known.as_deref() {
            Some(known) if reply.is_success() => version(&answer) != Some(known),
            known => known.is_some() && reply.status == StatusCode::CONFLICT,
        };
        if is_moved {
            match self.read_live(write, id).await? {
                Ok(live) if live.as_ref().and_then(version) != known.as_deref() => {
                    overlay.rebase(id, live);
                    self.notes.lock().outdated.push(id.path());
                    return Ok(Err(Reply::modified(id)));
                }
                Ok(_) => {} // a conflict between field managers
                Err(reply) => return Ok(Err(reply)),
            }
        }
        Ok(if reply.is_success() { Ok(answer) } else { Err(reply) })
    }

    /// Sends a write as a dry run, and notes warnings and refusals.
    async fn send(&self, write: &Write) -> Result<Reply> {
        let reply = Reply::read(self.live.send(write.dry_run()?).await?).await?;
        let mut notes = self.notes.lock();
        for warning in header_warnings(&reply.headers) {
            let note = notes.note(write.head.uri.path().to_owned(), warning);
            notes.warnings.push(note);
        }
        if reply.status == StatusCode::FORBIDDEN {
            let note =
                notes.note(format!("{} {}", write.head.method, write.head.uri.path()), reply.message());
            notes.refused.push(note);
        }
        Ok(reply)
    }

    fn cause(&self) -> Option<Cause> {
        self.notes.lock().cause.clone()
    }
}

fn version(object: &Value) -> Option<&str> {
    object["metadata"]["resourceVersion"].as_str()
}

/// Returns true for requests that only ask a question.
fn is_review(path: &ResourcePath<'_>) -> bool {
    matches!(path.group, "authentication.k8s.io" | "authorization.k8s.io")
}

/// The state that all writes to a part of an object lead to, with this one in place of the one that it replaces.
fn merged(base: &Value, entry: &Entry, layer: &Layer) -> Value {
    let others = entry.layers_beside(layer.part, layer.manager.as_deref());
    merge(base, others.chain([layer]).map(|layer| &layer.patch))
}

/// Returns the body of a request to create an object whose name the live object still has.
fn under_another_name(mut body: Value) -> Value {
    if let Some(metadata) = body["metadata"].as_object_mut() {
        metadata.remove("name");
        metadata.insert("generateName".into(), json!("planned-"));
    }
    body
}

/// Replaces the resourceVersion in a body, which may be an invented one, with that of the live object.
fn with_version_of(live: &Value, mut body: Value) -> Value {
    if body["metadata"]["resourceVersion"].is_string() {
        body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    }
    body
}

/// Replaces and removes the items that the plan has written. Adds planned objects to the last page.
fn merge_into_list(list: &mut Value, path: &ResourcePath<'_>, planned: &[(&Id, &Entry)], uri: &http::Uri) {
    let is_last = list["metadata"]["continue"].as_str().unwrap_or_default().is_empty();
    let Some(items) = list["items"].as_array_mut() else { return };
    for (id, entry) in planned {
        let count = items.len();
        items.retain(|item| Id::of_item(path, item) != **id);
        let is_listed = items.len() < count;
        let selected = entry.after.clone().filter(|object| is_selected(uri, object));
        items.extend(selected.filter(|_| is_listed || entry.is_planned && is_last));
    }
}
