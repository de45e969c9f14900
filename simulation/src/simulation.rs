//! The builder of a simulation.

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use kube::Resource;
use reknit_injection::Context;
use reknit_leadership::LeaderElectionConfig;
use reknit_reconciler::{Controller, Result};
use serde::Serialize;

use crate::{
    admission::Attempt,
    cluster::Cluster,
    faults::Fault,
    runner::{self, Search},
    scenario::{Scenario, Step},
};

/// A simulation of a program: its controllers, what happens to their objects, and what must hold whatever goes wrong.
///
/// See the [crate](crate) for an example.
#[must_use = "nothing happens until `.run()`"]
pub struct Simulation {
    scenario: Scenario,
    search: Search,
}

/// Creates a simulation of a program with these controllers, given by the constructors that the program uses.
pub fn simulation<C>(constructors: impl IntoIterator<Item = C>) -> Simulation
where
    C: Fn(&Context) -> Result<Controller> + Send + Sync + 'static,
{
    let constructors = constructors.into_iter().map(|constructor| Arc::new(constructor) as _).collect();
    Simulation {
        scenario: Scenario {
            constructors,
            provided: Vec::new(),
            replicas: 1,
            election: LeaderElectionConfig::default(),
            initial: Vec::new(),
            steps: Vec::new(),
            stubs: Vec::new(),
            admission: Vec::new(),
            always: Vec::new(),
            finally: Vec::new(),
            max_requests: 5_000,
        },
        search: Search { seeds: 0..100, is_exhaustive: false, faults: Fault::ALL.into(), state: true },
    }
}

/// The result of a check: `bool`, or a `Result` whose error says what is wrong.
pub trait Verdict {
    /// The message of a failed check.
    fn into_result(self) -> std::result::Result<(), String>;
}

impl Verdict for bool {
    fn into_result(self) -> std::result::Result<(), String> {
        if self { Ok(()) } else { Err("it does not hold".into()) }
    }
}

impl<E: fmt::Display> Verdict for std::result::Result<(), E> {
    fn into_result(self) -> std::result::Result<(), String> {
        self.map_err(|error| error.to_string())
    }
}

impl Simulation {
    /// Adds a controller by its constructor.
    pub fn controller(
        mut self,
        constructor: impl Fn(&Context) -> Result<Controller> + Send + Sync + 'static,
    ) -> Self {
        self.scenario.constructors.push(Arc::new(constructor));
        self
    }

