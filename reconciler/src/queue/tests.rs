use std::collections::HashSet;

use k8s_openapi::jiff::Timestamp;

use super::*;

pub(super) fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn queue_of(names: &[&str]) -> Queue {
    let queue = Queue::new();
    names.iter().for_each(|name| queue.add(key(name)));
    queue
}

/// Claims the next key, or returns `None` if none is queued now.
async fn claim_now(queue: &Queue) -> Option<ClaimedKey> {
    tokio::select! {
        biased;
        claimed = queue.next() => claimed,
        () = tokio::task::yield_now() => None,
    }
}

async fn name_of_next(queue: &Queue) -> String {
    queue.next().await.unwrap().name.clone()
}

#[tokio::test(start_paused = true)]
async fn a_queued_key_is_not_queued_again() {
    let queue = queue_of(&["a", "b", "a"]);
    assert_eq!(name_of_next(&queue).await, "a");
    assert_eq!(name_of_next(&queue).await, "b");
    assert!(claim_now(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_claimed_key_is_not_claimed_again() {
    let queue = queue_of(&["a"]);
    let _claimed = queue.next().await.unwrap();
    queue.add(key("a"));
    assert!(claim_now(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_key_added_while_claimed_is_queued_again_once() {
    let queue = queue_of(&["a"]);
    let claimed = queue.next().await.unwrap();
    queue.add(key("a"));
    queue.add(key("a"));
    drop(claimed);
    drop(claim_now(&queue).await.unwrap());
    assert!(claim_now(&queue).await.is_none(), "two adds during a claim queue the key once");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_worker_is_notified_by_an_add_and_by_the_end_of_a_claim() {
    let queue = queue_of(&["a"]);
    let claimed = queue.next().await.unwrap();
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move { [name_of_next(&queue).await, name_of_next(&queue).await] }
    });
    tokio::task::yield_now().await;
    queue.add(key("b"));
    queue.add(key("a"));
    tokio::task::yield_now().await;
    drop(claimed);
    assert_eq!(worker.await.unwrap(), ["b", "a"]);
}

#[tokio::test(start_paused = true)]
async fn one_turn_in_ten_goes_to_the_slow_lane() {
    let queue = Queue::new();
    for n in 0..3 {
        queue.add_slow(key(&format!("slow{n}")));
    }
    for n in 0..40 {
        queue.add(key(&format!("fast{n}")));
    }
    let mut turns = Vec::new();
    for _ in 0..43 {
        turns.push(name_of_next(&queue).await);
    }
    let slow_turns: Vec<_> =
        turns.iter().enumerate().filter(|(_, name)| name.starts_with("slow")).map(|(turn, _)| turn).collect();
    assert_eq!(slow_turns, [9, 19, 29]);
    assert_eq!(turns[0], "fast0");
}

#[tokio::test(start_paused = true)]
async fn a_slow_key_that_is_added_to_the_fast_lane_moves_there() {
    let queue = Queue::new();
    queue.add_slow(key("a"));
    queue.add_slow(key("b"));
    queue.add(key("c"));
    queue.add(key("b"));
    let turns = [name_of_next(&queue).await, name_of_next(&queue).await, name_of_next(&queue).await];
    assert_eq!(turns, ["c", "b", "a"]);
    assert!(claim_now(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_claimed_key_added_to_both_lanes_is_queued_in_the_fast_lane() {
    let queue = queue_of(&["a"]);
    let claimed = queue.next().await.unwrap();
    queue.add_slow(key("a"));
    queue.add_slow(key("b"));
    queue.add(key("a"));
    drop(claimed);
    assert_eq!(name_of_next(&queue).await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_delayed_key_is_queued_at_its_earliest_time() {
    let queue = Queue::new();
    let start = Instant::now();
    queue.add_after(key("a"), Duration::from_secs(10));
    queue.add_after(key("b"), Duration::from_secs(3));
    queue.add_after(key("a"), Duration::from_secs(5));
    queue.add_after(key("a"), Duration::from_secs(7));
    assert_eq!((name_of_next(&queue).await.as_str(), start.elapsed().as_secs()), ("b", 3));
    assert_eq!((name_of_next(&queue).await.as_str(), start.elapsed().as_secs()), ("a", 5));
    assert!(queue.0.state.lock().delayed.next_due().is_none(), "the later times of a key are dropped");
}

#[tokio::test(start_paused = true)]
async fn a_worker_waiting_for_a_delayed_key_takes_an_earlier_one() {
    let queue = Queue::new();
    let start = Instant::now();
    queue.add_after(key("late"), Duration::from_secs(100));
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move { name_of_next(&queue).await }
    });
    tokio::task::yield_now().await;
    queue.add_after(key("soon"), Duration::from_secs(1));
    assert_eq!(worker.await.unwrap(), "soon");
    assert_eq!(start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_due_key_and_a_new_key_go_to_one_waiting_worker_each() {
    let queue = Queue::new();
    let spawn_worker = || {
        let queue = queue.clone();
        tokio::spawn(async move {
            let claimed = queue.next().await.unwrap();
            (claimed.name.clone(), Instant::now(), claimed)
        })
    };
    let first_worker = spawn_worker();
    tokio::task::yield_now().await;
    let start = Instant::now();
    queue.add_after(key("due"), Duration::from_secs(1));
    let second_worker = spawn_worker();
    tokio::task::yield_now().await;
    queue.add(key("now"));
    let (first, second) = tokio::join!(first_worker, second_worker);
    let ((first_name, claimed_at, _first), (second_name, _, _second)) = (first.unwrap(), second.unwrap());
    assert_eq!(HashSet::from([first_name, second_name]), ["now".to_owned(), "due".to_owned()].into());
    assert!(claimed_at.duration_since(start).as_secs() <= 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_key_is_retried_after_its_backoff() {
    let queue = queue_of(&["a"]);
    for wait in [5, 10, 20] {
        let claimed = queue.next().await.unwrap();
        queue.retry(&claimed, retries::ANY_WAIT, "no");
        drop(claimed);
        let start = Instant::now();
        let again = queue.next().await.unwrap();
        assert_eq!(start.elapsed().as_millis(), wait);
        queue.add(key("a"));
        drop(again);
    }
    queue.forget(&key("a"));
    assert!(queue.0.state.lock().retries.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_closed_queue_neither_returns_nor_accepts_keys() {
    let queue = queue_of(&["a"]);
    let claimed = queue.next().await.unwrap();
    let worker_ends = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next().await.is_none() }
    });
    tokio::task::yield_now().await;
    queue.close();
    assert!(worker_ends.await.unwrap());
    queue.add(key("b"));
    drop(claimed);
    assert!(queue.next().await.is_none());
    assert!(queue.take_all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_of_next_loses_no_key() {
    let queue = Queue::new();
    {
        let mut next = std::pin::pin!(queue.next());
        assert!(futures::poll!(next.as_mut()).is_pending());
        queue.add(key("a"));
    }
    assert_eq!(name_of_next(&queue).await, "a");
}

#[tokio::test(start_paused = true)]
async fn many_workers_never_process_a_key_at_the_same_time() {
    let queue = Queue::new();
    let running: Arc<Mutex<HashSet<Key>>> = Arc::default();
    let passes = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (queue, running, passes) = (queue.clone(), running.clone(), passes.clone());
            tokio::spawn(async move {
                while let Some(claimed) = queue.next().await {
                    assert!(
                        running.lock().insert(claimed.clone()),
                        "a key is processed twice at the same time"
                    );
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    running.lock().remove(&*claimed);
                    passes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            })
        })
        .collect();
    for n in 0..200 {
        queue.add(key(&(n % 10).to_string()));
        if n % 7 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let idle = || queue.0.state.lock().running.is_empty() && queue.0.state.lock().lanes.len() == 0;
    while !idle() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    queue.close();
    for worker in workers {
        worker.await.unwrap();
    }
    let passes = passes.load(std::sync::atomic::Ordering::Relaxed);
    assert!((10..=200).contains(&passes), "{passes}");
}

/// A service that is down for a minute, the 470 keys that depend on it, and the controller's four workers.
struct Outage {
    queue: Queue,
    until: Arc<Mutex<Instant>>,
    /// The time of each failed pass.
    failures: Arc<Mutex<Vec<Instant>>>,
    recovered: Arc<Mutex<HashSet<Key>>>,
}

impl Outage {
    const KEYS: usize = 470;
    const DURATION: Duration = Duration::from_secs(60);
    const PASS: Duration = Duration::from_millis(20);

    fn start() -> Self {
        let outage = Self {
            queue: Queue::new(),
            until: Arc::new(Mutex::new(Instant::now() + Self::DURATION)),
            failures: Arc::default(),
            recovered: Arc::default(),
        };
        (0..Self::KEYS).for_each(|n| outage.queue.add(key(&n.to_string())));
        (0..4).for_each(|_| drop(tokio::spawn(outage.worker())));
        outage
    }

    fn worker(&self) -> impl Future<Output = ()> + Send + 'static {
        let (queue, until) = (self.queue.clone(), self.until.clone());
        let (failures, recovered) = (self.failures.clone(), self.recovered.clone());
        async move {
            while let Some(claimed) = queue.next().await {
                tokio::time::sleep(Self::PASS).await;
                if Instant::now() < *until.lock() {
                    failures.lock().push(Instant::now());
                    queue.retry(&claimed, retries::ANY_WAIT, "no");
                } else {
                    recovered.lock().insert(claimed.clone());
                    queue.succeeded(&claimed);
                }
            }
        }
    }

    /// Waits until every key has had a pass that succeeded, and returns the time since the end of the outage.
    async fn wait_for_recovery(&self) -> Duration {
        while self.recovered.lock().len() < Self::KEYS {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.until.lock().elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_all_keys_succeed_in_little_more_than_the_time_of_their_passes() {
    let outage = Outage::start();
    let passes = Outage::PASS * Outage::KEYS.div_ceil(4).try_into().unwrap();
    let recovery = outage.wait_for_recovery().await;
    assert!(recovery < passes + Duration::from_secs(1), "{recovery:?}, of which passes take {passes:?}");
}

#[tokio::test(start_paused = true)]
async fn the_retries_during_an_outage_and_during_the_next_one_keep_to_the_limit() {
    let outage = Outage::start();
    let failures_during_outage = async || {
        let until = *outage.until.lock();
        tokio::time::sleep_until(until).await;
        // The first pass of each key fails, 100 retries are a burst, and then 10 retries a second follow for a minute.
        let (limited_retries, first_passes_and_burst) = (600, Outage::KEYS + 100);
        let failures = std::mem::take(&mut *outage.failures.lock()).len();
        assert!(
            (limited_retries..=first_passes_and_burst + limited_retries + 1).contains(&failures),
            "{failures}"
        );
    };
    failures_during_outage().await;
    outage.wait_for_recovery().await;
    // A pause between the outages, in paused time.
    tokio::time::sleep(Duration::from_secs(5)).await;

    *outage.until.lock() = Instant::now() + Outage::DURATION;
    (0..Outage::KEYS).for_each(|n| outage.queue.add(key(&n.to_string())));
    failures_during_outage().await;
}

#[tokio::test(start_paused = true)]
async fn delayed_keys_follow_a_clock_that_is_set_and_failed_keys_do_not() {
    let minute = Duration::from_secs(60);
    let (times, clock) = tokio::sync::watch::channel(Timestamp::UNIX_EPOCH);
    let queue = Queue::of(Clock::set_by(clock), Writers::default());
    queue.add_after(key("delayed"), minute);
    tokio::time::advance(2 * minute).await;
    assert_eq!(queue.take_all(), [], "the clock stands still");

    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next().await.map(|claimed| (*claimed).clone()) }
    });
    tokio::task::yield_now().await;
    times.send_modify(|time| *time += minute);
    assert_eq!(waiting.await.unwrap(), Some(key("delayed")));

    queue.add(key("failed"));
    let claimed = queue.next().await.unwrap();
    queue.retry(&claimed, retries::ANY_WAIT, "no");
    drop(claimed);
    assert_eq!(queue.next().await.as_deref(), Some(&key("failed")));
}

#[tokio::test]
async fn the_wait_after_a_pass_counts_from_its_start_if_a_test_sets_the_clock() {
    let minute = Duration::from_secs(60);
    let (times, clock) = tokio::sync::watch::channel(Timestamp::UNIX_EPOCH);
    let queue = Queue::of(Clock::set_by(clock), Writers::default());
    queue.add(key("a"));
    let claimed = queue.next().await.unwrap();
    times.send_modify(|time| *time += minute); // once the test sees what the pass wrote
    queue.continue_after(&claimed, minute);
    drop(claimed);
    assert_eq!(queue.take_all(), [key("a")]);
}

/// A queue with two workers and these keys.
fn shared_queue(keys: &[Key]) -> Queue {
    let queue = Queue::new();
    queue.set_workers(2);
    keys.iter().for_each(|key| queue.add(key.clone()));
    queue
}

#[tokio::test(start_paused = true)]
async fn namespaces_take_turns_in_both_lanes() {
    let queue = Queue::new();
    for n in 0..3 {
        let name = n.to_string();
        queue.add_slow(Key::new("a", &format!("slow{name}")));
        queue.add(Key::new("a", &name));
    }
    queue.add(Key::new("b", "0"));
    queue.add_slow(Key::new("b", "slow0"));
    let mut turns = Vec::new();
    for _ in 0..8 {
        turns.push(queue.next().await.unwrap().to_string());
    }
    assert_eq!(turns, ["a/0", "b/0", "a/1", "a/2", "a/slow0", "b/slow0", "a/slow1", "a/slow2"]);
}

#[tokio::test(start_paused = true)]
async fn the_last_free_worker_serves_only_a_namespace_that_has_none() {
    let queue = shared_queue(&[Key::new("a", "1"), Key::new("a", "2"), Key::new("a", "3")]);
    let (first, _second) = (queue.next().await.unwrap(), queue.next().await.unwrap());
    assert!(claim_now(&queue).await.is_none(), "two workers serve this namespace");
    queue.add(Key::new("b", "1"));
    let third = claim_now(&queue).await.unwrap();
    assert_eq!(third.to_string(), "b/1");
    drop(first);
    assert!(claim_now(&queue).await.is_none(), "as many passes run as there are workers");
    drop(third);
    assert_eq!(claim_now(&queue).await.unwrap().to_string(), "a/3");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_worker_is_notified_when_a_namespace_has_no_pass_any_more() {
    let queue =
        shared_queue(&[Key::new("a", "1"), Key::new("b", "1"), Key::new("a", "2"), Key::new("b", "2")]);
    let (first, _second) = (queue.next().await.unwrap(), queue.next().await.unwrap());
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next().await.unwrap().to_string() }
    });
    tokio::task::yield_now().await;
    drop(first);
    assert_eq!(waiting.await.unwrap(), "a/2");
}

#[tokio::test(start_paused = true)]
async fn thousands_of_slow_failing_and_storming_keys_of_a_namespace_do_not_delay_another_one() {
    let queue = shared_queue(&[]);
    let (succeeded, mut successes) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..3 {
        let (queue, succeeded) = (queue.clone(), succeeded.clone());
        tokio::spawn(async move {
            let mut failed = HashSet::new();
            while let Some(claimed) = queue.next().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if claimed.namespace.as_deref() == Some("hostile") {
                    match claimed.name.len() {
                        3 => tokio::time::sleep(Duration::from_secs(60)).await,
                        _ => queue.add(claimed.clone()),
                    }
                    queue.retry(&claimed, retries::ANY_WAIT, "no");
                } else if failed.insert(claimed.clone()) {
                    queue.retry(&claimed, retries::ANY_WAIT, "no");
                } else {
                    queue.succeeded(&claimed);
                    succeeded.send(claimed.clone()).unwrap();
                }
            }
        });
    }
    (0..2000).for_each(|n| queue.add(Key::new("hostile", &n.to_string())));
    for n in 0..100 {
        tokio::time::sleep(Duration::from_secs(7)).await;
        let honest = Key::new("honest", &n.to_string());
        queue.add(honest.clone());
        let success = tokio::time::timeout(Duration::from_secs(1), successes.recv()).await;
        assert_eq!(success.unwrap(), Some(honest), "it succeeds with the third pass at the latest");
    }
}
