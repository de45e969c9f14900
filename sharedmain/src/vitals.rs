//! How the controllers of the process are doing, in the words that the probes answer with.
use std::time::{Duration, Instant};

use reknit_injection::{FeedState, Informers};
use reknit_reconciler::{Health, Working, leader::Leadership};

use crate::probes::Vitals;

/// An informer that attempted nothing for so long does not move: a watch ends within minutes, and what fails is tried
/// again within one, however long the API server is away. A pass that runs for so long is stuck, unless its controller says that it may be slow.
const TOO_LONG: Duration = Duration::from_secs(15 * 60);

/// All controllers that run, and all informers of the process.
pub(crate) struct ControllerVitals {
    pub(crate) controllers: Vec<(Health, Leadership)>,
    pub(crate) informers: Informers,
}

impl Vitals for ControllerVitals {
    fn unready(&self) -> Vec<String> {
        let missing = self.controllers.iter().flat_map(|(health, leadership)| {
            let feeds = health.feeds().iter().filter_map(|feed| missing(feed.name(), &feed.state()));
            let leader = (!leadership.known()).then(|| "it is not known yet who leads".to_owned());
            feeds.chain(leader).map(|what| format!("{}: {what}", health.name())).collect::<Vec<_>>()
        });
        missing.collect()
    }

    fn unhealthy(&self) -> Vec<String> {
        let states = self.informers.states().into_iter();
        let still = states.filter_map(|(name, state)| stopped(&name, &state));
        let stuck = self.controllers.iter().flat_map(|(health, _)| {
            health.stuck(TOO_LONG).into_iter().map(|pass| stuck(health.name(), &pass)).collect::<Vec<_>>()
        });
        still.chain(stuck).collect()
    }
}

/// What a controller waits for before it starts.
fn missing(feed: &str, state: &FeedState) -> Option<String> {
    match state {
        FeedState::NotStarted => Some(format!("the informer of {feed} is not started yet")),
        FeedState::Waiting { since, why } if why.is_empty() => {
            Some(format!("waiting for the first list of {feed} for {}s", age(*since)))
        }
        FeedState::Waiting { since, why } => Some(format!("waiting for {feed} for {}s: {why}", age(*since))),
        FeedState::Synced { .. } => None,
    }
}

fn stopped(feed: &str, state: &FeedState) -> Option<String> {
    match state {
        FeedState::Synced { last_attempt } if last_attempt.elapsed() > TOO_LONG => {
            Some(format!("the informer of {feed} attempted nothing for {}s", age(*last_attempt)))
        }
        _ => None,
    }
}

fn stuck(controller: &str, pass: &Working) -> String {
    format!("{controller}: the pass of {} has been running for {}s", pass.key, pass.age.as_secs())
}

/// In seconds.
fn age(since: Instant) -> u64 {
    since.elapsed().as_secs()
}

#[cfg(test)]
mod tests {
    use reknit_apis::Key;

    use super::*;

    fn ago(seconds: u64) -> Instant {
        Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn an_informer_that_waits_is_named_with_its_reason() {
        let told =
            missing("lamps.example.com", &FeedState::Waiting { since: ago(90), why: "no such CRD".into() });
        assert_eq!(told.unwrap(), "waiting for lamps.example.com for 90s: no such CRD");
        let told = missing("lamps.example.com", &FeedState::Waiting { since: ago(2), why: String::new() });
        assert_eq!(told.unwrap(), "waiting for the first list of lamps.example.com for 2s");
        assert!(missing("lamps.example.com", &FeedState::NotStarted).unwrap().ends_with("not started yet"));
        assert_eq!(missing("lamps.example.com", &FeedState::Synced { last_attempt: ago(0) }), None);
    }

    #[test]
    fn an_informer_that_attempts_nothing_is_unhealthy_and_one_that_waits_is_not() {
        let told = stopped("pods", &FeedState::Synced { last_attempt: ago(1000) });
        assert_eq!(told.unwrap(), "the informer of pods attempted nothing for 1000s");
        assert_eq!(stopped("pods", &FeedState::Synced { last_attempt: ago(600) }), None);
        assert_eq!(stopped("pods", &FeedState::Waiting { since: ago(1000), why: String::new() }), None);
    }

    #[test]
    fn a_stuck_pass_is_named_by_its_key() {
        let pass = Working { key: Key::new("shop", "web"), age: Duration::from_secs(1200) };
        assert_eq!(stuck("lamps", &pass), "lamps: the pass of shop/web has been running for 1200s");
    }
}
