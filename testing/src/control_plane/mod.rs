//! A Kubernetes control plane of a test's own.

mod apply;
mod builder;
mod compaction;
mod crds;
mod credentials;
mod error;
mod nodes;
mod process;

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use self::process::{Running, commands::AUDIT_LOG};
pub use self::{builder::Builder, error::Error};

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
const ONE_DAY: i64 = 24 * 60 * 60;

/// A real etcd and kube-apiserver on 127.0.0.1, with a data folder of their own.
///
/// Until it is given [nodes](Self::nodes) there are no controllers behind it: pods never start, and what belongs to a
/// deleted owner stays. RBAC is on; a client is the administrator unless it was asked for as a service account.
///
/// The programs end and their folder goes when this value is dropped, and also when the test panics, or its process is
/// killed with SIGKILL or by Ctrl-C. Etcd does not sync to disk: what a power cut would do cannot be tested.
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
/// // … start the controller with plane.client() or plane.kubeconfig(), make it work …
/// eventually("the settings", Duration::from_secs(10), async || config_maps.get("settings").await).await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ControlPlane {
    running: Running,
    kubeconfig: PathBuf,
}

impl ControlPlane {
    /// Starts one for the caller alone: three seconds and 300 MB. See [`Builder::start`] for how it fails.
    pub async fn start() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// One with settings of its own.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The one that all tests of this process share, started by the first that asks. Give each test a [`namespace`] of
    /// its own, and let those that stop a control plane [`start`] their own.
    ///
    /// [`namespace`]: Self::namespace
    /// [`start`]: Self::start
    pub async fn shared() -> Result<&'static Self, Error> {
        SHARED.get_or_try_init(Self::start).await
    }

    fn over(running: Running) -> Result<Self, Error> {
        let kubeconfig = running.folder.join("kubeconfig");
        running.admin.write_kubeconfig(&kubeconfig)?;
        Ok(Self { running, kubeconfig })
    }

    /// A new client for the administrator. It belongs to the tokio runtime it is made in, and each `#[tokio::test]` has
    /// one of its own: ask for a client in each test.
    pub fn client(&self) -> Result<Client, Error> {
        connect(self.config()?)
    }

    /// The settings of [`client`](Self::client), for those who change them: a proxy's address, a timeout.
    pub fn config(&self) -> Result<Config, Error> {
        Ok(self.running.admin.config())
    }

    /// A kubeconfig file for the administrator, for processes. It goes when the control plane does.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A new client that is a service account, and may do what RBAC grants to that. The account is made if there is none;
    /// its namespace must exist. The token holds for a day, and over a restart.
    pub async fn client_as(&self, namespace: &str, service_account: &str) -> Result<Client, Error> {
        connect(self.config_as(namespace, service_account).await?)
    }

    /// The settings of [`client_as`](Self::client_as).
    pub async fn config_as(&self, namespace: &str, service_account: &str) -> Result<Config, Error> {
        let token = self.token(namespace, service_account).await?;
        Ok(self.running.admin.with_token(token).config())
    }

    /// A kubeconfig file for a service account, for processes; as [`client_as`](Self::client_as).
    pub async fn kubeconfig_as(&self, namespace: &str, service_account: &str) -> Result<PathBuf, Error> {
        let token = self.token(namespace, service_account).await?;
        // No name of either has an underscore, so no two accounts have one file.
        let path = self.running.folder.join(format!("kubeconfig-{namespace}_{service_account}"));
        self.running.admin.with_token(token).write_kubeconfig(&path)?;
        Ok(path)
    }

    /// The folder of its data, keys and logs. It goes when the control plane does.
    pub fn folder(&self) -> &Path {
        &self.running.folder
    }

    async fn token(&self, namespace: &str, account: &str) -> Result<String, Error> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client()?, namespace);
        let metadata = ObjectMeta { name: Some(account.into()), ..ObjectMeta::default() };
        match accounts
            .create(&PostParams::default(), &ServiceAccount { metadata, ..ServiceAccount::default() })
            .await
        {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            made => drop(made.map_err(Error::api(format!("create service account {namespace}/{account}")))?),
        }
        // As JSON: the types differ between the versions of Kubernetes that a program may name.
        let spec = json!({"audiences": [], "expirationSeconds": ONE_DAY});
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let answer: Value = accounts
            .create_subresource("token", account, &PostParams::default(), &request)
            .await
            .map_err(Error::api(format!("get a token for service account {namespace}/{account}")))?;
        let missing = || {
            Error::Credentials(format!(
                "get a token for service account {namespace}/{account}: none in the answer"
            ))
        };
        answer["status"]["token"].as_str().map(str::to_owned).ok_or_else(missing)
    }

    /// Makes a namespace whose name begins with the prefix and that nobody else has, and returns its name.
    pub async fn namespace(&self, prefix: &str) -> Result<String, Error> {
        let metadata = ObjectMeta { generate_name: Some(format!("{prefix}-")), ..ObjectMeta::default() };
        let made = Api::all(self.client()?)
            .create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() })
            .await
            .map_err(Error::api(format!("create a namespace {prefix}-…")))?;
        Ok(made.name_any())
    }

    /// Every request so far, one audit.k8s.io/v1 Event each, at level Metadata. The API server logs a request before its
    /// answer has gone out completely.
    ///
    /// # Errors
    ///
    /// Also if the control plane was not built with [`audited`](Builder::audited).
    pub fn audit_events(&self) -> Result<Vec<Value>, Error> {
        let path = self.running.folder.join(AUDIT_LOG);
        let text = std::fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        // A last line without an end is still being written.
        let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let events = complete.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        events.map_err(|error| Error::Yaml { origin: path.display().to_string(), problem: error.to_string() })
    }

    /// Stops what makes nodes, the API server, then etcd, and waits until all have ended. Data, addresses, certificates and tokens stay.
    pub async fn stop(&self) -> Result<(), Error> {
        self.running.stop().await
    }

    /// Starts it again on the data it had, at the same address, after stopping it if it runs.
    pub async fn restart(&self) -> Result<(), Error> {
        self.running.stop().await?;
        self.running.serve().await
    }
}

fn connect(config: Config) -> Result<Client, Error> {
    Client::try_from(config).map_err(Error::api("make a client"))
}
