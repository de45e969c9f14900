//! The view of the controllers: queue, workers, results, failing keys, and the time of passes.
use serde_json::{Value, json};

use super::State;

/// Counters are since the start of the process: two answers give a rate.
pub(super) fn view(state: &State) -> Value {
    let metrics = state.gather();
    let controller = |name: &str, resource: &str| {
        let labels = &[("controller", name)][..];
        let value = |metric| metrics.value(metric, labels);
        let queued =
            |priority| metrics.value("workqueue_depth", &[("controller", name), ("priority", priority)]);
        json!({
            "name": name,
            "resource": resource,
            "queued": queued("0"),
            "queued_slow": queued("-100"),
            "running": value("controller_runtime_active_workers"),
            "workers": value("controller_runtime_max_concurrent_reconciles"),
            "slow": value("reknit_slow_reconciles"),
            "failing": value("reknit_failing_keys"),
            "paused": value("reknit_paused_keys"),
            "unprompted_writes": value("reknit_unprompted_writes_total"),
            "storm_passes": value("reknit_storm_reconciles_total"),
            "fight_writes": value("reknit_fight_writes_total"),
            "passes": metrics.by("controller_runtime_reconcile_total", labels, "result"),
            "errors": value("controller_runtime_reconcile_errors_total"),
            "retries": value("workqueue_retries_total"),
            "causes": metrics.by("reknit_reconcile_causes_total", labels, "cause"),
            "pass_seconds": metrics.histogram("controller_runtime_reconcile_time_seconds", labels),
            "queue_seconds": metrics.histogram("workqueue_queue_duration_seconds", labels),
        })
    };
    let controllers =
        state.controllers().iter().map(|(health, _)| controller(health.name(), health.resource()));
    json!({ "controllers": controllers.collect::<Vec<_>>() })
}
