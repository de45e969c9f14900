//! The causes for which a key is queued: what its next pass is for.
//!
//! They are shown on the span and the log lines of the pass, and counted. Reconcilers do not get them: a pass acts on the
//! state that it finds, whatever has changed, so that it is right also after a change that nobody reported.
//!
//! A key is *prompted* if one of its causes came from outside of this process, or continues a pass that was prompted, such as its
//! retry or its own write; or if its object has a generation that its status does not show yet. The brake paces the changes
//! of all others. A cause is *external* if this process did not cause it at all: only then does a storm end.

use std::{fmt, sync::Arc};

use reknit_apis::Key;
use reknit_injection::{
    Cached, Change, Informer,
    internal::{CurrentPass, Writers, is_initial},
};

use super::{
    change::StateChange,
    source::{DeletedChild, Source, resource_of},
};

/// The maximum number of causes that a queued key keeps. Of further ones, only the number is kept.
const MAX_CAUSES: usize = 16;

/// The maximum length of the text of a cause in bytes.
const MAX_TEXT: usize = 200;

/// A cause for which a key is queued.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// The object of the key changed.
    Object(StateChange),
    /// Another object changed. The key is `namespace/name`, or `name` without a namespace.
    Other { source: Arc<Source>, key: Arc<str>, change: StateChange },
    /// A Kind that the key uses was listed, cannot be listed, or is served in another way.
    Kind(Arc<str>),
    /// A ConfigMap changed, by this pass, if the handler of the change ran in one.
    Config(&'static str, Option<Arc<CurrentPass>>),
    /// The key was added when the controller was built.
    Start,
    /// A resync of all keys, or of some, and the pass that called [`Queue::resync`](crate::Queue::resync).
    Resync(Option<Arc<CurrentPass>>),
    /// This process leads the key now, or leads it no longer.
    Leadership,
    /// The wait of [`Outcome::after`](crate::Outcome::after) or [`Queue::add_after`](crate::Queue::add_after) is over. It is
    /// external if `add_after` was called outside of a pass, and long if a second or more was asked for, however long the key was
    /// queued after that.
    After { is_external: bool, is_long: bool },
    /// The last pass failed. It is long if the backoff was a second or more.
    Retry { number: u32, error: Arc<str>, is_long: bool },
    /// [`Queue::add`](crate::Queue::add), with the reason of the caller, and the pass that called it.
    Queue(Option<Arc<str>>, Option<Arc<CurrentPass>>),
}

impl Cause {
    /// The first list of this informer, or its end.
    pub(crate) fn kind_of<T: Cached>(informer: &Informer<T>) -> Self {
        Self::Kind(resource_of(informer).into())
    }

    /// The change of another object.
    pub(crate) fn other<T: Cached>(source: &Arc<Source>, change: &Change<T>) -> Self {
        let meta = change.latest().meta();
        let name = meta.name.as_deref().unwrap_or_default();
        let key = meta
            .namespace
            .as_ref()
            .map_or_else(|| name.into(), |namespace| format!("{namespace}/{name}").into());
        Self::Other { source: source.clone(), key, change: StateChange::of_change(change) }
    }

    /// The change of a child of this name.
    #[cfg(test)]
    pub(crate) fn child(name: &str, change: StateChange) -> Self {
        let source = Source::of(Source::OWNED, "deployments.apps");
        Self::Other { source, key: format!("shop/{name}").into(), change }
    }

    pub(crate) fn retry(number: u32, error: &str, is_long: bool) -> Self {
        Self::Retry { number, error: bounded(error), is_long }
    }

    /// The change of a ConfigMap, by the pass that the current task runs, if any.
    pub(crate) fn config(name: &'static str) -> Self {
        Self::Config(name, CurrentPass::get())
    }

    /// A resync, by the pass that the current task runs, if any.
    pub(crate) fn resync() -> Self {
        Self::Resync(CurrentPass::get())
    }

    /// An add to the queue, by the pass that the current task runs, if any.
    pub(crate) fn queue(reason: Option<&str>) -> Self {
        Self::Queue(reason.map(bounded), CurrentPass::get())
    }

