//! `--shadow`: runs the controllers beside another version of the program, and logs what they would change.
//!
//! The other version does the work, so the caches hold what it has written. Each pass has an overlay of its own, whose
//! writes do not enter the caches. A pass in the middle of the other version's work would differ from it, so a key runs
//! only once nothing has enqueued it for some time, and a difference is reported once a second pass has it too.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use http::Request;
use kube::client::Body;
use parking_lot::Mutex;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};
use reknit_apis::Key;
use reknit_injection::{
    Shutdown,
    internal::{CurrentPass, HashMap, HttpResponse, Redaction, Transport, register_metric},
};
use reknit_reconciler::{
    Controller, Drained, Error, Outcome,
    internal::{enqueue_all, reconcile_once, requeue_after, take_queued},
};
use tokio::time::{Instant, sleep, timeout};
use tower::BoxError;

use super::{
    MAX_PASS,
    dry_run::{DryRun, Watches},
    report::changes,
};

/// The time for which nothing may have enqueued a key before its pass.
pub(super) const QUIET: Duration = Duration::from_secs(5);
/// The time until the retry of a failed pass.
const RETRY: Duration = Duration::from_secs(60);
/// The interval at which the queue is read.
const POLL: Duration = Duration::from_millis(500);

/// The controllers of a program that only shows what it would change.
pub(crate) struct Shadow {
    live: Transport,
    /// The dry runs of the running passes, by controller.
    passes: Mutex<HashMap<Arc<str>, Arc<DryRun>>>,
    differing: IntGaugeVec,
    uncompared: IntGaugeVec,
    redaction: Redaction,
}

/// The keys of a controller.
#[derive(Default)]
struct Keys {
    /// The keys that existed at the start and have not been compared since.
    uncompared: BTreeSet<Key>,
    /// The times of the next passes.
    due: BTreeMap<Key, Instant>,
    /// The hash of the changes of each key as they were logged last. The changes themselves may be large.
    logged: BTreeMap<Key, u64>,
    /// The keys whose last pass had other changes than those that were logged.
    unconfirmed: BTreeSet<Key>,
}

impl Shadow {
    /// Creates the shadow of a process, which sends through this guarded transport.
    pub(crate) fn new(guarded: Transport, registry: &Registry, redaction: Redaction) -> Arc<Self> {
        let gauge =
            |name, help| register_metric(registry, IntGaugeVec::new(Opts::new(name, help), &["controller"]));
        let differing = gauge(
            "reknit_shadow_differing_keys",
            "The number of keys that this version would reconcile differently than the running one.",
        );
        let uncompared = gauge(
            "reknit_shadow_uncompared_keys",
            "The number of keys that existed at the start and have not been compared since, or -1 before the first lists.",
        );
        Arc::new(Self { live: guarded, passes: Mutex::default(), differing, uncompared, redaction })
    }

    /// The transport of the controllers.
    pub(crate) fn transport(self: &Arc<Self>, namespace: &str) -> Transport {
        let this = self.clone();
        Transport::new(tower::service_fn(move |request| this.clone().send(request)), namespace)
    }

    /// Sends a request. Outside of passes, each write is a dry run of its own.
    async fn send(self: Arc<Self>, request: Request<Body>) -> Result<HttpResponse, BoxError> {
        let pass = CurrentPass::get().and_then(|pass| self.passes.lock().get(&pass.controller).cloned());
        pass.unwrap_or_else(|| self.dry_run()).answer(request).await
    }

    /// Its writes read the live objects, since the other version may be writing them.
    fn dry_run(&self) -> Arc<DryRun> {
        DryRun::new(self.live.clone(), Watches::Live)
    }

    /// Runs the quiet keys of a controller, one after another, until the shutdown.
    pub(crate) async fn run(&self, controller: Controller, stop: Shutdown) -> Drained {
        tokio::select! {
            biased;
            () = stop.wait() => {}
            () = self.follow(&controller) => {}
        }
        Drained::default()
    }

