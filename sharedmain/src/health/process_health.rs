//! How the controllers and webhooks of the process are doing, in the words that the probes answer with.
use std::time::{Duration, Instant};

use reknit_injection::{FeedState, Informers};
use reknit_reconciler::{Health, Working, leader::Leadership};

use crate::health::probes::Vitals;

/// An informer that attempted nothing for so long does not move: a watch ends within minutes, and what fails is tried
/// again within one, however long the API server is away. A pass that runs for so long is stuck, unless its controller says that it may be slow.
const TOO_LONG: Duration = Duration::from_secs(15 * 60);

/// All controllers that run, all informers of the process, and all its webhooks.
pub(crate) struct ProcessVitals {
    pub(crate) controllers: Vec<(Health, Leadership)>,
    pub(crate) informers: Informers,
    pub(crate) webhooks: Vec<reknit_webhook::Health>,
}

impl Vitals for ProcessVitals {
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
        let webhooks = self.webhooks.iter().filter_map(reknit_webhook::Health::stuck);
        let webhooks = webhooks.map(|age| format!("webhook: code has been running for {}s", age.as_secs()));
        still.chain(stuck).chain(webhooks).collect()
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
    use parking_lot::Mutex;
    use reknit_apis::Key;
    use reknit_injection::Context;
    use reknit_testing::eventually;
    use reknit_webhook::{Limits, Webhook};
    use serde_json::json;

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

    #[tokio::test]
    async fn code_of_a_webhook_that_does_not_return_is_unhealthy_for_as_long() {
        let limits = Limits { answer: Duration::from_millis(50), ..Limits::default() };
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let webhook =
            Webhook::new("demo.reknit.dev").limits(limits).config_parser("config-gate", move |_| {
                let _ = gate.lock().recv();
                Ok(())
            });
        let nobody = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let cx = Context::preloaded("test", kube::Client::try_from(nobody).unwrap(), vec![]);
        let (informers, webhooks) = (cx.informers(), vec![webhook.health()]);
        let vitals = ProcessVitals { controllers: vec![], informers, webhooks };
        assert_eq!(vitals.unhealthy(), Vec::<String>::new());
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config-gate"}});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u1", "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
            "resource": {"group": "", "version": "v1", "resource": "configmaps"}, "operation": "CREATE",
            "userInfo": {}, "object": map,
        }});
        assert_eq!(webhook.answer("/config-validation", review.to_string()).await.0, 504);
        let told = eventually("the process to be unhealthy", Duration::from_secs(5), async || {
            vitals.unhealthy().into_iter().next().ok_or("it is well")
        });
        assert!(told.await.starts_with("webhook: code has been running for "));
        drop(release);
        eventually("the process to be well", Duration::from_secs(5), async || vitals.unhealthy().is_empty())
            .await;
    }

    #[test]
    fn a_stuck_pass_is_named_by_its_key() {
        let pass = Working { key: Key::new("shop", "web"), age: Duration::from_secs(1200) };
        assert_eq!(stuck("lamps", &pass), "lamps: the pass of shop/web has been running for 1200s");
    }
}
