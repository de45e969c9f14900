//! The requests of a plan to the API server: lists of single objects, and dry runs.

use http::{Method, Request, StatusCode};
use kube::client::Body;
use reknit_injection::internal::{ResourcePath, field_term, header_warnings};
use serde_json::{Value, json};
use tower::BoxError;

use super::{
    dry_run::{DryRun, Result},
    notes::Finding,
    overlay::{Entry, Id, Overlay, Part},
    reply::{Answer, BY_SERVER, BY_WEBHOOK, Reply, Write},
};

impl DryRun {
    /// Finds the live state of the object of a write, unless the plan knows it. It is the cached one: the dry run shows
    /// if another one is newer. An object that is applied and that the cache does not have counts as absent, which the
    /// dry run shows too.
    pub(super) async fn load(&self, overlay: &mut Overlay, write: &Write, id: &Id, part: Part) -> Result<()> {
        if overlay.get(id).is_some() {
            return Ok(());
        }
        let path = id.path();
        let cached = self.cached.get().zip(ResourcePath::parse(&path)).and_then(|(get, path)| get(&path));
        let live = match cached {
            Some(None) if write.is_apply() && part == Part::Main => None,
            Some(Some(cached)) => Some(cached),
            _ => self.read_live(write, id).await?,
        };
        *overlay.entry(id) = Entry::unchanged(live);
        Ok(())
    }

    /// Reads the live object by a list, for which the permission to list suffices, or else as far as the permission to patch it
    /// allows.
    pub(super) async fn read_live(&self, write: &Write, id: &Id) -> Result<Option<Value>> {
        let listed = self.list_live(write, id).await;
        let refusal = listed.as_ref().err().and_then(|error| error.downcast_ref());
        match refusal.is_some_and(|refusal: &Reply| refusal.status == StatusCode::FORBIDDEN) {
            true => self.read_by_patch(write, id).await?.map_or(listed, Ok),
            false => listed,
        }
    }

    /// Reads the live object by the dry run of a patch that changes nothing. The outer `None` means that the API server refuses
    /// that too.
    async fn read_by_patch(&self, write: &Write, id: &Id) -> Result<Option<Option<Value>>> {
        if !self.honours_dry_runs(write).await? {
            return Ok(None);
        }
        let path = ResourcePath::parse(write.head.uri.path());
        let is_status = path.and_then(|path| path.subresource()) == Some("status");
        let status = is_status.then(|| format!("{}/status", id.path()));
        for path in [id.path()].into_iter().chain(status) {
            let patch = write.to(Method::PATCH, &path, json!({}))?.dry_run()?;
            let reply = Reply::read(self.live.send(patch).await?).await?;
            match reply.status {
                StatusCode::NOT_FOUND => return Ok(Some(None)),
                status if status.is_success() => return Ok(Some(Some(reply.json()?))),
                _ => {}
            }
        }
        Ok(None)
    }

    async fn list_live(&self, write: &Write, id: &Id) -> Result<Option<Value>> {
        let mut request = Request::new(Body::empty());
        let selector: String =
            form_urlencoded::byte_serialize(field_term("metadata.name", &id.key.name).as_bytes()).collect();
        *request.uri_mut() = format!("{}?fieldSelector={selector}", id.collection_path()).parse()?;
        *request.extensions_mut() = write.head.extensions.clone();
        let mut list = Reply::read(self.live.send(request).await?).await?.successful()?.json()?;
        let kind = list["kind"].as_str().unwrap_or_default().trim_end_matches("List").to_owned();
        let mut live = list["items"].get_mut(0).map(Value::take);
        if let Some(live) = &mut live {
            // Items of built-in Kinds do not name their Kind.
            (live["apiVersion"], live["kind"]) = (list["apiVersion"].take(), json!(kind));
        }
        Ok(live)
    }

    /// Returns the answer to the dry run of a change, as [`dry_run`](Self::dry_run) does. If the live
    /// object has changed since the plan read it, the planned writes move to its new state, and the error is a conflict,
    /// so that the pass runs again.
    pub(super) async fn dry_run_of_known(
        &self,
        overlay: &mut Overlay,
        write: &Write,
        id: &Id,
    ) -> Result<Answer> {
        let answer = self.dry_run(overlay, write).await;
        let known = overlay.entry(id).live().and_then(|live| version(&live));
        let is_moved = known.is_some()
            && match &answer {
                Ok(answer) => answer.as_ref().is_ok_and(|answer| version(answer) != known),
                Err(error) => error.downcast_ref().is_some_and(|refusal: &Reply| {
                    [StatusCode::CONFLICT, StatusCode::NOT_FOUND].contains(&refusal.status)
                }),
            };
        if is_moved {
            let live = self.read_live(write, id).await?;
            // Otherwise it is a conflict between field managers, or a resource without this subresource.
            if live.as_ref().and_then(version) != known {
                overlay.rebase(id, live);
                self.notes.lock().outdated.push(id.path());
                return Err(Reply::modified(id).into());
            }
        }
        answer
    }

    /// Sends a write as a dry run. Returns the object in the response, or why the API server could not validate the write.
    pub(super) async fn dry_run(&self, overlay: &Overlay, write: &Write) -> Result<Answer> {
        if !self.honours_dry_runs(write).await? {
            return Ok(Err(BY_SERVER.into()));
        }
        let reply = self.send_live(write).await?;
        if reply.is_success() {
            return Ok(Ok(reply.json()?));
        }
        match reply.is_webhook_failure() {
            true => Ok(Err(BY_WEBHOOK.into())),
            false => match overlay.planned_object_of(&reply) {
                Some(id) => Ok(Err(format!("the object, since {id} does not exist yet").into())),
                None => Err(self.refused(write, reply)),
            },
        }
    }

    /// Sends a write as a dry run. The error is the response if it is one.
    pub(super) async fn send(&self, write: &Write) -> Result<Reply> {
        if !self.honours_dry_runs(write).await? {
            let message = format!(
                "a plan does not send {} {}: its API server does not say that it honours dry runs",
                write.head.method,
                write.head.uri.path()
            );
            return Err(Reply::failure(StatusCode::NOT_IMPLEMENTED, "NotImplemented", &message).into());
        }
        let reply = self.send_live(write).await?;
        if reply.is_success() { Ok(reply) } else { Err(self.refused(write, reply)) }
    }

    /// Sends a write as a dry run, and notes the warnings.
    async fn send_live(&self, write: &Write) -> Result<Reply> {
        let reply = Reply::read(self.live.send(write.dry_run()?).await?).await?;
        let (mut notes, path) = (self.notes.lock(), write.head.uri.path());
        // The options of an eviction, for example, have no schema that could be newer.
        let subresource = ResourcePath::parse(path).and_then(|path| path.subresource());
        let is_of_object = matches!(subresource, None | Some("status"));
        for warning in header_warnings(&reply.headers) {
            let is_dropped = is_of_object && warning.starts_with("unknown field");
            notes.add(if is_dropped { Finding::DroppedField } else { Finding::Warning }, path, warning);
        }
        Ok(reply)
    }

    /// Notes a refusal for lack of permission, and returns it as an error.
    fn refused(&self, write: &Write, reply: Reply) -> BoxError {
        if reply.status == StatusCode::FORBIDDEN {
            let request = format!("{} {}", write.head.method, write.head.uri.path());
            self.notes.lock().add(Finding::Refusal, request, reply.message());
        }
        reply.into()
    }
}

pub(super) fn version(object: &Value) -> Option<String> {
    object["metadata"]["resourceVersion"].as_str().map(Into::into)
}
