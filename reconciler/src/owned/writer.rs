//! The client that writes children, and its field managers.

use std::collections::BTreeSet;

use kube::{
    Client,
    api::{PatchParams, PostParams},
};
use serde::de::DeserializeOwned;

use super::{options::OwnedOptions, owner::Owner};
use crate::object_client::BuiltRequest;

/// The client that writes children, and its field managers.
#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    /// The field manager of creations and adoptions, and the prefix of the field managers of applied children.
    manager: String,
    /// The field managers whose fields are taken over before the first apply.
    pub(super) earlier_managers: BTreeSet<String>,
}

impl Writer {
    pub(crate) fn new(client: Client, manager: String, options: OwnedOptions) -> Self {
        Self { client, manager, earlier_managers: options.earlier_managers }
    }

    pub(super) async fn request<A: DeserializeOwned>(&self, request: BuiltRequest) -> kube::Result<A> {
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// The field manager for the applied children of this owner. Each owner has its own: a manager replaces its own
    /// fields, such as the owner references, without a conflict. With a shared manager, an owner would take over a child
    /// that another owner of the same Kind has just created.
    pub(super) fn manager_for(&self, owner: &impl Owner) -> String {
        match &owner.meta().uid {
            Some(uid) => format!("{:.91}-{uid}", self.manager),
            None => self.manager.clone(),
        }
    }

    pub(super) fn post_params(&self) -> PostParams {
        PostParams { field_manager: Some(self.manager.clone()), ..PostParams::default() }
    }

    pub(super) fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.clone()), ..PatchParams::default() }
    }
}
