//! Sends requests for the objects of one Kind.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use json_patch::{PatchOperation, RemoveOperation, ReplaceOperation, jsonptr::PointerBuf};
use kube::{
    Resource,
    api::{DeleteParams, DynamicObject, GetParams, ObjectMeta, Patch, PatchParams, PostParams},
    core::{ApiResource, Request, Status, request, response::reason},
};
use reknit_apis::{Bounds, Key, Scope};
use reknit_injection::{
    Context,
    internal::{Transport, is_absence, path_segment},
};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::{Value, json};

use crate::managers::{ManagedObject, is_of_removed_version};

/// The answer to a request, boxed: it would enlarge the future of every pass, and few passes send a request.
pub(crate) type Answer<T> = BoxFuture<'static, kube::Result<T>>;

/// A type as which an answer can be decoded.
pub(crate) trait Decode: DeserializeOwned + Send + 'static {}

impl<T: DeserializeOwned + Send + 'static> Decode for T {}

/// An object of which only the metadata is read. Unlike kube's `PartialObjectMeta`, it can be decoded however deep
/// the spec of the object is nested.
#[derive(Default, Deserialize)]
pub(crate) struct OnlyMetadata {
    pub(crate) metadata: ObjectMeta,
}

/// A Kind, which is known at compile time or only at run time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObjectKind {
    pub(crate) resource: ApiResource,
    pub(crate) is_namespaced: bool,
}

/// Sends requests for the objects of one Kind, in the task of the caller.
#[derive(Clone)]
pub(crate) struct ObjectClient {
    transport: Transport,
    pub(crate) kind: ObjectKind,
    /// The field manager of all writes except server-side apply.
    pub(crate) manager: Arc<str>,
}

impl ObjectKind {
    pub(crate) fn of<K: Resource<DynamicType = (), Scope: Scope>>() -> Self {
        Self { resource: ApiResource::erase::<K>(&()), is_namespaced: K::Scope::NAMESPACED }
    }

    /// Kind and key of an object: `Deployment default/web`.
    pub(crate) fn with_key(&self, key: &Key) -> String {
        format!("{} {key}", self.resource.kind)
    }
}

impl ObjectClient {
    pub(crate) fn of<K: Resource<DynamicType = (), Scope: Scope>>(cx: &Context) -> Self {
        let manager = field_manager(cx.component()).into();
        Self { transport: cx.transport(), kind: ObjectKind::of::<K>(), manager }
    }

    /// Returns a client for the objects of another Kind.
    pub(crate) fn with_kind(&self, kind: ObjectKind) -> Self {
        Self { kind, ..self.clone() }
    }

