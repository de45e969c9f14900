//! The log of passes: those that run, and the last finished ones.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::{
    Context, Inject,
    internal::{CurrentPass, PassRequest, PassRequests, RequestEnd, WaitPlace, now},
};
use serde::Serialize;
use tokio::time::{Instant, timeout};

use crate::{Error, Outcome, Result, metrics::PassResult, outcome::Next, queue::Causes, waits::Waits};

/// The number of finished passes that are kept. Each takes at most 20 KiB, and mostly less than one: its requests, their
/// paths, its causes and its texts are bounded.
const MAX_FINISHED: usize = 1000;
/// The number of failing keys of which the last failed pass is kept, however many others have finished since.
const MAX_FAILING: usize = 1000;
/// The maximum length of a text about a finished pass, such as its error, in bytes.
const MAX_TEXT: usize = 512;
/// The number of fields, restored in fights, that are kept of a pass.
const MAX_FIGHTS: usize = 4;

/// The time in which a pass that waits answers the question for its stack.
const MAX_ANSWER: Duration = Duration::from_secs(1);

/// The running passes and the last thousand finished ones of a process, and the last failed one of each failing key. Cheap to
/// clone.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("PassLog")]
pub struct PassLog(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    running: Vec<(Arc<CurrentPass>, Arc<Causes>)>,
    finished: VecDeque<Arc<FinishedPass>>,
    failing: FailingKeys,
}

/// The last failed pass of each key that has not succeeded since, of at most [`MAX_FAILING`] keys.
#[derive(Default)]
struct FailingKeys {
    passes: BTreeMap<u64, Arc<FinishedPass>>,
    numbers: BTreeMap<(Arc<str>, Arc<Key>), u64>,
}

impl FailingKeys {
    /// Follows the pass that has finished. One without a result of its own, such as a conflict, changes nothing.
    fn add(&mut self, pass: &Arc<FinishedPass>) {
        let has_failed = match pass.result {
            PassResult::Error | PassResult::Panic | PassResult::Deadline => true,
            PassResult::Success | PassResult::RequeueAfter | PassResult::Skip => false,
            PassResult::Waiting | PassResult::Conflict | PassResult::Lost => return,
        };
        let key = (pass.controller.clone(), pass.key.clone());
        if let Some(number) = self.numbers.remove(&key) {
            self.passes.remove(&number);
        }
        if !has_failed {
            return;
        }
        if self.passes.len() >= MAX_FAILING
            && let Some((_, oldest)) = self.passes.pop_first()
        {
            self.numbers.remove(&(oldest.controller.clone(), oldest.key.clone()));
        }
        self.numbers.insert(key, pass.number);
        self.passes.insert(pass.number, pass.clone());
    }
}

struct FinishedPass {
    number: u64,
    controller: Arc<str>,
    key: Arc<Key>,
    causes: Arc<Causes>,
    begun: Instant,
    took: Duration,
    result: PassResult,
    error: Option<Box<str>>,
    after: Option<Duration>,
    storm: Option<Box<str>>,
    fights: Vec<Box<str>>,
    requests: PassRequests,
    recorded: Option<Box<str>>,
}

/// A pass as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct PassRecord {
    /// The name of the controller.
    pub controller: Arc<str>,
    /// The key of the object.
    pub key: String,
    /// The number of the pass in this process, from 1.
    pub number: u64,
    /// The causes of the pass, as in its log lines.
    pub causes: String,
    /// The time at which it began, in RFC 3339.
    pub began: String,
    /// The duration, or the age of a running pass.
    pub seconds: f64,
    /// The result, as in the metrics. `None` for a running pass.
    pub result: Option<&'static str>,
    /// The error, cut to 512 bytes.
    pub error: Option<Box<str>>,
    /// The delay of [`Outcome::after`].
    pub after_seconds: Option<f64>,
    /// The storm to which the pass belongs, cut to 512 bytes.
    pub storm: Option<Box<str>>,
    /// The first four fields that its writes have restored in fights, each cut to 512 bytes.
    pub fights: Vec<Box<str>>,
    /// The last requests, unless this is a summary.
    pub requests: Vec<RequestRecord>,
    /// The number of all requests.
    pub requests_total: u64,
    /// The name of the file in which the pass is recorded.
    pub recorded: Option<Box<str>>,
}