    /// The label of the cause in the metrics, and the resource or the ConfigMap that it comes from.
    pub(crate) fn labels(&self) -> [&str; 2] {
        match self {
            Self::Object(_) => ["object", ""],
            Self::Other { source, .. } => [source.relation, &source.resource],
            Self::Kind(resource) => ["kind", resource],
            Self::Config(name, _) => ["config", name],
            Self::Start => ["start", ""],
            Self::Resync(_) => ["resync", ""],
            Self::Leadership => ["leadership", ""],
            Self::After { .. } => ["after", ""],
            Self::Retry { .. } => ["retry", ""],
            Self::Queue(..) => ["queue", ""],
        }
    }

    /// The change of an object that is the cause.
    fn change(&self) -> Option<&StateChange> {
        match self {
            Self::Object(change) | Self::Other { change, .. } => Some(change),
            _ => None,
        }
    }

    fn change_mut(&mut self) -> Option<&mut StateChange> {
        match self {
            Self::Object(change) | Self::Other { change, .. } => Some(change),
            _ => None,
        }
    }

    /// Finds the pass that made the change, if it is known by now.
    fn find_writer(&mut self, writers: &Writers) {
        if let Some(change) = self.change_mut() {
            change.find_writer(writers);
        }
    }

    /// Returns true if the cause, other than a change of an object, is prompted by what user code follows now.
    pub(super) fn is_prompted_now(&self) -> bool {
        matches!(self, Self::Config(..) | Self::Queue(..)) && is_user_prompted()
    }

    /// Returns true unless only this process led to the cause.
    fn is_external(&self) -> bool {
        let (any_number, with_answers) = (0, false);
        self.in_a_row(any_number, with_answers).is_none()
    }

    /// The number of passes in a row up to the one that led to this cause, if only this process caused them. `None` for a
    /// cause from outside. `last` is the number of the last pass of the key. If `with_answers`, changes of other
    /// clients to an object that this process has changed too are none from outside. A retry does not lower the number.
    fn in_a_row(&self, last: u32, with_answers: bool) -> Option<u32> {
        let pass = match self {
            Self::Object(change) | Self::Other { change, .. } if with_answers => change.last_writer(),
            Self::Object(change) | Self::Other { change, .. } => change.only_writer(),
            Self::Queue(_, pass) | Self::Resync(pass) | Self::Config(_, pass) => pass.as_ref(),
            Self::After { is_external: false, .. } => return Some(last),
            Self::Retry { .. } => return Some(u32::MAX),
            Self::After { is_external: true, .. } | Self::Kind(_) | Self::Start | Self::Leadership => None,
        };
        pass.map(|pass| pass.in_a_row())
    }

    /// Returns true if the cause is the end of a wait that is meant.
    fn is_long_wait(&self) -> bool {
        matches!(self, Self::After { is_long: true, .. } | Self::Retry { is_long: true, .. })
    }

    /// Returns true if the other cause differs only in the state, so that the later one replaces the earlier one.
    fn is_repeated_by(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Other { source, key, .. }, Self::Other { source: other_source, key: other_key, .. }) => {
                source == other_source && key == other_key
            }
            (Self::Kind(name), Self::Kind(other)) => name == other,
            (Self::Config(name, _), Self::Config(other, _)) => name == other,
            (Self::Queue(reason, _), Self::Queue(other, _)) => reason == other,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// Returns true if what user code does now is prompted: within a pass it continues the pass, and elsewhere it follows
/// something outside of the process, unless it handles an object that is not new.
pub(super) fn is_user_prompted() -> bool {
    CurrentPass::get().map_or_else(|| !is_initial(), |pass| pass.is_prompted())
}

fn bounded(text: &str) -> Arc<str> {
    text[..text.floor_char_boundary(MAX_TEXT)].into()
}

/// The merged causes of a queued key. One cause needs no allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Causes {
    first: Option<Cause>,
    others: Vec<Cause>,
    /// The number of causes beyond the maximum.
    not_kept: u32,
    /// True if a cause that is not kept came from outside.
    is_external: bool,
    /// True if a cause that is not kept was a prompt, or one that continues a pass continues a prompted one.
    is_prompted: bool,
}

