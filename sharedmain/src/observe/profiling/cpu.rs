//! Where the process spends its time: samples of what its threads do, a hundred for each second of work.
use std::time::Duration;

use pprof::{ProfilerGuard, Report};
use prost::Message;

use super::profile::{Frame, Profile};

/// As Go samples.
const FREQUENCY: i32 = 100;

/// A profile in pprof's format. There is one at a time; it ends early with whoever asks for it.
pub(super) async fn sampled(time: Duration) -> Result<Vec<u8>, String> {
    let guard = blocking(|| ProfilerGuard::new(FREQUENCY).map_err(explain)).await?;
    tokio::time::sleep(time).await;
    let report = blocking(move || guard.report().build().map_err(explain)).await?;
    blocking(move || Ok(encode(&report, time))).await
}

/// Symbols are looked up in files.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|e| e.to_string())?
}

fn explain(error: pprof::Error) -> String {
    match error {
        pprof::Error::Running => "a profile is being taken already".into(),
        pprof::Error::CreatingError => format!(
            "profiling cannot begin: it needs a directory for temporary files ({}), which TMPDIR names",
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
    profile.into_message().encode_to_vec()
}
