use super::*;

/// Creates this number of objects, which lead to the next pass.
fn create(queue: &Queue, pass: &Arc<CurrentPass>, number: u64) {
    for n in 0..number {
        pass.count_creation();
        let child = Cause::child(&format!("{}-{n}", pass.number), StateChange::by(pass));
        queue.add_for(Key::clone(&pass.key), child);
    }
}

fn is_add(cause: &Cause) -> bool {
    matches!(cause, Cause::Queue(..))
}

/// Another controller writes the object that the last pass has created, such as the status of a Job.
fn write_as_another_client(queue: &Queue, pass: &Arc<CurrentPass>) {
    let child = format!("{}-0", pass.number.saturating_sub(1));
    let change = StateChange::to(Some(&pass.number.to_string()));
    queue.add_for(Key::clone(&pass.key), Cause::child(&child, change));
}

#[tokio::test(start_paused = true)]
async fn new_objects_in_each_pass_that_others_write_are_a_storm_which_is_reported_ever_less_often() {
    for (number, fails) in [(1, false), (1, true), (3, false)] {
        let (queue, count) = (Queue::new(), AtomicU64::new(0));
        queue.add(key("a"));
        let took = Duration::from_millis(100);
        let (passes, storms) = run_for(
            &queue,
            took,
            || {},
            |claimed, pass| {
                write_as_another_client(&queue, pass);
                if fails && count.fetch_add(1, Ordering::Relaxed) % 50 == 49 {
                    queue.retry(claimed, ANY_WAIT, "a conflict");
                } else {
                    create(&queue, pass, number);
                    queue.succeeded(claimed);
                }
            },
        )
        .await;
        assert!(passes.iter().all(|passes| *passes > 590), "it is not slowed: {passes:?}");
        assert_eq!(storms, 5, "after 300, 600, and up to 4,800 of 6,000 passes: {number}, {fails}");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_passes_that_create_a_child_each_or_that_another_client_answers_are_a_storm() {
    type Act = fn(&Queue, &Arc<CurrentPass>);
    let acts: [(&str, bool, Act); 2] = [
        ("a new child", true, |queue, pass| {
            let child = Cause::child(&pass.number.to_string(), StateChange::by(pass));
            queue.add_for(Key::clone(&pass.key), child);
        }),
        ("answers", false, |queue, pass| {
            queue.add_for(Key::clone(&pass.key), Cause::child("web", StateChange::by(pass)));
            queue.add_for(Key::clone(&pass.key), answer(pass.number));
        }),
    ];
    for (name, is_slowed, act) in acts {
        for (took, expected) in [(300, 1), (1500, 1), (5000, 0)] {
            let queue = Queue::new();
            queue.add(key("a"));
            let took = Duration::from_millis(took);
            let (passes, storms) = run_for(&queue, took, || {}, |_, pass| act(&queue, pass)).await;
            assert_eq!(storms, expected, "{name}, {took:?}: {passes:?}");
            let is_held = passes[9] <= 7;
            assert_eq!(is_held, is_slowed && expected > 0, "{name}, {took:?}: {passes:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordered_scale_up_to_200_is_no_storm_also_if_each_fourth_pass_fails() {
    for (is_written, fails) in [(true, false), (true, true), (false, false), (false, true)] {
        let (queue, created) = (Queue::new(), AtomicU64::new(0));
        queue.add(key("a"));
        let (passes, storms) = run(&queue, |claimed, pass| {
            let number = created.fetch_add(1, Ordering::Relaxed);
            if number >= 200 {
                return queue.succeeded(claimed);
            }
            create(&queue, pass, 1);
            if is_written {
                write_as_another_client(&queue, pass);
            }
            match fails && number % 4 == 3 {
                true => queue.retry(claimed, ANY_WAIT, "a conflict"),
                false => queue.succeeded(claimed),
            }
        })
        .await;
        assert!(storms == 0 && passes[0] > 200, "{is_written}, {fails}: {passes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_for_messages_for_finished_jobs_and_for_changes_are_no_storm() {
    type Act = fn(&Queue, &ClaimedKey, &Arc<CurrentPass>, u64);
    let acts: [(&str, Act); 3] = [
        ("a Job for each message", |queue, claimed, pass, _| {
            if claimed.causes.iter().any(is_add) {
                create(queue, pass, 1);
                write_as_another_client(queue, pass);
            }
        }),
        ("as many Jobs as have finished", |queue, _, pass, number| {
            create(queue, pass, 1 + number % 3);
            write_as_another_client(queue, pass);
        }),
        ("a record of each change, which enqueues nothing", |_, _, pass, _| pass.count_creation()),
    ];
    for (name, act) in acts {
        let (queue, number) = (Queue::new(), AtomicU64::new(0));
        let messages = async {
            for _ in 0..6000 {
                queue.add(key("a"));
                sleep(Duration::from_millis(100)).await;
            }
        };
        let passes = run(&queue, |claimed, pass| {
            act(&queue, claimed, pass, number.fetch_add(1, Ordering::Relaxed));
        });
        let ((passes, storms), ()) = tokio::join!(passes, messages);
        assert!(storms == 0 && passes.iter().all(|passes| *passes > 590), "{name}: {passes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_each_minute_or_each_second_is_no_storm_also_if_the_queue_is_full() {
    for (wait, keys, is_written) in [(60, 1, true), (1, 1, true), (1, 64, true), (1, 64, false)] {
        let queue = Queue::new();
        (0..keys).for_each(|n| queue.add(key(&n.to_string())));
        let (passes, storms) = run(&queue, |claimed, pass| {
            queue.continue_after(claimed, Duration::from_secs(wait));
            if claimed.causes.has_long_wait() || claimed.causes.iter().any(is_add) {
                create(&queue, pass, 1);
                if is_written {
                    write_as_another_client(&queue, pass);
                }
            }
        })
        .await;
        assert!(storms == 0 && passes[1] > 0, "{wait} s, {keys} keys, {is_written}: {passes:?}");
    }
}
