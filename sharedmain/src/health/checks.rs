//! Health checks of the controllers, informers and webhooks of a process.
use std::{sync::Arc, time::Duration};

use reknit_injection::{InformerState, Informers, Unwatched};
use reknit_leadership::Leadership;
use reknit_reconciler::{Health, RunningPass};
use tokio::time::Instant;

use super::{
    probes::{Check, HealthCheck},
    workers::{STUCK_AFTER, Workers},
};
use crate::{client::credentials::Credentials, process::task::Readiness};

/// The time for which the process is not ready because of a part whose first requests fail. After that, the failure is
/// only reported, so that one part cannot take down the others, such as a webhook.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The time for which no watch of listed objects is open until that is reported. A watch that breaks is mostly open again in
/// a few seconds.
const MAX_UNWATCHED: Duration = Duration::from_secs(30);

/// A part of the API server's message for a list whose objects a webhook does not convert.
const FAILED_CONVERSION: &str = "conversion webhook for";

/// The checks of a webhook.
pub(crate) struct WebhookChecks {
    pub(crate) readiness: Box<dyn Fn() -> Check + Send + Sync>,
    /// A check for a problem that a restart may solve.
    pub(crate) health: Box<dyn Fn() -> Check + Send + Sync>,
}

/// The controllers, informers and webhooks of a process.
pub(crate) struct ProcessHealth {
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) workers: Workers,
    pub(crate) controllers: Vec<(Health, Leadership)>,
    pub(crate) informers: Informers,
    pub(crate) webhooks: Vec<WebhookChecks>,
    /// The names of tasks with a readiness check, and their checks.
    pub(crate) tasks: Vec<(String, Readiness)>,
}

impl HealthCheck for ProcessHealth {
    fn readiness(&self) -> Vec<Check> {
        let of_controller = |(health, leadership): &(Health, Leadership)| {
            // The election starts once the informers have synced.
            let election = health.is_synced().then(|| leader_election(health.name(), leadership)).flatten();
            [Some(informers_of(health, !self.webhooks.is_empty())), election].into_iter().flatten()
        };
        let controllers = self.controllers.iter().flat_map(of_controller);
        let webhooks = self.webhooks.iter().map(|webhook| (webhook.readiness)());
        let tasks = self
            .tasks
            .iter()
            .map(|(name, check)| Check::new(format!("task/{name}"), check().err().into_iter().collect()));
        [self.workers.readiness()].into_iter().chain(controllers).chain(webhooks).chain(tasks).collect()
    }

    fn health(&self) -> Vec<Check> {
        let states = self.informers.states().into_iter();
        let informers = states.filter_map(|(name, state)| stuck_informer(&name, &state));
        let reconciles = self.controllers.iter().map(|(health, _)| {
            let stuck = health.stuck_passes(STUCK_AFTER);
            Check::new(format!("reconciles/{}", health.name()), stuck.iter().map(stuck_reconcile).collect())
        });
        let webhooks = self.webhooks.iter().map(|webhook| (webhook.health)());
        let informers = Check::new("informers", informers.collect());
        let credentials = Check::new("credentials", self.credentials.problem().into_iter().collect());
        [credentials, self.workers.health(), informers]
            .into_iter()
            .chain(reconciles)
            .chain(webhooks)
            .collect()
    }
}

/// Checks that the informers of the controller have synced. An informer whose Kind the API server does not serve, or
/// refuses to list or to watch, is reported, and so is one whose list or watch fails for too long.
fn informers_of(health: &Health, has_webhook: bool) -> Check {
    let (mut waiting, mut reports) = (Vec::new(), Vec::new());
    for informer in health.informers() {
        let state = informer.state();
        if let Some(why) = not_synced(informer.name(), &state) {
            if is_starting(&state, has_webhook) { &mut waiting } else { &mut reports }.push(why);
        } else {
            reports
                .extend(informer.unwatched().and_then(|unwatched| not_watched(informer.name(), &unwatched)));
        }
    }
    Check::new(format!("informers/{}", health.name()), waiting).reports(reports)
}

/// Returns true if the first list may still arrive before this process is ready. One that waits for a conversion webhook may
/// need that of this very process, which has no endpoints until then.
fn is_starting(state: &InformerState, has_webhook: bool) -> bool {
    match state {
        InformerState::NotStarted => true,
        InformerState::Waiting { reason, .. } if has_webhook && reason.contains(FAILED_CONVERSION) => false,
        InformerState::Waiting { since, reason } => reason.is_empty() || since.elapsed() < MAX_WAIT,
        InformerState::Unavailable { .. } | InformerState::Synced { .. } => false,
    }
}