/// A request of a pass as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct RequestRecord {
    /// The verb of RBAC, or `apply`.
    pub verb: &'static str,
    /// The resource, such as `deployments.apps/status`.
    pub resource: String,
    /// The key of the object, or the namespace of a list.
    pub object: String,
    /// The duration, or the age of a request that is waited for.
    pub seconds: f64,
    /// `waiting`, `answered`, `failed` or `dropped`.
    pub state: &'static str,
    /// The status of the answer.
    pub status: Option<u16>,
}

impl Inject for PassLog {
    fn inject(_: &Context) -> Self {
        Self::default()
    }
}

impl PassLog {
    /// Logs a pass that begins. A pass that fails is recorded in `file`, if there is one.
    pub(crate) fn begin(
        &self,
        pass: &Arc<CurrentPass>,
        causes: &Arc<Causes>,
        file: Option<String>,
    ) -> LoggedPass {
        self.0.lock().running.push((pass.clone(), causes.clone()));
        LoggedPass {
            log: self.clone(),
            pass: pass.clone(),
            result: PassResult::Lost,
            error: None,
            after: None,
            storm: None,
            fights: Vec::new(),
            recorded: file.map(Into::into),
        }
    }

    /// The running passes, the oldest first.
    pub fn running(&self) -> Vec<PassRecord> {
        let running = self.0.lock().running.clone();
        let mut running: Vec<_> = running.iter().map(|(pass, causes)| running_record(pass, causes)).collect();
        running.sort_by_key(|pass| pass.number);
        running
    }

    /// The running passes for which `is_wanted` returns true, the oldest first, with what they wait for. Each pass is asked
    /// for its stack.
    pub async fn waiting(&self, is_wanted: impl Fn(&CurrentPass) -> bool) -> Vec<WaitingPass> {
        let running: Vec<_> = {
            let log = self.0.lock();
            let wanted = log.running.iter().filter(|(pass, _)| is_wanted(pass));
            wanted.map(|(pass, causes)| (pass.clone(), causes.to_string())).collect()
        };
        let asked = running.into_iter().map(|(pass, causes)| WaitingPass::ask(pass, causes));
        let mut waiting = join_all(asked).await;
        waiting.sort_by_key(|waiting| waiting.pass.number);
        waiting
    }

    /// The finished passes for which `is_wanted` returns true by controller and key, the newest first, and at most this
    /// number of them. After the last thousand of all come the last failed ones of keys that still fail.
    pub fn finished(&self, limit: usize, is_wanted: impl Fn(&str, &Key) -> bool) -> Vec<PassRecord> {
        self.last(limit, is_wanted).iter().map(|pass| pass.record(pass.requests.kept.iter())).collect()
    }

    /// All finished passes, the newest first, without their requests.
    pub fn summaries(&self) -> Vec<PassRecord> {
        self.last(MAX_FINISHED, |_, _| true).iter().map(|pass| pass.record([])).collect()
    }

    /// Passes wait for the lock when they begin and end, so their texts are formatted after it is released.
    fn last(&self, limit: usize, is_wanted: impl Fn(&str, &Key) -> bool) -> Vec<Arc<FinishedPass>> {
        let log = self.0.lock();
        let wanted = |pass: &&Arc<FinishedPass>| is_wanted(&pass.controller, &pass.key);
        let mut last: Vec<_> = log.finished.iter().rev().filter(wanted).take(limit).cloned().collect();
        let known: BTreeSet<_> = last.iter().map(|pass| pass.number).collect();
        let failed = log.failing.passes.values().rev().filter(wanted);
        let missing = failed.filter(|pass| !known.contains(&pass.number)).cloned();
        last.extend(missing.take(limit.saturating_sub(known.len())));
        last
    }
}

/// A running pass that was asked for its stack.
#[derive(Debug)]
pub struct WaitingPass {
    /// The pass.
    pub pass: Arc<CurrentPass>,
    /// The causes of the pass, as in its log lines.
    pub causes: String,
    /// False if the pass did not answer within a second, because its code has not returned to the runtime.
    pub has_answered: bool,
    place: WaitPlace,
}

impl WaitingPass {
    async fn ask(pass: Arc<CurrentPass>, causes: String) -> Self {
        let answer = timeout(MAX_ANSWER, pass.stack.ask()).await;
        let has_answered = answer.is_ok();
        let place = answer.ok().and_then(std::result::Result::ok).unwrap_or_default();
        Self { pass, causes, has_answered, place }
    }
}

