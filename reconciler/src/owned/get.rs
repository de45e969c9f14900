//! Reads one child by its name.

use std::sync::Arc;

use kube::Resource;
use reknit_apis::{Key, OwnedBy, Scope};
use reknit_injection::Cached;

use super::{desired::key_of, error::NotApplied, existing::ApplyResult, lister::Owned, owner::Owner};

impl<T: Cached> Owned<T> {
    /// Returns the child of this name that [`apply`](Self::apply) would change, in the owner's namespace, or `None` if it
    /// would create it. So it also finds a child that was restored from a backup, and a child that the cache does not have
    /// yet. [`of`](Self::of) lists neither. Use it to keep a value that was generated once, such as a password.
    ///
    /// For an owner that is being deleted, it also returns a child that has lost its owner, which `apply` refuses to adopt.
    ///
    /// A child that is being deleted is returned until it is gone. A child that the cache lacks is read from the API server,
    /// which takes a request, and enqueues the owner's key when it is created. Requires the verb get on the child.
    ///
    /// ```
    /// use k8s_openapi::{ByteString, api::core::v1::{ConfigMap, Secret}};
    /// use kube::ResourceExt;
    /// use reknit_reconciler::{Owned, Result};
    ///
    /// /// Applies a Secret whose password was generated once.
    /// async fn apply_password(secrets: &Owned<Secret>, owner: &ConfigMap, generate: fn() -> ByteString) -> Result<()> {
    ///     let mut secret = Secret::default();
    ///     secret.metadata.name = Some(owner.name_any());
    ///     let stored = secrets.get(owner, &owner.name_any()).await?;
    ///     let stored = stored.and_then(|secret| secret.data.as_ref()?.get("password").cloned());
    ///     secret.data = Some([("password".into(), stored.unwrap_or_else(generate))].into());
    ///     secrets.apply(owner, secret).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`NotApplied::Taken`]: an object of this name exists and is not the owner's child.
    /// - [`NotApplied::Unusable`]: the name is invalid, or the owner has no namespace and the child needs one.
    /// - [`NotApplied::Refused`]: the child could not be read.
    pub async fn get<O>(&self, owner: &O, name: &str) -> Result<Option<Arc<T>>, NotApplied>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Resource<Scope: OwnedBy<O::Scope>>,
    {
        self.find(owner, Key::new(None, name)).await
    }

    /// Returns the child of this name in a namespace, as [`get`](Self::get) does, for an owner without a namespace.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get`](Self::get), and [`NotApplied::OtherNamespace`] if the owner is in another namespace.
    pub async fn get_in<O>(
        &self,
        owner: &O,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<T>>, NotApplied>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Resource<Scope: OwnedBy<O::Scope>>,
    {
        self.find(owner, Key::new(Some(namespace), name)).await
    }

    /// Finds the child as [`apply`](Self::apply) does: in the cache, or else on the API server.
    async fn find(&self, owner: &impl Owner, key: Key) -> ApplyResult<Option<Arc<T>>> {
        let key = key_of(owner, key, &self.shared.client.kind)?;
        match self.find_in_cache(owner, &key)? {
            Some(cached) => Ok(Some(cached)),
            None => self.read_live(owner, &key).await,
        }
    }
}
