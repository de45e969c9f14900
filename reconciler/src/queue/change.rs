//! The change of an object for which a key is queued, and the pass that made it.

use std::{fmt, sync::Arc};

use reknit_injection::{
    Cached, Change,
    internal::{CurrentPass, KeyEvent, Parts, Update, Writers, WrittenState, is_initial},
};

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) struct StateChange {
    kind: ChangeKind,
    /// The new state. `None` if its resourceVersion is not a number, if the uid of a deleted object is unknown, or if the
    /// state was read anew, for which no pass is responsible.
    state: Option<WrittenState>,
    /// The parts that changed.
    parts: Parts,
    /// True if the object was there before this process knew it.
    is_initial: bool,
    /// The pass of this process that made the change, once it is known.
    writer: Option<Arc<CurrentPass>>,
    /// The earlier changes of the same object since the key was queued, which this one replaces as a cause. They are few,
    /// and each cause is moved several times.
    before: Option<Box<ChangesBefore>>,
}

/// The changes of an object before the last one.
#[derive(Clone, Debug, Default)]
struct ChangesBefore {
    /// A pass of this process that made one of them.
    writer: Option<Arc<CurrentPass>>,
    /// The state of the last one whose writer is not known yet: the watch can report a write before its response
    /// arrives.
    unknown: Option<WrittenState>,
    /// True if another client made one of them.
    is_external: bool,
    /// True if one of them came from outside of this process, or continues a pass that was prompted.
    is_prompt: bool,
    /// The last deletion whose writer is not known.
    deletion: Option<WrittenState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeKind {
    Added,
    Changed,
    /// A list has brought other content of the same resourceVersion.
    Reread,
    Deleted,
}

impl StateChange {
    pub(crate) fn of(event: &KeyEvent<'_>) -> Self {
        Self::without_parts(event).with_parts_of(&Update::current())
    }

    /// The change of this event, whose parts may never be needed.
    pub(super) fn without_parts(event: &KeyEvent<'_>) -> Self {
        let kind = match (event.is_deleted(), event.is_added()) {
            (true, _) => ChangeKind::Deleted,
            (_, true) => ChangeKind::Added,
            _ => ChangeKind::Changed,
        };
        Self::new(kind, event.resource_version(), event.uid())
    }

    pub(crate) fn of_change<T: Cached>(change: &Change<T>) -> Self {
        let kind = match change {
            Change::Added(_) => ChangeKind::Added,
            Change::Updated { .. } => ChangeKind::Changed,
            Change::Deleted { .. } => ChangeKind::Deleted,
        };
        let meta = change.latest().meta();
        Self::new(kind, meta.resource_version.as_deref(), meta.uid.as_deref())
            .with_parts_of(&Update::current())
    }

    pub(super) fn with_parts_of(self, update: &Update) -> Self {
        Self { parts: update.parts(), ..self }
    }

    fn new(kind: ChangeKind, version: Option<&str>, uid: Option<&str>) -> Self {
        let kind = if kind == ChangeKind::Changed && Update::is_reread() { ChangeKind::Reread } else { kind };
        let state = match kind {
            ChangeKind::Deleted => uid.map(WrittenState::deleted),
            ChangeKind::Added | ChangeKind::Changed => version.and_then(WrittenState::version),
            ChangeKind::Reread => None,
        };
        Self { kind, state, parts: Parts::default(), is_initial: is_initial(), writer: None, before: None }
    }

    /// The change of an object to this resourceVersion, or its deletion if `None`.
    #[cfg(test)]
    pub(crate) fn to(version: Option<&str>) -> Self {
        Self::new(if version.is_some() { ChangeKind::Changed } else { ChangeKind::Deleted }, version, None)
    }

    /// The deletion of the object with this uid.
    #[cfg(test)]
    pub(crate) fn deletion(uid: &str) -> Self {
        Self::new(ChangeKind::Deleted, None, Some(uid))
    }

    /// The change of an object by this pass.
    #[cfg(test)]
    pub(crate) fn by(pass: &Arc<CurrentPass>) -> Self {
        Self { writer: Some(pass.clone()), ..Self::new(ChangeKind::Changed, None, None) }
    }

