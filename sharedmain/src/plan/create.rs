//! Planned creations.

use http::{Method, StatusCode};
use reknit_injection::internal::{ResourcePath, now};
use serde_json::{Value, json};

use super::{
    dry_run::{DryRun, Result},
    live::version,
    overlay::{Entry, Id, Layer, Overlay, Part},
    reply::{Answer, Reply, Write},
};

pub(super) const IN_PLANNED_NAMESPACE: &str = "the object, since its namespace does not exist yet";
const BESIDE_LIVE: &str = "the object, since the live one still has its name and ports";

impl DryRun {
    pub(super) async fn create(
        &self,
        overlay: &mut Overlay,
        write: &Write,
        path: &ResourcePath<'_>,
    ) -> Result<Reply> {
        let name = path.name().or(write.body["metadata"]["name"].as_str().map(Into::into));
        let name = name.filter(|name| !name.is_empty());
        let id = name.as_ref().map(|name| Id::new(path, name));
        let entry = id.as_ref().and_then(|id| overlay.get(id));
        if let Some(id) = id.as_ref().filter(|_| entry.is_some_and(|entry| entry.after.is_some())) {
            let message = format!("{id} already exists");
            return Err(Reply::failure(StatusCode::CONFLICT, "AlreadyExists", &message).into());
        }
        let is_replacement = entry.is_some_and(|entry| entry.before.is_some());
        let namespace = path.namespace.map(Id::of_namespace);
        let is_in_planned_namespace = namespace.is_some_and(|id| overlay.is_planned(&id));
        let answer = if is_in_planned_namespace {
            Err(IN_PLANNED_NAMESPACE.into())
        } else if is_replacement {
            self.dry_run_beside_live(overlay, write, &path.collection_path(), write.body.clone()).await?
        } else {
            self.dry_run(overlay, write).await?
        };
        let may_exist = write.is_apply() && !is_replacement && !is_in_planned_namespace;
        if let Some(id) = id.filter(|_| may_exist)
            && answer.as_ref().ok().is_none_or(|answer| version(answer).is_some())
            && let Some(live) = self.read_live(write, &id).await?
        {
            // The applied object exists, although it is not cached.
            *overlay.entry(&id) = Entry::unchanged(Some(live));
            return Box::pin(self.change(overlay, write, path, &id, Part::Main)).await;
        }
        let not_validated = answer.as_ref().err().cloned();
        let mut object = answer.unwrap_or_else(|_| emulate(overlay, write, path));
        if let Some(name) = &name {
            object["metadata"]["name"] = json!(name);
        }
        let id = Id::new(path, object["metadata"]["name"].as_str().unwrap_or_default());
        let layer = Layer::of(Part::Main, write.manager(), &write.body);
        let object = overlay.create(&id, object, layer, self.cause());
        let entry = overlay.entry(&id);
        entry.has_generated_name = name.is_none();
        entry.not_validated.extend(not_validated);
        Ok(Reply::new(StatusCode::CREATED, &object))
    }

    /// Sends the creation of an object that replaces a live one, under another name, since the live object still has the name.
    /// The live object still has its node ports too, for example, and a rule may demand the name. So a refusal by 422 says
    /// nothing about the replacement.
    pub(super) async fn dry_run_beside_live(
        &self,
        overlay: &Overlay,
        write: &Write,
        collection: &str,
        body: Value,
    ) -> Result<Answer> {
        let request = write.to(Method::POST, collection, under_another_name(body))?;
        let answer = self.dry_run(overlay, &request).await;
        let refusal = answer.as_ref().err().and_then(|error| error.downcast_ref());
        match refusal.is_some_and(|refusal: &Reply| refusal.status == StatusCode::UNPROCESSABLE_ENTITY) {
            true => Ok(Err(BESIDE_LIVE.into())),
            false => answer,
        }
    }
}

/// Returns the object that a request would create, without asking the API server.
fn emulate(overlay: &mut Overlay, write: &Write, path: &ResourcePath<'_>) -> Value {
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

/// Returns the body of a request to create an object whose name the live object still has.
fn under_another_name(mut body: Value) -> Value {
    if let Some(metadata) = body["metadata"].as_object_mut() {
        metadata.remove("name");
        metadata.insert("generateName".into(), json!("planned-"));
    }
    body
}
