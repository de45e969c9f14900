use std::time::Duration;

use reknit_reconciler::Event;
use reknit_testing::given;

use super::*;

#[tokio::test]
async fn a_panic_is_an_error_of_its_key_and_its_status_is_not_written() {
    let panicking = |_: &Lamp, status: &mut LampStatus| {
        status.light();
        panic!("the bulb is {}", "broken")
    };
    let passed = given(lamp()).pass(reconciling(panicking), "default/x").await;
    let error = passed.result.as_ref().unwrap_err();
    assert_eq!(error.to_string(), "the reconciler panicked: the bulb is broken");
    assert!(!error.is_permanent());
    assert!(passed.writes().is_empty());
    let event = Event::warning("InternalError", "the reconciler panicked: the bulb is broken");
    assert_eq!(passed.events(), [event]);
}

/// Takes this long.
struct Slow(Duration);

impl ReconcileKind for Slow {
    type Kind = Lamp;
    async fn reconcile_kind(&self, _: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
        status.light();
        tokio::time::sleep(self.0).await;
        Ok(Outcome::done())
    }
}

fn slow(seconds: u64) -> impl FnOnce(&Context) -> Result<Controller> {
    move |cx| {
        let build = Controller::of::<Lamp>(cx).reconciler(Slow(Duration::from_secs(seconds)));
        Ok(build.slow_after(Duration::from_secs(5)).deadline(Duration::from_secs(30)).build())
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_pass_is_told_of_once_and_goes_on() {
    let passed = given(lamp()).pass(slow(20), "default/x").await;
    assert_eq!(passed.result.as_ref().unwrap(), &Outcome::done());
    assert_eq!(passed.events(), [Event::warning("SlowReconcile", "the pass has been running for 5 s")]);
    assert_eq!(passed.writes(), ["patch lamps/status default/x"]);
}

#[tokio::test(start_paused = true)]
async fn a_pass_is_dropped_at_its_deadline_and_its_status_is_not_written() {
    let passed = given(lamp()).pass(slow(40), "default/x").await;
    let said = "the pass took longer than 30 s and was dropped";
    assert_eq!(passed.result.as_ref().unwrap_err().to_string(), said);
    assert_eq!(passed.events()[1], Event::warning("DeadlineExceeded", said));
    assert!(passed.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_quick_pass_is_told_of_to_nobody() {
    let passed = given(lamp()).pass(slow(4), "default/x").await;
    assert!(passed.events().is_empty());
}