/// Checks that the leader of each bucket of the controller is known, and names the buckets that this process leads.
/// Returns `None` without leader election.
fn leader_election(controller: &str, leadership: &Leadership) -> Option<Check> {
    if !leadership.has_buckets() {
        return None;
    }
    let led = leadership.led_buckets().join(", ");
    let detail = if led.is_empty() { "leads no bucket".to_owned() } else { format!("leads {led}") };
    let (mut problems, mut reports) = (Vec::new(), Vec::new());
    if !leadership.has_known_leaders() {
        match leadership.reason_unknown() {
            Some(why) => reports.push(format!("the leader is not known: {why}")),
            None => problems.push("the leader is not known yet".to_owned()),
        }
    }
    let name = format!("leader-election/{controller}");
    Some(Check::new(name, problems).reports(reports).detail(detail))
}

/// Describes an informer that has not synced, for which its controller waits. Returns `None` for a synced informer.
fn not_synced(informer: &str, state: &InformerState) -> Option<String> {
    match state {
        InformerState::NotStarted => Some(format!("the informer of {informer} is not started yet")),
        InformerState::Waiting { since, reason } if reason.is_empty() => {
            Some(format!("waiting for the first list of {informer} for {}s", age(*since)))
        }
        InformerState::Waiting { since, reason } | InformerState::Unavailable { since, reason, .. } => {
            Some(format!("waiting for {informer} for {}s: {reason}", age(*since)))
        }
        InformerState::Synced { .. } => None,
    }
}

/// Describes an informer that lists again and again, since the API server refuses its watch, or whose requests have failed
/// for too long.
fn not_watched(informer: &str, Unwatched { since, reason, is_listed }: &Unwatched) -> Option<String> {
    match is_listed {
        true => {
            Some(format!("{informer} cannot be watched, and changes are seen up to a minute later: {reason}"))
        }
        false if since.elapsed() < MAX_UNWATCHED => None,
        false => Some(format!(
            "{informer} has not been watched for {}s, and changes are not seen: {reason}",
            age(*since)
        )),
    }
}

fn stuck_informer(informer: &str, state: &InformerState) -> Option<String> {
    match state {
        InformerState::Synced { last_attempt } if last_attempt.elapsed() > STUCK_AFTER => {
            Some(format!("the informer of {informer} has made no request for {}s", age(*last_attempt)))
        }
        _ => None,
    }
}

fn stuck_reconcile(work: &RunningPass) -> String {
    format!("the reconcile of {} has been running for {}s", work.key, work.age.as_secs())
}

