use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use reknit_injection::internal::{Seeded, within};

use super::{
    budget::Budgets,
    event::Event,
    pending::PendingEvent,
    series::{Fingerprint, Series, SpamKey},
};

fn fingerprint(note: &str) -> Fingerprint {
    let regarding = ObjectReference { uid: Some("u".into()), ..ObjectReference::default() };
    Fingerprint::of(&PendingEvent::new(regarding, Event::normal("Reason", note), "c".into()))
}

#[test]
fn the_name_and_the_time_of_an_event_are_those_of_the_simulation() {
    let event = |seed, object: &str| {
        within(&Seeded::environment(seed), || {
            let regarding = ObjectReference { name: Some(object.into()), ..ObjectReference::default() };
            let event = PendingEvent::new(regarding, Event::normal("R", ""), "c".into());
            (event.name, event.time.0)
        })
    };
    assert_eq!(event(1, "a"), event(1, "a"));
    assert_ne!(event(1, "a").0, event(2, "a").0);
    assert_eq!(event(1, "a").1, Timestamp::UNIX_EPOCH);
}

#[test]
fn a_waiting_event_keeps_only_what_is_published_of_a_long_text() {
    let event = Event { reason: "R".repeat(1_000_000), ..Event::warning("", "ä".repeat(1_000_000)) };
    let Event { reason, message, .. } =
        PendingEvent::new(ObjectReference::default(), event, "c".into()).event;
    assert_eq!([reason.len(), message.len()], [128, 1024]);
    assert!(reason.capacity() + message.capacity() < 2048);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_series_is_bounded_and_the_oldest_are_forgotten_first() {
    let mut series = Series::default();
    for n in 0..5000 {
        series.insert(fingerprint(&n.to_string()), "default", &n.to_string());
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!(series.0.len(), 4096);
    assert!(series.repeat(&fingerprint("0")).is_none());
    assert_eq!(series.repeat(&fingerprint("4999")).unwrap().count, 2);
}

/// The number of budgets in each half.
const HALF: usize = 2048;

#[tokio::test(start_paused = true)]
async fn the_older_half_of_the_event_budgets_is_forgotten_when_there_are_too_many() {
    let mut budgets = Budgets::default();
    let spam_key = |name: String| -> SpamKey {
        let regarding = ObjectReference { name: Some(name), ..ObjectReference::default() };
        Fingerprint::of(&PendingEvent::new(regarding, Event::normal("R", ""), "c".into())).spam_key
    };
    let spend_all =
        |budgets: &mut Budgets, name: &str| (0..30).filter(|_| budgets.spend(&spam_key(name.into()))).count();
    let mut names = 0..;
    let mut add = |budgets: &mut Budgets, count: usize| {
        for name in names.by_ref().take(count) {
            assert!(budgets.spend(&spam_key(format!("other-{name}"))));
        }
    };
    // The older half, which is then full.
    assert_eq!(spend_all(&mut budgets, "old"), 25);
    add(&mut budgets, HALF - 1);
    // The newer half has room for one more.
    assert_eq!(spend_all(&mut budgets, "young"), 25);
    add(&mut budgets, HALF - 2);
    assert_eq!(spend_all(&mut budgets, "young"), 0, "its budget is kept");
    // Both halves are replaced.
    add(&mut budgets, 3000);
    assert!(budgets.recent.len() + budgets.previous.len() <= 2 * HALF);
    assert_eq!(spend_all(&mut budgets, "old"), 25, "its budget was forgotten");
}
