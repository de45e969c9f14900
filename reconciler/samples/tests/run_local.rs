//! The script that newcomers start with ends with its example Ready.

use std::{error::Error, path::Path, process::Command};

#[test]
fn running_locally_makes_the_example_ready_twice_in_a_row() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for run in ["first", "second"] {
        let answer = Command::new(root.join("hack/run-local.sh"))
            .arg("--once")
            .env("CLUSTER_DOMAIN", "example.org")
            .output()?;
        let (said, problems) =
            (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
        assert!(answer.status.success(), "the {run} run: {}\n{said}\n{problems}", answer.status);
        let ready = said.lines().any(|line| {
            line.split_whitespace().eq(["default", "hello", "http://hello.default.svc.example.org", "True"])
        });
        assert!(ready, "the {run} run:\n{said}");
    }
    Ok(())
}
