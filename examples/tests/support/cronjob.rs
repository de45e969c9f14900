//! The program cronjob, and its objects.

#[path = "../../cronjob/main.rs"]
#[expect(dead_code, unreachable_pub, reason = "a program, of which tests use only parts")]
pub(crate) mod program;

use serde_json::{Value, json};

use self::program::CronJob;

/// An hourly CronJob, with these fields added to its spec.
pub(crate) fn cron_job(name: &str, spec: Value) -> CronJob {
    let mut object = json!({
        "metadata": {"name": name},
        "spec": {
            "schedule": "0 * * * *",
            "jobTemplate": {
                "metadata": {"labels": {"app": name}, "annotations": {"team": "storage"}},
                "spec": {
                    "backoffLimit": 0,
                    "template": {"spec": {
                        "containers": [{"name": "hello", "image": "busybox"}],
                        "restartPolicy": "Never",
                    }},
                },
            },
        },
    });
    for (field, value) in spec.as_object().expect("fields of the spec") {
        object["spec"][field] = value.clone();
    }
    serde_json::from_value(object).expect("a CronJob")
}
