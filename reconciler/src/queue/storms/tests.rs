mod creations;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use reknit_injection::internal::{CurrentPass, WrittenState};
use tokio::time::{sleep, timeout_at};

use super::*;
use crate::queue::{Cause, ClaimedKey, Queue, StateChange, retries::ANY_WAIT};

fn key(name: &str) -> Key {
    Key::new("shop", name)
}

fn own_write(pass: &Arc<CurrentPass>) -> Cause {
    Cause::Object(StateChange::by(pass))
}

fn from_outside() -> Cause {
    Cause::child("web", StateChange::to(Some("7")))
}

/// Does this in the pass.
fn within(pass: &Arc<CurrentPass>, act: impl FnOnce()) {
    let _ = futures::FutureExt::now_or_never(pass.clone().scope(async { act() }));
}

/// Runs passes, each of which takes 20 ms, for ten minutes. Returns the number of passes of each minute, and the number
/// of storms that began.
async fn run(queue: &Queue, act: impl Fn(&ClaimedKey, &Arc<CurrentPass>)) -> ([usize; 10], usize) {
    run_for(queue, Duration::from_millis(20), || {}, act).await
}

/// Like [`run`]. Each pass takes as long as `took`, and `before_decision` is called in it before it is decided whether only
/// this process caused the pass.
async fn run_for(
    queue: &Queue,
    took: Duration,
    before_decision: impl Fn(),
    act: impl Fn(&ClaimedKey, &Arc<CurrentPass>),
) -> ([usize; 10], usize) {
    let (mut passes, mut storms, start) = ([0; 10], 0, Instant::now());
    while let Ok(Some(claimed)) = timeout_at(start + Duration::from_secs(600), queue.next()).await {
        let Some(mut claimed) = queue.begin_or_hold(claimed) else { continue };
        let Some(passes) = passes.get_mut(start.elapsed().as_secs() as usize / 60) else { break };
        *passes += 1;
        let pass = CurrentPass::begin(&"web".into(), &claimed.key, false);
        pass.set_in_a_row(claimed.in_a_row.passes);
        sleep(took).await;
        before_decision();
        claimed.in_a_row = queue.decide(&pass, &claimed.causes, &claimed.in_a_row);
        act(&claimed, &pass);
        let has_failed = queue.failures(&claimed) > 0;
        queue.count_creations(&pass, &claimed.causes.clone(), has_failed, &mut claimed.in_a_row);
        storms += usize::from(claimed.in_a_row.storm.as_ref().is_some_and(|storm| storm.is_new));
    }
    (passes, storms)
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_any_own_cause_is_slowed_to_a_pass_in_ten_seconds_and_then_in_a_minute() {
    type Act = fn(&Queue, &ClaimedKey, &Arc<CurrentPass>);
    let acts: [(&str, Act); 8] = [
        ("own writes", |queue, claimed, pass| queue.add_for(Key::clone(claimed), own_write(pass))),
        ("two children in turn", |queue, claimed, pass| {
            let child = if pass.number % 2 == 0 { "red" } else { "blue" };
            queue.add_for(Key::clone(claimed), Cause::child(child, StateChange::by(pass)));
        }),
        ("waits", |queue, claimed, _| queue.continue_after(claimed, Duration::from_millis(30))),
        ("adds", |queue, claimed, pass| within(pass, || queue.add(Key::clone(claimed)))),
        ("delayed adds", |queue, claimed, pass| {
            within(pass, || queue.add_after(Key::clone(claimed), Duration::from_millis(30)));
        }),
        ("resyncs", |queue, _, pass| within(pass, || queue.resync())),
        ("changes of a ConfigMap", |queue, _, pass| {
            within(pass, || queue.resync_for(&Cause::config("config-a")))
        }),
        ("own writes besides a poll", |queue, claimed, pass| {
            queue.add_for(Key::clone(claimed), own_write(pass));
            queue.continue_after(claimed, Duration::from_secs(2));
        }),
    ];
    for (name, act) in acts {
        let queue = Queue::new();
        queue.add_key_source(|keys| keys.push(key("a")));
        queue.add(key("a"));
        let (passes, storms) = run(&queue, |claimed, pass| act(&queue, claimed, pass)).await;
        assert!((20..30).contains(&passes[0]), "{name}: {passes:?}");
        assert!(passes[1..].iter().all(|passes| (1..=2).contains(passes)), "{name}: {passes:?}");
        assert_eq!(storms, 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_in_which_each_tenth_pass_fails_is_slowed() {
    let (queue, number) = (Queue::new(), AtomicU64::new(0)); // other tests of this process begin passes too
    queue.add(key("a"));
    let (passes, storms) = run(&queue, |claimed, pass| {
        queue.add_for(Key::clone(claimed), own_write(pass));
        let is_retried = claimed.causes.iter().any(|cause| matches!(cause, Cause::Retry { .. }));
        if number.fetch_add(1, Ordering::Relaxed) % 10 == 9 {
            queue.retry(claimed, ANY_WAIT, "a conflict");
        } else if is_retried {
            queue.succeeded(claimed); // a worker that waits has taken the retry during the pass before
        }
    })
    .await;
    assert!((20..40).contains(&passes[0]), "{passes:?}");
    assert!(passes[1..].iter().all(|passes| (1..=7).contains(passes)), "{passes:?}");
    assert_eq!(storms, 1);
}

/// The pass that writes is the retry of one that found a conflict, so the next one has the write alone as its cause.
#[tokio::test(start_paused = true)]
async fn a_storm_in_which_each_second_pass_is_a_retry_is_slowed() {
    let queue = Queue::new();
    queue.add(key("a"));
    let (passes, storms) = run(&queue, |claimed, pass| {
        if claimed.causes.iter().any(|cause| matches!(cause, Cause::Retry { .. })) || pass.in_a_row() == 0 {
            queue.succeeded(claimed);
            queue.add_for(Key::clone(claimed), own_write(pass));
        } else {
            queue.retry(claimed, ANY_WAIT, "a conflict");
        }
    })
    .await;
    assert!((40..70).contains(&passes[0]), "{passes:?}");
    assert!(passes[1..].iter().all(|passes| (1..=7).contains(passes)), "{passes:?}");
    assert_eq!(storms, 1);
}

#[tokio::test(start_paused = true)]
async fn two_keys_that_cause_the_passes_of_each_other_are_a_storm() {
    let queue = Queue::new();
    queue.add(key("a"));
    let (passes, storms) = run(&queue, |claimed, pass| {
        let other = if claimed.name == "a" { "b" } else { "a" };
        queue.add_for(key(other), Cause::child("web", StateChange::by(pass)));
    })
    .await;
    assert!(passes[0] < 60 && passes[1..].iter().all(|passes| *passes <= 12), "{passes:?}");
    assert!((1..=2).contains(&storms));
}

#[tokio::test(start_paused = true)]
async fn writes_that_the_watch_reports_before_their_responses_arrive_are_a_storm_of_two_keys() {
    let queue = Queue::new();
    let writers = queue.0.state.lock().writers.clone();
    let in_flight = Mutex::new(None::<(WrittenState, Arc<CurrentPass>)>);
    queue.add(key("a"));
    let respond = || {
        if let Some((state, pass)) = in_flight.lock().take() {
            within(&pass, || writers.record(Some(state)));
        }
    };
    let (passes, storms) = run_for(&queue, Duration::from_millis(20), respond, |claimed, pass| {
        let other = if claimed.name == "a" { "b" } else { "a" };
        let version = pass.number.to_string();
        *in_flight.lock() = WrittenState::version(&version).map(|state| (state, pass.clone()));
        queue.add_for(key(other), Cause::child("web", StateChange::to(Some(&version))));
    })
    .await;
    assert!((1..=2).contains(&storms), "{passes:?}");
    // A key is held only if it is known in time that nothing came from outside.
    assert!(passes[0] > 2900, "{passes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cause_from_outside_is_served_at_once_and_does_not_end_the_storm() {
    let queue = Queue::new();
    queue.add(key("a"));
    let users = async {
        for _ in 0..200 {
            sleep(Duration::from_secs(3)).await;
            queue.add_for(key("a"), from_outside());
            assert_eq!(queue.state().held, 0, "it is claimed next");
            tokio::task::yield_now().await;
        }
    };
    let passes = run(&queue, |claimed, pass| queue.add_for(Key::clone(claimed), own_write(pass)));
    let ((passes, storms), ()) = tokio::join!(passes, users);
    assert!(passes[1..9].iter().all(|passes| (20..=26).contains(passes)), "{passes:?}");
    assert_eq!(storms, 1);
}

/// The change of a child by another client.
fn answer(number: u64) -> Cause {
    Cause::child("web", StateChange::to(Some(&number.to_string())))
}

#[tokio::test(start_paused = true)]
async fn writes_that_another_client_answers_are_one_storm_and_answers_are_not_slowed() {
    for each in [1, 2] {
        let (queue, number) = (Queue::new(), AtomicU64::new(0));
        queue.add(key("a"));
        let (passes, storms) = run(&queue, |claimed, pass| {
            queue.add_for(Key::clone(claimed), Cause::child("web", StateChange::by(pass)));
            if number.fetch_add(1, Ordering::Relaxed).is_multiple_of(each) {
                queue.add_for(Key::clone(claimed), answer(pass.number));
            }
        })
        .await;
        assert_eq!(storms, 1, "{passes:?}");
        assert!(each > 1 || passes.iter().all(|passes| *passes > 2900), "{passes:?}");
    }
}

/// A response of an own write may be so late that the write is taken for one of another client.
#[tokio::test(start_paused = true)]
async fn a_storm_is_one_of_answers_unless_few_passes_have_one() {
    for (each, is_answered) in [(1, true), (2, true), (10, false)] {
        let (queue, first) = (Queue::new(), Mutex::new(None));
        let number = AtomicU64::new(0); // other tests of this process begin passes too
        queue.add(key("a"));
        run(&queue, |claimed, pass| {
            if let Some(storm) = &claimed.in_a_row.storm {
                first.lock().get_or_insert(storm.kind == StormKind::Answered);
            }
            queue.add_for(Key::clone(claimed), Cause::child("web", StateChange::by(pass)));
            if number.fetch_add(1, Ordering::Relaxed).is_multiple_of(each) {
                queue.add_for(Key::clone(claimed), answer(pass.number));
            }
        })
        .await;
        assert_eq!(*first.lock(), Some(is_answered), "an answer to each {each} passes");
    }
}

#[tokio::test(start_paused = true)]
async fn changes_of_others_that_a_pass_only_counts_or_waits_for_are_no_answers() {
    type Act = fn(&Queue, &ClaimedKey, &Arc<CurrentPass>);
    let acts: [(&str, Act); 3] = [
        ("a rollout whose status is counted in each pass", |queue, claimed, pass| {
            queue.add_for(Key::clone(claimed), own_write(pass));
            queue.add_for(Key::clone(claimed), answer(pass.number));
        }),
        ("a child that is changed step by step, each after a status", |queue, claimed, pass| {
            if claimed.in_a_row.passes == 0 {
                queue.add_for(Key::clone(claimed), Cause::child("web", StateChange::by(pass)));
            }
            queue.add_for(Key::clone(claimed), answer(pass.number));
        }),
        ("a fight", |queue, claimed, pass| {
            queue.add_for(Key::clone(claimed), Cause::child("web", StateChange::by(pass)));
            queue.add_for(Key::clone(claimed), answer(pass.number));
            queue.fought(claimed, &claimed.causes);
        }),
    ];
    for (name, act) in acts {
        let queue = Queue::new();
        queue.add(key("a"));
        let (passes, storms) = run(&queue, |claimed, pass| act(&queue, claimed, pass)).await;
        assert!(storms == 0 && passes.iter().all(|passes| *passes > 2900), "{name}: {passes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_ends_when_nothing_is_held_any_more() {
    let (queue, begun) = (Queue::new(), Instant::now());
    queue.add(key("a"));
    let is_stormy = || begun.elapsed() < Duration::from_secs(15);
    run(&queue, |claimed, pass| {
        if is_stormy() {
            queue.add_for(Key::clone(claimed), own_write(pass));
        }
    })
    .await;
    queue.add(key("a"));
    let claimed = queue.begin_or_hold(queue.next().await.unwrap()).unwrap();
    let pass = CurrentPass::begin(&"web".into(), &claimed.key, false);
    assert!(queue.decide(&pass, &claimed.causes, &claimed.in_a_row).storm.is_none());
    assert!(queue.0.state.lock().storms.rows.is_empty());
}

#[tokio::test(start_paused = true)]
async fn polls_retries_rollouts_and_progress_are_no_storms() {
    type Act = fn(&Queue, &ClaimedKey, &Arc<CurrentPass>);
    let acts: [(&str, usize, Act); 5] = [
        ("a Job each second", 1000, |queue, claimed, pass| {
            queue.continue_after(claimed, Duration::from_secs(1));
            if claimed.in_a_row.passes == 0 || claimed.causes.is_long_wait() {
                let job = Cause::child(&pass.number.to_string(), StateChange::by(pass));
                queue.add_for(Key::clone(claimed), job);
            }
        }),
        ("polls", 290, |queue, claimed, _| queue.continue_after(claimed, Duration::from_secs(2))),
        ("polls each second that write", 1000, |queue, claimed, pass| {
            queue.continue_after(claimed, Duration::from_secs(1));
            if claimed.in_a_row.passes == 0 || claimed.causes.is_long_wait() {
                queue.add_for(Key::clone(claimed), own_write(pass));
            }
        }),
        ("retries", 10, |queue, claimed, _| queue.retry(claimed, ANY_WAIT, "no")),
        ("retries each two seconds that write", 500, |queue, claimed, pass| {
            queue.retry(claimed, Duration::ZERO..=Duration::from_secs(2), "not ready");
            if claimed.in_a_row.passes == 0 || claimed.causes.is_retry() {
                queue.add_for(Key::clone(claimed), own_write(pass));
            }
        }),
    ];
    for (name, least, act) in acts {
        let queue = Queue::new();
        queue.add(key("a"));
        let (passes, storms) = run(&queue, |claimed, pass| act(&queue, claimed, pass)).await;
        assert!(storms == 0 && passes.iter().sum::<usize>() >= least, "{name}: {passes:?}");
    }
    let queue = Queue::new();
    let rollout = async {
        for n in 0..6000 {
            sleep(Duration::from_millis(100)).await;
            let change = StateChange::to(Some(&n.to_string()));
            queue.add_for(key("a"), Cause::child("web", change));
        }
    };
    let written = |claimed: &ClaimedKey, pass: &Arc<CurrentPass>| {
        if claimed.in_a_row.passes == 0 {
            queue.add_for(Key::clone(claimed), own_write(pass)); // a status that counts the ready pods
        }
    };
    let ((passes, storms), ()) = tokio::join!(run(&queue, written), rollout);
    assert!(storms == 0 && passes.iter().sum::<usize>() > 10_000, "a rollout: {passes:?}");
}

#[tokio::test(start_paused = true)]
async fn short_waits_of_many_keys_are_storms_also_if_each_key_is_queued_for_seconds() {
    let queue = Queue::new();
    (0..64).for_each(|n| queue.add(key(&n.to_string())));
    let wait = |claimed: &ClaimedKey| queue.continue_after(claimed, Duration::from_millis(300));
    let (passes, storms) = run(&queue, |claimed, _| wait(claimed)).await;
    assert_eq!(storms, 64, "{passes:?}");
    assert!(passes[1..].iter().all(|passes| *passes <= 4 * 64), "{passes:?}");
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_delayed_outside_of_a_pass_are_no_storm_and_are_not_slowed() {
    let queue = Queue::new();
    let messages = async {
        for _ in 0..1000 {
            queue.add_after(key("a"), Duration::from_millis(200));
            sleep(Duration::from_millis(500)).await;
        }
    };
    let ((passes, storms), ()) = tokio::join!(run(&queue, |_, _| {}), messages);
    assert_eq!((passes.iter().sum::<usize>(), storms), (1000, 0), "{passes:?}");
}

#[tokio::test(start_paused = true)]
async fn resyncs_by_an_interval_or_a_user_are_no_storm_and_are_not_slowed() {
    let queue = Queue::new();
    queue.add_key_source(|keys| keys.extend(["a", "b"].map(key)));
    let resyncs = async {
        for _ in 0..6000 {
            queue.resync();
            sleep(Duration::from_millis(100)).await;
        }
    };
    // Each change of `a` resyncs all keys once.
    let resync = |claimed: &ClaimedKey, pass: &Arc<CurrentPass>| {
        if claimed.name == "a" && claimed.in_a_row.passes == 0 {
            within(pass, || queue.resync());
        }
    };
    let ((passes, storms), ()) = tokio::join!(run(&queue, resync), resyncs);
    assert_eq!(storms, 0, "{passes:?}");
    assert!(passes.iter().all(|passes| *passes >= 1190), "{passes:?}");
}

#[tokio::test(start_paused = true)]
async fn resyncs_in_passes_are_storms_of_all_keys() {
    let queue = Queue::new();
    queue.add_key_source(|keys| keys.extend(["a", "b", "c", "d", "e"].map(key)));
    queue.resync();
    let (passes, storms) = run(&queue, |_, pass| within(pass, || queue.resync())).await;
    assert_eq!(storms, 5, "{passes:?}");
    assert!(passes[1..].iter().all(|passes| *passes <= 5 * 7), "{passes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_child_in_each_pass_is_a_storm_unless_it_ends() {
    for (children, expected) in [(250, 0), (u64::MAX, 1)] {
        let (queue, created) = (Queue::new(), AtomicU64::new(0));
        queue.add(key("a"));
        let (passes, storms) = run(&queue, |claimed, pass| {
            let name = created.fetch_add(1, Ordering::Relaxed);
            if name < children {
                let child = Cause::child(&name.to_string(), StateChange::by(pass));
                queue.add_for(Key::clone(claimed), child);
            }
        })
        .await;
        assert!(storms == expected && passes[0] > 250, "{children}: {passes:?}");
        assert!(passes[1..].iter().all(|passes| *passes <= 7), "{children}: {passes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_new_objects_with_a_child_each_are_no_storm() {
    let queue = Queue::new();
    (0..10_000).for_each(|n| queue.add_for(key(&n.to_string()), Cause::Object(StateChange::to(Some("1")))));
    let (passes, storms) = run(&queue, |claimed, pass| {
        if claimed.in_a_row.passes == 0 {
            queue.add_for(Key::clone(claimed), Cause::child(&claimed.name, StateChange::by(pass)));
        }
    })
    .await;
    assert_eq!((passes.iter().sum::<usize>(), storms), (20_000, 0));
}
