//! The limit of the files that the process may have open.
//!
//! Container runtimes and systemd start programs with a soft limit of 1,024 and a far higher hard one, since programs that
//! call `select` break with more. As a program in Go does, this one raises the soft limit to the hard one: each connection of
//! a client, each watch and each request to the API server is an open file.
use std::process::Child;
#[cfg(unix)]
use std::sync::OnceLock;

#[cfg(unix)]
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit below which the process warns. The clients of a webhook with the default limits may have 1,000 connections,
/// and those of the other ports 320.
#[cfg(unix)]
const SUFFICIENT: u64 = 2_048;
/// The limit to which a soft limit is raised if there is no hard one. macOS accepts no more everywhere.
#[cfg(unix)]
const WITHOUT_HARD_LIMIT: u64 = 10_240;

/// The limit of the process before it was raised.
#[cfg(unix)]
static FORMER: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit to the hard one. Warns if that is low.
#[cfg(unix)]
pub(super) fn raise_limit() {
    let former = getrlimit(Resource::Nofile);
    let (Some(soft), hard) = (former.current, former.maximum.unwrap_or(WITHOUT_HARD_LIMIT)) else { return };
    let raised = Rlimit { current: Some(hard), ..former };
    let mut limit = soft;
    if soft < hard {
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit = FORMER.set(former).map_or(soft, |()| hard),
            Err(error) => tracing::warn!(%error, soft, hard, "failed to raise the limit of open files"),
        }
    }
    if limit < SUFFICIENT {
        tracing::warn!(
            limit,
            sufficient = SUFFICIENT,
            "the limit of open files is low: each connection of a client, each watch and each request to the API server \
             needs one. Raise the hard limit, which the container runtime or `ulimit -Hn` sets"
        );
    }
}

#[cfg(not(unix))]
pub(super) fn raise_limit() {}

/// Restores the former soft limit for a program that this process has just started, on Linux. The program may call
/// `select`, which breaks once more than 1,024 files are open. Setting the limit before the start would need `unsafe`. An
/// error is ignored, since few programs open so many files.
pub(crate) fn restore_limit(program: &Child) {
    #[cfg(target_os = "linux")]
    if let Some(former) = FORMER.get() {
        let pid = rustix::process::Pid::from_child(program);
        let _ = rustix::process::prlimit(Some(pid), Resource::Nofile, *former);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = program;
}
