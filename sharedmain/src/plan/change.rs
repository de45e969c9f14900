//! Planned updates, patches and applies.
//!
//! A dry run sees only the live object. So later writes to an object are merged into its planned state, and the
//! difference from the live object is sent. A planned object, which the API server does not know, is created anew.

use http::Method;
use reknit_injection::internal::ResourcePath;
use serde_json::{Value, json};

use super::{
    create::IN_PLANNED_NAMESPACE,
    dry_run::{DryRun, Result},
    keyed::merge,
    overlay::{Entry, Id, Layer, Overlay, Part, difference, with_fields},
    reply::{Answer, BY_REMOVED_VERSION, Reply, Write, changed},
};

const STATUS_OF_PLANNED: &str = "its status, since the object does not exist yet";

impl DryRun {
    pub(super) async fn change(
        &self,
        overlay: &mut Overlay,
        write: &Write,
        path: &ResourcePath<'_>,
        id: &Id,
        part: Part,
    ) -> Result<Reply> {
        self.load(overlay, write, id, part).await?;
        let entry = overlay.entry(id);
        let Some(current) = entry.after() else {
            return match write.is_apply() && part == Part::Main {
                true => self.create(overlay, write, path).await,
                false => Err(Reply::not_found(id).into()),
            };
        };
        self.check_preconditions(write, id, &current)?;
        let manager = write.manager();
        let is_first = !entry.is_planned && entry.layers_beside(part, manager.as_deref()).next().is_none();
        let (layer, wanted, is_validated) = match entry.live() {
            // The API server applies the request to the live object.
            Some(live) if is_first || manager.is_some() => 'sent: {
                let request = write.with_body(with_version_of(&live, write.body.clone()));
                let answer = self.dry_run_of_known(overlay, &request, id).await;
                let entry = overlay.entry(id);
                let refusal = answer.as_ref().err().and_then(|error| error.downcast_ref());
                if refusal.is_some_and(Reply::is_of_removed_version) {
                    entry.not_validated.insert(BY_REMOVED_VERSION.into());
                    let layer = Layer::of(part, manager, &write.body);
                    let wanted = merged(&live, entry, &layer);
                    break 'sent (Some(layer), wanted, false);
                }
                let (is_answer, answer) = match answer? {
                    Ok(answer) => (true, answer),
                    Err(reason) => {
                        entry.not_validated.insert(reason);
                        (false, part.unanswered(changed(write, part, &current)?, &current))
                    }
                };
                let layer = Layer::between(part, manager, &live, &answer);
                let wanted = if is_first || !is_answer { answer } else { merged(&live, entry, &layer) };
                (Some(layer), wanted, is_first || !is_answer)
            }
            _ if manager.is_some() => {
                let layer = Layer::of(part, manager, &write.body);
                let wanted = merged(&json!({}), entry, &layer);
                (Some(layer), wanted, false)
            }
            _ => (None, changed(write, part, &current)?, false),
        };
        let validated = match is_validated {
            true => Some(wanted.clone()),
            false => {
                let entry = overlay.entry(id);
                let sent = match (&layer, entry.live()) {
                    // The API server may not accept the values that it has chosen in a dry run.
                    (None, None) => {
                        let change = Layer::between(part, None, &current, &wanted);
                        &merged(&json!({}), entry, &change)
                    }
                    _ => &wanted,
                };
                let answer = self.validate(overlay, write, id, part, sent).await?;
                overlay.entry(id).not_validated.extend(answer.as_ref().err().cloned());
                answer.ok()
            }
        };
        let new = validated.unwrap_or_else(|| part.unanswered(wanted.clone(), &current));
        // The API server may ignore the status.
        let stored = || Layer::between(part, None, &current, &with_fields(wanted, &new, &["status"]));
        overlay.entry(id).add_layer(layer.unwrap_or_else(stored));
        Ok(Reply::ok(&overlay.commit(id, part, &new, self.cause())))
    }

    /// Sends the difference of a planned state from the live object, or creates the planned object. Returns the planned
    /// state as the API server would store it, or why it cannot tell.
    async fn validate(
        &self,
        overlay: &mut Overlay,
        write: &Write,
        id: &Id,
        part: Part,
        wanted: &Value,
    ) -> Result<Answer> {
        let entry = overlay.entry(id);
        if let Some(live) = entry.live() {
            let patch = difference(&entry.written(part, &live), &entry.written(part, wanted));
            if patch == json!({}) {
                return Ok(Ok(live));
            }
            let path = if part == Part::Status { format!("{}/status", id.path()) } else { id.path() };
            let request = write.to(Method::PATCH, &path, patch)?;
            return self.dry_run_of_known(overlay, &request, id).await;
        }
        if part == Part::Status {
            return Ok(Err(STATUS_OF_PLANNED.into()));
        }
        if entry.not_validated.contains(IN_PLANNED_NAMESPACE) {
            return Ok(Err(IN_PLANNED_NAMESPACE.into()));
        }
        let (body, collection, is_replacement) =
            (entry.written(part, wanted), id.collection_path(), entry.before.is_some());
        match is_replacement {
            true => self.dry_run_beside_live(overlay, write, &collection, body).await,
            false => self.dry_run(overlay, &write.to(Method::POST, &collection, body)?).await,
        }
    }

    /// Returns a conflict as an error if the preconditions of a write do not admit the object.
    pub(super) fn check_preconditions(&self, write: &Write, id: &Id, current: &Value) -> Result<()> {
        let conflict = write.precondition_error(id, current);
        conflict.map_or(Ok(()), |conflict| {
            self.notes.lock().outdated.push(id.path());
            Err(conflict.into())
        })
    }
}

/// The state that all writes to a part of an object lead to, with this one in place of the one that it replaces.
fn merged(base: &Value, entry: &Entry, layer: &Layer) -> Value {
    let others = entry.layers_beside(layer.part, layer.manager.as_deref());
    merge(base, others.chain([layer]).map(|layer| layer.patch.value()))
}

/// Replaces the resourceVersion in a body, which may be an invented one, with that of the live object.
fn with_version_of(live: &Value, mut body: Value) -> Value {
    if body["metadata"]["resourceVersion"].is_string() {
        body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    }
    body
}
