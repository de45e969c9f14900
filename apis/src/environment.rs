//! The machine of a process: its clock, random numbers, host name and environment variables.
//!
//! The framework asks only the functions of this module, so that a simulation can run whole programs reproducibly. They
//! use the system's sources unless the thread runs [`within`] an [`Environment`]. The environment belongs to the thread
//! and is not injected: conditions are set by code without a `Context`, and an identity exists before there is one. So
//! a simulated process must run on one thread. Other threads, such as those of `spawn_blocking`, see the system.
//!
//! Time that passes is measured by tokio's `Instant`, whose clock a test can pause. That clock stops while the machine is
//! suspended.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::Display,
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
    time::Duration,
};

use jiff::Timestamp;
use rand::{
    Rng, RngCore,
    distr::uniform::{SampleRange, SampleUniform},
    rand_core::impls::fill_bytes_via_next,
};

/// The environment of a simulated process. Each process needs one of its own: processes with the same random numbers
/// have the same identity.
pub trait Environment {
    /// Returns the time of the wall clock.
    fn now(&self) -> Timestamp;

    /// Returns the time for which the machine has been suspended since its start.
    fn suspended(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the next random number of a stream. A stream belongs to one component, such as the backoff of one
    /// informer, so that its numbers do not depend on the order in which other components draw theirs.
    fn random(&self, stream: &str) -> u64;

    /// Returns the seed of hash maps, which decides their order. Must return the same number at each call: maps are
    /// created in the order in which tasks are polled.
    fn hash_seed(&self) -> u64 {
        0
    }

    /// Returns the name of the host. In a cluster, it is the name of the Pod.
    fn host_name(&self) -> String {
        "localhost".into()
    }

    /// Returns the value of an environment variable.
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    /// Returns the domain of the cluster's Services.
    fn cluster_domain(&self) -> &'static str {
        "cluster.local"
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Environment>>> = const { RefCell::new(None) };
}

/// Runs a function, whose thread sees this environment instead of the system's until it returns.
pub fn within<T>(environment: &Rc<dyn Environment>, run: impl FnOnce() -> T) -> T {
    struct Restore(Option<Rc<dyn Environment>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _restore = Restore(CURRENT.replace(Some(environment.clone())));
    run()
}

/// Returns the environment of this thread; `None` for the system's, also while the thread ends.
pub(crate) fn current() -> Option<Rc<dyn Environment>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Returns the time of the wall clock.
#[expect(clippy::disallowed_methods, reason = "the system's clock")]
pub fn now() -> Timestamp {
    current().map_or_else(Timestamp::now, |environment| environment.now())
}

/// Returns the time for which the machine has been suspended since its start. Zero on systems other than Linux, where it is
/// not known.
pub fn suspended() -> Duration {
    current().map_or_else(suspended_system, |environment| environment.suspended())
}

#[cfg(target_os = "linux")]
fn suspended_system() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    let time = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    let (since_start, awake) = (time(ClockId::Boottime), time(ClockId::Monotonic));
    since_start.saturating_sub(awake)
}

#[cfg(not(target_os = "linux"))]
fn suspended_system() -> Duration {
    Duration::ZERO
}

/// Returns a random number of this stream.
#[expect(clippy::disallowed_methods, reason = "the system's random numbers")]
pub fn random(stream: impl Display) -> u64 {
    current().map_or_else(rand::random, |environment| environment.random(&stream.to_string()))
}

/// Returns a random number within this range.
pub fn random_range<T: SampleUniform>(stream: impl Display, range: impl SampleRange<T>) -> T {
    Stream(stream).random_range(range)
}

/// Returns a random UUID, version 4 of RFC 9562.
pub fn random_uuid(stream: impl Display) -> String {
    let random: u128 = Stream(stream).random();
    uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid().to_string()
}

/// Returns the name of the host.
#[expect(clippy::disallowed_methods, reason = "the system's host name")]
pub fn host_name() -> String {
    let system = || gethostname::gethostname().to_string_lossy().into_owned();
    current().map_or_else(system, |environment| environment.host_name())
}

/// Returns the value of an environment variable without the spaces around it; `None` if it is empty or not UTF-8.
#[expect(clippy::disallowed_methods, reason = "the system's variables")]
pub fn variable(name: &str) -> Option<String> {
    let value = current().map_or_else(|| std::env::var(name).ok(), |environment| environment.variable(name));
    value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// An environment for tests: it is 1970 and one millisecond later at each look, and a random number depends on the seed,
/// its stream and its position in the stream.
pub struct Seeded {
    seed: u64,
    now: Cell<i64>,
    draws: RefCell<BTreeMap<String, u64>>,
}

impl Seeded {
    /// Creates the environment of this seed.
    pub fn environment(seed: u64) -> Rc<dyn Environment> {
        Rc::new(Self { seed, now: Cell::default(), draws: RefCell::default() })
    }
}

impl Environment for Seeded {
    fn now(&self) -> Timestamp {
        let now = self.now.get();
        self.now.set(now + 1);
        Timestamp::from_millisecond(now).unwrap_or_default()
    }

    fn random(&self, stream: &str) -> u64 {
        let mut draws = self.draws.borrow_mut();
        let position = draws.entry(stream.into()).or_default();
        *position += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, stream, *position).hash(&mut hasher);
        hasher.finish()
    }

    fn hash_seed(&self) -> u64 {
        self.seed
    }
}

/// A stream of random numbers, as rand's distributions draw from it.
struct Stream<S>(S);

impl<S: Display> RngCore for Stream<S> {
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        random(&self.0)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        fill_bytes_via_next(self, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_sees_an_environment_until_the_function_returns_or_panics() {
        let (one, other) = (Seeded::environment(1), Seeded::environment(2));
        within(&one, || {
            let first = random("a");
            std::panic::catch_unwind(|| within(&Seeded::environment(2), || panic!("a test"))).unwrap_err();
            within(&other, || assert_ne!(random("a"), first));
            assert_eq!(now(), Timestamp::UNIX_EPOCH);
            assert_eq!((host_name().as_str(), variable("PATH")), ("localhost", None));
            assert!(std::thread::spawn(now).join().unwrap() > Timestamp::UNIX_EPOCH, "another thread");
        });
        assert!(now() > Timestamp::UNIX_EPOCH && variable("PATH").is_some());
    }

    #[test]
    fn draws_depend_on_the_seed_and_the_stream_and_not_on_other_streams() {
        let draw = |seed, others: usize| {
            within(&Seeded::environment(seed), || {
                (0..others).for_each(|_| drop(random_uuid("other")));
                (random_uuid("a"), random_range("a", 0..1_000_000), random_range("a", 0.0..=1.0))
            })
        };
        assert_eq!(draw(1, 0), draw(1, 3));
        assert_ne!(draw(1, 0), draw(2, 0));
    }

    #[test]
    fn random_numbers_differ_without_an_environment() {
        assert_ne!(random("a"), random("a"));
        assert!((5..=10).contains(&random_range("a", 5..=10)));
    }

    #[test]
    fn a_random_uuid_has_its_version_and_variant() {
        assert_ne!(random_uuid("a"), random_uuid("a"));
        for _ in 0..100 {
            let uuid = random_uuid("a");
            let lengths: Vec<_> = uuid.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12]);
            assert!(uuid[14..].starts_with('4') && "89ab".contains(&uuid[19..20]), "{uuid}");
        }
    }
}
