//! Creates and updates children without server-side apply.

use std::{collections::BTreeMap, hash::BuildHasher, sync::Arc};

use kube::Resource;
use reknit_apis::{Key, OwnedBy, Scope};
use reknit_injection::{
    Cached,
    internal::{RawFields, raw_json},
};
use serde::Serialize;
use serde_json::{Map, Value, value::to_raw_value};

use crate::{
    merge::merge_changes,
    object_client::status_code,
    owned::{
        Applied, NotApplied, Owned,
        annotation::{APPLIED, UPDATED, applied_value},
        desired::Desired,
        existing::ApplyResult,
        owner::{Owner, is_controlled_by, set_controller, update_version},
        terminating::{is_terminating, without_refusal},
        up_to_date::UpToDate,
    },
    status::diff::diff,
};

impl<T: Cached + Serialize> Owned<T> {
    /// Creates the child, or updates the cached one if `mutate` changes it, as controller-runtime's
    /// `controllerutil.CreateOrUpdate` does. Prefer [`apply`](Self::apply), which restores and removes fields.
    ///
    /// `mutate` gets a copy of the existing child that has the name of `new`, or `new` itself if there is no such
    /// child. So fields that only `new` sets take effect only at the creation. Fields that `mutate` does not touch are
    /// kept, whoever set them. Values of [the same meaning](reknit_apis::equality), such as `1024Mi` and `1Gi` of
    /// memory, are equal. Set single fields instead of whole structures: a structure without the defaults of the API
    /// server differs. It then causes a request, which changes nothing, once in ten minutes at most.
    ///
    /// The update has the resourceVersion of the copy, so it never overwrites a newer change. The child gets the
    /// owner's namespace, if any, the owner as its controller, and the annotation `reknit.dev/applied`, which shows whose
    /// child it is if it is restored from a backup. The answer is in the cache before this returns.
    ///
    /// A child that is being deleted is updated too, since it is in force until it is gone. If the API server refuses that,
    /// it is an event of the owner and no error. The owner's key is enqueued when the child is gone. Requires
    /// the verbs get, create and update on the child and, with the admission plugin
    /// OwnerReferencesPermissionEnforcement, update on the owner's `finalizers` subresource.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
    /// use reknit_reconciler::{Owned, Result};
    ///
    /// async fn greet(maps: &Owned<ConfigMap>, namespace: &Namespace) -> Result<()> {
    ///     let mut new = ConfigMap::default();
    ///     new.metadata.name = Some("greeting".into());
    ///     new.metadata.namespace = namespace.metadata.name.clone();
    ///     maps.create_or_update(namespace, new, |map| {
    ///         map.data.get_or_insert_default().insert("text".into(), "hello".into());
    ///     })
    ///     .await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`apply`](Self::apply). An update of a child that has changed in between, or the creation
    /// of a child that exists, is [refused](NotApplied::Refused) with status 409. Fails without a request if the update
    /// changes a field of the child that is nested deeper than 128 levels.
    pub async fn create_or_update<O>(
        &self,
        owner: &O,
        new: T,
        mutate: impl FnOnce(&mut T) + Send,
    ) -> Result<Applied<T>, NotApplied>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Resource<Scope: OwnedBy<O::Scope>>,
    {
        // Used for the key and the checks of a child. Its content is not sent.
        let desired = self.desired(owner, new.clone())?;
        let written = match self.find_in_cache(owner, &desired.key)? {
            Some(cached) => self.update(owner, &desired, cached, mutate).await,
            None => self.create_new(owner, &desired, new, mutate).await,
        };
        written.inspect(|written| self.shared.metrics.record(written.result()))
    }

    async fn update(
        &self,
        owner: &impl Owner,
        desired: &Desired,
        cached: Arc<T>,
        mutate: impl FnOnce(&mut T) + Send,
    ) -> ApplyResult<Applied<T>> {
        if !is_terminating(&*cached) {
            return self.update_existing(owner, desired, cached, mutate).await;
        }
        self.report_terminating(owner, &desired.name, &cached);
        without_refusal(cached.clone(), self.update_existing(owner, desired, cached, mutate).await)
    }

