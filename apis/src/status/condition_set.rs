//! The conditions that decide whether an object is ready, and the rules for setting them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    condition::{Condition, ConditionStatus, Severity},
    duck::{DuckShaped, DuckStatus},
};
use crate::environment::now;

/// The reason of the top condition for a new generation, until the reconcile marks a condition.
const NEW_GENERATION_REASON: &str = "NewObservedGenFailure";

/// The conditions that decide whether an object is ready: the top condition, and the dependents that must all be True
/// for it to be True.
///
/// ```
/// use reknit_apis::ConditionSet;
///
/// /// For an object that runs until it is deleted. The top condition is `Ready`.
/// const SERVICE: ConditionSet = ConditionSet::living(&["RoutesReady", "ConfigurationsReady"]);
/// /// For an object that completes. The top condition is `Succeeded`.
/// const BUILD: ConditionSet = ConditionSet::batch(&["Fetched"]);
///
/// assert_eq!((SERVICE.top(), BUILD.top()), ("Ready", "Succeeded"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ConditionSet {
    top: &'static str,
    dependents: &'static [&'static str],
}

impl ConditionSet {
    /// Creates a set whose top condition is `Ready`. As in Knative, a repeated dependent counts once, and the top
    /// condition does not count as a dependent.
    pub const fn living(dependents: &'static [&'static str]) -> Self {
        Self { top: "Ready", dependents }
    }

    /// Creates a set whose top condition is `Succeeded`. Dependents count as in [`living`](Self::living).
    pub const fn batch(dependents: &'static [&'static str]) -> Self {
        Self { top: "Succeeded", dependents }
    }

    /// The type of the top condition.
    pub const fn top(&self) -> &'static str {
        self.top
    }

    /// The types that must all be True for the top to be True.
    pub const fn dependents(&self) -> &'static [&'static str] {
        self.dependents
    }

    /// Returns the conditions of this status, to be set by the rules of this set.
    pub fn manage<'a>(&self, status: &'a mut impl DuckShaped) -> Conditions<'a> {
        Conditions { set: *self, duck: status.duck_mut() }
    }

    /// The number of dependents, without repeated ones and the top condition.
    fn dependent_count(&self) -> usize {
        let is_counted =
            |(index, kind): &(usize, &&str)| **kind != self.top && !self.dependents[..*index].contains(*kind);
        self.dependents.iter().enumerate().filter(is_counted).count()
    }

    /// Returns true if the condition is the top condition or a dependent. Knative calls these terminal.
    fn is_terminal(&self, kind: &str) -> bool {
        kind == self.top || self.dependents.contains(&kind)
    }

    fn severity(&self, kind: &str) -> Severity {
        if self.is_terminal(kind) { Severity::Error } else { Severity::Info }
    }
}

/// The conditions of a status, set by the rules of their [`ConditionSet`].
///
/// Setting a condition to its current value changes nothing, not even its `lastTransitionTime`. Any other value sets
/// `lastTransitionTime` to now. The top condition follows its dependents: it is False if any is False, otherwise
/// Unknown if any is Unknown, and True if all are True. The list is sorted by type.
///
/// A False top has the reason and message of the dependent that was marked False last. When a dependent becomes True,
/// the top takes them from the False dependent with the newest `lastTransitionTime`. Of dependents that changed in the
/// same second, the one that the top shows already is kept, so a repeated reconcile does not change the reason. (In
/// Knative's Go library it does: stored times have whole seconds, and among equal times the first type is taken.) The
/// same holds for an Unknown top.
///
/// Conditions outside the set get the severity `Info` and do not affect the top condition. As in Knative, every stored
/// condition without a severity counts as a dependent. So [remove](Self::remove_condition) a condition that a newer
/// version of your controller no longer has in its set.
///
/// ```
/// use reknit_apis::{ConditionSet, DuckStatus};
///
/// const SET: ConditionSet = ConditionSet::living(&["Deployed", "Routed"]);
///
/// let mut status = DuckStatus::default();
/// let mut conditions = SET.manage(&mut status);
/// conditions.mark_true("Deployed");
/// conditions.mark_false("Routed", "NoDomain", "no domain is configured");
///
/// assert!(conditions.is_true("Deployed") && conditions.is_false("Routed"));
/// let top = conditions.condition("Ready").unwrap();
/// assert_eq!(top.status, "False");
/// assert_eq!(top.reason.as_deref(), Some("NoDomain"));
/// ```
#[derive(Debug)]
pub struct Conditions<'a> {
    set: ConditionSet,
    duck: &'a mut DuckStatus,
}

