//! The API server that a test runs against, and what else may run meanwhile.

use std::{ops::Deref, path::PathBuf};

use reknit::testing::{Builder, ControlPlane, eventually};
use samples_apis::{AddressableService, SimpleDeployment};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{objects::Objects, proxy::Proxy, wait::SOON};

/// Tests that measure time run alone.
static TURN: RwLock<()> = RwLock::const_new(());
static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// An API server for one test, shared with others or its own.
pub(crate) struct Server {
    plane: Plane,
    _turn: Turn,
}

enum Plane {
    Shared(&'static ControlPlane),
    Own(Box<ControlPlane>),
}

/// Only held.
#[expect(dead_code, reason = "dropping it is its use")]
enum Turn {
    Beside(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Server {
    /// The one that tests share: with the Kinds of the sample, and a namespace for each test.
    pub(crate) async fn shared() -> Self {
        let turn = Turn::Beside(TURN.read().await);
        Self { plane: Plane::Shared(shared_plane().await), _turn: turn }
    }

    /// The same while no other test runs.
    pub(crate) async fn quiet() -> Self {
        // The lock is not queued for: that would keep other tests from starting until all that run have ended.
        let turn = eventually("all other tests to end", SOON * 10, async || TURN.try_write().ok()).await;
        Self { plane: Plane::Shared(shared_plane().await), _turn: Turn::Alone(turn) }
    }

    /// One that the test may stop and harm, empty.
    pub(crate) async fn own(builder: Builder) -> Self {
        let turn = Turn::Beside(TURN.read().await);
        let plane = builder.start().await.expect("a control plane");
        Self { plane: Plane::Own(Box::new(plane)), _turn: turn }
    }

    /// A namespace for this test, and what is in it.
    pub(crate) async fn objects(&self, prefix: &str) -> Objects {
        let namespace = self.namespace(prefix).await.expect("a namespace");
        Objects { client: self.client().expect("a client"), namespace }
    }

    /// A proxy in front of it.
    pub(crate) async fn proxy(&self) -> Proxy {
        Proxy::start(&self.config().expect("a configuration")).await
    }

    /// A kubeconfig that leads through the proxy, made of one that leads here. It lies beside that.
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