    async fn update_existing(
        &self,
        owner: &impl Owner,
        desired: &Desired,
        cached: Arc<T>,
        mutate: impl FnOnce(&mut T) + Send,
    ) -> ApplyResult<Applied<T>> {
        if !is_controlled_by(owner, &*cached) {
            self.check_owner_exists(owner, desired).await?;
        }
        let child = self.mutated(owner, &desired.key, T::clone(&cached), mutate);
        let (before, body) = (self.json(&*cached, desired)?, self.json(&child, desired)?);
        let Some(change) = diff(&before, body.clone()) else { return Ok(Applied::Unchanged(cached)) };
        let no_effect = self.update_hash(&change, before.clone());
        if self.shared.up_to_date.lock().get(&desired.key).is_some_and(|known| known.covers(no_effect)) {
            return Ok(Applied::Unchanged(cached));
        }
        self.check_update(owner, desired)?;
        let body = self
            .with_unknown_fields(&cached, &before, &body)
            .map_err(|error| desired.refused(kube::Error::SerdeError(error)))?;
        let answer: T =
            self.shared.client.replace(&desired.key, body).await.map_err(|error| desired.refused(error))?;
        let stored = self.json(&answer, desired)?;
        self.report_dropped(owner, &desired.name, &change, &stored);
        if self.update_hash(&change, stored) == no_effect {
            self.shared.up_to_date.lock().insert(desired.key.clone(), UpToDate::unlike_sent(no_effect));
        }
        Ok(Applied::of(Some(cached), Arc::new(answer)))
    }

    /// Adds the fields that `T` does not have to the update of a child, which would remove them: those of a newer API
    /// server, for example, or all but a few if `T` is a partial type. A child that has changed in between gets none: the
    /// API server refuses its update. Only the fields that change are decoded: another one, such as the status, may be
    /// nested too deep for that.
    fn with_unknown_fields(&self, cached: &T, before: &Value, after: &Value) -> serde_json::Result<String> {
        let Some(raw) = raw_json(&self.informer, cached) else { return Ok(after.to_string()) };
        let mut fields: RawFields<'_> = serde_json::from_str(&raw)?;
        let names = [before, after].into_iter().filter_map(Value::as_object).flat_map(Map::keys);
        let mut changed = BTreeMap::new();
        for name in names.filter(|name| before[*name] != after[*name]) {
            if after.get(name).is_none() {
                fields.remove(name);
                continue;
            }
            let stored = fields.get(name).map(|stored| serde_json::from_str(stored.get())).transpose()?;
            let mut field = stored.unwrap_or_default();
            merge_changes(&mut field, &before[name], &after[name]);
            changed.insert(name, to_raw_value(&field)?);
        }
        fields.extend(changed.iter().map(|(name, field)| ((*name).clone(), &**field)));
        serde_json::to_string(&fields)
    }

    /// A hash of a change of a child, and of the part of the child that updates change.
    fn update_hash(&self, change: &Value, mut child: Value) -> u64 {
        if let Some(fields) = child.as_object_mut() {
            fields.remove("status");
        }
        for field in ["resourceVersion", "generation", "managedFields"] {
            child["metadata"][field] = Value::Null;
        }
        self.shared.hash_builder.hash_one((change, &child))
    }

    /// Creates a child that is not in the cache. If an object of this name exists nevertheless, reads it to find its
    /// controller.
    async fn create_new(
        &self,
        owner: &impl Owner,
        desired: &Desired,
        new: T,
        mutate: impl FnOnce(&mut T) + Send,
    ) -> ApplyResult<Applied<T>> {
        self.check_creation(owner, desired)?;
        let child = self.mutated(owner, &desired.key, new, mutate);
        let body = self.json(&child, desired)?;
        match self.shared.client.create::<T>(&desired.key, &body).await {
            Ok(created) => {
                self.report_dropped(owner, &desired.name, &body, &self.json(&created, desired)?);
                Ok(Applied::Created(Arc::new(created)))
            }
            Err(error) => {
                if status_code(&error) == Some(409) {
                    self.read_live(owner, &desired.key).await?; // fails if the name is taken
                }
                Err(desired.refused(error))
            }
        }
    }

    fn json(&self, child: &T, desired: &Desired) -> ApplyResult<Value> {
        self.to_json(child).map_err(|error| desired.refused(error))
    }

    /// Calls `mutate`, and restores what identifies the child and its owner.
    fn mutated(&self, owner: &impl Owner, key: &Key, mut child: T, mutate: impl FnOnce(&mut T)) -> T
    where
        T: Resource,
    {
        let (uid, version) = (child.meta().uid.clone(), child.meta().resource_version.clone());
        mutate(&mut child);
        let is_controlled = is_controlled_by(owner, &child);
        let meta = child.meta_mut();
        (meta.name, meta.namespace) = (Some(key.name.clone()), key.namespace.clone());
        (meta.uid, meta.resource_version) = (uid, version);
        let applied = applied_value(UPDATED, &self.shared.client.manager, owner);
        meta.annotations.get_or_insert_default().insert(APPLIED.into(), applied);
        match is_controlled {
            true => update_version(meta, owner),
            false => set_controller(meta, owner),
        }
        child
    }
}
