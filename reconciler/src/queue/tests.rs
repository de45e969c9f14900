use std::collections::HashSet;

use super::*;

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn queue(names: &[&str]) -> Queue {
    let queue = Queue::new();
    names.iter().for_each(|name| queue.add(key(name)));
    queue
}

/// Claims a key if one is queued now.
async fn claim_now(queue: &Queue) -> Option<Claimed> {
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
    let queue = queue(&["a", "b", "a"]);
    assert_eq!(name_of_next(&queue).await, "a");
    assert_eq!(name_of_next(&queue).await, "b");
    assert!(claim_now(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_claimed_key_is_not_claimed_again() {
    let queue = queue(&["a"]);
    let _claimed = queue.next().await.unwrap();
    queue.add(key("a"));
    assert!(claim_now(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_key_added_while_claimed_is_queued_again_once() {
    let queue = queue(&["a"]);
    let claimed = queue.next().await.unwrap();
    queue.add(key("a"));
    queue.add(key("a"));
    drop(claimed);
    drop(claim_now(&queue).await.unwrap());
    assert!(claim_now(&queue).await.is_none(), "once, not twice");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_worker_is_notified_by_an_add_and_by_the_end_of_a_claim() {
    let queue = queue(&["a"]);
    let claimed = queue.next().await.unwrap();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { [name_of_next(&queue).await, name_of_next(&queue).await] }
    });
    tokio::task::yield_now().await;
    queue.add(key("b"));
    queue.add(key("a"));
    tokio::task::yield_now().await;
    drop(claimed);
    assert_eq!(waiting.await.unwrap(), ["b", "a"]);
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
    let slow: Vec<_> =
        turns.iter().enumerate().filter(|(_, n)| n.starts_with("slow")).map(|(at, _)| at).collect();
    assert_eq!(slow, [9, 19, 29]);
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
    let queue = queue(&["a"]);
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
    assert!(queue.0.state.lock().delayed.next_due().is_none(), "nothing is left behind");
}

#[tokio::test(start_paused = true)]
async fn a_worker_waiting_for_a_delayed_key_takes_an_earlier_one() {
    let queue = Queue::new();
    let start = Instant::now();
    queue.add_after(key("late"), Duration::from_secs(100));
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { name_of_next(&queue).await }
    });
    tokio::task::yield_now().await;
    queue.add_after(key("soon"), Duration::from_secs(1));
    assert_eq!(waiting.await.unwrap(), "soon");
    assert_eq!(start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_due_key_and_a_new_key_go_to_both_waiting_workers() {
    let queue = Queue::new();
    let first_waiter = tokio::spawn({
        let queue = queue.clone();
        async move { (name_of_next(&queue).await, Instant::now()) }
    });
    tokio::task::yield_now().await;
    let start = Instant::now();
    queue.add_after(key("due"), Duration::from_secs(1));
    let worker = queue.clone();
    let second_waiter = tokio::spawn(async move { worker.next().await.unwrap() });
    tokio::task::yield_now().await;
    queue.add(key("now"));
    let (second, first) = tokio::join!(second_waiter, first_waiter);
    let (name, when) = first.unwrap();
    let other = second.unwrap();
    let names: HashSet<_> = [name, other.name.clone()].into();
    assert_eq!(names, ["now".to_owned(), "due".to_owned()].into());
    assert!(when.duration_since(start).as_secs() <= 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_key_is_retried_after_its_backoff() {
    let queue = queue(&["a"]);
    for wait in [5, 10, 20] {
        let claimed = queue.next().await.unwrap();
        queue.retry(&claimed, None);
        drop(claimed);
        let start = Instant::now();
        let again = queue.next().await.unwrap();
        assert_eq!(start.elapsed().as_millis(), wait);
        queue.add(key("a"));
        drop(again);
    }
    queue.forget(&key("a"));
    assert!(queue.0.state.lock().backoff.failures.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_closed_queue_neither_returns_nor_accepts_keys() {
    let queue = queue(&["a"]);
    let claimed = queue.next().await.unwrap();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next().await.is_none() }
    });
    tokio::task::yield_now().await;
    queue.close();
    assert!(waiting.await.unwrap());
    queue.add(key("b"));
    drop(claimed);
    assert!(queue.next().await.is_none());
    assert!(queue.take_all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_loses_no_key() {
    let queue = Queue::new();
    {
        let mut waiting = std::pin::pin!(queue.next());
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        queue.add(key("a"));
    }
    assert_eq!(name_of_next(&queue).await, "a");
}

#[tokio::test]
async fn an_own_write_enqueues_its_key_in_other_queues_only() {
    let (mine, other) = (Queue::new(), Queue::new());
    let write = async {
        for queue in [&mine, &other] {
            queue.add_changed(key("a"), Some("2"));
            queue.add_changed(key("b"), Some("2"));
        }
        Ok::<_, ()>("2".to_owned())
    };
    mine.suppressing_echo(key("a").into(), write, |version| Some(version)).await.unwrap();
    assert_eq!(mine.take_all(), [key("b")]);
    assert_eq!(other.take_all(), [key("a"), key("b")]);
    mine.add_changed(key("a"), Some("2"));
    assert_eq!(mine.take_all(), [key("a")], "the write has ended");
}

/// Writes `a`. While the write is in flight, the watch reports these resourceVersions of `a`, where `None` is a deletion.
/// Then the write returns `answer`. Returns the keys that are enqueued after that.
async fn enqueued_by(reported: &[Option<&str>], answer: Result<&str, ()>) -> Vec<Key> {
    let queue = Queue::new();
    let (send, answered) = tokio::sync::oneshot::channel();
    let writing = tokio::spawn({
        let queue = queue.clone();
        async move {
            let write = async { answered.await.unwrap() };
            queue.suppressing_echo(key("a").into(), write, |version: &String| Some(version)).await
        }
    });
    tokio::task::yield_now().await;
    reported.iter().for_each(|version| queue.add_changed(key("a"), *version));
    queue.add_changed(key("b"), Some("2"));
    assert_eq!(queue.take_all(), [key("b")], "before the answer");
    send.send(answer.map(str::to_owned)).unwrap();
    let _ = writing.await.unwrap();
    queue.take_all()
}

#[tokio::test]
async fn an_echo_before_the_answer_enqueues_nothing() {
    assert_eq!(enqueued_by(&[Some("2")], Ok("2")).await, []);
    assert_eq!(
        enqueued_by(&[Some("2"), None], Ok("2")).await,
        [],
        "without its last finalizer the object is deleted, which is an echo too"
    );
}

#[tokio::test]
async fn other_changes_during_an_own_write_enqueue_its_key() {
    assert_eq!(enqueued_by(&[Some("2"), Some("3")], Ok("2")).await, [key("a")]);
    assert_eq!(
        enqueued_by(&[Some("2")], Err(())).await,
        [key("a")],
        "version 2 may come from another client"
    );
    assert_eq!(enqueued_by(&[None], Err(())).await, [key("a")]);
    assert_eq!(enqueued_by(&[], Err(())).await, []);
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
