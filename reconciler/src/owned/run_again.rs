//! Reports a Job that deletes itself and is created again, so that it runs again.

use reknit_apis::internal::HashMap;
use reknit_injection::Cached;

use super::{desired::Desired, lister::Owned, owner::Owner};
use crate::Event;

/// The maximum number of Jobs that are remembered.
const MAX_JOBS: usize = 10_000;

/// The last applied content of the Jobs with a TTL that this process has created, by the uid of the owner and their name.
#[derive(Default)]
pub(super) struct CreatedJobs(HashMap<[Box<str>; 2], Box<str>>);

impl CreatedJobs {
    /// Records a created Job. Returns true if one with this name and content was created for this owner before.
    fn add(&mut self, owner_uid: &str, job: &str, content: &str) -> bool {
        if self.0.len() >= MAX_JOBS {
            self.0.clear();
        }
        let last = self.0.insert([owner_uid, job].map(Into::into), content.into());
        last.as_deref() == Some(content)
    }
}

impl<T: Cached> Owned<T> {
    /// Reports a Job with `ttlSecondsAfterFinished` that was created a second time, in the log and in an event on the owner.
    /// One that was replaced has another content.
    pub(super) fn report_run_again(&self, owner: &impl Owner, job: &Desired) {
        let resource = &self.shared.client.kind.resource;
        let deletes_itself = resource.group == "batch"
            && resource.kind == "Job"
            && !job.body["spec"]["ttlSecondsAfterFinished"].is_null();
        let owner_uid = owner.meta().uid.as_deref().unwrap_or_default();
        if !deletes_itself || !self.shared.created_jobs.lock().add(owner_uid, &job.name, &job.applied) {
            return;
        }
        let message = format!(
            "{} is created again with the same content: its ttlSecondsAfterFinished deletes it once it has run. Leave \
             that out, or apply the Job only until it has run",
            job.name
        );
        tracing::warn!("{message}");
        self.shared.recorder.record(owner, Event::warning("ChildRunsAgain", message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_another_content_or_owner_is_new_and_the_number_of_jobs_is_bounded() {
        let mut jobs = CreatedJobs::default();
        assert!(!jobs.add("uid", "Job shop/once", "a"));
        assert!(!jobs.add("other", "Job shop/once", "a"));
        assert!(!jobs.add("uid", "Job shop/once", "b"));
        assert!(jobs.add("uid", "Job shop/once", "b"));
        (0..2 * MAX_JOBS).for_each(|n| assert!(!jobs.add("uid", &n.to_string(), "a")));
        assert!(jobs.0.len() <= MAX_JOBS);
    }
}