/// The error of removing the top condition or one of its dependents. The message is Knative's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("clearing terminal conditions not implemented")]
pub struct RemoveConditionError;

impl Conditions<'_> {
    /// Returns true if the top condition is True.
    pub fn is_happy(&self) -> bool {
        self.is_true(self.set.top)
    }

    /// Returns the condition of this type, if it is set.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.duck.condition(kind)
    }

    /// Returns true if the condition is True. An absent condition is Unknown.
    pub fn is_true(&self, kind: &str) -> bool {
        self.status(kind) == ConditionStatus::True
    }

    /// Returns true if the condition is False. An absent condition is Unknown.
    pub fn is_false(&self, kind: &str) -> bool {
        self.status(kind) == ConditionStatus::False
    }

    /// Returns true if the condition is Unknown or absent.
    pub fn is_unknown(&self, kind: &str) -> bool {
        self.status(kind) == ConditionStatus::Unknown
    }

    /// Returns the top condition, if it is set.
    pub fn top(&self) -> Option<&Condition> {
        self.condition(self.set.top)
    }

    /// Adds missing conditions: the top condition as Unknown, and dependents as True if the top is True, or else as
    /// Unknown.
    pub fn initialise(&mut self) {
        self.add_if_missing(self.set.top, ConditionStatus::Unknown);
        let status = if self.is_happy() { ConditionStatus::True } else { ConditionStatus::Unknown };
        for kind in self.set.dependents {
            self.add_if_missing(kind, status);
        }
    }

    /// Marks the condition True. The top becomes True too if all dependents are.
    pub fn mark_true(&mut self, kind: &str) {
        self.mark_true_with_reason(kind, "", "");
    }

    /// Marks the condition True with a reason. The top becomes True too, without a reason, if all dependents are.
    pub fn mark_true_with_reason(&mut self, kind: &str, reason: &str, message: impl Into<String>) {
        self.mark(kind, ConditionStatus::True, reason, message);
        self.follow_dependents(kind);
    }

    /// Marks the condition Unknown.
    ///
    /// If no dependent is False, the top becomes Unknown too, provided that this condition is a dependent. If a
    /// dependent is False, a False top stays as it is, and any other top becomes False with this reason and message, as
    /// in Knative's `MarkUnknown`.
    pub fn mark_unknown(&mut self, kind: &str, reason: &str, message: impl Into<String>) {
        let message = message.into();
        self.mark(kind, ConditionStatus::Unknown, reason, message.clone());
        if self.set.dependents.iter().any(|dependent| self.is_false(dependent)) {
            if !self.is_false(self.set.top) {
                self.mark_false(self.set.top, reason, message);
            }
        } else if self.set.dependents.contains(&kind) {
            self.mark(self.set.top, ConditionStatus::Unknown, reason, message);
        }
    }

    /// Marks the condition False, and the top too if this condition is a dependent.
    pub fn mark_false(&mut self, kind: &str, reason: &str, message: impl Into<String>) {
        let message = message.into();
        self.mark(kind, ConditionStatus::False, reason, message.clone());
        if self.set.dependents.contains(&kind) {
            self.mark(self.set.top, ConditionStatus::False, reason, message);
        }
    }

    /// Marks the condition with the status, the reason and the message of another object's condition, such as `Ready`
    /// of a child. As in Knative, a True condition gets neither reason nor message.
    ///
    /// ```
    /// use reknit_apis::{Condition, ConditionSet, DuckStatus};
    ///
    /// let ready = Condition { kind: "Ready".into(), reason: Some("NoPods".into()), ..Condition::default() };
    /// let mut status = DuckStatus::default();
    /// let mut conditions = ConditionSet::living(&["Deployed"]).manage(&mut status);
    /// conditions.propagate("Deployed", &ready);
    /// assert_eq!(conditions.top().unwrap().reason.as_deref(), Some("NoPods"));
    /// ```
    pub fn propagate(&mut self, kind: &str, from: &Condition) {
        let (reason, message) = (from.reason.as_deref().unwrap_or_default(), from.message.as_deref());
        match from.status {
            ConditionStatus::True => self.mark_true(kind),
            ConditionStatus::False => self.mark_false(kind, reason, message.unwrap_or_default()),
            ConditionStatus::Unknown => self.mark_unknown(kind, reason, message.unwrap_or_default()),
        }
    }

    /// Stores the condition with the current time, and does not change the top condition.
    pub fn set_condition(&mut self, mut condition: Condition) {
        condition.reason = condition.reason.filter(|text| !text.is_empty());
        condition.message = condition.message.filter(|text| !text.is_empty());
        if self
            .condition(&condition.kind)
            .is_some_and(|stored| stored.eq_ignoring_transition_time(&condition))
        {
            return;
        }
        condition.last_transition_time = Some(Time(now()));
        let conditions = &mut self.duck.conditions;
        conditions.retain(|stored| stored.kind != condition.kind);
        conditions.push(condition);
        conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    }

    /// Removes a condition.
    ///
    /// # Errors
    ///
    /// The top condition and its dependents cannot be removed.
    pub fn remove_condition(&mut self, kind: &str) -> Result<(), RemoveConditionError> {
        if self.set.is_terminal(kind) {
            return Err(RemoveConditionError);
        }
        self.duck.conditions.retain(|stored| stored.kind != kind);
        Ok(())
    }

    /// Marks the top Unknown if the generation is not the observed one. Returns true if so.
    ///
    /// Called before a reconcile, which is then expected to mark a condition.
    pub fn expect_generation(&mut self, generation: Option<i64>) -> bool {
        let is_new = self.duck.observed_generation.unwrap_or_default() != generation.unwrap_or_default();
        if is_new {
            let message = "unsuccessfully observed a new generation";
            self.mark_unknown(self.set.top, NEW_GENERATION_REASON, message);
        }
        is_new
    }

    /// Returns true if no condition was marked since [`expect_generation`](Self::expect_generation) marked the top
    /// Unknown.
    pub fn expects_generation(&self) -> bool {
        self.top().is_some_and(|top| top.reason.as_deref() == Some(NEW_GENERATION_REASON))
    }

    fn status(&self, kind: &str) -> ConditionStatus {
        self.condition(kind).map_or(ConditionStatus::Unknown, |condition| condition.status)
    }

    fn add_if_missing(&mut self, kind: &str, status: ConditionStatus) {
        if self.condition(kind).is_none() {
            self.mark(kind, status, "", "");
        }
    }

    fn mark(&mut self, kind: &str, status: ConditionStatus, reason: &str, message: impl Into<String>) {
        self.set_condition(Condition {
            kind: kind.into(),
            status,
            severity: self.set.severity(kind),
            last_transition_time: None,
            reason: Some(reason.into()),
            message: Some(message.into()),
        });
    }

    /// Updates the top condition after `marked` has become True.
    fn follow_dependents(&mut self, marked: &str) {
        let top = self.set.top;
        if let Some(unhappy) = self.unhappy_dependent() {
            let reason = unhappy.reason.unwrap_or_default();
            self.mark(top, unhappy.status, &reason, unhappy.message.unwrap_or_default());
        } else if marked != top {
            self.mark(top, ConditionStatus::True, "", "");
        }
    }

    /// Returns the condition that the top copies: the newest False one, or else the newest Unknown one, or else an
    /// Unknown one without a reason if a dependent is not stored. `None` if all dependents are True.
    ///
    /// Of several that changed at the same time, it is the one that the top shows already. Otherwise the next pass,
    /// which reads transition times in whole seconds, would choose another one.
    fn unhappy_dependent(&self) -> Option<Condition> {
        let dependent_count = self.set.dependent_count();
        if dependent_count == 0 {
            return None;
        }
        let is_dependent =
            |condition: &&Condition| condition.severity.is_error() && condition.kind != self.set.top;
        let mut stored: Vec<_> = self.duck.conditions.iter().filter(is_dependent).collect();
        stored.sort_by(|a, b| {
            let by_age = b.last_transition_time.cmp(&a.last_transition_time);
            by_age.then_with(|| self.is_copied(b).cmp(&self.is_copied(a)))
        });
        let newest = |status| stored.iter().find(|one| one.status == status).map(|one| (*one).clone());
        newest(ConditionStatus::False)
            .or_else(|| newest(ConditionStatus::Unknown))
            .or_else(|| (dependent_count > stored.len()).then(Condition::default))
    }

    /// Returns true if the top has the status, reason and message of this condition.
    fn is_copied(&self, condition: &Condition) -> bool {
        let shown =
            |condition: &Condition| (condition.status, condition.reason.clone(), condition.message.clone());
        self.top().is_some_and(|top| shown(top) == shown(condition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_dependent_counts_once_and_the_top_does_not_count() {
        for set in [ConditionSet::living(&["A", "A"]), ConditionSet::living(&["Ready", "A"])] {
            let mut status = DuckStatus::default();
            let mut conditions = set.manage(&mut status);
            conditions.initialise();
            assert!(!conditions.is_happy());
            conditions.mark_true("A");
            assert!(conditions.is_happy(), "{set:?}");
        }
        let mut status = DuckStatus::default();
        let mut conditions = ConditionSet::living(&["Ready"]).manage(&mut status);
        conditions.mark_true("Ready");
        assert!(conditions.is_happy());
    }

    #[test]
    fn an_absent_condition_is_unknown_and_only_a_condition_outside_of_the_set_can_be_removed() {
        let mut status = DuckStatus::default();
        let mut conditions = ConditionSet::living(&["A"]).manage(&mut status);
        assert!(
            conditions.is_unknown("Extra") && !conditions.is_true("Extra") && !conditions.is_false("Extra")
        );
        conditions.mark_true("Extra");
        assert!(conditions.is_true("Extra"));
        conditions.mark_false("Extra", "Off", "");
        assert!(conditions.is_false("Extra") && !conditions.is_unknown("Extra"));
        conditions.mark_false("A", "Missing", "");
        assert_eq!(
            ["Extra", "A", "Ready"].map(|kind| conditions.remove_condition(kind).is_ok()),
            [true, false, false]
        );
        assert!(conditions.is_unknown("Extra") && conditions.is_false("A") && conditions.is_false("Ready"));
    }

    /// The status as the next pass reads it: with transition times in whole seconds.
    fn stored(status: &DuckStatus) -> DuckStatus {
        serde_json::from_value(serde_json::to_value(status).unwrap()).unwrap()
    }

    #[test]
    fn a_repeated_pass_leaves_the_reason_of_the_top_condition() {
        const SET: ConditionSet = ConditionSet::living(&["Deployed", "Routed", "Wired"]);
        let pass = |status: &mut DuckStatus| {
            let mut conditions = SET.manage(status);
            conditions.initialise();
            conditions.mark_false("Deployed", "NoPods", "");
            conditions.mark_false("Routed", "NoDomain", "");
            conditions.mark_true("Wired");
            conditions.top().unwrap().reason.clone()
        };
        let mut status = DuckStatus::default();
        let first = pass(&mut status);
        assert_eq!(first.as_deref(), Some("NoDomain"));
        assert_eq!(pass(&mut stored(&status)), first);
        let mut unordered = stored(&status);
        SET.manage(&mut unordered).mark_true("Wired"); // a pass that marks only this condition
        assert_eq!(unordered.condition("Ready").unwrap().reason, first);
    }

    #[test]
    fn a_new_generation_is_expected_until_a_condition_is_marked() {
        const SET: ConditionSet = ConditionSet::living(&["A"]);
        let mut status = DuckStatus::default();
        let mut conditions = SET.manage(&mut status);
        assert!(!conditions.expects_generation());
        assert!(conditions.expect_generation(Some(2)));
        assert!(conditions.expects_generation());
        conditions.mark_false("A", "Missing", "");
        assert!(!conditions.expects_generation());
    }
}
