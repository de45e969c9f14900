//! Ratcheting: an update that leaves the spec alone is not refused for a fault that the stored object already has.
//!
//! A rule may have been tightened since the object was stored. Labels, finalizers and the status must still be
//! writable. If the handler refuses such an update, it is asked about the stored object too, and the update is allowed
//! if the reason is the same. So rules about what does change still apply.

use reknit_apis::Operation;
use serde_json::Value;

use super::{
    change::{Change, differ_only_in},
    defaulting::Defaulting,
    outcome::ReviewOutcome,
    review::Review,
    validators::ratchet_rule,
};

/// The fields that are not the spec.
const STATE: &[&str] = &["metadata", "status"];

/// Answers a review by the handler, with ratcheting.
pub(crate) fn ratchet(
    defaulting: &Defaulting,
    mut review: Review,
    handler: impl Fn(Review) -> ReviewOutcome,
) -> ReviewOutcome {
    let stored = review.change.as_ref().and_then(|change| {
        let old = Some(stored_state(defaulting, &review, change)?);
        let mut stored = Change { request: change.request.clone(), object: None, old };
        // The metadata may have defaults, too.
        defaulting.complete_old(&review.kind, &mut stored);
        Some(Change { object: stored.old.clone(), ..stored })
    });
    let (Some(stored), Some(change)) = (stored, &mut review.change) else { return handler(review) };
    change.old.clone_from(&stored.old);
    let mut response = review.response.clone();
    let stored = Review {
        response: response.clone(),
        kind: review.kind.clone(),
        converted_from: None,
        change: Some(stored),
    };
    let mut outcome = handler(review);
    if outcome.response.allowed && outcome.rules.is_empty() {
        return outcome;
    }
    let of_stored = handler(stored);
    if !outcome.response.allowed && outcome.response.result == of_stored.response.result {
        response.warnings = outcome.response.warnings;
        outcome.response = response;
    }
    let mut of_stored = of_stored.rules.into_iter();
    let rules = outcome.rules.into_iter().map(|rule| match of_stored.next() {
        Some(of_stored) => ratchet_rule(rule, of_stored),
        None => rule,
    });
    ReviewOutcome { rules: rules.collect(), ..outcome }
}

/// Returns the stored object as it would be stored today, if the update leaves its spec alone: all fields but
/// [`STATE`]. The spec may have defaults that the stored object lacks.
fn stored_state(defaulting: &Defaulting, review: &Review, change: &Change) -> Option<Value> {
    let (object, old) = (change.object.as_ref()?, change.old.as_ref()?);
    let is_update = change.request.operation == Operation::Update;
    let leaves_spec_alone = is_update
        && (differ_only_in(STATE, object, old)
            || defaulting
                .with_defaults(&review.kind, change)
                .is_some_and(|old| differ_only_in(STATE, object, &old)));
    leaves_spec_alone.then(|| {
        let mut stored = object.clone();
        for &key in STATE {
            match old.get(key) {
                Some(value) => stored[key] = value.clone(),
                None => drop(stored.as_object_mut().and_then(|fields| fields.remove(key))),
            }
        }
        stored
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_spec_is_all_but_the_metadata_and_the_status() {
        let lamp = json!({"metadata": {"name": "x"}, "spec": {"watts": 1}});
        assert!(differ_only_in(STATE, &lamp, &json!({"spec": {"watts": 1}, "status": {}})));
        assert!(!differ_only_in(STATE, &lamp, &json!({"spec": {"watts": 2}})));
        assert!(!differ_only_in(STATE, &lamp, &json!({"spec": {"watts": 1}, "data": {}})));
        assert!(!differ_only_in(STATE, &json!({"data": {}}), &json!({})));
    }
}
