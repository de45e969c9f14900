//! The rules by which conditions decide over an object, and the marking of conditions by them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    condition::{Condition, ConditionStatus, Severity},
    duck::{DuckShaped, DuckStatus},
};

/// The reason of the top condition that nobody has marked for a new generation.
const UNMARKED: &str = "NewObservedGenFailure";

/// Which conditions decide over an object: the top one, and those that must all be True for it to be True.
///
/// ```
/// use reknit_apis::ConditionSet;
///
/// /// For something that runs until it is deleted: its top condition is `Ready`.
/// const SERVICE: ConditionSet = ConditionSet::living(&["RoutesReady", "ConfigurationsReady"]);
/// /// For something that ends: its top condition is `Succeeded`.
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
    /// A set whose top condition is `Ready`. A dependent that is named again counts once, and the top as none, as in
    /// Knative.
    pub const fn living(dependents: &'static [&'static str]) -> Self {
        Self { top: "Ready", dependents }
    }

    /// A set whose top condition is `Succeeded`; dependents count as in [`living`](Self::living).
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

    /// The conditions of this status, to be read and marked by the rules of this set.
    pub fn manage<'a>(&self, status: &'a mut impl DuckShaped) -> Conditions<'a> {
        Conditions { set: *self, duck: status.duck_mut() }
    }

    /// How many dependents there are, each counted once.
    fn count(&self) -> usize {
        let is_first =
            |(at, kind): &(usize, &&str)| **kind != self.top && !self.dependents[..*at].contains(*kind);
        self.dependents.iter().enumerate().filter(is_first).count()
    }

    fn decides(&self, kind: &str) -> bool {
        kind == self.top || self.dependents.contains(&kind)
    }

    fn severity(&self, kind: &str) -> Severity {
        if self.decides(kind) { Severity::Error } else { Severity::Info }
    }
}

/// A status's conditions, marked by the rules of their [`ConditionSet`].
///
/// Marking a condition with what it says already changes nothing, its time included. Any other mark sets
/// `lastTransitionTime` to now, and the top condition follows its dependents: False as soon as one is False, else
/// Unknown while one is Unknown, True once all are True. The list stays sorted by type. Conditions outside the set
/// get the severity `Info` and leave the top alone. As in Knative, what is stored without a severity counts as a dependent
/// whoever put it there: [`clear`](Self::clear) a condition that a newer version has no longer in its set.
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
/// let top = conditions.get("Ready").unwrap();
/// assert_eq!(top.status, "False");
/// assert_eq!(top.reason.as_deref(), Some("NoDomain"));
/// ```
#[derive(Debug)]
pub struct Conditions<'a> {
    set: ConditionSet,
    duck: &'a mut DuckStatus,
}

/// A condition that decides over the object cannot be removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("clearing terminal conditions not implemented")]
pub struct ClearError;

