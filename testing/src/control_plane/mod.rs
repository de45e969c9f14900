//! A Kubernetes control plane for tests.

mod aggregation;
mod apply;
mod builder;
mod compaction;
mod crds;
mod credentials;
mod error;
mod nodes;
mod process;
mod webhook;

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use self::process::{Processes, commands::AUDIT_LOG};
pub use self::{
    aggregation::aggregate_cluster_roles, builder::Builder, error::Error, webhook::WebhookServer,
};

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
const ONE_DAY: i64 = 24 * 60 * 60;

/// A real etcd and kube-apiserver on 127.0.0.1, with a data folder of their own.
///
/// Without [nodes](Self::nodes) no controllers run: pods never start, and dependents of a deleted owner stay. RBAC is
/// on, and aggregated ClusterRoles such as `edit` have their rules: at the start, and after an apply of a ClusterRole. A
/// client is the administrator unless it was requested for a service account.
///
/// When this value is dropped the programs stop and their folder is removed. The same happens when the test panics, and
/// when its process is killed by SIGKILL or Ctrl-C. Etcd does not sync to disk, so the effects of a power cut cannot be
/// tested.
///
/// ```no_run
/// # use std::time::Duration;
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::{Api, api::PostParams};
/// use reknit_testing::{ControlPlane, eventually};
///
/// # async fn test() -> Result<(), Box<dyn std::error::Error>> {
/// let plane = ControlPlane::shared().await?;
/// let namespace = plane.namespace("example").await?;
/// let config_maps: Api<ConfigMap> = Api::namespaced(plane.client()?, &namespace);
/// // … start the controller with plane.client() or plane.kubeconfig(), and create the objects that it reconciles …
/// eventually("the settings", Duration::from_secs(10), async || config_maps.get("settings").await).await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ControlPlane {
    processes: Processes,
    kubeconfig: PathBuf,
}

impl ControlPlane {
    /// Starts a control plane for the caller alone. It takes three seconds to start, and 300 MB of memory.
    ///
    /// # Errors
    ///
    /// Fails as [`Builder::start`] does.
    pub async fn start() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// Returns a builder for a control plane with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the control plane that all tests of this process share. The first caller starts it. Give each test a
    /// [`namespace`] of its own. A test that stops the control plane has to [`start`] its own.
    ///
    /// [`namespace`]: Self::namespace
    /// [`start`]: Self::start
    pub async fn shared() -> Result<&'static Self, Error> {
        SHARED.get_or_try_init(Self::start).await
    }

    fn new(processes: Processes) -> Result<Self, Error> {
        let kubeconfig = processes.folder.join("kubeconfig");
        processes.admin.write_kubeconfig(&kubeconfig)?;
        Ok(Self { processes, kubeconfig })
    }

    /// Returns a new client for the administrator. A client belongs to the tokio runtime that created it, and each
    /// `#[tokio::test]` has its own runtime, so create a client in each test.
    pub fn client(&self) -> Result<Client, Error> {
        connect(self.config()?)
    }

    /// Returns the configuration of [`client`](Self::client), for callers that change it, for example its address or
    /// timeouts.
    pub fn config(&self) -> Result<Config, Error> {
        Ok(self.processes.admin.config())
    }

    /// Returns the path of a kubeconfig file for the administrator. The file is removed with the control plane.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns a new client for a service account, with the permissions that RBAC grants to it. Creates the account if
    /// there is none; its namespace must exist. The token is valid for a day and survives a restart.
    pub async fn client_as(&self, namespace: &str, service_account: &str) -> Result<Client, Error> {
        connect(self.config_as(namespace, service_account).await?)
    }

    /// Returns the configuration of [`client_as`](Self::client_as).
    pub async fn config_as(&self, namespace: &str, service_account: &str) -> Result<Config, Error> {
        let token = self.token(namespace, service_account).await?;
        Ok(self.processes.admin.with_token(token).config())
    }

    /// Returns the path of a kubeconfig file for a service account, as [`client_as`](Self::client_as) uses it.
    pub async fn kubeconfig_as(&self, namespace: &str, service_account: &str) -> Result<PathBuf, Error> {
        let token = self.token(namespace, service_account).await?;
        // Neither name can contain an underscore, so no two accounts share a file.
        let path = self.processes.folder.join(format!("kubeconfig-{namespace}_{service_account}"));
        self.processes.admin.with_token(token).write_kubeconfig(&path)?;
        Ok(path)
    }

    /// Returns the folder with the data, keys and logs. It is removed with the control plane.
    pub fn folder(&self) -> &Path {
        &self.processes.folder
    }

    async fn token(&self, namespace: &str, account: &str) -> Result<String, Error> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client()?, namespace);
        let metadata = ObjectMeta { name: Some(account.into()), ..ObjectMeta::default() };
        let object = ServiceAccount { metadata, ..ServiceAccount::default() };
        match accounts.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => {
                created.map_err(Error::cannot(format!("create service account {namespace}/{account}")))?;
            }
        }
        // Untyped, because k8s-openapi's types differ between the versions of Kubernetes that a program can select.
        let spec = json!({"audiences": [], "expirationSeconds": ONE_DAY});
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let action = format!("get a token for service account {namespace}/{account}");
        let response = accounts.create_subresource("token", account, &PostParams::default(), &request).await;
        let response: Value = response.map_err(Error::cannot(&action))?;
        let token = response["status"]["token"].as_str().map(str::to_owned);
        token.ok_or_else(|| Error::new(format!("cannot {action}: none in the response")))
    }

    /// Creates a namespace with a unique name that starts with the prefix, and returns the name.
    pub async fn namespace(&self, prefix: &str) -> Result<String, Error> {
        let metadata = ObjectMeta { generate_name: Some(format!("{prefix}-")), ..ObjectMeta::default() };
        let created = Api::all(self.client()?)
            .create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() })
            .await
            .map_err(Error::cannot(format!("create a namespace {prefix}-…")))?;
        Ok(created.name_any())
    }

    /// Returns every request so far, as audit.k8s.io/v1 Events at level Metadata. The API server logs a request before
    /// it has sent the whole response.
    ///
    /// # Errors
    ///
    /// Fails if the audit log cannot be read, and if the control plane was not built with
    /// [`audited`](Builder::audited).
    pub fn audit_events(&self) -> Result<Vec<Value>, Error> {
        let path = self.processes.folder.join(AUDIT_LOG);
        let text =
            std::fs::read_to_string(&path).map_err(Error::cannot(format!("read {}", path.display())))?;
        // A last line without a newline is still being written.
        let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let events = complete.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        events.map_err(Error::cannot(format!("parse {}", path.display())))
    }

    /// Stops the programs of the nodes, then the API server, then etcd, and waits until all have exited. Data,
    /// addresses, certificates and tokens are kept.
    pub async fn stop(&self) -> Result<(), Error> {
        self.processes.stop().await
    }

    /// Stops the control plane if it runs, and starts it again with the same data and addresses.
    pub async fn restart(&self) -> Result<(), Error> {
        self.processes.stop().await?;
        self.processes.start_programs().await
    }
}

fn connect(config: Config) -> Result<Client, Error> {
    Client::try_from(config).map_err(Error::cannot("create a client"))
}