    /// Adds a value for the constructors, as [`Main::provide`](reknit_sharedmain::Main::provide) does.
    pub fn provide<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.scenario.provided.push(Arc::new(move |cx| cx.provide(value.clone())));
        self
    }

    /// Sets the number of replicas, from one to five. The default is one.
    ///
    /// # Panics
    ///
    /// Panics for another number.
    pub fn replicas(mut self, replicas: usize) -> Self {
        assert!((1..=5).contains(&replicas), "a simulation has one to five replicas, not {replicas}");
        self.scenario.replicas = replicas;
        self
    }

    /// Sets the settings of leader election. The default is that of a program without `config-leader-election`.
    pub fn election(mut self, election: LeaderElectionConfig) -> Self {
        self.scenario.election = election;
        self
    }

    /// Adds an object that exists from the start, such as the CustomResourceDefinition of a Kind: that of
    /// [`definition_of`](reknit_apis::definition_of) or [`kubernetes_schema`](reknit_apis::kubernetes_schema), as in a
    /// cluster. Discovery, for references to any Kind, knows the defined Kinds, and the workloads, Services and maps of
    /// Kubernetes.
    pub fn given<K: Resource<DynamicType = ()> + Serialize + Clone + Send + Sync + 'static>(
        mut self,
        object: K,
    ) -> Self {
        self.scenario.initial.push(Box::new(move |cluster| cluster.create(object.clone())));
        self
    }

    /// Adds a stub of what a cluster does, such as [`pods_get_ready`](crate::pods_get_ready). It is called after each
    /// change of an object.
    pub fn cluster(mut self, stub: impl Fn(&mut Cluster) + Send + Sync + 'static) -> Self {
        self.scenario.stubs.push(Box::new(stub));
        self
    }

    /// Adds a check of each write of a replica, such as [`quotas_refuse`](crate::quotas_refuse). The API server
    /// refuses a write with 403 (`Forbidden`) and the message of the error, as a quota or an admission webhook does.
    /// Leases and events are not checked.
    pub fn admission(
        mut self,
        check: impl Fn(&Cluster, &Attempt) -> std::result::Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.scenario.admission.push(Box::new(check));
        self
    }

    /// Adds a step that changes objects at this time after the start.
    pub fn at(mut self, time: Duration, step: impl Fn(&mut Cluster) + Send + Sync + 'static) -> Self {
        self.scenario.steps.push(Step { at: time, run: Box::new(step) });
        self
    }

    /// Adds a check that must hold after each change of an object.
    pub fn always<V: Verdict>(
        mut self,
        name: &str,
        check: impl Fn(&Cluster) -> V + Send + Sync + 'static,
    ) -> Self {
        let check = Box::new(move |cluster: &Cluster| check(cluster).into_result());
        self.scenario.always.push((name.into(), check));
        self
    }

    /// Adds a check that must hold at the end, when nothing changes any more.
    pub fn finally<V: Verdict>(
        mut self,
        name: &str,
        check: impl Fn(&Cluster) -> V + Send + Sync + 'static,
    ) -> Self {
        let check = Box::new(move |cluster: &Cluster| check(cluster).into_result());
        self.scenario.finally.push((name.into(), check));
        self
    }

    /// Sets the seeds. Each seed chooses faults at random. The default is `0..100`.
    pub fn seeds(mut self, seeds: Range<u64>) -> Self {
        self.search.seeds = seeds;
        self
    }

    /// Sets the number of requests that a run may send before it counts as a hot loop. The default is 5,000.
    pub fn max_requests(mut self, requests: usize) -> Self {
        self.scenario.max_requests = requests;
        self
    }

    /// Sets the kinds of faults, of which each seed injects a random subset. The default is all of them.
    pub fn faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.search.faults = faults.into_iter().collect();
        self
    }

    /// Leaves this kind of fault out.
    pub fn without(mut self, fault: Fault) -> Self {
        self.search.faults.remove(&fault);
        self
    }

    /// Does not compare the final state with that of a run without faults, for a controller whose result depends on the
    /// order of events.
    pub fn any_final_state(mut self) -> Self {
        self.search.state = false;
        self
    }

    /// Adds an exhaustive search: a crash after each write, a lost response to each write, a stale cache from each pass
    /// on, and, with several replicas, another leader at each write.
    pub fn each_write(mut self) -> Self {
        self.search.is_exhaustive = true;
        self
    }

    /// Returns a hash of the requests of each seed.
    #[doc(hidden)]
    pub fn hashes(&self) -> Vec<u64> {
        runner::hashes(&self.scenario, &self.search)
    }

    /// Runs the simulation.
    ///
    /// The environment variable `REKNIT_SIM_SEED` replaces the seeds by one, and `REKNIT_SIM_SEEDS` by that many.
    ///
    /// # Panics
    ///
    /// Panics with a report if a rule is broken, or if two runs of one seed differ.
    #[track_caller]
    pub fn run(self) {
        runner::run(&self.scenario, &self.search);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use parking_lot::Mutex;
    use reknit_reconciler::{Outcome, ReconcileKind};

    use super::*;
    use crate::{faults::Plan, time::Time, watchdog, world::World};

    struct Idle;

    impl ReconcileKind for Idle {
        type Kind = ConfigMap;

        async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
            Ok(Outcome::done())
        }
    }

    /// The number of lists in the minute of the faults, in which no watch ends by itself.
    fn lists(seed: u64, fault: Fault) -> usize {
        let idle = |cx: &Context| Ok(Controller::of::<ConfigMap>(cx).reconciler(Idle).build());
        let plan = Plan { kinds: [fault].into(), single: None };
        let run = World::run(&simulation([idle]).scenario, seed, plan);
        let end = Time::after_start(Duration::from_secs(60));
        let requests = run.trace.requests.iter().filter(|sent| sent.at < end);
        requests.filter(|sent| sent.info.as_ref().is_some_and(|info| info.verb == "list")).count()
    }

    #[test]
    fn an_expired_watch_ends_and_its_objects_are_listed_again_without_another_fault() {
        let lists = |fault| (0..5).map(|seed| lists(seed, fault)).collect::<Vec<_>>();
        let (expired, none) = (lists(Fault::ExpiredWatches), lists(Fault::CrashReports));
        assert!(expired.iter().zip(&none).all(|(expired, none)| expired > none), "{expired:?}, {none:?}");
    }

    static WATCHED: Mutex<Vec<bool>> = Mutex::new(Vec::new());

    fn note_watched() {
        WATCHED.lock().push(watchdog::is_watching());
    }

    /// Waits for many responses, one of which arrives while the replica stands still.
    async fn read(maps: Api<ConfigMap>) {
        for _ in 0..2000 {
            maps.get_opt("a").await.ok();
            note_watched();
        }
    }

    #[test]
    fn the_watchdog_watches_constructors_and_a_replica_that_goes_on_after_a_pause() {
        let reading = |cx: &Context| {
            note_watched();
            tokio::spawn(read(Api::default_namespaced(cx.client())));
            Ok(Controller::of::<ConfigMap>(cx).reconciler(Idle).build())
        };
        let plan = Plan { kinds: [Fault::SlowRequests, Fault::Pauses].into(), single: None };
        let has_paused = (0..20).any(|seed| {
            let run = World::run(&simulation([reading]).scenario, seed, plan.clone());
            run.trace.notes.iter().any(|note| note.text == "the replica goes on")
        });
        assert!(has_paused);
        assert!(WATCHED.lock().iter().all(|is_watched| *is_watched));
    }
}
