//! The API server of a test, and a lock that lets one test run alone.

use std::ops::Deref;

use reknit::testing::{Builder, ControlPlane, eventually};
use reknit_samples::{AddressableService, SimpleDeployment};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use super::{objects::Objects, proxy::Proxy, wait::TIMEOUT};

/// Every test holds one of these permits, or all of them if the test measures time.
static PERMITS: Semaphore = Semaphore::const_new(ALL as usize);
const ALL: u32 = 1000;
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
    _permits: SemaphorePermit<'static>,
}

enum Plane {
    Shared(&'static ControlPlane),
    Own(Box<ControlPlane>),
}

impl Server {
    /// The shared API server, with the Kinds of the samples. Each test creates a namespace of its own.
    pub(crate) async fn shared() -> Self {
        Self { _permits: permit().await, plane: Plane::Shared(shared_plane().await) }
    }

    /// The shared API server, while no other test runs.
    pub(crate) async fn exclusive() -> Self {
        // Polls, because a waiting test would keep others from starting until all running tests have ended.
        let all = async || PERMITS.try_acquire_many(ALL).ok();
        let permits = eventually("all other tests have ended", TIMEOUT * 10, all).await;
        Self { _permits: permits, plane: Plane::Shared(shared_plane().await) }
    }

    /// An API server whose audit log has the writes of Leases and AddressableServices with their objects. Several tests
    /// share it.
    pub(crate) async fn audited() -> Self {
        let permit = permit().await;
        let start = async || {
            let builder = ControlPlane::builder().audited();
            let plane = builder.arg(format!("--audit-policy-file={AUDIT_POLICY}")).start().await;
            let plane = plane.expect("a control plane");
            install_crds(&plane).await;
            plane
        };
        Self { plane: Plane::Shared(AUDITED.get_or_init(start).await), _permits: permit }
    }

    /// An empty API server that the test may stop and damage.
    pub(crate) async fn own(builder: Builder) -> Self {
        let permit = permit().await;
        let plane = builder.start().await.expect("a control plane");
        Self { plane: Plane::Own(Box::new(plane)), _permits: permit }
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

async fn permit() -> SemaphorePermit<'static> {
    PERMITS.acquire().await.expect("the semaphore is never closed")
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