#[cfg(test)]
impl From<Cause> for Causes {
    fn from(cause: Cause) -> Self {
        Self { first: Some(cause), ..Self::default() }
    }
}

impl Causes {
    /// Adds a cause. If it repeats one, it replaces that one. `prompted`: the cause continues a pass that was prompted.
    pub(super) fn add(&mut self, mut cause: Cause, prompted: bool, writers: &Writers) {
        self.is_prompted |= prompted;
        cause.find_writer(writers);
        let mut kept = self.first.iter_mut().chain(&mut self.others);
        if let Some(earlier) = kept.find(|earlier| earlier.is_repeated_by(&cause)) {
            if let (Some(change), Some(earlier)) = (cause.change_mut(), earlier.change_mut()) {
                change.follow(earlier, writers);
            } else {
                self.is_external |= earlier.is_external();
            }
            *earlier = cause;
        } else if self.first.is_none() {
            self.first = Some(cause);
        } else if self.others.len() < MAX_CAUSES - 1 {
            self.others.reserve_exact(usize::from(self.others.is_empty())); // few keys have more than two
            self.others.push(cause);
        } else {
            self.not_kept = self.not_kept.saturating_add(1);
            self.is_external |= cause.is_external();
            self.is_prompted |= cause.change().is_some_and(StateChange::is_prompt);
        }
    }

    /// Adds other causes.
    pub(super) fn merge(&mut self, other: Self, writers: &Writers) {
        self.is_prompted |= other.is_prompted;
        self.is_external |= other.is_external;
        self.not_kept = self.not_kept.saturating_add(other.not_kept);
        other.first.into_iter().chain(other.others).for_each(|cause| self.add(cause, false, writers));
    }

    /// Finds the passes that made the changes, of which more are known than when the causes were added.
    pub(super) fn find_writers(&mut self, writers: &Writers) {
        self.first.iter_mut().chain(&mut self.others).for_each(|cause| cause.find_writer(writers));
    }

    /// Returns true if one of the causes came from outside of this process, or continues a pass that was prompted.
    pub(crate) fn is_prompted(&self) -> bool {
        self.is_prompted || self.iter().filter_map(Cause::change).any(StateChange::is_prompt)
    }

    /// The passes of this process that made the changes.
    pub(crate) fn writers(&self) -> Vec<Arc<CurrentPass>> {
        self.iter().filter_map(|cause| cause.change()?.writer().cloned()).collect()
    }

    /// The number of passes in a row up to those that led to these causes, if only this process caused them. `None` if one
    /// of the causes came from outside, or all are retries. `last` is the number of the last pass of the key. If
    /// `with_answers`, changes of other clients to an object that this process has changed too are none from outside.
    pub(super) fn in_a_row(&self, last: u32, with_answers: bool) -> Option<u32> {
        if self.is_external || self.is_empty() || self.is_retry() {
            return None;
        }
        let mut each = self.iter().map(|cause| cause.in_a_row(last, with_answers));
        each.try_fold(u32::MAX, |least, n| Some(least.min(n?)))
    }

    /// Returns true if one of the causes is from outside, and is no change of an object, whose writer may yet become known.
    pub(super) fn is_certainly_external(&self) -> bool {
        let is_other_external = |cause: &Cause| cause.change().is_none() && cause.is_external();
        self.is_external || self.is_empty() || self.iter().any(is_other_external)
    }

