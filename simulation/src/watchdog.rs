//! A watchdog for passes that never return to the driver.

use std::{
    cell::OnceCell,
    io::{self, Write},
    sync::{Arc, LazyLock, Weak},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::time::Time;

/// The real time after which a step is reported. Steps take milliseconds.
const LIMIT: Duration = Duration::from_secs(30);

/// The step that a thread is in.
#[derive(Default)]
struct Watched {
    run: String,
    pass: Option<Arc<str>>,
    step: Option<Step>,
}

struct Step {
    began: Instant,
    replica: usize,
    at: Time,
}

thread_local! {
    static WATCHED: OnceCell<Arc<Mutex<Watched>>> = const { OnceCell::new() };
}

/// The threads that simulate. A thread of its own looks at them until the process ends.
static THREADS: LazyLock<Mutex<Vec<Weak<Mutex<Watched>>>>> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_secs(1));
            THREADS
                .lock()
                .retain(|thread| thread.upgrade().map(|watched| report(&mut watched.lock())).is_some());
        }
    });
    Mutex::default()
});

fn with_watched<T>(change: impl FnOnce(&mut Watched) -> T) -> T {
    WATCHED.with(|watched| {
        let watched = watched.get_or_init(|| {
            let watched = Arc::default();
            THREADS.lock().push(Arc::downgrade(&watched));
            watched
        });
        change(&mut watched.lock())
    })
}

/// Names the run that this thread begins.
pub(crate) fn set_run(run: String) {
    with_watched(|watched| *watched = Watched { run, ..Watched::default() });
}

/// Names the pass whose code runs on this thread.
pub(crate) fn set_pass(pass: &Arc<str>) {
    with_watched(|watched| watched.pass = Some(pass.clone()));
}

/// Runs a step of a replica.
pub(crate) fn watch<T>(replica: usize, at: Time, step: impl FnOnce() -> T) -> T {
    with_watched(|watched| watched.step = Some(Step { began: Instant::now(), replica, at }));
    let result = step();
    with_watched(|watched| watched.step = None);
    result
}

#[cfg(test)]
pub(crate) fn is_watching() -> bool {
    with_watched(|watched| watched.step.is_some())
}

/// Reports a step once if it takes too long. Writes to stderr itself: the output of a test is shown when it ends.
fn report(watched: &mut Watched) {
    if let Some(message) = overdue(watched, Instant::now()) {
        writeln!(io::stderr(), "\n{message}").ok();
        watched.step = None;
    }
}

fn overdue(Watched { run, pass, step }: &Watched, now: Instant) -> Option<String> {
    let Step { began, replica, at } = step.as_ref()?;
    let pass = pass.as_deref().unwrap_or("no pass");
    (now.duration_since(*began) >= LIMIT).then(|| {
        format!(
            "the simulation does not go on ({run}): replica-{replica} has computed for {LIMIT:?} of real time at \
             {at} s, last in the pass of {pass}. A loop without an await, or one that awaits nothing that takes \
             time, never ends"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_takes_too_long_is_reported_with_its_run_and_its_pass() {
        let report_at = |passed| with_watched(|watched| overdue(watched, Instant::now() + passed));
        set_run("seed 7, faults: crashes".into());
        set_pass(&"widgets shop/a".into());
        let report = watch(1, Time::after_start(Duration::from_secs(5)), || {
            assert_eq!(report_at(LIMIT / 2), None);
            report_at(LIMIT).unwrap()
        });
        let expected = "(seed 7, faults: crashes): replica-1 has computed for 30s of real time at 5.000 s, last in the \
                        pass of widgets shop/a";
        assert!(report.contains(expected), "{report}");
        assert_eq!(report_at(LIMIT), None, "the step has ended");
    }
}
