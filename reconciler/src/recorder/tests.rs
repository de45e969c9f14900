use super::{
    budget::Budgets,
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

#[tokio::test(start_paused = true)]
async fn of_what_was_spent_on_events_the_older_half_is_forgotten() {
    let mut budgets = Budgets::default();
    let of = |name: String| {
        let regarding = ObjectReference { name: Some(name), ..ObjectReference::default() };
        Fingerprint::of(&Waiting::new(regarding, Event::normal("R", ""), "c".into()), "R", "").source
    };
    let spend_all =
        |budgets: &mut Budgets, name: &str| (0..30).filter(|_| budgets.spend(&of(name.into()))).count();
    assert_eq!(spend_all(&mut budgets, "old"), 25);
    (0..2047).for_each(|n| assert!(budgets.spend(&of(n.to_string()))));
    assert_eq!(spend_all(&mut budgets, "young"), 25);
    (0..2046).for_each(|n| assert!(budgets.spend(&of((10_000 + n).to_string()))));
    assert_eq!(spend_all(&mut budgets, "young"), 0);
    (0..3000).for_each(|n| assert!(budgets.spend(&of((20_000 + n).to_string()))));
    assert!(budgets.len() <= 4096);
    assert_eq!(spend_all(&mut budgets, "old"), 25);
}
