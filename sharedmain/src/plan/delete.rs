//! Planned deletions.

use http::Method;
use reknit_injection::internal::now;
use serde_json::{Value, json};

use super::{
    dry_run::{DryRun, Result},
    overlay::{Id, Overlay, Part, is_finalized, is_terminating, with_fields},
    reply::{Reply, Write},
};

/// The extension of a deletion that is not sent: the garbage collector deletes the object, or the deletion of its collection
/// does.
#[derive(Clone, Copy)]
pub(super) struct Unsent;

impl DryRun {
    pub(super) async fn delete(&self, overlay: &mut Overlay, write: &Write, id: &Id) -> Result<Reply> {
        self.load(overlay, write, id, Part::Main).await?;
        let entry = overlay.entry(id);
        let Some(current) = entry.after() else { return Err(Reply::not_found(id).into()) };
        let is_planned = entry.is_planned;
        self.check_preconditions(write, id, &current)?;
        let is_sent = write.head.extensions.get::<Unsent>().is_none();
        if !is_planned && is_sent {
            let mut options = write.body.clone();
            if let Some(Value::Object(preconditions)) = options.get_mut("preconditions") {
                preconditions.remove("resourceVersion"); // it may be an invented one
            }
            let answer = self.dry_run(overlay, &write.to(Method::DELETE, &id.path(), options)?).await?;
            overlay.entry(id).not_validated.extend(answer.err());
        }
        if is_terminating(&current) {
            return Ok(Reply::ok(&current));
        }
        if is_finalized(&current) {
            let mut deleted = current;
            deleted["metadata"]["deletionTimestamp"] = json!(now());
            deleted["metadata"]["deletionGracePeriodSeconds"] = json!(0);
            return Ok(Reply::ok(&overlay.store(id, deleted, self.cause())));
        }
        overlay.remove(id, self.cause());
        if let Some(uid) = current["metadata"]["uid"].as_str().filter(|_| !write.orphans_dependents(id)) {
            overlay.gone.insert(uid.into(), self.cause());
        }
        let details = with_fields(json!({ "name": id.key.name }), &current["metadata"], &["uid"]);
        let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
        Ok(Reply::ok(&status))
    }
}