impl WaitingPass {
    /// Reads the names on the stack, which may take a second in a large program.
    pub fn waits(&self) -> Waits {
        Waits::of(Some(&self.pass), &self.place)
    }
}

/// A pass in the log. Once it is dropped, the pass has finished. A pass that has no result by then is lost.
pub(crate) struct LoggedPass {
    log: PassLog,
    pass: Arc<CurrentPass>,
    result: PassResult,
    error: Option<Box<str>>,
    after: Option<Duration>,
    storm: Option<Box<str>>,
    fights: Vec<Box<str>>,
    recorded: Option<Box<str>>,
}

impl LoggedPass {
    /// Sets the storm to which the pass belongs.
    pub(crate) fn set_storm(&mut self, storm: &str) {
        self.storm = Some(cut(storm));
    }

    /// Adds a field that a write of the pass has restored in a fight.
    pub(crate) fn add_fight(&mut self, fight: &str) {
        if self.fights.len() < MAX_FIGHTS {
            self.fights.push(cut(fight));
        }
    }

    /// Sets the result of the pass.
    pub(crate) fn set_result(&mut self, result: &Result<Outcome>) {
        self.result = PassResult::of(result);
        if !result.as_ref().is_err_and(Error::is_recorded) {
            self.recorded = None;
        }
        match result {
            Ok(outcome) => {
                self.after = match outcome.next() {
                    Next::After(wait) => Some(wait),
                    _ => None,
                };
            }
            Err(error) => self.error = Some(cut(&error.in_full())),
        }
    }
}

impl Drop for LoggedPass {
    fn drop(&mut self) {
        let requests = std::mem::take(&mut *self.pass.requests.lock());
        let CurrentPass { number, controller, key, begun, .. } = &*self.pass;
        let mut log = self.log.0.lock();
        let Some(index) = log.running.iter().position(|(pass, _)| Arc::ptr_eq(pass, &self.pass)) else {
            return;
        };
        let (_, causes) = log.running.swap_remove(index);
        if log.finished.len() >= MAX_FINISHED {
            log.finished.pop_front();
        }
        let finished = Arc::new(FinishedPass {
            number: *number,
            controller: controller.clone(),
            key: key.clone(),
            causes,
            begun: *begun,
            took: begun.elapsed(),
            result: self.result,
            error: self.error.take(),
            after: self.after,
            storm: self.storm.take(),
            fights: std::mem::take(&mut self.fights),
            requests,
            recorded: self.recorded.take(),
        });
        log.failing.add(&finished);
        log.finished.push_back(finished);
    }
}

impl FinishedPass {
    fn record<'a>(&'a self, requests: impl IntoIterator<Item = &'a PassRequest>) -> PassRecord {
        PassRecord {
            controller: self.controller.clone(),
            key: self.key.to_string(),
            number: self.number,
            causes: self.causes.to_string(),
            began: time_of(self.begun),
            seconds: self.took.as_secs_f64(),
            result: Some(self.result.name()),
            error: self.error.clone(),
            after_seconds: self.after.map(|after| after.as_secs_f64()),
            storm: self.storm.clone(),
            fights: self.fights.clone(),
            requests: requests.into_iter().map(RequestRecord::of).collect(),
            requests_total: self.requests.total,
            recorded: self.recorded.clone(),
        }
    }
}

fn running_record(pass: &CurrentPass, causes: &Causes) -> PassRecord {
    let requests = pass.requests.lock();
    PassRecord {
        controller: pass.controller.clone(),
        key: pass.key.to_string(),
        number: pass.number,
        causes: causes.to_string(),
        began: time_of(pass.begun),
        seconds: pass.begun.elapsed().as_secs_f64(),
        result: None,
        error: None,
        after_seconds: None,
        storm: None,
        fights: Vec::new(),
        requests: requests.kept.iter().map(RequestRecord::of).collect(),
        requests_total: requests.total,
        recorded: None,
    }
}

impl RequestRecord {
    fn of(request: &PassRequest) -> Self {
        let (took, state, status) = match request.ended {
            None => (request.begun.elapsed(), "waiting", None),
            Some((took, RequestEnd::Answered(status))) => (took, "answered", Some(status)),
            Some((took, RequestEnd::Failed)) => (took, "failed", None),
            Some((took, RequestEnd::Dropped)) => (took, "dropped", None),
        };
        Self {
            verb: request.verb,
            resource: request.resource(),
            object: request.object(),
            seconds: took.as_secs_f64(),
            state,
            status,
        }
    }
}

