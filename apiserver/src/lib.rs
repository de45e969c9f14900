//! A Kubernetes API server in memory, for tests of code that uses kube.
//!
//! An [`ApiServer`] is a tower service without a network: its [`client`](ApiServer::client) is a [`kube::Client`] like any
//! other. It answers with the status codes, the messages and the objects of a real API server, at once and without any
//! program. A test of this crate sends the same requests to both, and compares each response.
//!
//! ```
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{Api, api::PostParams};
//! use reknit_apiserver::ApiServer;
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = ApiServer::new();
//! let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
//! let map: ConfigMap = serde_json::from_value(json!({"metadata": {"generateName": "settings-"}}))?;
//! maps.create(&PostParams::default(), &map).await?;
//! assert_eq!(maps.list(&Default::default()).await?.items.len(), 1);
//!
//! server.fail("create", "configmaps", 500);
//! assert!(maps.create(&PostParams::default(), &map).await.is_err());
//! assert_eq!(server.take_writes().len(), 2);
//! # Ok(())
//! # }
//! ```

mod apply;
mod authorization;
mod collection;
mod escalation;
mod failures;
mod identity;
mod names;
mod object;
mod objects;
mod patch;
mod reply;
mod representation;
mod request;
mod request_info;
mod response;
mod schema;
mod selector;
mod server;
#[cfg(test)]
mod tests;
mod watch;
mod write;

pub use self::{
    object::resource_of,
    reply::{Reply, ResponseBody},
    request_info::RequestInfo,
    server::ApiServer,
    watch::{Watch, WatchEvent},
    write::Write,
};
