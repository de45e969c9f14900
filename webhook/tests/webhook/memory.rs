//! Tests that measure memory or time, each in a process of its own: other tests would be measured too, or delay them.

use std::{
    any::type_name_of_val,
    env,
    process::{Command, Output},
};

/// Set in the process of a single test.
const VARIABLE: &str = "REKNIT_TEST_OWN_PROCESS";

/// Runs the body of the calling test in a process of its own: this program with only that test. Prints what the process
/// printed, and panics if it failed.
pub(crate) fn in_own_process<F: Future<Output = ()>>(body: impl FnOnce() -> F) {
    if env::var_os(VARIABLE).is_some() {
        return tokio::runtime::Runtime::new().unwrap().block_on(body());
    }
    // The name of the closure is that of the test within the crate's name and `{{closure}}`.
    let closure = type_name_of_val(&body);
    let test = closure.split_once("::").unwrap().1.trim_end_matches("::{{closure}}");
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(VARIABLE, "");
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    print!("{stdout}");
    assert!(status.success() && stdout.contains("test result: ok. 1 passed"), "{test}: {status}\n{stderr}");
}

/// Returns the resident memory of this process in MiB.
pub(crate) fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}