fn cut(text: &str) -> Box<str> {
    text[..text.floor_char_boundary(MAX_TEXT)].into()
}

/// The time of an instant in the past, in RFC 3339.
fn time_of(instant: Instant) -> String {
    let age = instant.elapsed();
    now().checked_sub(age).map_or_else(|_| String::new(), |time| format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, queue::Cause};

    fn begin(log: &PassLog, name: &str) -> LoggedPass {
        let pass = CurrentPass::begin(&"web".into(), &Key::new("shop", name).into(), true);
        log.begin(&pass, &Arc::new(Cause::resync().into()), Some("a.json".into()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_runs_until_it_is_dropped_and_is_then_kept_with_its_result() {
        let log = PassLog::default();
        let mut failing = begin(&log, "a");
        let _running = begin(&log, "b");
        drop(begin(&log, "c"));
        tokio::time::advance(Duration::from_secs(3)).await;
        failing.set_result(&Err(Error::from("x".repeat(2000))));
        failing.set_storm("reconciled 20 times");
        (0..9).for_each(|n| failing.add_fight(&format!("{n}{}", "é".repeat(400))));
        drop(failing);
        let running = log.running();
        assert_eq!((running.len(), &*running[0].key, running[0].result), (1, "shop/b", None));
        assert_eq!(running[0].causes, "resync");
        let finished = log.finished(10, |_, _| true);
        let [failed, lost] = &finished[..] else { panic!("{finished:?}") };
        assert_eq!((&*failed.key, failed.result, failed.seconds), ("shop/a", Some("error"), 3.0));
        assert_eq!(failed.error.as_ref().map(|error| error.len()), Some(MAX_TEXT));
        assert_eq!((failed.storm.as_deref(), failed.fights.len()), (Some("reconciled 20 times"), MAX_FIGHTS));
        assert!(failed.fights.iter().all(|fight| fight.len() <= MAX_TEXT), "{failed:?}");
        assert_eq!((&*lost.key, lost.result), ("shop/c", Some("lost")));
        assert_eq!([failed, lost].map(|pass| pass.recorded.as_deref()), [Some("a.json"); 2]);
        assert_eq!(log.finished(10, |_, key| key.name == "c").len(), 1);
    }

    #[tokio::test]
    async fn only_the_last_thousand_finished_passes_are_kept() {
        let log = PassLog::default();
        (0..MAX_FINISHED + 5).for_each(|n| drop(begin(&log, &n.to_string())));
        let finished = log.finished(usize::MAX, |_, _| true);
        assert_eq!(finished.len(), MAX_FINISHED);
        assert_eq!(finished[0].key, format!("shop/{}", MAX_FINISHED + 4));
        assert_eq!(finished[MAX_FINISHED - 1].key, "shop/5");
    }

    #[tokio::test]
    async fn the_last_failed_pass_of_a_key_is_kept_until_the_key_succeeds_or_a_thousand_others_fail() {
        let log = PassLog::default();
        let end = |name: &str, result: &Result<Outcome>| begin(&log, name).set_result(result);
        let failed = |text: &str| Err(Error::from(text.to_owned()));
        let errors = |name: &str| {
            let finished = log.finished(usize::MAX, |_, key| key.name == name);
            finished
                .iter()
                .map(|pass| pass.error.as_deref().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        for text in ["first", "second"] {
            end("a", &failed(text));
        }
        end("b", &failed("once"));
        assert_eq!(errors("a"), ["second", "first"]);
        (0..MAX_FINISHED).for_each(|_| end("busy", &Ok(Outcome::done())));
        assert_eq!((errors("a"), errors("b")), (vec!["second".into()], vec!["once".into()]));
        assert_eq!(log.summaries().len(), MAX_FINISHED);
        end("a", &Ok(Outcome::done()));
        (0..MAX_FINISHED).for_each(|_| end("busy", &Ok(Outcome::done())));
        assert_eq!(errors("a"), [""; 0]);
        (0..MAX_FAILING).for_each(|n| end(&format!("other-{n}"), &failed("x")));
        assert_eq!(errors("b"), [""; 0]);
        assert_eq!(errors("other-0"), ["x"]);
    }
}
