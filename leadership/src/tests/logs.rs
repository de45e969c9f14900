//! The log lines of leadership.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::json;
use tokio::time::sleep;
use tracing::{
    Dispatch,
    level_filters::LevelFilter,
    subscriber::{DefaultGuard, NoSubscriber},
};

use super::replica::{LEASE, RETRY, Replica, wait_for_shares};
use crate::fake::FakeApi;

const BUCKET: &str = "test.lamps.00-of-01";

/// The lines that this thread logs.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn record(&self) -> (DefaultGuard, Dispatch) {
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(LevelFilter::INFO);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        // While a process has only one subscriber, tracing does not ask it for code that another thread reaches first.
        let other = Dispatch::new(NoSubscriber::default());
        (tracing::subscriber::set_default(subscriber), other)
    }

    /// Takes the lines so far that say who leads, each from its message on.
    fn take_changes(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
        let change = |line: &str| {
            let messages = ["became leader", "handed over", "lost leadership"];
            let start = messages.iter().find_map(|message| line.find(message))?;
            Some(line[start..].to_owned())
        };
        text.lines().filter_map(change).collect()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Asserts that there is one line, with this message, lease and beginning of the reason.
fn assert_change(lines: &[String], message: &str, reason: &str) {
    let [line] = lines else { panic!("not one line: {lines:#?}") };
    for part in [message, &format!("lease=\"{BUCKET}\""), &format!("reason=\"{reason}")] {
        assert!(line.contains(part), "{line} does not contain {part}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_change_of_leadership_is_one_line_with_its_reason() {
    let lines = Lines::default();
    let _recording = lines.record();
    let api = FakeApi::default();
    let first = Replica::start_with(&api, "a", 1, &["lamps"]);
    wait_for_shares(&[&first], &[1]).await;
    assert_change(&lines.take_changes(), "became leader", "the lease did not exist\"");

    api.set_down(true);
    sleep(LEASE).await;
    assert_change(
        &lines.take_changes(),
        "lost leadership",
        "the lease was not renewed before the renew deadline\"",
    );
    api.set_down(false);
    wait_for_shares(&[&first], &[1]).await;
    assert_change(&lines.take_changes(), "became leader", "the lease already names this process\"");

    let held = json!({"holderIdentity": "other", "leaseDurationSeconds": 60, "leaseTransitions": 1,
        "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"});
    api.put_lease(BUCKET, held);
    wait_for_shares(&[&first], &[0]).await;
    assert_change(&lines.take_changes(), "lost leadership", "another process holds the lease\"");
    wait_for_shares(&[&first], &[1]).await;
    assert_change(&lines.take_changes(), "became leader", "the lease of other expired\"");

    let second = Replica::start_with(&api, "b", 1, &["lamps"]);
    sleep(RETRY * 2).await;
    first.stop().await;
    wait_for_shares(&[&second], &[1]).await;
    let changes = lines.take_changes();
    assert_change(&changes[..1], "handed over", "the process stops\"");
    assert_change(&changes[1..], "became leader", "the lease was released\"");
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_handed_over_is_logged_with_the_member_it_is_assigned_to() {
    let lines = Lines::default();
    let _recording = lines.record();
    let api = FakeApi::default();
    let first = Replica::start_with(&api, "a", 2, &["lamps"]);
    wait_for_shares(&[&first], &[2]).await;
    lines.take_changes();
    let second = Replica::start_with(&api, "b", 2, &["lamps"]);
    wait_for_shares(&[&first, &second], &[1, 1]).await;
    sleep(Duration::from_secs(1)).await;
    let changes = lines.take_changes();
    assert_eq!(changes.len(), 2, "{changes:#?}");
    assert!(
        changes[0].contains("handed over") && changes[0].contains("reason=\"assigned to b_"),
        "{changes:#?}"
    );
    assert!(changes[1].contains("became leader"), "{changes:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_written_to_last_for_decades_is_warned_of_once() {
    let lines = Lines::default();
    let _recording = lines.record();
    let api = FakeApi::default();
    let replica = Replica::start_with(&api, "a", 1, &["lamps"]);
    wait_for_shares(&[&replica], &[1]).await;
    let held = |transitions: u32| json!({"holderIdentity": "nobody", "leaseDurationSeconds": i32::MAX, "leaseTransitions": transitions});
    for transitions in 1..3 {
        api.put_lease(BUCKET, held(transitions));
        api.put_lease("of-another-program", held(transitions));
        sleep(RETRY).await;
    }
    let text = String::from_utf8(std::mem::take(&mut *lines.0.lock())).unwrap();
    let warnings: Vec<_> = text.lines().filter(|line| line.contains("longer than ten minutes")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    for part in ["WARN", BUCKET, "nobody", "2147483647s"] {
        assert!(warnings[0].contains(part), "{warnings:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_selects_other_objects_with_the_same_leases_is_warned_of() {
    let lines = Lines::default();
    let _recording = lines.record();
    let take_warnings = || {
        let text = String::from_utf8(std::mem::take(&mut *lines.0.lock())).unwrap();
        text.lines()
            .filter(|line| line.contains("selects other objects"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let api = FakeApi::default();
    let _a = Replica::start_selecting(&api, "a", "namespace=a");
    let same = Replica::start_selecting(&api, "b", "namespace=a");
    sleep(LEASE + RETRY * 2).await;
    same.stop().await;
    let newer = Replica::start_selecting(&api, "c", "namespace=a labels=x=y");
    sleep(LEASE - RETRY).await;
    assert_eq!(take_warnings(), [""; 0], "a rollout may change the selection");
    sleep(RETRY * 4).await;
    let warnings = take_warnings();
    for line in ["selects=\"namespace=a\" other=\"c_", "selects=\"namespace=a labels=x=y\" other=\"a_"] {
        assert_eq!(
            warnings.iter().filter(|warning| warning.contains(line)).count(),
            1,
            "{line}: {warnings:#?}"
        );
    }
    newer.stop().await;
    sleep(LEASE * 2).await;
    assert_eq!(take_warnings(), [""; 0]);
}