    /// Makes this the last change after an earlier one of the same object, whose writer may be known by now.
    pub(super) fn follow(&mut self, earlier: &mut Self, writers: &Writers) {
        if matches!(self.kind, ChangeKind::Changed | ChangeKind::Reread) {
            self.parts = self.parts.and(earlier.parts);
        }
        earlier.find_writer(writers);
        let before = self.before.get_or_insert_default();
        if let Some(earlier) = &earlier.before {
            before.is_external |= earlier.is_external;
            before.is_prompt |= earlier.is_prompt;
            before.deletion = before.deletion.or(earlier.deletion);
            earlier.unknown.iter().for_each(|state| before.add_unknown(*state));
        }
        if earlier.kind == ChangeKind::Deleted && earlier.writer.is_none() {
            before.deletion = earlier.state.or(before.deletion);
        }
        match (&earlier.writer, earlier.state.filter(|_| !earlier.is_initial)) {
            (Some(pass), _) => before.is_prompt |= pass.is_prompted(),
            (None, Some(state)) => before.add_unknown(state),
            (None, None) => {
                before.is_external = true;
                before.is_prompt |= !earlier.is_initial;
            }
        }
        if before.writer.is_none() {
            before.writer = earlier.last_writer().cloned();
        }
    }

    /// Finds the passes that made the changes, if they are known by now.
    pub(super) fn find_writer(&mut self, writers: &Writers) {
        if let Some(state) = self.state.filter(|_| self.writer.is_none()) {
            self.writer = writers.of(state);
        }
        if self.writer.is_some()
            && let Some(overtaken) = self.state.and_then(|state| writers.overtaken_by(state))
        {
            self.before.get_or_insert_default().add_unknown(overtaken);
        }
        if let Some(before) = &mut self.before
            && let Some(pass) = before.unknown.and_then(|state| writers.of(state))
        {
            before.is_prompt |= pass.is_prompted();
            (before.writer, before.unknown) = (Some(pass), None);
        }
        if let Some(before) = &mut self.before {
            before.deletion = before.deletion.filter(|state| writers.of(*state).is_none());
        }
    }

    /// The pass that made the change, if it is known.
    pub(super) fn writer(&self) -> Option<&Arc<CurrentPass>> {
        self.writer.as_ref()
    }

    /// Returns true if another client has deleted the object, also if it was created again since.
    pub(super) fn is_deletion_by_others(&self) -> bool {
        let is_deleted = self.kind == ChangeKind::Deleted && self.writer.is_none();
        is_deleted || self.before.as_ref().is_some_and(|before| before.deletion.is_some())
    }

    /// The pass that made the change, unless another client made one of those before.
    pub(super) fn only_writer(&self) -> Option<&Arc<CurrentPass>> {
        self.writer.as_ref().filter(|_| !self.before.as_ref().is_some_and(|before| before.has_external()))
    }

    /// The last known pass that made one of the changes, also if other clients made others.
    pub(super) fn last_writer(&self) -> Option<&Arc<CurrentPass>> {
        self.writer.as_ref().or_else(|| self.before.as_ref()?.writer.as_ref())
    }

    /// Returns true if one of the changes came from outside of this process, or continues a pass that was prompted.
    pub(super) fn is_prompt(&self) -> bool {
        let is_last = self.writer.as_ref().map_or(!self.is_initial, |writer| writer.is_prompted());
        is_last || self.before.as_ref().is_some_and(|before| before.has_prompt())
    }
}

impl ChangesBefore {
    /// Adds a state whose writer is not known. Of two such states, one counts as a change of another client.
    fn add_unknown(&mut self, state: WrittenState) {
        if self.unknown.get_or_insert(state) != &state {
            (self.is_external, self.is_prompt) = (true, true);
        }
    }

    /// Returns true if another client made one of the changes, as far as is known.
    fn has_external(&self) -> bool {
        self.is_external || self.unknown.is_some()
    }

