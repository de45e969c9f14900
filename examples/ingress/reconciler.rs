//! The roles of the controller. The leader of a Route reconciles, finalizes and releases it, and the other replicas observe
//! it: all of them build the routes.

use reknit::{injection::annotation, prelude::*, reconciler::ReleaseKind};

use super::{
    prober::{Prober, Target},
    resolver::{Resolver, version},
    state::State,
    types::{BACKENDS, GATEWAYS, Route},
};

/// The annotation that selects the program which serves a Route.
const CLASS: &str = "demo.reknit.dev/ingress-class";
/// The class of this program.
const OWN_CLASS: &str = "reknit";

pub(crate) struct Reconciler {
    resolver: Resolver,
    state: State,
    prober: Prober,
}

/// Reconciles the Routes of the class [`OWN_CLASS`].
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Route>(cx).class(CLASS, OWN_CLASS).finalizer("demo.reknit.dev/route");
    let resolver = Resolver::new(&mut build);
    let (state, routes) = (cx.get::<State>(), cx.informer::<Route>(cx.get()));
    let prober = Prober { probes: cx.get(), running: build.per_key(), queue: build.queue() };
    build.on_synced(fill(state.clone(), resolver.clone(), routes));
    let reconciler = Reconciler { resolver, state, prober };
    Ok(build.reconciler(reconciler).releasing().observing_as_follower().build())
}

/// Fills the routes before the first pass, so that no gateway gets only some of them.
async fn fill(state: State, resolver: Resolver, routes: Informer<Route>) {
    let own = annotation::<Route>(CLASS, OWN_CLASS);
    let own = routes.list().filter(|route| own.admits(route) && route.metadata.deletion_timestamp.is_none());
    state.fill(own.map(|route| (Key::of(&*route), resolver.resolve(&route).0)).collect());
}

impl Reconciler {
    /// Sets the route of this replica, and returns what is wrong with its backends.
    fn publish(&self, route: &Route) -> Vec<String> {
        let (resolved, problems) = self.resolver.resolve(route);
        self.state.set(Key::of(route), resolved);
        problems
    }

    /// Removes the route of this replica. Returns `Ok` once no gateway serves it.
    fn withdraw(&self, route: &Route) -> Result<(), String> {
        self.state.remove(&Key::of(route));
        self.probe(route, false)
    }

    /// Returns `Ok` once all gateways serve the route, or none does.
    fn probe(&self, route: &Route, is_served: bool) -> Result<(), String> {
        let gateways = self.resolver.gateways(route);
        if gateways.is_empty() {
            return if is_served { Err("the gateways have no ready pods".into()) } else { Ok(()) };
        }
        let (host, version) = (route.spec.host.clone(), version(route));
        self.prober.progress(Key::of(route), Target { host, version, is_served, gateways })
    }
}

impl ReconcileKind for Reconciler {
    type Kind = Route;

    async fn reconcile_kind(&self, route: &Route, status: &mut DuckStatus) -> Result<Outcome> {
        let is_known = status.observed_generation == route.metadata.generation;
        let mut conditions = Route::CONDITIONS.manage(status);
        match &self.publish(route)[..] {
            [] => conditions.mark_true(BACKENDS),
            problems => conditions.mark_false(BACKENDS, "ServiceNotFound", problems.join("; ")),
        }
        // A gateway that starts later gets all routes before it is ready, so each generation is probed once.
        if is_known && conditions.is_true(GATEWAYS) {
            self.prober.running.remove(&Key::of(route));
            return Ok(Outcome::done());
        }
        match self.probe(route, true) {
            Ok(()) => conditions.mark_true(GATEWAYS),
            Err(problem) => conditions.mark_unknown(GATEWAYS, "Probing", problem),
        }
        Ok(Outcome::done())
    }
}

/// Deletion waits until no gateway serves the route.
impl FinalizeKind for Reconciler {
    async fn finalize_kind(&self, route: &Route, status: &mut DuckStatus) -> Result<Outcome> {
        let Err(problem) = self.withdraw(route) else { return Ok(Outcome::done()) };
        Route::CONDITIONS.manage(status).mark_unknown(GATEWAYS, "Withdrawing", problem);
        Ok(Outcome::skip())
    }
}

/// A Route that changes its class is withdrawn, too.
impl ReleaseKind for Reconciler {
    async fn release_kind(&self, route: &Route) -> Result<Outcome> {
        Ok(if self.withdraw(route).is_ok() { Outcome::done() } else { Outcome::skip() })
    }
}

impl ObserveKind for Reconciler {
    async fn observe_kind(&self, route: &Route) -> Result<Outcome> {
        self.publish(route);
        Ok(Outcome::done())
    }

    async fn observe_absence(&self, key: &Key) -> Result<Outcome> {
        self.state.remove(key);
        Ok(Outcome::done())
    }
}