    /// The children that other clients have deleted.
    pub(crate) fn deleted_children(&self) -> impl Iterator<Item = DeletedChild<'_>> {
        self.iter().filter_map(|cause| match cause {
            Cause::Other { source, key, change }
                if source.relation == Source::OWNED && change.is_deletion_by_others() =>
            {
                let Source { resource, can_be_left, .. } = &**source;
                Some(DeletedChild { resource, key, may_have_left: *can_be_left })
            }
            _ => None,
        })
    }

    /// Returns true if one of these causes, other than a retry or a long wait, repeats one of the others.
    pub(super) fn repeats(&self, others: &Self) -> bool {
        let can_repeat = |cause: &&Cause| !cause.is_long_wait() && !matches!(cause, Cause::Retry { .. });
        let mut causes = self.iter().filter(can_repeat);
        causes.any(|cause| others.iter().any(|other| other.is_repeated_by(cause)))
    }

    /// Returns true if the end of a long wait, or of a long backoff, is the only cause.
    pub(super) fn is_long_wait(&self) -> bool {
        self.iter().all(Cause::is_long_wait)
    }

    /// Returns true if the end of a long wait, or of a long backoff, is one of the causes.
    pub(super) fn has_long_wait(&self) -> bool {
        self.iter().any(Cause::is_long_wait)
    }

    /// Returns true if a pass of the key has made one of the changes.
    pub(super) fn follow_pass_of(&self, key: &Key) -> bool {
        let mut changes = self.iter().filter_map(Cause::change);
        changes.any(|change| change.last_writer().is_some_and(|pass| *pass.key == *key))
    }

    /// Returns true if a retry is the only cause.
    pub(super) fn is_retry(&self) -> bool {
        let is_retry = |cause: &Cause| matches!(cause, Cause::Retry { .. });
        !self.is_external && !self.is_empty() && self.iter().all(is_retry)
    }

    /// Declares the pass to be prompted, for a reason that is not among the causes.
    pub(crate) fn set_prompted(&mut self) {
        self.is_prompted = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Cause> {
        self.first.iter().chain(&self.others)
    }
}

