//! The conditions of a status after each step.

use std::collections::BTreeSet;

use reknit_apis::{Condition, ConditionSet, ConditionStatus, DuckShaped, DuckStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{CheckResult, check_equal};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConditionRow {
    set: String,
    dependents: Vec<String>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    op: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    status: ConditionStatus,
    #[serde(default)]
    severity: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    error: String,
    want: Value,
    transitioned: BTreeSet<String>,
    happy: bool,
}

#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
struct Status {
    duck: DuckStatus,
}

impl DuckShaped for Status {
    fn duck(&self) -> &DuckStatus {
        &self.duck
    }
    fn duck_mut(&mut self) -> &mut DuckStatus {
        &mut self.duck
    }
}

pub(crate) fn conditions(row: ConditionRow) -> CheckResult {
    let dependents = row.dependents.into_iter().map(|name| &*name.leak());
    let dependents = dependents.collect::<Vec<&'static str>>().leak();
    let set = match &*row.set {
        "living" => ConditionSet::living(dependents),
        "batch" => ConditionSet::batch(dependents),
        other => return Err(format!("unknown set {other}").into()),
    };
    let mut status = Status::default();
    for (number, step) in row.steps.into_iter().enumerate() {
        apply_step(&set, &mut status, step).map_err(|error| format!("step {number}: {error}"))?;
    }
    Ok(())
}

/// Applies the step to the conditions, and compares the result.
fn apply_step(set: &ConditionSet, status: &mut Status, step: Step) -> CheckResult {
    let before = status.duck.conditions.clone();
    let mut conditions = set.manage(status);
    let Step { kind, reason, message, .. } = step;
    let mut error = String::new();
    match &*step.op {
        "init" => conditions.initialise(),
        "true" => conditions.mark_true(&kind),
        "trueReason" => conditions.mark_true_with_reason(&kind, &reason, message),
        "unknown" => conditions.mark_unknown(&kind, &reason, message),
        "false" => conditions.mark_false(&kind, &reason, message),
        "clear" => {
            error =
                conditions.remove_condition(&kind).err().map(|error| error.to_string()).unwrap_or_default()
        }
        "set" => conditions.set_condition(Condition {
            kind,
            status: step.status,
            severity: (&*step.severity).into(),
            reason: Some(reason),
            message: Some(message),
            last_transition_time: None,
        }),
        other => return Err(format!("unknown operation {other}").into()),
    }
    check_equal("error", error, step.error)?;
    check_equal("happy", conditions.is_happy(), step.happy)?;
    let transition_time = |conditions: &[Condition], kind: &str| {
        let condition = conditions.iter().find(|condition| condition.kind == kind);
        condition.map(|condition| condition.last_transition_time.clone())
    };
    let after = &status.duck.conditions;
    let transitioned = after.iter().map(|condition| &condition.kind);
    let transitioned =
        transitioned.filter(|kind| transition_time(&before, kind) != transition_time(after, kind));
    check_equal("transitioned", transitioned.cloned().collect(), step.transitioned)?;
    let without_times =
        after.iter().map(|condition| Condition { last_transition_time: None, ..condition.clone() });
    let json = serde_json::to_value(without_times.collect::<Vec<_>>())?;
    check_equal("conditions", json, if step.want.is_null() { json!([]) } else { step.want })
}
