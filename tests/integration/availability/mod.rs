//! Availability: replicas of the sample controller as processes that stop, die, hang or lose the API server.
//!
//! All times are from the audit log of the API server and from the Leases, not from the waits of the tests.

mod audit;
mod cluster;
mod disturber;
mod history;
mod load;
mod report;

mod bucket_change;
mod chaos;
mod partition;
mod pausing;
mod releases;
mod rollout;
mod sharing;
mod takeover;