/// Formats as `the object changed (12: spec); services default/web deleted by pass 7 of foos default/a, tracked; and 3
/// more`, and in the alternate form without numbers of passes.
impl fmt::Display for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, cause) in self.iter().enumerate() {
            f.write_str(if n > 0 { "; " } else { "" })?;
            cause.fmt(f)?;
        }
        match self.not_kept {
            0 => Ok(()),
            not_kept => write!(f, "; and {not_kept} more"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(change) => {
                f.write_str("the object ")?;
                change.fmt(f)
            }
            Self::Other { source, key, change } => {
                write!(f, "{} {key} ", source.resource)?;
                change.fmt(f)?;
                write!(f, ", {}", source.relation)
            }
            Self::Kind(kind) => write!(f, "the state of the Kind {kind} changed"),
            Self::Config(name, _) => write!(f, "{name} changed"),
            Self::Start => f.write_str("start"),
            Self::Resync(_) => f.write_str("resync"),
            Self::Leadership => f.write_str("leadership changed"),
            Self::After { .. } => f.write_str("after a wait"),
            Self::Retry { number, error, .. } => write!(f, "retry {number} after: {error}"),
            Self::Queue(None, _) => f.write_str("added to the queue"),
            Self::Queue(Some(reason), _) => write!(f, "added to the queue: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use reknit_injection::internal::WrittenState;

    use super::*;

    fn object(version: &str) -> Cause {
        Cause::Object(StateChange::to(Some(version)))
    }

    fn service(name: &str) -> Cause {
        let source = Source::of(Source::TRACKED, "services");
        Cause::Other { source, key: format!("default/{name}").into(), change: StateChange::to(None) }
    }

    fn add(causes: &mut Causes, cause: Cause) {
        causes.add(cause, false, &Writers::default());
    }

    /// Returns a cause of the next variant. A new variant needs an arm here, a row in docs/debugging.md, and a row in
    /// tests/integration/causes.rs.
    fn next(cause: &Cause) -> Option<Cause> {
        Some(match cause {
            Cause::Object(_) => service("a"),
            Cause::Other { .. } => Cause::Kind("services".into()),
            Cause::Kind(_) => Cause::config("config-a"),
            Cause::Config(..) => Cause::Start,
            Cause::Start => Cause::resync(),
            Cause::Resync(_) => Cause::Leadership,
            Cause::Leadership => Cause::After { is_external: false, is_long: false },
            Cause::After { .. } => Cause::retry(1, "no", false),
            Cause::Retry { .. } => Cause::queue(None),
            Cause::Queue(..) => return None,
        })
    }

    #[test]
    fn each_cause_has_a_row_in_the_docs() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/debugging.md");
        let docs = std::fs::read_to_string(docs).unwrap();
        let causes = std::iter::successors(Some(object("1")), next).map(|cause| cause.labels()[0].to_owned());
        let relations = [Source::OWNED, Source::WATCHED].map(str::to_owned);
        for label in causes.chain(relations) {
            assert!(docs.contains(&format!("\n| `{label}` |")), "{label}");
        }
    }

    #[test]
    fn a_prompt_is_not_lost_with_the_cause_that_is_not_kept() {
        let mut causes = Causes::default();
        add(&mut causes, Cause::Start);
        add(&mut causes, Cause::retry(1, "no", false));
        assert!(!causes.is_prompted());
        (0..20).for_each(|n| add(&mut causes, Cause::Kind(n.to_string().into())));
        assert!(!causes.is_prompted());
        add(&mut causes, object("1"));
        assert!(causes.is_prompted(), "the cause itself is only counted");
        let mut causes = Causes::default();
        causes.add(Cause::After { is_external: false, is_long: false }, true, &Writers::default());
        add(&mut causes, Cause::After { is_external: false, is_long: false });
        assert!(causes.is_prompted(), "it continues a prompted pass");
    }

    #[tokio::test]
    async fn a_deletion_counts_also_if_the_object_exists_again_but_not_one_by_this_process() {
        let writers = Writers::default();
        let mut causes = Causes::default();
        let changes = [StateChange::deletion("u"), StateChange::to(Some("2")), StateChange::to(Some("3"))];
        changes.into_iter().for_each(|change| causes.add(Cause::child("web", change), false, &writers));
        causes.find_writers(&writers);
        assert_eq!(causes.deleted_children().count(), 1, "{causes}");
        let pass = CurrentPass::begin(&"web".into(), &reknit_apis::Key::new("shop", "a").into(), false);
        pass.scope(async { writers.record(Some(WrittenState::deleted("u"))) }).await;
        causes.find_writers(&writers);
        assert_eq!(causes.deleted_children().count(), 0, "its response has arrived");
    }

    #[test]
    fn a_cause_is_made_with_few_allocations() {
        let mut map = k8s_openapi::api::core::v1::ConfigMap::default();
        (map.metadata.namespace, map.metadata.name) = (Some("shop".into()), Some("a".into()));
        let (change, source) = (Change::Added(Arc::new(map)), Source::of(Source::WATCHED, "configmaps"));
        let makes: [(&str, u64, &dyn Fn() -> Cause); 6] = [
            ("another object", 2, &|| Cause::other(&source, &change)),
            ("a Kind", 1, &|| Cause::Kind("services".into())),
            ("a wait", 0, &|| Cause::After { is_external: false, is_long: false }),
            ("a retry", 1, &|| Cause::retry(1, "no", false)),
            ("an add", 0, &|| Cause::queue(None)),
            ("an add for a reason", 1, &|| Cause::queue(Some("the probe ended"))),
        ];
        for (name, expected, make) in makes {
            let made = allocation_counter::measure(|| drop(make())).count_total;
            assert_eq!(made, expected, "{name}");
        }
    }

    #[test]
    fn a_cause_needs_no_allocation_and_a_repeated_one_replaces_it() {
        let (mut causes, writers) = (Causes::default(), Writers::default());
        let first = object("1");
        let allocations = allocation_counter::measure(|| causes.add(first, false, &writers));
        assert_eq!((causes.to_string().as_str(), allocations.count_total), ("the object changed (1)", 0));
        add(&mut causes, object("2"));
        assert_eq!((causes.to_string().as_str(), causes.others.is_empty()), ("the object changed (2)", true));
        (0..2).for_each(|_| add(&mut causes, service("a")));
        add(&mut causes, Cause::retry(3, "no", false));
        assert_eq!(
            causes.to_string(),
            "the object changed (2); services default/a deleted, tracked; retry 3 after: no"
        );
    }

    #[test]
    fn causes_beyond_sixteen_are_counted_and_texts_are_cut() {
        let mut causes = Causes::default();
        (0..20).for_each(|n| add(&mut causes, service(&n.to_string())));
        assert_eq!(causes.iter().count(), MAX_CAUSES);
        assert!(causes.to_string().ends_with("services default/15 deleted, tracked; and 4 more"), "{causes}");
        let Cause::Retry { error, .. } = Cause::retry(1, &"ä".repeat(1000), false) else { unreachable!() };
        assert_eq!(error.len(), MAX_TEXT);
    }
}
