//! Defaulting and validation of CronJobs.

use reknit::prelude::*;

use super::{CronJob, Schedule};

/// A Job's name has at most 63 bytes, of which the scheduled time takes 11.
const MAX_NAME: usize = 63 - 11;

/// The webhook of CronJobs.
pub fn webhook(_: &Context) -> Result<Webhook> {
    Ok(Webhook::new("batch.tutorial.kubebuilder.io").defaulting::<CronJob>().validation::<CronJob>())
}

impl CronJob {
    pub(crate) fn set_spec_defaults(&mut self) {
        self.spec.suspend.get_or_insert(false);
        self.spec.successful_jobs_history_limit.get_or_insert(3);
        self.spec.failed_jobs_history_limit.get_or_insert(1);
    }
}

impl Validatable for CronJob {
    fn validate(&self, _: &Request) -> FieldError {
        validate_name(self.metadata.name.as_deref().unwrap_or_default())
            .also(validate_schedule(&self.spec.schedule).via_field("spec"))
    }
}

fn validate_name(name: &str) -> FieldError {
    if name.len() <= MAX_NAME {
        return FieldError::none();
    }
    FieldError::invalid_value(name, "metadata.name")
        .details(format!("must be no more than {MAX_NAME} characters"))
}

fn validate_schedule(schedule: &str) -> FieldError {
    match Schedule::parse(schedule) {
        Ok(_) => FieldError::none(),
        Err(error) => FieldError::invalid_value(schedule, "schedule").details(error.to_string()),
    }
}
