//! The API server of a test, and the lock for tests that run alone.

use std::{ops::Deref, path::PathBuf};

use reknit::testing::{Builder, ControlPlane, eventually};
use samples_apis::{AddressableService, SimpleDeployment};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{objects::Objects, proxy::Proxy, wait::SOON};

/// Taken exclusively by tests that measure time.
static TURN: RwLock<()> = RwLock::const_new(());
static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// An API server for one test, shared or its own.
pub(crate) struct Server {
    plane: Plane,
    _turn: Turn,
}

enum Plane {
    Shared(&'static ControlPlane),
    Own(Box<ControlPlane>),
}

/// Only held until it is dropped.
#[expect(dead_code, reason = "dropping it is its use")]
enum Turn {
    Beside(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Server {
    /// The shared API server, with the Kinds of the sample. Each test takes a namespace of its own.
    pub(crate) async fn shared() -> Self {
        let turn = Turn::Beside(TURN.read().await);
        Self { plane: Plane::Shared(shared_plane().await), _turn: turn }
    }

    /// The shared API server, while no other test runs.
    pub(crate) async fn quiet() -> Self {
        // The test does not queue for the lock. That would keep other tests from starting until all running tests have
        // ended.
        let turn = eventually("all other tests to end", SOON * 10, async || TURN.try_write().ok()).await;
        Self { plane: Plane::Shared(shared_plane().await), _turn: Turn::Alone(turn) }
    }

    /// An empty API server that the test may stop and damage.
    pub(crate) async fn own(builder: Builder) -> Self {
        let turn = Turn::Beside(TURN.read().await);
        let plane = builder.start().await.expect("a control plane");
        Self { plane: Plane::Own(Box::new(plane)), _turn: turn }
    }

    /// Creates a namespace for this test.
    pub(crate) async fn objects(&self, prefix: &str) -> Objects {
        let namespace = self.namespace(prefix).await.expect("a namespace");
        Objects { client: self.client().expect("a client"), namespace }
    }

    /// Starts a proxy in front of the server.
    pub(crate) async fn proxy(&self) -> Proxy {
        Proxy::start(&self.config().expect("a configuration")).await
    }

    /// Writes a kubeconfig beside the original one that connects through the proxy.
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
    let install = async || {
        plane.install::<AddressableService>().await.expect("the CRD");
        plane.install::<SimpleDeployment>().await.expect("the CRD");
    };
    INSTALLED.get_or_init(install).await;
    plane
}
