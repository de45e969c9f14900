//! The report of a failed run: a text for the terminal, and a page with a picture.

use std::{
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    html,
    oracles::{self, Violation},
    timeline::{Failure, Line, timeline},
    trace::{Sent, Trace},
};

/// The number of lines of a timeline.
const MAX_LINES: usize = 60;

pub(crate) fn failure(failure: &Failure<'_>) -> String {
    let Failure { test, seed, run, .. } = failure;
    let mut text = String::new();
    for violation in &run.violations {
        let Violation { oracle, message, at, .. } = violation;
        _ = writeln!(text, "violated: {oracle}\n  {message}\n  (at {at} s)");
    }
    _ = writeln!(text, "\nseed {seed}, faults: {}\n", run.plan);
    let lines = timeline(run);
    let skipped = lines.len().saturating_sub(MAX_LINES);
    if skipped > 0 {
        _ = writeln!(text, "  … {skipped} earlier lines");
    }
    for Line { at, replica, text: line } in &lines[skipped..] {
        let replica = replica.map_or_else(|| "-".into(), |replica| format!("replica-{replica}"));
        _ = writeln!(text, "  {:>9}  {replica:<10} {line}", at.to_string());
    }
    if let Some(path) = write_page(failure) {
        _ = writeln!(text, "\npicture: {}", path.display());
    }
    let seed = if run.plan.single.is_some() { String::new() } else { format!("REKNIT_SIM_SEED={seed} ") };
    _ = write!(text, "again:   {seed}cargo test {test}");
    text
}

/// Writes the page beside the other files of the build, and returns its path.
fn write_page(failure: &Failure<'_>) -> Option<PathBuf> {
    let folder = target(&env::current_exe().ok()?)?.join("simulation");
    fs::create_dir_all(&folder).ok()?;
    let name: String =
        failure.test.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect();
    let path = folder.join(format!("{name}-{}.html", failure.seed));
    fs::write(&path, html::page(failure)).ok()?;
    Some(path)
}

/// The target folder, in whose `deps` the test binary lies, or else the folder of the binary. In /tmp another user could
/// create the folder first, since its name is known.
fn target(binary: &Path) -> Option<PathBuf> {
    let deps = binary.ancestors().find(|folder| folder.ends_with("deps"));
    let target = deps.and_then(|deps| deps.parent()?.parent()).or_else(|| binary.parent());
    target.map(Into::into)
}

/// The message for a program whose runs of one seed differ, with the first request in which they do.
pub(crate) fn nondeterminism(seed: u64, first: &Trace, second: &Trace) -> String {
    let requests = |n| [first, second].map(|trace| trace.requests.get(n));
    let [first, second] = (0..first.requests.len().max(second.requests.len()))
        .map(requests)
        .find(|[first, second]| first.map(Sent::identity) != second.map(Sent::identity))
        .unwrap_or_default();
    let line = |sent: Option<&Sent>| {
        sent.map_or_else(
            || "nothing".into(),
            |Sent { at, replica, method, uri, .. }| format!("{at} replica-{replica} {method} {uri}"),
        )
    };
    let mut text = format!(
        "two runs of seed {seed} differ, so its failures cannot be repeated. The first request that differs:\n  \
         first run:  {}\n  second run: {}\n",
        line(first),
        line(second)
    );
    let [first, second] = [first, second]
        .map(|sent| sent.and_then(|sent| serde_json::from_slice(&sent.body).ok()).unwrap_or(Value::Null));
    if first != second && !first.is_null() && !second.is_null() {
        _ = writeln!(text, "  in its body, {}", oracles::difference("", &first, &second));
    }
    text + "A controller that is simulated depends on nothing but objects, the time of reknit's Clock or tokio's, and the \
            order of a BTreeMap: not on SystemTime, Instant, random numbers, threads, or the order of a HashMap."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_written_beside_the_binary_if_that_lies_in_no_target_folder() {
        let target = |binary: &str| target(Path::new(binary)).unwrap();
        assert_eq!(target("/src/target/debug/deps/tests-1"), Path::new("/src/target"));
        assert_eq!(target("/home/user/bin/tests"), Path::new("/home/user/bin"));
    }
}
