//! Conditions of Kubernetes' own type, `metav1.Condition`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::condition::ConditionStatus;
use crate::environment::now;

/// The methods of a list of `metav1.Condition`, `k8s_openapi`'s `Condition`.
///
/// The rules are the same as in `SetStatusCondition` of `k8s.io/apimachinery`: a condition is stored once for each
/// type, in the order in which the types were first marked, and its `lastTransitionTime` changes only with its status.
/// No condition depends on another one. For Knative's rules see [`ConditionSet`](crate::ConditionSet).
///
/// Kubernetes requires a `reason`, so an empty one is replaced by a default. For the type `Available` the default
/// reason is `Available` if the condition is True, `NotAvailable` if it is False, and `UnknownAvailable` if it is
/// Unknown.
///
/// In a Kind that declares `conditions: metav1(field)` in [`kind!`](crate::kind), each condition that a reconcile marks
/// gets the generation of the reconciled object as its `observedGeneration`.
///
/// ```
/// use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
/// use reknit_apis::StatusConditions;
///
/// let mut conditions: Vec<Condition> = Vec::new();
/// conditions.mark_false("Available", "NoPods", "no pod is ready");
/// assert!(conditions.is_false("Available"));
/// conditions.mark_true("Available");
/// assert_eq!(conditions.condition("Available").unwrap().reason, "Available");
/// ```
pub trait StatusConditions {
    /// Returns the condition of this type, if it is set.
    fn condition(&self, kind: &str) -> Option<&Condition>;

    /// Stores the condition in place of those of its type. If the first of these has the same status, its
    /// `lastTransitionTime` is kept.
    fn set_condition(&mut self, condition: Condition);

    /// Removes the condition of this type.
    fn remove_condition(&mut self, kind: &str);

    /// Restores the transition time of each condition whose status is the same as in `before`. Then a condition that
    /// changes and changes back within one reconcile counts as unchanged.
    fn keep_transition_times(&mut self, before: &[Condition]);

    /// Sets `observedGeneration` of each condition that has none and was marked since `before`.
    fn observe_generation(&mut self, before: &[Condition], generation: Option<i64>);

    /// Returns true if the condition is True. An absent condition is Unknown.
    fn is_true(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// Returns true if the condition is False. An absent condition is Unknown.
    fn is_false(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "False")
    }

    /// Returns true if the condition is Unknown or absent.
    fn is_unknown(&self, kind: &str) -> bool {
        !self.is_true(kind) && !self.is_false(kind)
    }

    /// Marks the condition True, with the default reason.
    fn mark_true(&mut self, kind: &str) {
        self.mark_true_with_reason(kind, "", "");
    }

    /// Marks the condition True with a reason.
    fn mark_true_with_reason(&mut self, kind: &str, reason: &str, message: impl Into<String>) {
        self.set_condition(marked(kind, ConditionStatus::True, reason, message.into()));
    }

    /// Marks the condition Unknown.
    fn mark_unknown(&mut self, kind: &str, reason: &str, message: impl Into<String>) {
        self.set_condition(marked(kind, ConditionStatus::Unknown, reason, message.into()));
    }

    /// Marks the condition False.
    fn mark_false(&mut self, kind: &str, reason: &str, message: impl Into<String>) {
        self.set_condition(marked(kind, ConditionStatus::False, reason, message.into()));
    }
}

impl StatusConditions for Vec<Condition> {
    fn condition(&self, kind: &str) -> Option<&Condition> {
        self.iter().find(|condition| condition.type_ == kind)
    }

    fn set_condition(&mut self, mut condition: Condition) {
        let Some(index) = self.iter().position(|stored| stored.type_ == condition.type_) else {
            return self.push(condition);
        };
        if self[index].status == condition.status {
            condition.last_transition_time = self[index].last_transition_time.clone();
        }
        // Further conditions of the type were stored before the definition of the Kind refused them.
        let later = self.split_off(index + 1);
        self.extend(later.into_iter().filter(|other| other.type_ != condition.type_));
        self[index] = condition;
    }

    fn remove_condition(&mut self, kind: &str) {
        self.retain(|condition| condition.type_ != kind);
    }

    fn keep_transition_times(&mut self, before: &[Condition]) {
        for condition in self {
            let is_same = |old: &&Condition| old.type_ == condition.type_ && old.status == condition.status;
            if let Some(old) = before.iter().find(is_same) {
                condition.last_transition_time.clone_from(&old.last_transition_time);
            }
        }
    }

    fn observe_generation(&mut self, before: &[Condition], generation: Option<i64>) {
        for condition in self {
            // Marking a condition removes its observed generation. A condition that was stored without one may belong
            // to another controller.
            if condition.observed_generation.is_none() && !before.contains(condition) {
                condition.observed_generation = generation;
            }
        }
    }
}

