//! `hack/run-local.sh`, which runs the samples locally.

use std::{
    error::Error,
    path::Path,
    process::{Command, Output},
};

use crate::cargo::reuse_build_cache;

/// Runs the script without the variables that cargo sets for tests and that would make it rebuild some dependencies.
fn run_local(arguments: &[&str]) -> std::io::Result<Output> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new(root.join("hack/run-local.sh"));
    reuse_build_cache(&mut command).args(arguments).env("CLUSTER_DOMAIN", "example.org").output()
}

#[test]
fn running_locally_shows_the_examples_with_their_status_twice_in_a_row() -> Result<(), Box<dyn Error>> {
    for run in ["first", "second"] {
        let output = run_local(&["--once"])?;
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "the {run} run: {}\n{stdout}\n{stderr}", output.status);
        let service = ["default", "hello", "http://hello.default.svc.example.org", "True"];
        let deployment = ["default", "hello", "3", "0", "False", "PodsNotReady"];
        for expected in [&service[..], &deployment] {
            let is_shown = stdout.lines().any(|line| line.split_whitespace().eq(expected.iter().copied()));
            assert!(is_shown, "the {run} run: no {expected:?} in\n{stdout}");
        }
    }
    Ok(())
}

#[test]
fn unknown_arguments_are_refused_with_a_usage_message() -> Result<(), Box<dyn Error>> {
    for (arguments, status) in
        [(&["--help"][..], 0), (&["--once", "--help"], 0), (&["--twice"], 2), (&["--once", "web"], 2)]
    {
        let output = run_local(arguments)?;
        let text = String::from_utf8([output.stdout, output.stderr].concat())?;
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert!(text.contains("usage: hack/run-local.sh [--once]"), "{arguments:?}: {text}");
        assert!(
            status == 0 || text.contains(&format!("unknown argument {}; ", arguments[arguments.len() - 1])),
            "{text}"
        );
    }
    Ok(())
}