    async fn follow(&self, controller: &Controller) {
        let uncompared = self.uncompared.with_label_values(&[controller.name()]);
        uncompared.set(-1); // otherwise a controller that cannot list would have no gauge, which looks like silence
        join_all(controller.informers().iter().map(|informer| informer.synced())).await;
        tracing::info!(
            "knative.dev/controller" = controller.name(),
            "the controller only shows what it would change"
        );
        enqueue_all(controller);
        let mut keys = Keys::default();
        keys.postpone_queued(controller);
        keys.uncompared = keys.due.keys().cloned().collect();
        let differing = self.differing.with_label_values(&[controller.name()]);
        loop {
            set(&differing, keys.logged.len());
            set(&uncompared, keys.uncompared.len());
            match keys.next() {
                Some(key) => self.run_key(controller, &key, &mut keys).await,
                None => sleep(POLL).await,
            }
            keys.postpone_queued(controller);
        }
    }

    async fn run_key(&self, controller: &Controller, key: &Key, keys: &mut Keys) {
        let (name, dry_run): (Arc<str>, _) = (controller.name().into(), self.dry_run());
        self.passes.lock().insert(name.clone(), dry_run.clone());
        let result = timeout(MAX_PASS, reconcile_once(controller, key, true)).await;
        self.passes.lock().remove(&name);
        keys.postpone_queued(controller);
        if keys.due.contains_key(key) {
            return; // the key was enqueued meanwhile, so the pass has seen an old state
        }
        match &result {
            Ok(result) => keys.plan_next(key, result),
            Err(_) => {
                tracing::warn!("knative.dev/controller" = &*name, %key, limit = ?MAX_PASS, "the pass is dropped: it took too long");
                keys.run_after(key, RETRY);
            }
        }
        if matches!(result, Ok(Ok(_))) {
            let overlay = dry_run.take_overlay().await;
            let changes = changes(overlay, &dry_run.notes.lock(), &self.redaction);
            keys.log(&name, key, &changes);
        }
    }
}

fn set(gauge: &IntGauge, number: usize) {
    gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
}

impl Keys {
    /// Postpones the queued keys, which are not quiet.
    fn postpone_queued(&mut self, controller: &Controller) {
        take_queued(controller).iter().for_each(|key| self.run_after(key, QUIET));
    }

    fn run_after(&mut self, key: &Key, wait: Duration) {
        self.due.insert(key.clone(), Instant::now() + wait);
    }

    /// Takes the key that has been due for the longest time.
    fn next(&mut self) -> Option<Key> {
        let (key, due) = self.due.iter().min_by_key(|(_, due)| **due)?;
        let key = (*due <= Instant::now()).then(|| key.clone())?;
        self.due.remove(&key);
        Some(key)
    }

    /// Chooses the time of the next pass by the result of the last one.
    fn plan_next(&mut self, key: &Key, result: &Result<Outcome, Error>) {
        match result {
            Ok(outcome) => {
                if let Some(wait) = requeue_after(outcome) {
                    self.run_after(key, wait.max(QUIET));
                }
            }
            Err(error) if error.is_conflict() => self.run_after(key, QUIET),
            // It is not retried, so nothing would end the difference that was logged, or confirm a new one.
            Err(error) if error.is_permanent() => {
                self.logged.remove(key);
                self.unconfirmed.remove(key);
            }
            Err(_) => self.run_after(key, RETRY),
        }
    }

    /// Logs the changes that a key would make if they differ from those that were logged, for the second pass in a row.
    fn log(&mut self, controller: &str, key: &Key, changes: &str) {
        let hash = || BuildHasherDefault::<DefaultHasher>::default().hash_one(changes);
        let hash = (!changes.is_empty()).then(hash);
        let is_logged = self.logged.get(key).copied() == hash;
        if !is_logged && self.unconfirmed.insert(key.clone()) {
            return self.run_after(key, QUIET);
        }
        self.unconfirmed.remove(key);
        if self.uncompared.remove(key) && self.uncompared.is_empty() {
            tracing::info!("knative.dev/controller" = controller, "each object has been compared once");
        }
        if is_logged {
            return;
        }
        match hash {
            None => {
                tracing::info!("knative.dev/controller" = controller, %key, "no difference any more");
                self.logged.remove(key);
            }
            Some(hash) => {
                tracing::info!("knative.dev/controller" = controller, %key, changes, "this version would make changes");
                self.logged.insert(key.clone(), hash);
            }
        }
    }
}