    /// Returns true if one of the changes is a prompt, as far as is known.
    fn has_prompt(&self) -> bool {
        self.is_prompt || self.unknown.is_some()
    }
}

impl fmt::Display for StateChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ChangeKind::Added => "added",
            ChangeKind::Changed => "changed",
            ChangeKind::Reread => "listed again with other content of the same resourceVersion",
            ChangeKind::Deleted => "deleted",
        })?;
        match self.state {
            Some(WrittenState::Version(version)) if self.parts.is_empty() => write!(f, " ({version})")?,
            Some(WrittenState::Version(version)) => write!(f, " ({version}: {})", self.parts)?,
            None if self.kind == ChangeKind::Reread => write!(f, " ({})", self.parts)?,
            _ => {}
        }
        match &self.writer {
            Some(pass) if f.alternate() => write!(f, " by {} {}", pass.controller, pass.key),
            Some(pass) => write!(f, " by pass {} of {} {}", pass.number, pass.controller, pass.key),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use reknit_apis::Key;

    use super::{
        super::{Causes, cause::Cause},
        *,
    };

    /// Records the response to the write of a pass that led to this version.
    async fn respond(writers: &Writers, version: &str) {
        let pass = CurrentPass::begin(&"web".into(), &Key::new("shop", "a").into(), false);
        pass.scope(async { writers.record(WrittenState::version(version)) }).await;
    }

    fn overtake(writers: &Writers, earlier: &str, later: &str) {
        writers.record_overtaken(WrittenState::version(earlier), WrittenState::version(later));
    }

    /// Adds the change of an object to this version.
    fn add(causes: &mut Causes, version: &str, writers: &Writers) {
        causes.add(Cause::Object(StateChange::to(Some(version))), false, writers);
    }

    /// Returns whether the causes are prompts, and their passes in a row, once the writers that are known by now are found.
    fn find(causes: &mut Causes, writers: &Writers) -> (bool, Option<u32>) {
        causes.find_writers(writers);
        (causes.is_prompted(), causes.in_a_row(0, false))
    }

    const OWN: (bool, Option<u32>) = (false, Some(0));
    const FROM_OUTSIDE: (bool, Option<u32>) = (true, None);

    #[tokio::test]
    async fn changes_of_an_object_are_attributed_once_the_responses_to_its_writes_have_arrived() {
        let (writers, mut causes) = (Writers::default(), Causes::default());
        ["1", "2"].iter().for_each(|version| add(&mut causes, version, &writers));
        assert_eq!(find(&mut causes, &writers), FROM_OUTSIDE, "the writer is not known");
        assert_eq!(causes.in_a_row(0, true), None);
        respond(&writers, "2").await;
        assert_eq!(find(&mut causes.clone(), &writers), FROM_OUTSIDE);
        let mut with_last = causes.clone();
        with_last.find_writers(&writers);
        assert_eq!(with_last.in_a_row(0, true), Some(0), "another client has changed it too");
        respond(&writers, "1").await;
        assert_eq!(find(&mut causes, &writers), OWN);
        add(&mut causes, "3", &writers);
        assert_eq!(find(&mut causes, &writers), FROM_OUTSIDE);
    }

    #[tokio::test]
    async fn an_own_change_is_one_also_if_two_others_follow_it_before_its_response_arrives() {
        let (writers, mut causes) = (Writers::default(), Causes::default());
        respond(&writers, "2").await;
        respond(&writers, "3").await;
        ["1", "2", "3"].iter().for_each(|version| add(&mut causes, version, &writers));
        assert_eq!(find(&mut causes, &writers), FROM_OUTSIDE);
        respond(&writers, "1").await;
        assert_eq!(find(&mut causes, &writers), OWN);
    }

    #[tokio::test]
    async fn a_change_that_a_write_has_overtaken_is_from_outside_unless_its_response_was_late() {
        let (writers, mut causes) = (Writers::default(), Causes::default());
        respond(&writers, "9").await;
        add(&mut causes, "9", &writers);
        assert_eq!(find(&mut causes, &writers), OWN);
        overtake(&writers, "8", "9");
        assert_eq!(find(&mut causes, &writers), FROM_OUTSIDE);
        assert_eq!(causes.in_a_row(0, true), Some(0), "it may be an answer");
        respond(&writers, "8").await;
        assert_eq!(find(&mut causes, &writers), OWN);
    }

    #[tokio::test]
    async fn a_change_from_outside_that_was_overtaken_is_found_beside_an_own_one() {
        let (writers, mut causes) = (Writers::default(), Causes::default());
        respond(&writers, "9").await;
        ["7", "8"].iter().for_each(|version| overtake(&writers, version, "9"));
        respond(&writers, "7").await;
        add(&mut causes, "9", &writers);
        assert_eq!(find(&mut causes, &writers), FROM_OUTSIDE);
    }

    #[tokio::test]
    async fn of_two_changes_from_outside_both_count() {
        let (writers, mut causes) = (Writers::default(), Causes::default());
        ["1", "2", "3"].iter().for_each(|version| add(&mut causes, version, &writers));
        respond(&writers, "3").await;
        assert_eq!(find(&mut causes, &writers), FROM_OUTSIDE);
        respond(&writers, "1").await;
        assert_eq!(find(&mut causes, &writers), FROM_OUTSIDE);
    }
}