fn marked(kind: &str, status: ConditionStatus, reason: &str, message: String) -> Condition {
    Condition {
        type_: kind.into(),
        status: status.as_str().into(),
        reason: if reason.is_empty() { default_reason(kind, status) } else { reason.into() },
        message,
        last_transition_time: Time(now()),
        observed_generation: None,
    }
}

/// The reason for a condition that was marked without one: its type without the domain and punctuation.
fn default_reason(kind: &str, status: ConditionStatus) -> String {
    let name = kind.rsplit('/').next().unwrap_or_default();
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    match status {
        ConditionStatus::True if !name.starts_with(|first: char| first.is_ascii_alphabetic()) => {
            format!("Is{name}")
        }
        ConditionStatus::True => name,
        ConditionStatus::False => format!("Not{name}"),
        ConditionStatus::Unknown => format!("Unknown{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_ago() -> Time {
        Time("2020-01-01T00:00:00Z".parse().unwrap())
    }

    /// `Available` is True since long ago, as observed in generation 3.
    fn available() -> Vec<Condition> {
        let mut conditions = Vec::new();
        conditions.mark_true("Available");
        conditions[0].last_transition_time = long_ago();
        conditions[0].observed_generation = Some(3);
        conditions
    }

    #[test]
    fn a_transition_time_changes_only_with_the_status() {
        let mut conditions = available();
        conditions.mark_true_with_reason("Available", "AllPods", "all pods are ready");
        let condition = conditions.condition("Available").unwrap();
        assert_eq!([&*condition.reason, &*condition.message], ["AllPods", "all pods are ready"]);
        assert_eq!(condition.last_transition_time, long_ago());
        conditions.mark_unknown("Available", "Restarted", "");
        assert_ne!(conditions[0].last_transition_time, long_ago());
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn a_condition_that_changes_back_keeps_its_transition_time() {
        let before = available();
        let mut conditions = before.clone();
        conditions.mark_false("Available", "NoPods", "");
        conditions.mark_true("Available");
        assert_ne!(conditions[0].last_transition_time, long_ago());
        conditions.keep_transition_times(&before);
        assert_eq!(conditions[0].last_transition_time, long_ago());
    }

    #[test]
    fn marked_conditions_get_the_generation_and_others_keep_theirs() {
        let mut before = available();
        before.mark_true("Scheduled"); // by another controller, which sets no generation
        let mut conditions = before.clone();
        conditions.observe_generation(&before, Some(4));
        assert_eq!(conditions, before);
        conditions.mark_true("Available");
        conditions.mark_false("Progressing", "", "");
        conditions.observe_generation(&before, Some(4));
        let generation = |kind| conditions.condition(kind).unwrap().observed_generation;
        assert_eq!(["Available", "Scheduled", "Progressing"].map(generation), [Some(4), None, Some(4)]);
    }

    #[test]
    fn a_condition_replaces_all_of_its_type_at_the_place_of_the_first() {
        let mut conditions = available();
        conditions.mark_true("Scheduled");
        conditions.extend(available());
        conditions.mark_true_with_reason("Available", "AllPods", "");
        let found: Vec<_> = conditions.iter().map(|one| (&*one.type_, &*one.reason)).collect();
        assert_eq!(found, [("Available", "AllPods"), ("Scheduled", "Scheduled")]);
    }

    #[test]
    fn an_empty_reason_is_replaced() {
        for (kind, reasons) in [
            ("Available", ["Available", "NotAvailable", "UnknownAvailable"]),
            ("demo.reknit.dev/Pods-Ready", ["PodsReady", "NotPodsReady", "UnknownPodsReady"]),
            ("2xx", ["Is2xx", "Not2xx", "Unknown2xx"]),
        ] {
            let mut conditions = Vec::new();
            let reason = |conditions: &Vec<Condition>| conditions.condition(kind).unwrap().reason.clone();
            conditions.mark_true(kind);
            assert_eq!(reason(&conditions), reasons[0]);
            conditions.mark_false(kind, "", "");
            assert_eq!(reason(&conditions), reasons[1]);
            conditions.mark_unknown(kind, "", "");
            assert_eq!(reason(&conditions), reasons[2]);
        }
    }

    #[test]
    fn an_absent_condition_is_unknown() {
        let mut conditions = available();
        assert!(conditions.is_true("Available") && !conditions.is_unknown("Available"));
        conditions.remove_condition("Available");
        assert!(conditions.is_unknown("Available") && !conditions.is_false("Available"));
    }
}
