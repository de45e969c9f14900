//! Passes that need the permissions of every controller of a Kind with a status.

use reknit::{
    reconciler::ControllerConstructor,
    testing::{Given, Table, Verb, table},
};

/// A table of two passes that fail to write the status: one reads the object again, and one records an event. `given`
/// is a state in which a pass writes the status.
pub(crate) fn failed_status_writes(
    controller: ControllerConstructor,
    plural: &str,
    key: &str,
    given: impl Fn() -> Given,
) -> Table<ControllerConstructor> {
    let status = format!("{plural}/status");
    table(controller)
        .unchecked_row("the status has a conflict", key, given().failing_times(Verb::Patch, &status, 409, 1))
        .unchecked_row("the status is refused", key, given().failing(Verb::Patch, &status, 500))
}
