//! Recordings of passes: each holds the state that a pass read and its requests. A failed pass is written to a file,
//! from which a test runs it again.
//!
//! A recording keeps clones of the cached objects, which share their bytes with the cache. Nothing is decoded or
//! redacted before the pass has failed, and then on a thread for blocking work.

mod file;
mod folder;
mod reads;
mod redaction;
mod removed;

use std::{collections::BTreeSet, path::Path, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use reknit_apis::Key;

pub(crate) use self::reads::{ListScope, Reads, RequestSent};
use self::{file::FORMAT_VERSION, folder::Folder};
pub use self::{
    file::{ConfigMapData, ListRead, ObjectName, RecordedKind, RecordedPass, RecordedRequest},
    folder::read_recorded,
};
use crate::{Context, Inject, informer::redaction, redaction::Redaction};

/// The maximum size of a file in bytes, and about that of a recording in memory.
const MAX_BYTES: usize = 1 << 20;

/// The recording of one pass.
#[derive(Debug, Default)]
pub struct Recording(Mutex<Reads>);

impl Recording {
    /// Adds to the recording.
    pub(crate) fn add<T>(&self, add: impl FnOnce(&mut Reads) -> T) -> T {
        add(&mut self.0.lock())
    }
}

/// The facts about a pass that its reads do not show.
#[derive(Clone, Debug)]
pub struct PassFacts {
    /// The name of the controller.
    pub controller: Arc<str>,
    /// The key of the object.
    pub key: Arc<Key>,
    /// True if the process does not lead the key.
    pub is_following: bool,
    /// The time at which the pass began.
    pub time: Timestamp,
}

/// Decides whether passes are recorded, and where failed ones are written. Clones share one state.
#[derive(Clone, Debug)]
pub struct Recordings(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    component: String,
    system_namespace: Option<String>,
    redaction: Redaction,
    /// `None` if passes are not recorded.
    folder: RwLock<Option<Arc<Folder>>>,
    /// The recording of the pass that a test runs.
    of_test: Option<Arc<Recording>>,
}

impl Recordings {
    fn new(cx: &Context, of_test: Option<Arc<Recording>>) -> Self {
        Self(Arc::new(Shared {
            component: cx.component().into(),
            system_namespace: cx.system_namespace().map(Into::into),
            redaction: redaction(&cx.informers()).clone(),
            folder: RwLock::default(),
            of_test,
        }))
    }

    /// For tests: provides the Context with a recording, and returns what its passes read until the result is called.
    pub fn of_test(cx: &Context) -> impl FnOnce() -> RecordedPass + use<> {
        let recording = Arc::<Recording>::default();
        let recordings = Self::new(cx, Some(recording.clone()));
        cx.provide(recordings.clone());
        move || {
            let (key, time) = (Key::new(None, "").into(), Timestamp::UNIX_EPOCH);
            let facts = PassFacts { controller: "".into(), key, is_following: false, time };
            recordings.file(&facts, &recording, String::new(), false)
        }
    }

    /// Writes failed passes to this folder from now on. `None`: passes are no longer recorded.
    pub fn set_folder(&self, folder: Option<&Path>) {
        let mut current = self.0.folder.write();
        if current.as_ref().map(|current| current.path()) != folder {
            match folder {
                Some(folder) => tracing::info!(folder = %folder.display(), "failed passes are recorded"),
                None => tracing::info!("failed passes are no longer recorded"),
            }
            *current = folder.map(|path| Arc::new(Folder::new(path)));
        }
    }

    /// Returns the name of the newest file of a key, if this process has written it to the current folder and it still exists.
    pub fn last_file(&self, controller: &str, key: &Key) -> Option<String> {
        let folder = self.0.folder.read().clone()?;
        folder.files(|facts| &*facts.controller == controller && *facts.key == *key).pop_last()
    }

    /// Returns the names of the files that this process has written to the current folder and that still exist.
    pub fn files(&self) -> BTreeSet<String> {
        let folder = self.0.folder.read().clone();
        folder.map(|folder| folder.files(|_| true)).unwrap_or_default()
    }

    /// Begins the recording of a pass. `None` if passes are not recorded.
    pub fn begin(&self, facts: impl FnOnce() -> PassFacts) -> Option<RunningRecording> {
        let folder = self.0.folder.read().clone();
        let recording = match (&self.0.of_test, &folder) {
            (Some(recording), _) => recording.clone(),
            (None, Some(_)) => Arc::default(),
            (None, None) => return None,
        };
        let unfinished = Some((facts(), folder));
        Some(RunningRecording { recording, recordings: self.clone(), unfinished })
    }

    /// Returns the contents of the file, redacted.
    fn file(
        &self,
        facts: &PassFacts,
        recording: &Recording,
        result: String,
        was_dropped: bool,
    ) -> RecordedPass {
        let Shared { component, system_namespace, redaction, .. } = &*self.0;
        let mut pass = RecordedPass {
            format_version: FORMAT_VERSION,
            component: component.clone(),
            controller: facts.controller.to_string(),
            key: facts.key.to_string(),
            is_following: facts.is_following,
            time: facts.time,
            result,
            system_namespace: system_namespace.clone(),
            ..RecordedPass::default()
        };
        std::mem::take(&mut *recording.0.lock()).write_to(&mut pass, was_dropped);
        redaction.apply(&mut pass);
        pass.requests.retain(|request| !request.is_given_up);
        pass
    }
}

impl Inject for Recordings {
    fn inject(cx: &Context) -> Self {
        Self::new(cx, None)
    }
}

/// The recording of a running pass. If it is dropped before it is [finished](Self::finish), the pass was dropped, and
/// is written as a failed one is.
#[derive(Debug)]
pub struct RunningRecording {
    recording: Arc<Recording>,
    recordings: Recordings,
    unfinished: Option<(PassFacts, Option<Arc<Folder>>)>,
}

impl RunningRecording {
    /// Returns the recording, to which the reads of the pass are added.
    pub fn recording(&self) -> &Arc<Recording> {
        &self.recording
    }

    /// Returns the name of the file in which the pass is recorded if it fails.
    pub fn file_name(&self) -> Option<String> {
        let (facts, folder) = self.unfinished.as_ref()?;
        folder.as_ref().map(|_| folder::file_name(facts))
    }

    /// Ends the recording. A pass with an error is written. `was_dropped` says that the pass did not end by itself, so
    /// that it may have waited for the requests that have no answer.
    pub fn finish(mut self, error: Option<String>, was_dropped: bool) {
        match error {
            Some(error) => self.write(error, was_dropped),
            None => self.unfinished = None,
        }
    }

    fn write(&mut self, result: String, was_dropped: bool) {
        let Some((facts, Some(folder))) = self.unfinished.take() else { return };
        let (recordings, recording) = (self.recordings.clone(), self.recording.clone());
        let written = facts.clone();
        folder.write(written, Box::new(move || recordings.file(&facts, &recording, result, was_dropped)));
    }
}

impl Drop for RunningRecording {
    fn drop(&mut self) {
        self.write(
            "the pass was dropped: the key was no longer led, or the process was stopped".into(),
            true,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::FutureExt;
    use http::{Request, Response};
    use kube::{Client, client::Body};
    use tower::BoxError;

    use super::*;
    use crate::{client::record_exchanges, pass::CurrentPass};

    /// A client whose server does not answer.
    fn hanging() -> Client {
        let hang = |_: Request<Body>| pending::<Result<Response<Body>, BoxError>>();
        Client::new(tower::service_fn(hang), "default")
    }

    /// Gets these Namespaces one after another, and gives each request up.
    fn give_up(recording: &Arc<Recording>, names: &[&str]) {
        let transport = record_exchanges(&hanging().into());
        let pass = CurrentPass::begin(&"test".into(), &Key::new(None, "shop").into(), true);
        pass.record(recording);
        for name in names {
            let request = Request::get(format!("/api/v1/namespaces/{name}")).body(Body::empty()).unwrap();
            let transport = transport.clone();
            let sent = pass.clone().scope(async move { transport.send(request).await }).now_or_never();
            assert!(sent.is_none());
        }
    }

    #[tokio::test]
    async fn of_the_requests_without_an_answer_only_the_one_with_which_the_pass_was_dropped_is_in_the_file() {
        let recordings = Recordings::new(&Context::new("test", hanging()), None);
        for (was_dropped, expected) in [(true, &["/api/v1/namespaces/b"][..]), (false, &[])] {
            let recording = Arc::<Recording>::default();
            give_up(&recording, &["a", "b"]);
            let (key, time) = (Key::new(None, "shop").into(), Timestamp::UNIX_EPOCH);
            let facts = PassFacts { controller: "test".into(), key, is_following: false, time };
            let file = recordings.file(&facts, &recording, "failed".into(), was_dropped);
            let uris: Vec<_> = file.requests.iter().map(|request| &*request.uri).collect();
            assert_eq!(uris, expected, "{was_dropped}");
        }
    }
}
