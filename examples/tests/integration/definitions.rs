//! The definitions of the examples, as kubectl applies them.

use std::path::{Path, PathBuf};

use reknit::testing::ControlPlane;
use tokio::process::Command;

use crate::support::{EXAMPLES, file};

/// The kubectl beside the programs of the control plane.
async fn kubectl() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/setup-envtest.sh");
    let output = Command::new(script).arg("--control-plane").output().await.expect("the script runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    Path::new(text.lines().last().expect("the folder")).join("kubectl")
}

/// Runs `kubectl apply` without `--server-side` for the definitions of an example, and returns its output.
async fn apply(kubectl: &Path, plane: &ControlPlane, example: &str) -> String {
    let mut kubectl = Command::new(kubectl);
    kubectl.arg("--kubeconfig").arg(plane.kubeconfig());
    kubectl.args(["apply", "-f"]).arg(file(example, "crd.yaml"));
    let output = kubectl.output().await.expect("kubectl runs");
    assert!(output.status.success(), "{example}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// kubectl stores each definition in an annotation, and annotations have at most 256 KiB.
#[tokio::test]
async fn kubectl_applies_the_definitions_of_each_example_twice_without_server_side_apply() {
    let plane = ControlPlane::start().await.expect("a control plane");
    let kubectl = kubectl().await;
    for example in EXAMPLES {
        apply(&kubectl, &plane, example).await;
        let second = apply(&kubectl, &plane, example).await;
        assert!(second.lines().all(|line| line.ends_with(" unchanged")), "{second}");
    }
}
