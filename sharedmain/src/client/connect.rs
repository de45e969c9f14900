//! The client of a program without controllers.
use kube::Client;
use prometheus::Registry;
use reknit_reconciler::{Error, Result};

use super::{
    bare_transport, controller_transport, kubeconfig, load_credentials, metrics::RequestMetrics, user_agent,
};
use crate::{cli::flags, process::failure::Failure};

/// Connects to the API server as [`Main`](crate::Main) does without flags, for a program without controllers, such as a
/// migration.
///
/// The client finds the API server, reads credentials again and uses proxies [as a process does](crate#the-client). A
/// request that an overloaded API server refused is repeated for up to five seconds, and then fails. The client that kube
/// builds by default may repeat each request for more than a minute. Must be called within a tokio runtime.
///
/// ```no_run
/// # async fn run() -> reknit_reconciler::Result<()> {
/// let client = reknit_sharedmain::connect("storage-migration", env!("CARGO_PKG_VERSION")).await?;
/// println!("{}", client.apiserver_version().await?.git_version);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails if no API server is configured, or if the credentials cannot be read. Sends no request.
pub async fn connect(program: &str, version: &str) -> Result<Client> {
    let error = |failure: Failure| Error::from(failure.to_string());
    let (flags, _) = flags::parse(flags::command(program, version, &[]), &[program.into()])?;
    let access = kubeconfig::find(&flags).await.map_err(error)?;
    let credentials = load_credentials(&access, &user_agent(program, version, None)).map_err(error)?;
    let bare = {
        let metrics = RequestMetrics::new(&Registry::new(), &access.config.cluster_url);
        bare_transport(&access, &credentials, &metrics.into()).map_err(error)?
    };
    let namespace = &access.config.default_namespace;
    Ok(controller_transport(&bare, namespace, flags.kube_api_qps, flags.kube_api_burst).client())
}
