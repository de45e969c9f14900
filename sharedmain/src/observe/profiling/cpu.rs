//! CPU profiles: samples of the stacks of all threads, a hundred for each second of CPU time.
use std::time::Duration;

use axum::http::StatusCode;
use pprof::{ProfilerGuard, Report};
use prost::Message;

use super::{
    ProfileError,
    profile::{Frame, Profile},
};

/// The sampling frequency of Go's profiler in Hz.
const FREQUENCY: i32 = 100;

/// Takes a profile in pprof's format. Only one profile can be taken at a time. Dropping the future ends the profile.
pub(super) async fn take_profile(time: Duration) -> Result<Vec<u8>, ProfileError> {
    let failed = |why| ProfileError { status: StatusCode::INTERNAL_SERVER_ERROR, why };
    let profiler = run_blocking(|| ProfilerGuard::new(FREQUENCY).map_err(explain)).await.map_err(failed)?;
    tokio::time::sleep(time).await;
    run_blocking(move || Ok(encode(&profiler.report().build().map_err(explain)?, time))).await.map_err(failed)
}

/// Runs `work` on a blocking thread, because symbols are read from files.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|e| e.to_string())?
}

fn explain(error: pprof::Error) -> String {
    match error {
        pprof::Error::Running => "another profile is being taken".into(),
        pprof::Error::CreatingError => format!(
            "profiling needs a writable directory for temporary files, not {}: set TMPDIR",
            std::env::temp_dir().display()
        ),
        other => other.to_string(),
    }
}

fn encode(report: &Report, time: Duration) -> Vec<u8> {
    let mut profile = Profile::new(report.timing.start_time, time, FREQUENCY.into());
    for (stack, count) in &report.data {
        let frames = stack.frames.iter().flatten().map(|symbol| Frame {
            name: symbol.name(),
            symbol: symbol.sys_name().into_owned(),
            file: symbol.filename().into_owned(),
            line: symbol.lineno().into(),
        });
        profile.add(frames, &stack.thread_name_or_id(), i64::try_from(*count).unwrap_or(i64::MAX));
    }
    profile.message.encode_to_vec()
}
