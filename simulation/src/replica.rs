//! A replica: the whole program on a runtime of its own, whose clock moves only while the driver steps it.

use std::{cell::RefCell, rc::Rc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use reknit_injection::internal::{Environment, Transport, within};
use reknit_sharedmain::internal::SimulatedProgram;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::oneshot,
    task::JoinHandle,
    time::Instant,
};

use crate::{
    link::{Link, Outgoing},
    observer,
    random::Random,
    time::Time,
    watchdog,
};

/// The namespace of the Leases.
pub(crate) const SYSTEM_NAMESPACE: &str = "reknit-system";

/// A running process of a replica. Dropping it is a crash: its tasks are dropped wherever they wait.
pub(crate) struct Replica {
    index: usize,
    runtime: Runtime,
    link: Link,
    clock: Clock,
    environment: Rc<dyn Environment>,
    program: JoinHandle<Result<(), String>>,
    stop: Option<oneshot::Sender<()>>,
    now: Time,
}

/// The instant on the runtime's clock of one simulated time.
#[derive(Clone, Copy)]
struct Clock {
    started: Time,
    origin: Instant,
}

impl Clock {
    fn instant(self, time: Time) -> Instant {
        self.origin + time.since(self.started)
    }

    fn time(self, instant: Instant) -> Time {
        self.started + instant.saturating_duration_since(self.origin)
    }
}

/// The machine of a replica: its time and randomness.
struct Machine {
    clock: Clock,
    host: String,
    hash_seed: u64,
    random: RefCell<Random>,
}

impl Environment for Machine {
    fn now(&self) -> Timestamp {
        let now = if Handle::try_current().is_ok() { Instant::now() } else { self.clock.origin };
        self.clock.time(now).timestamp()
    }

    fn random(&self, stream: &str) -> u64 {
        rand::RngCore::next_u64(self.random.borrow_mut().stream(stream))
    }

    fn hash_seed(&self) -> u64 {
        self.hash_seed
    }

    fn host_name(&self) -> String {
        self.host.clone()
    }
}

impl Replica {
    /// Starts the program. `seed` determines all of its random numbers.
    pub(crate) fn start(
        index: usize,
        seed: u64,
        now: Time,
        program: SimulatedProgram,
    ) -> Result<Self, String> {
        let link = Link::default();
        let parked = link.clone();
        let mut builder = Builder::new_current_thread();
        builder
            .enable_time()
            .start_paused(true)
            .on_thread_park(move || parked.park())
            .thread_name_fn(refuse_thread);
        let runtime = builder.build();
        let runtime = runtime.map_err(|error| format!("failed to create a runtime: {error}"))?;
        let origin = runtime.block_on(async { Instant::now() });
        let clock = Clock { started: now, origin };
        let pod = format!("replica-{index}");
        let machine =
            Machine { clock, host: pod.clone(), hash_seed: seed, random: RefCell::new(Random::new(seed)) };
        let environment: Rc<dyn Environment> = Rc::new(machine);
        let (stop, stopped) = oneshot::channel::<()>();
        let transport = Transport::new(link.clone(), SYSTEM_NAMESPACE);
        let program =
            run_step(index, now, &environment, || start_program(&runtime, program, pod, transport, stopped));
        Ok(Self { index, runtime, link, clock, environment, program, stop: Some(stop), now })
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn time_of(&self, instant: Instant) -> Time {
        self.clock.time(instant)
    }

    /// Runs the replica until it has sent requests, and has nothing else to do at that instant, but no longer than
    /// until this time. Returns the requests, in an order that does not depend on the order of its tasks.
    pub(crate) fn run_until(&mut self, until: Time) -> Vec<(Time, Outgoing)> {
        let deadline = self.clock.instant(until);
        let link = self.link.clone();
        let now = self.block_on(async {
            link.idle(deadline).await;
            Instant::now()
        });
        self.now = self.clock.time(now);
        let mut sent = self.link.take_outbox();
        sent.sort_by_cached_key(|request| {
            let Outgoing { head, body, at, .. } = request;
            (*at, head.method.to_string(), head.uri.to_string(), body.clone())
        });
        sent.into_iter().map(|request| (self.clock.time(request.at), request)).collect()
    }

    /// Moves the clock as a process sees it that was stopped by SIGSTOP: the timers that are then due fire together.
    pub(crate) fn resume_at(&mut self, time: Time) {
        let passed = time.since(self.now);
        if !passed.is_zero() {
            self.block_on(tokio::time::advance(passed));
            self.now = time;
        }
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        run_step(self.index, self.now, &self.environment, || self.runtime.block_on(future))
    }

    /// Asks the program to shut down, as SIGTERM does.
    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.send(()).ok();
        }
    }

    /// The result of the program, once it has ended.
    pub(crate) fn result(&mut self) -> Option<Result<(), String>> {
        if !self.program.is_finished() {
            return None;
        }
        let ended = self.runtime.block_on(&mut self.program);
        Some(ended.unwrap_or_else(|error| Err(format!("the program panicked: {error}"))))
    }

    /// Ends the process at once.
    pub(crate) fn crash(self) {
        let Self { index, runtime, environment, now, .. } = self;
        run_step(index, now, &environment, || runtime.shutdown_timeout(Duration::ZERO));
    }
}

/// Runs code of a replica, as every step has to: in its environment, and watched.
fn run_step<T>(index: usize, at: Time, environment: &Rc<dyn Environment>, step: impl FnOnce() -> T) -> T {
    observer::set_replica(index);
    watchdog::watch(index, at, || within(environment, step))
}

/// Called where a task of the runtime is about to start a thread, and panics there.
#[expect(clippy::panic, reason = "the pass that needs a thread fails")]
fn refuse_thread() -> String {
    panic!(
        "a simulation has no threads, which spawn_blocking, tokio's files and names of hosts need: provide a stub of \
         what they are for"
    )
}

/// Starts the program within the runtime. The program is not `Send` while it is constructed, because a Context is not.
fn start_program(
    runtime: &Runtime,
    program: SimulatedProgram,
    pod: String,
    transport: Transport,
    stopped: oneshot::Receiver<()>,
) -> JoinHandle<Result<(), String>> {
    let _entered = runtime.enter();
    let stop = async {
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    match program.start(&pod, SYSTEM_NAMESPACE, transport, stop) {
        Ok(running) => runtime.spawn(running),
        Err(failure) => runtime.spawn(async { Err(failure) }),
    }
}
