//! The API server of a test, and a lock that lets one test run alone.

use std::{ops::Deref, path::PathBuf};

use reknit::testing::{Builder, ControlPlane, eventually};
use reknit_samples::{AddressableService, SimpleDeployment};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{objects::Objects, proxy::Proxy, wait::TIMEOUT};

/// Every test holds this lock: shared, or exclusively if the test measures time.
static LOCK: RwLock<()> = RwLock::const_new(());
/// Set once the CRDs of the samples are installed in the shared API server.
static CRDS: OnceCell<()> = OnceCell::const_new();
/// The API server that the availability tests share.
static AUDITED: OnceCell<ControlPlane> = OnceCell::const_new();
/// The writes that [`AUDITED`] logs.
const AUDIT_POLICY: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/availability/audit-policy.yaml");

/// An API server for one test, shared or its own.
pub(crate) struct Server {
    plane: Plane,
    _guard: LockGuard,
}

enum Plane {
    Shared(&'static ControlPlane),
    Own(Box<ControlPlane>),
}

#[expect(dead_code, reason = "held only for its drop")]
enum LockGuard {
    Shared(RwLockReadGuard<'static, ()>),
    Exclusive(RwLockWriteGuard<'static, ()>),
}

impl Server {
    /// The shared API server, with the Kinds of the samples. Each test creates a namespace of its own.
    pub(crate) async fn shared() -> Self {
        let guard = LockGuard::Shared(LOCK.read().await);
        Self { plane: Plane::Shared(shared_plane().await), _guard: guard }
    }

    /// The shared API server, while no other test runs.
    pub(crate) async fn exclusive() -> Self {
        // Polls, because a waiting writer would keep other tests from starting until all running tests have ended.
        let guard =
            eventually("all other tests have ended", TIMEOUT * 10, async || LOCK.try_write().ok()).await;
        Self { plane: Plane::Shared(shared_plane().await), _guard: LockGuard::Exclusive(guard) }
    }

    /// An API server whose audit log has the writes of Leases and AddressableServices with their objects. Several tests
    /// share it.
    pub(crate) async fn audited() -> Self {
        let guard = LockGuard::Shared(LOCK.read().await);
        let start = async || {
            let builder = ControlPlane::builder().audited();
            let plane = builder.arg(format!("--audit-policy-file={AUDIT_POLICY}")).start().await;
            let plane = plane.expect("a control plane");
            install_crds(&plane).await;
            plane
        };
        Self { plane: Plane::Shared(AUDITED.get_or_init(start).await), _guard: guard }
    }

    /// An empty API server that the test may stop and damage.
    pub(crate) async fn own(builder: Builder) -> Self {
        let guard = LockGuard::Shared(LOCK.read().await);
        let plane = builder.start().await.expect("a control plane");
        Self { plane: Plane::Own(Box::new(plane)), _guard: guard }
    }

    /// Creates a namespace whose name starts with `prefix`, and returns a client for its objects.
    pub(crate) async fn objects_in_new_namespace(&self, prefix: &str) -> Objects {
        let namespace = self.namespace(prefix).await.expect("a namespace");
        Objects { client: self.client().expect("a client"), namespace }
    }

    /// Starts a proxy in front of the server.
    pub(crate) async fn proxy(&self) -> Proxy {
        Proxy::start(&self.config().expect("a configuration")).await
    }

    /// Writes a kubeconfig that connects through the proxy with the credentials of `original`, and returns its path.
    pub(crate) fn kubeconfig_through(&self, proxy: &Proxy, original: &std::path::Path) -> PathBuf {
        let text = std::fs::read_to_string(original).expect("the kubeconfig");
        let mut kubeconfig: serde_json::Value = serde_json::from_str(&text).expect("a kubeconfig in JSON");
        kubeconfig["clusters"][0]["cluster"] = serde_json::json!({ "server": proxy.url() });
        let port = proxy.url().rsplit(':').next().expect("a port").to_owned();
        let path = original.with_extension(format!("proxy-{port}"));
        std::fs::write(&path, kubeconfig.to_string()).expect("the kubeconfig is written");
        path
    }
}

impl Deref for Server {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        match &self.plane {
            Plane::Shared(plane) => plane,
            Plane::Own(plane) => plane,
        }
    }
}

async fn shared_plane() -> &'static ControlPlane {
    let plane = ControlPlane::shared().await.expect("a control plane");
    CRDS.get_or_init(|| install_crds(plane)).await;
    plane
}

async fn install_crds(plane: &ControlPlane) {
    plane.install::<AddressableService>().await.expect("the CRD");
    plane.install::<SimpleDeployment>().await.expect("the CRD");
}
