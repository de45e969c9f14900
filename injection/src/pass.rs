//! The pass that the current task runs, for the layers below the reconciler.

use std::{
    fmt::Display,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use reknit_apis::Key;
use tokio::time::Instant;
use tracing::Span;

use crate::{
    client::PassRequests,
    fights::{FieldChange, Restored},
    recording::Recording,
    stack_question::StackQuestion,
};

tokio::task_local! {
    static CURRENT: Arc<CurrentPass>;
}

/// Adds links from the span of a pass to those of the passes that led to it, and keeps the ids of its span.
type LinkSpan = fn(&Span, &CurrentPass, &[Arc<CurrentPass>]);

/// Set once traces are exported.
static LINK_SPAN: OnceLock<LinkSpan> = OnceLock::new();

/// The number of passes that this process has begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// The number of passes in a row from which on their changes are described.
const MANY: u32 = 10;

/// One call of a reconciler for one key. Every request that the task of the pass makes belongs to it, whichever client it
/// goes through: a client polls the future of its layers in the task that awaits the response.
#[derive(derive_more::Debug)]
pub struct CurrentPass {
    /// The number of the pass in this process, from 1.
    pub number: u64,
    /// The name of the controller.
    pub controller: Arc<str>,
    /// The key of the object.
    pub key: Arc<Key>,
    /// The time at which the pass began.
    pub begun: Instant,
    /// The requests of the pass so far.
    pub requests: Mutex<PassRequests>,
    /// True if the pass has a cause from outside of this process, or its object has a generation that its status does not
    /// show yet. A change that another pass makes was not asked for by anybody.
    prompted: AtomicBool,
    /// Asks the pass for the stack on which it waits.
    pub stack: StackQuestion,
    /// The recording of the pass while it runs, if it is recorded. Not kept for longer, since the causes of later passes
    /// keep this pass.
    recording: OnceLock<Weak<Recording>>,
    /// The number of passes in a row that only this process caused, or clients that answered its writes, with this
    /// one. Zero if another cause came from outside.
    in_a_row: AtomicU32,
    /// The last change that it made, if it is one of many in a row.
    last_change: Mutex<Option<FieldChange>>,
    /// The fields that its writes have restored in fights.
    restored: Mutex<Vec<Restored>>,
    /// The number of objects that the pass has created, of Kinds that informers cache.
    creations: AtomicU32,
    /// The group and the resource of each object that a write has left as it was.
    no_op_writes: Mutex<Vec<[Box<str>; 2]>>,
    /// Counts the changes that the pass makes without being prompted.
    changes: OnceLock<Arc<AtomicU64>>,
    /// The ids of the trace and of the span, if the span is exported.
    pub span_ids: OnceLock<([u8; 16], [u8; 8])>,
    /// The causes of the pass, while it runs. Not kept for longer, since the causes of a pass name other passes.
    #[debug(skip)]
    causes: OnceLock<Weak<dyn Display + Send + Sync>>,
}

impl CurrentPass {
    /// Creates the next pass of this process.
    pub fn begin(controller: &Arc<str>, key: &Arc<Key>, prompted: bool) -> Arc<Self> {
        Arc::new(Self {
            number: BEGUN.fetch_add(1, Ordering::Relaxed) + 1,
            controller: controller.clone(),
            key: key.clone(),
            prompted: prompted.into(),
            changes: OnceLock::new(),
            span_ids: OnceLock::new(),
            causes: OnceLock::new(),
            begun: Instant::now(),
            requests: Mutex::default(),
            stack: StackQuestion::default(),
            recording: OnceLock::new(),
            in_a_row: AtomicU32::new(0),
            last_change: Mutex::default(),
            restored: Mutex::default(),
            creations: AtomicU32::new(0),
            no_op_writes: Mutex::default(),
        })
    }

    /// Records the pass, as long as the caller keeps the recording.
    pub fn record(&self, recording: &Arc<Recording>) {
        let _ = self.recording.set(Arc::downgrade(recording)); // a pass has one recording
    }

    /// Returns the recording of the pass that the current task runs, if it is recorded.
    pub(crate) fn recording() -> Option<Arc<Recording>> {
        CURRENT.try_with(|pass| pass.recording.get()?.upgrade()).ok().flatten()
    }

    /// Exports the spans of passes with links that this function adds.
    pub fn link_spans(link: LinkSpan) {
        _ = LINK_SPAN.set(link);
    }

    /// Links the span of this pass with those of the passes that led to it.
    pub fn link_span(&self, span: &Span, writers: impl FnOnce() -> Vec<Arc<Self>>) {
        if let Some(link) = LINK_SPAN.get() {
            link(span, self, &writers());
        }
    }

    /// Sets the causes, which the caller keeps while the pass runs.
    pub fn set_causes(&self, causes: Weak<dyn Display + Send + Sync>) {
        _ = self.causes.set(causes);
    }

    /// Returns the causes of the running pass.
    pub fn causes(&self) -> Option<Arc<dyn Display + Send + Sync>> {
        self.causes.get()?.upgrade()
    }

    /// Returns true if the pass has a cause from outside of this process, or its object has a generation that its status
    /// does not show yet.
    pub fn is_prompted(&self) -> bool {
        self.prompted.load(Ordering::Relaxed)
    }

    /// Declares the pass to be prompted, before it makes a change.
    pub fn set_prompted(&self) {
        self.prompted.store(true, Ordering::Relaxed);
    }

    /// Makes the changes count here, unless the pass is prompted.
    pub fn count_changes_in(&self, counter: &Arc<AtomicU64>) {
        _ = self.changes.set(counter.clone());
    }

    /// Counts a change that the pass made.
    pub fn count_change(&self) {
        if let Some(counter) = self.changes.get().filter(|_| !self.is_prompted()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the pass that the current task runs. `None` outside of passes, and in tasks that a pass has spawned.
    pub fn get() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// The number of passes in a row that only this process caused, with this one.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row.load(Ordering::Relaxed)
    }

    /// Sets the number of passes in a row that only this process caused.
    pub fn set_in_a_row(&self, passes: u32) {
        self.in_a_row.store(passes, Ordering::Relaxed);
    }

    /// Keeps a description of the change, if the pass is one of many in a row.
    pub(crate) fn set_last_change(&self, describe: impl FnOnce() -> Option<FieldChange>) {
        if self.in_a_row() >= MANY
            && let Some(change) = describe()
        {
            *self.last_change.lock() = Some(change);
        }
    }

    /// Returns a description of the last change that the pass made, if it is one of many in a row.
    pub fn last_change(&self) -> Option<FieldChange> {
        self.last_change.lock().clone()
    }

    pub(crate) fn add_restored(&self, restored: Restored) {
        self.restored.lock().push(restored);
    }

    /// Removes and returns the fields that the writes of the pass have restored in fights.
    pub fn take_restored(&self) -> Vec<Restored> {
        std::mem::take(&mut *self.restored.lock())
    }

    /// Counts an object that the pass has created.
    pub fn count_creation(&self) {
        self.creations.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of objects that the pass has created, of Kinds that informers cache.
    pub fn creations(&self) -> u32 {
        self.creations.load(Ordering::Relaxed)
    }

    pub(crate) fn add_no_op_write(&self, resource: [&str; 2]) {
        self.no_op_writes.lock().push(resource.map(Into::into));
    }

    /// Removes and returns the group and the resource of each object that a write of the pass has left as it was.
    pub fn take_no_op_writes(&self) -> Vec<[Box<str>; 2]> {
        std::mem::take(&mut *self.no_op_writes.lock())
    }

    /// Runs the future of the pass.
    pub fn scope<F: Future>(self: Arc<Self>, pass: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pass_that_has_ended_does_not_keep_its_recording() {
        let pass = CurrentPass::begin(&"web".into(), &Key::new("shop", "a").into(), true);
        let recording = Arc::<Recording>::default();
        pass.record(&recording);
        let is_recorded = || pass.clone().scope(async { CurrentPass::recording().is_some() });
        assert!(is_recorded().await);
        drop(recording);
        assert!(!is_recorded().await);
    }

    #[tokio::test]
    async fn a_pass_is_known_within_its_future_and_nowhere_else() {
        let pass = CurrentPass::begin(&"web".into(), &Key::new("shop", "a").into(), true);
        let number = pass.number;
        let within = pass.scope(async {
            tokio::task::yield_now().await;
            CurrentPass::get().map(|pass| (pass.number, pass.key.to_string()))
        });
        assert_eq!(within.await, Some((number, "shop/a".into())));
        assert!(CurrentPass::get().is_none());
    }
}