/// Returns the seconds since this time.
fn age(since: Instant) -> u64 {
    since.elapsed().as_secs()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use reknit_apis::Key;
    use reknit_injection::Context;
    use reknit_leadership::internal::{Heartbeat, StatefulReplica};
    use reknit_testing::eventually;
    use reknit_webhook::{Limits, Webhook, internal};
    use serde_json::json;

    use super::*;
    use crate::client::kubeconfig::Access;

    fn ago(seconds: u64) -> Instant {
        Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn a_missing_kind_and_a_lasting_failure_are_reported_and_the_start_of_an_informer_is_waited_for() {
        let waiting =
            |seconds, reason: &str| InformerState::Waiting { since: ago(seconds), reason: reason.into() };
        let conversion =
            waiting(1, "conversion webhook for example.com/v1, Kind=Lamp failed: connection refused");
        assert!(is_starting(&conversion, false) && !is_starting(&conversion, true));
        assert!(is_starting(&waiting(1, "503"), true));
        let is_starting = |state: &InformerState| is_starting(state, false);
        assert!(is_starting(&InformerState::NotStarted) && is_starting(&waiting(600, "")));
        assert!(is_starting(&waiting(30, "503")) && !is_starting(&waiting(90, "503")));
        let missing = InformerState::Unavailable { since: ago(1), reason: "403".into(), was_synced: false };
        assert!(!is_starting(&missing));
        let check = Check::new("informers/lamps", vec![]).reports(vec!["no such CRD".into()]);
        assert_eq!(check.to_string(), "[!]informers/lamps degraded: no such CRD");
    }

    #[test]
    fn an_informer_that_has_not_synced_has_a_reason() {
        let reason = not_synced(
            "lamps.example.com",
            &InformerState::Waiting { since: ago(90), reason: "no such CRD".into() },
        );
        assert_eq!(reason.unwrap(), "waiting for lamps.example.com for 90s: no such CRD");
        let reason =
            not_synced("lamps.example.com", &InformerState::Waiting { since: ago(2), reason: String::new() });
        assert_eq!(reason.unwrap(), "waiting for the first list of lamps.example.com for 2s");
        assert!(
            not_synced("lamps.example.com", &InformerState::NotStarted).unwrap().ends_with("not started yet")
        );
        assert_eq!(not_synced("lamps.example.com", &InformerState::Synced { last_attempt: ago(0) }), None);
    }

    #[test]
    fn a_watch_that_is_refused_or_fails_degrades_the_check_and_does_not_fail_it() {
        let unwatched = |seconds, is_listed| {
            let unwatched = Unwatched { since: ago(seconds), reason: "why".into(), is_listed };
            let check = Check::new("informers/lamps", vec![]);
            let check = check.reports(not_watched("pods", &unwatched).into_iter().collect());
            check.to_string()
        };
        let refused = "[!]informers/lamps degraded: pods cannot be watched, and changes are seen up to a minute later: why";
        assert_eq!(unwatched(1, true), refused);
        assert_eq!(unwatched(5, false), "[+]informers/lamps ok", "a watch that breaks is opened again");
        let failing =
            "[!]informers/lamps degraded: pods has not been watched for 34s, and changes are not seen: why";
        assert_eq!(unwatched(34, false), failing);
    }

    #[test]
    fn an_informer_without_requests_is_unhealthy_and_a_waiting_one_is_not() {
        let reason = stuck_informer("pods", &InformerState::Synced { last_attempt: ago(1000) });
        assert_eq!(reason.unwrap(), "the informer of pods has made no request for 1000s");
        assert_eq!(stuck_informer("pods", &InformerState::Synced { last_attempt: ago(600) }), None);
        assert_eq!(
            stuck_informer("pods", &InformerState::Waiting { since: ago(1000), reason: String::new() }),
            None
        );
    }

    #[tokio::test]
    async fn webhook_code_that_does_not_return_is_unhealthy_until_it_does() {
        let limits = Limits { response_timeout: Duration::from_millis(50), ..Limits::default() };
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let webhook = Webhook::new("demo.reknit.dev").limits(limits);
        let webhook = internal::validate_config(webhook, "config-gate", move |_| {
            let _ = gate.lock().recv();
            Ok(())
        });
        let unreachable = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let cx = Context::preloaded("test", kube::Client::try_from(unreachable).unwrap(), vec![]);
        let (informers, webhooks) = (
            cx.informers(),
            vec![crate::webhook::checks(internal::health(&webhook), internal::Identity::default())],
        );
        let access = Access::without_credentials("http://127.0.0.1:1".parse().unwrap());
        let credentials = Credentials::load(&access, "test").unwrap();
        let workers = Workers::new(Heartbeat::default(), vec![]);
        let unready: Readiness = Box::new(|| Err("there is no snapshot yet".into()));
        let tasks = vec![("server".into(), unready)];
        let health = ProcessHealth { credentials, workers, controllers: vec![], informers, webhooks, tasks };
        let last = health.readiness().pop().unwrap();
        assert_eq!(last.to_string(), "[-]task/server failed: there is no snapshot yet");
        let reasons = || health.health().iter().map(Check::to_string).collect::<Vec<_>>();
        assert_eq!(reasons(), ["[+]credentials ok", "[+]workers ok", "[+]informers ok", "[+]webhook ok"]);
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config-gate"}});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u1", "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
            "resource": {"group": "", "version": "v1", "resource": "configmaps"}, "operation": "CREATE",
            "userInfo": {}, "object": map,
        }});
        assert_eq!(internal::answer(&webhook, "/config-validation", review.to_string()).await.0, 504);
        let reason = eventually("the process to be unhealthy", Duration::from_secs(5), async || {
            reasons().pop().filter(|reason| reason.starts_with("[-]")).ok_or("it is healthy")
        });
        assert!(
            reason
                .await
                .starts_with("[-]webhook failed: a defaulting or validation function has been running for ")
        );
        drop(release);
        eventually("the process to be healthy", Duration::from_secs(5), async || {
            reasons() == ["[+]credentials ok", "[+]workers ok", "[+]informers ok", "[+]webhook ok"]
        })
        .await;
    }

    #[test]
    fn a_stuck_reconcile_is_reported_with_its_key() {
        let work = RunningPass { key: Key::new("shop", "web"), age: Duration::from_secs(1200) };
        assert_eq!(stuck_reconcile(&work), "the reconcile of shop/web has been running for 1200s");
    }

    #[tokio::test]
    async fn leader_election_names_the_buckets_that_are_led() {
        let env = |name: &str| match name {
            "STATEFUL_CONTROLLER_ORDINAL" => Some("lamps-1".to_owned()),
            "STATEFUL_SERVICE_NAME" => Some("lamps".to_owned()),
            _ => None,
        };
        let replica = StatefulReplica::from_env(env).unwrap().unwrap();
        let leadership = Leadership::stateful(&replica, 2, "ns", "cluster.local").unwrap();
        assert_eq!(
            leader_election("lamps", &leadership).unwrap().to_string(),
            "[+]leader-election/lamps ok: leads http://lamps-1.lamps.ns.svc.cluster.local:80"
        );
        assert_eq!(leader_election("lamps", &Leadership::always()), None);
    }
}
