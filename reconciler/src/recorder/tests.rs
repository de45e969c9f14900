use super::{
    series::{Fingerprint, Series},
    *,
};

fn fingerprint(note: &str) -> Fingerprint {
    let regarding = ObjectReference { uid: Some("u".into()), ..ObjectReference::default() };
    let event = Event::normal("Reason", note);
    Fingerprint::of(&Waiting::new(regarding, event, "c".into()), "Reason", note)
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_of_events_is_bounded_and_the_oldest_goes_first() {
    let mut series = Series::default();
    for n in 0..5000 {
        series.stored(fingerprint(&n.to_string()), "default".into(), n.to_string());
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!(series.len(), 4096);
    assert!(series.again(&fingerprint("0")).is_none());
    assert_eq!(series.again(&fingerprint("4999")).unwrap().count, 2);
}
