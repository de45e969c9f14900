//! Runs a scenario with many seeds, on all processors, and reports the first failure.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    env,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use parking_lot::Mutex;
use serde_json::Value;
use tracing::{Dispatch, subscriber::NoSubscriber};

use crate::{
    faults::{Fault, Plan, Single},
    observer::Observer,
    oracles, report,
    scenario::Scenario,
    timeline::Failure,
    world::{Run, World},
};

/// The runs of a simulation.
pub(crate) struct Search {
    pub(crate) seeds: Range<u64>,
    pub(crate) is_exhaustive: bool,
    /// The kinds of faults, of which each seed takes a random subset.
    pub(crate) faults: BTreeSet<Fault>,
    /// True if the final state is compared with that of a run without faults.
    pub(crate) state: bool,
}

/// The final state of a run without faults; `None` if it does not matter.
type Expected = Option<BTreeMap<String, Value>>;

/// One run to do.
#[derive(Clone)]
struct Job {
    seed: u64,
    plan: Plan,
}

pub(crate) fn run(scenario: &Scenario, search: &Search) {
    let started = Instant::now();
    let name = thread::current().name().unwrap_or("simulation").to_owned();
    let seed = number("REKNIT_SIM_SEED");
    let seeds = match (seed, number("REKNIT_SIM_SEEDS")) {
        (Some(seed), _) => seed..seed.saturating_add(1),
        (None, Some(count)) => 0..count,
        (None, None) => search.seeds.clone(),
    };
    let mut baseline = observed(|| World::run(scenario, 0, Plan::default()));
    if baseline.violations.is_empty() {
        baseline.violations.extend(oracles::idle_controllers(&baseline.trace, scenario, baseline.end));
    }
    let job = Job { seed: 0, plan: Plan::default() };
    if !baseline.violations.is_empty() {
        fail(scenario, &name, &job, baseline, &None);
    }
    check_rerun(scenario, &job, &baseline);
    let expected = search.state.then(|| baseline.state.clone());
    let mut jobs: Vec<Job> = Vec::new();
    if search.is_exhaustive && seed.is_none() {
        jobs.extend(singles(scenario, &baseline).map(|single| Job { seed: 0, plan: Plan::single(single) }));
    }
    let random = seeds.map(|seed| Job { seed, plan: Plan::random(seed, &search.faults) });
    jobs.extend(random);
    let (runs, requests) = run_all(scenario, &name, &jobs, &expected);
    println!("{name}: {runs} runs with {requests} requests in {:.1?}, no violation", started.elapsed());
}

/// A hash of the requests of each seed.
pub(crate) fn hashes(scenario: &Scenario, search: &Search) -> Vec<u64> {
    let plan = |seed| Plan::random(seed, &search.faults);
    let run = |seed| observed(|| World::run(scenario, seed, plan(seed)).trace.hash());
    search.seeds.clone().map(run).collect()
}

#[expect(clippy::panic, reason = "a failed test panics")]
fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// The faults of the exhaustive search, each at one write or pass of the run without faults.
fn singles(scenario: &Scenario, baseline: &Run) -> impl Iterator<Item = Single> {
    let (writes, passes, several) = (baseline.writes, baseline.passes, scenario.replicas > 1);
    let each_write = (1..=writes).flat_map(move |n| {
        let change = several.then_some(Single::ChangeLeader(n));
        [Single::CrashAfterWrite(n), Single::LoseResponse(n)].into_iter().chain(change)
    });
    each_write.chain((1..=passes).map(Single::StaleRead))
}

/// Runs all jobs on all processors. Returns the numbers of runs and requests.
fn run_all(scenario: &Scenario, name: &str, jobs: &[Job], expected: &Expected) -> (usize, usize) {
    let (next, requests, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let first_failure: Mutex<Option<(usize, Run)>> = Mutex::new(None);
    let panic: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    let work = || {
        observed(|| {
            while !stop.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(index) else { return };
                match catch_unwind(AssertUnwindSafe(|| run_job(scenario, job, expected))) {
                    Ok(run) => {
                        requests.fetch_add(run.trace.requests.len(), Ordering::Relaxed);
                        if !run.violations.is_empty() {
                            stop.store(true, Ordering::Relaxed);
                            let mut first = first_failure.lock();
                            if first.as_ref().is_none_or(|(other, _)| index < *other) {
                                *first = Some((index, run));
                            }
                        }
                    }
                    Err(payload) => {
                        eprintln!(
                            "the simulation panicked with seed {} and the faults {}",
                            job.seed, job.plan
                        );
                        stop.store(true, Ordering::Relaxed);
                        *panic.lock() = Some(payload);
                    }
                }
            }
        });
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len().max(1));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    if let Some(payload) = panic.into_inner() {
        resume_unwind(payload);
    }
    if let Some((index, run)) = first_failure.into_inner() {
        fail(scenario, name, &jobs[index], run, expected);
    }
    (jobs.len(), requests.into_inner())
}

/// Runs one job, and compares its final state.
fn run_job(scenario: &Scenario, job: &Job, expected: &Expected) -> Run {
    let mut run = World::run(scenario, job.seed, job.plan.clone());
    if let Some(expected) = expected
        && run.violations.is_empty()
    {
        run.violations.extend(oracles::compare_states(expected, &run.state, run.end));
    }
    run
}

/// A subscriber of no thread. While a process has only one subscriber, tracing asks that of the thread that first reaches a
/// span whether anybody wants the span. A thread without a subscriber would say no for all, and no pass would be observed.
static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

/// Runs a function on a thread that observes passes.
fn observed<T>(run: impl FnOnce() -> T) -> T {
    LazyLock::force(&OTHER);
    tracing::subscriber::with_default(Observer, run)
}

/// Runs a job again, and panics if it does not send the same requests.
#[expect(clippy::panic, reason = "a failed test panics")]
fn check_rerun(scenario: &Scenario, job: &Job, run: &Run) {
    let rerun = observed(|| World::run(scenario, job.seed, job.plan.clone()));
    if rerun.trace.hash() != run.trace.hash() {
        panic!("{}", report::nondeterminism(job.seed, &run.trace, &rerun.trace));
    }
}

/// Reports a failed run, with as few kinds of faults as still fail.
#[expect(clippy::panic, reason = "a failed test panics")]
fn fail(scenario: &Scenario, name: &str, job: &Job, run: Run, expected: &Expected) -> ! {
    check_rerun(scenario, job, &run);
    let run = observed(|| shrink(scenario, job, run, expected));
    panic!(
        "{}",
        report::failure(&Failure { test: name, seed: job.seed, replicas: scenario.replicas, run: &run })
    )
}

/// Leaves out each kind of fault without which the run still breaks the same rule.
fn shrink(scenario: &Scenario, job: &Job, mut run: Run, expected: &Expected) -> Run {
    for kind in run.plan.kinds.clone() {
        let mut plan = run.plan.clone();
        plan.kinds.remove(&kind);
        let smaller = run_job(scenario, &Job { seed: job.seed, plan }, expected);
        let oracle = |run: &Run| run.violations.first().map(|violation| violation.oracle.clone());
        if oracle(&smaller) == oracle(&run) {
            run = smaller;
        }
    }
    run
}