impl Conditions<'_> {
    /// Whether the top condition is True.
    pub fn is_happy(&self) -> bool {
        self.status(self.set.top) == ConditionStatus::True
    }

    /// The condition of this type, if it is there.
    pub fn get(&self, kind: &str) -> Option<&Condition> {
        self.duck.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// The top condition, if it is there.
    pub fn top(&self) -> Option<&Condition> {
        self.get(self.set.top)
    }

    /// Adds what is missing: the top as Unknown, each dependent as True if the top is True, else as Unknown.
    pub fn initialise(&mut self) {
        self.initialise_one(self.set.top, ConditionStatus::Unknown);
        let status = if self.is_happy() { ConditionStatus::True } else { ConditionStatus::Unknown };
        for kind in self.set.dependents {
            self.initialise_one(kind, status);
        }
    }

    /// Marks the condition True; the top becomes True too once no dependent is left that is not.
    pub fn mark_true(&mut self, kind: &str) {
        self.mark(kind, ConditionStatus::True, "", "");
        self.follow_dependents(kind);
    }

    /// Marks the condition True and says why; the top becomes True, without reason, once all dependents are.
    pub fn mark_true_with_reason(&mut self, kind: &str, reason: &str, message: impl Into<String>) {
        self.mark(kind, ConditionStatus::True, reason, message);
        self.follow_dependents(kind);
    }

    /// Marks the condition Unknown, and the top too if this one is a dependent and none is False.
    pub fn mark_unknown(&mut self, kind: &str, reason: &str, message: impl Into<String>) {
        let message = message.into();
        self.mark(kind, ConditionStatus::Unknown, reason, message.clone());
        let fails = |dependent: &&str| self.status(dependent) == ConditionStatus::False;
        if self.set.dependents.iter().any(fails) {
            if self.status(self.set.top) != ConditionStatus::False {
                self.mark_false(self.set.top, reason, message);
            }
        } else if self.set.dependents.contains(&kind) {
            self.mark(self.set.top, ConditionStatus::Unknown, reason, message);
        }
    }

    /// Marks the condition False, and the top too if this one is a dependent.
    pub fn mark_false(&mut self, kind: &str, reason: &str, message: impl Into<String>) {
        let message = message.into();
        self.mark(kind, ConditionStatus::False, reason, message.clone());
        if self.set.dependents.contains(&kind) {
            self.mark(self.set.top, ConditionStatus::False, reason, message);
        }
    }

    /// Stores the condition as it is, whatever it means for the top, with the time this function gives it.
    pub fn set(&mut self, mut condition: Condition) {
        condition.reason = condition.reason.filter(|text| !text.is_empty());
        condition.message = condition.message.filter(|text| !text.is_empty());
        if self.get(&condition.kind).is_some_and(|stored| stored.eq_ignoring_transition_time(&condition)) {
            return;
        }
        condition.last_transition_time = Some(Time(Timestamp::now()));
        let all = &mut self.duck.conditions;
        all.retain(|stored| stored.kind != condition.kind);
        all.push(condition);
        all.sort_by(|a, b| a.kind.cmp(&b.kind));
    }

    /// Removes a condition.
    ///
    /// # Errors
    ///
    /// The top condition and its dependents always have a value, so they cannot be removed.
    pub fn clear(&mut self, kind: &str) -> Result<(), ClearError> {
        if self.set.decides(kind) {
            return Err(ClearError);
        }
        self.duck.conditions.retain(|stored| stored.kind != kind);
        Ok(())
    }

    /// Makes the top Unknown where the status speaks of another generation than this one, and says whether it does.
    ///
    /// Called before a pass; the reconciler is expected to overwrite it.
    pub fn expect_generation(&mut self, generation: Option<i64>) -> bool {
        let is_new = self.duck.observed_generation.unwrap_or_default() != generation.unwrap_or_default();
        if is_new {
            let message = "unsuccessfully observed a new generation";
            self.mark_unknown(self.set.top, UNMARKED, message);
        }
        is_new
    }

    /// Whether the top still says what [`expect_generation`](Self::expect_generation) made of it: nobody has marked a
    /// condition since.
    pub fn expects_generation(&self) -> bool {
        self.top().is_some_and(|top| top.reason.as_deref() == Some(UNMARKED))
    }

    fn status(&self, kind: &str) -> ConditionStatus {
        self.get(kind).map_or(ConditionStatus::Unknown, |condition| condition.status)
    }

    fn initialise_one(&mut self, kind: &str, status: ConditionStatus) {
        if self.get(kind).is_none() {
            self.mark(kind, status, "", "");
        }
    }

    fn mark(&mut self, kind: &str, status: ConditionStatus, reason: &str, message: impl Into<String>) {
        self.set(Condition {
            kind: kind.into(),
            status,
            severity: self.set.severity(kind),
            last_transition_time: None,
            reason: Some(reason.into()),
            message: Some(message.into()),
        });
    }

    fn follow_dependents(&mut self, marked: &str) {
        let top = self.set.top;
        if let Some(unhappy) = self.unhappy_dependent() {
            let reason = unhappy.reason.unwrap_or_default();
            self.mark(top, unhappy.status, &reason, unhappy.message.unwrap_or_default());
        } else if marked != top {
            self.mark(top, ConditionStatus::True, "", "");
        }
    }

    /// The condition that the top should copy: the newest False one, else the newest Unknown one.
    fn unhappy_dependent(&self) -> Option<Condition> {
        let dependents = self.set.count();
        if dependents == 0 {
            return None;
        }
        let stored = &self.duck.conditions;
        let mut terminal: Vec<_> =
            stored.iter().filter(|one| one.severity.is_error() && one.kind != self.set.top).collect();
        terminal.sort_by(|a, b| b.last_transition_time.cmp(&a.last_transition_time));
        let newest = |status| terminal.iter().find(|one| one.status == status).map(|one| (*one).clone());
        newest(ConditionStatus::False)
            .or_else(|| newest(ConditionStatus::Unknown))
            .or_else(|| (dependents > terminal.len()).then(Condition::default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependent_that_is_named_twice_counts_once_and_the_top_as_none() {
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
    fn a_generation_is_expected_until_a_condition_is_marked() {
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
