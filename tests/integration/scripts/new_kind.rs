//! hack/new-kind.sh, which writes a project for a new Kind.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::support::{
    cargo::{stable_folder, without_test_variables},
    process::build_all,
};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hack/new-kind.sh");

/// A folder outside the workspace, because cargo rejects a project inside a workspace of which it is not a member. The
/// script runs in the folder's initially empty subfolder `project`.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> Self {
        let folder = stable_folder(&format!("new-kind-{name}"));
        fs::create_dir_all(folder.join("project")).unwrap();
        // The same profile for dependencies as in the workspace, so that cargo reuses them.
        fs::create_dir_all(folder.join(".cargo")).unwrap();
        fs::write(folder.join(".cargo/config.toml"), "[profile.dev.package.\"*\"]\ndebug = false\n").unwrap();
        Self(folder)
    }

    fn project(&self) -> PathBuf {
        self.0.join("project")
    }

    /// Runs the script in the project folder.
    fn new_kind(&self, args: &[&str]) -> Output {
        Command::new(SCRIPT).args(args).current_dir(self.project()).output().unwrap()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn invalid_arguments_are_refused_in_one_line() {
    let folder = TestFolder::new("refused");
    let cases: [(&[&str], &str); 11] = [
        (&[], "usage: hack/new-kind.sh [--path] GROUP VERSION KIND"),
        (&["example.com", "v1"], "usage: hack/new-kind.sh [--path] GROUP VERSION KIND"),
        (&["example.com", "v1", "Greeting", "more"], "usage: hack/new-kind.sh [--path] GROUP VERSION KIND"),
        (&["Example.com", "v1", "Greeting"], "invalid group \"Example.com\""),
        (&["example", "v1", "Greeting"], "invalid group \"example\""),
        (&["example.k8s.io", "v1", "Greeting"], "reserved group \"example.k8s.io\""),
        (&["example.com", "1", "Greeting"], "invalid version \"1\""),
        (&["example.com", "v1beta", "Greeting"], "invalid version \"v1beta\""),
        (&["example.com", "v1", "greeting"], "invalid Kind \"greeting\""),
        (&["example.com", "v1", "Greet-ing"], "invalid Kind \"Greet-ing\""),
        (&["example.com", "v1", "Result"], "reserved Kind \"Result\""),
    ];
    for (args, message) in cases {
        let output = folder.new_kind(args);
        let stderr = text_of(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(
            stderr.starts_with(&format!("new-kind.sh: {message}")) && stderr.lines().count() == 1,
            "{args:?}: {stderr}"
        );
        assert_eq!(fs::read_dir(folder.project()).unwrap().count(), 0, "{args:?}");
    }
}

#[test]
fn a_folder_that_is_not_empty_is_refused_and_not_changed() {
    let folder = TestFolder::new("full");
    fs::write(folder.project().join("Cargo.toml"), "existing").unwrap();
    let output = folder.new_kind(&["example.com", "v1", "Greeting"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text_of(&output.stderr).contains("is not empty"), "{}", text_of(&output.stderr));
    assert_eq!(fs::read_to_string(folder.project().join("Cargo.toml")).unwrap(), "existing");
    assert_eq!(fs::read_dir(folder.project()).unwrap().count(), 1);
}

#[test]
fn a_project_depends_on_reknit_by_git_by_default() {
    let folder = TestFolder::new("git");
    assert!(folder.new_kind(&["example.com", "v1", "Greeting"]).status.success());
    let manifest = fs::read_to_string(folder.project().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("reknit = { git = \"https://github.com/reknit/reknit\" }"), "{manifest}");
}

#[test]
fn a_project_is_formatted_compiles_without_warnings_and_passes_its_test() {
    build_all();
    let folder = TestFolder::new("builds");
    let generated = folder.new_kind(&["--path", "shop.example.com", "v1alpha1", "Policy"]);
    assert!(generated.status.success(), "{}", text_of(&generated.stderr));
    let cargo = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let output = without_test_variables(&mut command)
            .args(args)
            .current_dir(folder.project())
            .env("CARGO_TARGET_DIR", target)
            .output()
            .unwrap();
        let text = text_of(&output.stdout) + &text_of(&output.stderr);
        assert!(output.status.success(), "{args:?}: {text}");
        text
    };
    cargo(&["fmt", "--check"]);
    let tests = cargo(&["test"]);
    assert!(!tests.contains("warning"), "{tests}");
    assert!(tests.contains("test an_object_with_text_is_ready ... ok"), "{tests}");
    let crd = cargo(&["run", "--quiet", "--bin", "crd"]);
    assert!(crd.contains("name: policies.shop.example.com"), "{crd}");
    let rbac = fs::read_to_string(folder.project().join("config/200-rbac.yaml")).unwrap();
    assert!(rbac.contains("resources: [\"policies/status\"]"), "{rbac}");
}
