//! The API servers that honour dry runs. Others store what a dry run asks for.

use http::{Method, Request, StatusCode};
use kube::client::Body;
use reknit_injection::internal::ResourcePath;

use super::{
    dry_run::{DryRun, Result},
    reply::{Reply, Write},
};

impl DryRun {
    /// Returns true if the API server of a request is known to honour dry runs. kube-apiserver does, also for custom
    /// resources. Of an aggregated API server only its discovery tells: the storage of the generic API server, which honours
    /// them, has a `storageVersionHash`.
    pub(super) async fn honours_dry_runs(&self, write: &Write) -> Result<bool> {
        let Some(path) = ResourcePath::parse(write.head.uri.path()) else { return Ok(false) };
        if is_of_kubernetes(path.group) {
            return Ok(true);
        }
        if !matches!(path.subresource(), None | Some("status" | "scale")) {
            return Ok(false);
        }
        let version = format!("/apis/{}/{}", path.group, path.version);
        let resource = format!("{version}/{}", path.plural);
        if self.honoured.lock().contains(&resource) {
            return Ok(true);
        }
        let mut request = Request::new(Body::empty());
        (*request.method_mut(), *request.uri_mut()) = (Method::GET, version.parse()?);
        *request.extensions_mut() = write.head.extensions.clone();
        let reply = Reply::read(self.live.send(request).await?).await?;
        // kube-apiserver sends nothing to an aggregated API server that has no discovery.
        if [StatusCode::NOT_FOUND, StatusCode::NOT_IMPLEMENTED].contains(&reply.status) {
            return Ok(true);
        }
        let list = reply.successful()?.json()?;
        let mut resources = list["resources"].as_array().into_iter().flatten();
        let resource_of_list = resources.find(|resource| resource["name"] == path.plural);
        let is_honoured = resource_of_list
            .and_then(|resource| resource["storageVersionHash"].as_str())
            .is_some_and(|hash| !hash.is_empty());
        if is_honoured {
            self.honoured.lock().insert(resource);
        }
        Ok(is_honoured)
    }
}

/// Returns true for the API groups of Kubernetes itself. Custom resources may be in such a group too.
fn is_of_kubernetes(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}