    /// Reads an object. `None` if it does not exist. Fails if the API server does not serve the Kind.
    pub(crate) async fn get<T: Decode>(&self, key: &Key) -> kube::Result<Option<T>> {
        match self.send(key, self.at(key).get(&path_segment(&key.name), &GetParams::default())).await {
            Err(error) if is_absence(&error) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Creates an object, whose name may be generated.
    pub(crate) fn create<T: Decode>(&self, key: &Key, object: &Value) -> Answer<T> {
        self.send(key, self.at(key).create(&self.post_params(), object.to_string().into_bytes()))
    }

    /// Replaces an object.
    pub(crate) fn replace<T: Decode>(&self, key: &Key, json: String) -> Answer<T> {
        self.send(key, self.at(key).replace(&path_segment(&key.name), &self.post_params(), json.into_bytes()))
    }

    /// Sends a merge patch.
    pub(crate) fn merge<T: Decode>(&self, key: &Key, patch: Value) -> Answer<T> {
        self.patch(key, &self.patch_params(), &Patch::Merge(patch))
    }

    /// Replaces a field of the metadata, on the condition that the object is unchanged.
    pub(crate) fn replace_metadata<T: Decode>(
        &self,
        object: &impl Resource,
        field: &str,
        value: &impl Serialize,
    ) -> Answer<T> {
        let meta = object.meta();
        let mut metadata = json!({"uid": meta.uid, "resourceVersion": meta.resource_version});
        metadata[field] = json!(value);
        self.merge(&Key::of(object), json!({"metadata": metadata}))
    }

    /// Replaces items of a list in the metadata by their index, on the condition that the object is unchanged. `None`
    /// removes an item.
    pub(crate) fn replace_items<T: Decode>(
        &self,
        object: &impl Resource,
        field: &str,
        items: Vec<(usize, Option<impl Serialize>)>,
    ) -> Answer<T> {
        let meta = object.meta();
        let replace = |path, value| PatchOperation::Replace(ReplaceOperation { path, value });
        let preconditions = [("uid", json!(meta.uid)), ("resourceVersion", json!(meta.resource_version))];
        let preconditions =
            preconditions.map(|(name, value)| replace(PointerBuf::from_tokens(["metadata", name]), value));
        let changes = items.into_iter().map(|(index, value)| {
            let path = PointerBuf::from_tokens(["metadata", field, &index.to_string()]);
            match value {
                Some(value) => replace(path, json!(value)),
                None => PatchOperation::Remove(RemoveOperation { path }),
            }
        });
        let patch = json_patch::Patch(changes.chain(preconditions).collect());
        let (client, key, version) = (self.clone(), Key::of(object), meta.resource_version.clone());
        let replace = async move {
            match client.patch(&key, &client.patch_params(), &Patch::Json(patch)).await {
                Err(error) => Err(client.or_conflict(&key, version.as_deref(), error).await),
                replaced => replaced,
            }
        };
        replace.boxed()
    }

    /// Returns a conflict in place of a 422 if the object has changed since it had this resourceVersion. The API server answers
    /// so to a JSON patch of a list that has become shorter, before it compares the resourceVersion.
    async fn or_conflict(&self, key: &Key, version: Option<&str>, error: kube::Error) -> kube::Error {
        if status_code(&error) != Some(422) {
            return error;
        }
        match self.get(key).await {
            Ok(Some(ManagedObject { metadata })) if !metadata.has_version(version) => {
                let message = format!("{} has been modified", self.kind.with_key(key));
                kube::Error::Api(Status::failure(&message, reason::CONFLICT).with_code(409).boxed())
            }
            _ => error,
        }
    }

    /// Sends a merge patch of the status.
    pub(crate) fn merge_status<T: Decode>(&self, key: &Key, patch: Value) -> Answer<T> {
        let patch = Patch::Merge(patch);
        self.send(
            key,
            self.at(key).patch_subresource("status", &path_segment(&key.name), &self.patch_params(), &patch),
        )
    }

    pub(crate) fn patch<T: Decode>(
        &self,
        key: &Key,
        params: &PatchParams,
        patch: &Patch<Value>,
    ) -> Answer<T> {
        self.send(key, self.at(key).patch(&path_segment(&key.name), params, patch))
    }

    /// Applies an object by server-side apply. If the API server fails because a field manager has set fields in a version that
    /// was removed, replaces that version, and applies the object again.
    pub(crate) fn apply<T: Decode>(&self, key: &Key, params: &PatchParams, body: Value) -> Answer<T> {
        let (client, key, params, body) = (self.clone(), key.clone(), params.clone(), Patch::Apply(body));
        let apply = async move {
            let applied = client.patch(&key, &params, &body).await;
            let is_of_removed =
                matches!(&applied, Err(kube::Error::Api(status)) if is_of_removed_version(&status.message));
            match is_of_removed && client.replace_removed_versions(&key).await.unwrap_or(false) {
                true => client.patch(&key, &params, &body).await,
                false => applied,
            }
        };
        apply.boxed()
    }

    /// Replaces other versions than that of this Kind in the managed fields of an object. Returns false if there are none.
    async fn replace_removed_versions(&self, key: &Key) -> kube::Result<bool> {
        let Some(ManagedObject { metadata }) = self.get(key).await? else { return Ok(false) };
        let Some(patch) = metadata.patch_to_version(&self.kind.resource.api_version) else {
            return Ok(false);
        };
        self.patch::<IgnoredAny>(key, &self.patch_params(), &Patch::Json(patch)).await.map(|_| true)
    }

    /// Deletes an object. The answer is its last state or a `Status`.
    pub(crate) fn delete(&self, key: &Key, params: &DeleteParams) -> Answer<IgnoredAny> {
        self.send(key, self.at(key).delete(&path_segment(&key.name), params))
    }

    /// Returns a builder of requests in the namespace of this key.
    fn at(&self, key: &Key) -> Request {
        let namespace = key.namespace.as_deref().map(path_segment);
        Request::new(DynamicObject::url_path(&self.kind.resource, namespace.as_deref()))
    }

    fn post_params(&self) -> PostParams {
        PostParams { field_manager: Some(self.manager.to_string()), ..PostParams::default() }
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.to_string()), ..PatchParams::default() }
    }

    fn send<T: Decode>(
        &self,
        key: &Key,
        request: Result<http::Request<Vec<u8>>, request::Error>,
    ) -> Answer<T> {
        let request = check_key(key).and(request).map_err(kube::Error::BuildRequest);
        let transport = self.transport.clone();
        async move { transport.request(request?).await }.boxed()
    }
}

/// Refuses names that would address another object, as client-go does: servers and proxies resolve `..`, and decode
/// `%2F`.
fn check_key(key: &Key) -> Result<(), request::Error> {
    let is_misleading = |name: &&str| matches!(*name, "." | "..") || name.contains(['/', '%']);
    match [key.namespace.as_deref().unwrap_or_default(), &key.name].into_iter().find(is_misleading) {
        Some(name) => Err(request::Error::Validation(format!("{name:?} cannot be the name of an object"))),
        None => Ok(()),
    }
}

/// The field manager of a component, in the form that the API server requires.
pub fn field_manager(component: &str) -> String {
    Bounds::FIELD_MANAGER.apply(component).into()
}

/// The HTTP status code, if the error is an answer of the API server.
pub(crate) fn status_code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Returns true if the API server refused to create an object because its namespace is being deleted.
pub(crate) fn has_cause_namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_address_another_object_are_refused() {
        for name in [".", "..", "a/b", "../../../api/v1", "a%2fb"] {
            assert!(check_key(&Key::new("default", name)).is_err(), "{name}");
            assert!(check_key(&Key::new(name, "x")).is_err(), "{name}");
        }
        for name in ["", "x", "system:node:a", "a..b"] {
            check_key(&Key::new("default", name)).unwrap();
        }
    }
}
