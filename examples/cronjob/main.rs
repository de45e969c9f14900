//! Runs Jobs on a schedule: the CronJob of kubebuilder's tutorial.

mod controller;
mod jobs;
mod schedule;
mod types;
mod webhook;

use std::process::ExitCode;

use reknit::{prelude::*, sharedmain::NamespaceFlag};

pub use self::{
    controller::controller,
    schedule::{Runs, Schedule, ScheduleError},
    types::{ConcurrencyPolicy, CronJob, CronJobStatus},
    webhook::webhook,
};

/// The program: its controllers and flags.
pub fn program() -> Main {
    Main::new("cronjob").flags::<NamespaceFlag>().controller(controller).webhook(webhook).plannable()
}

fn main() -> ExitCode {
    program().run()
}
