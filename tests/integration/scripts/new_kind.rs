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

/// An empty folder outside the workspace, because cargo would take a project within it for a member.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = stable_folder(&format!("new-kind-{name}"));
        fs::create_dir_all(folder.join("project")).unwrap();
        // The workspace's profile for dependencies, so that they are not built again.
        fs::create_dir_all(folder.join(".cargo")).unwrap();
        fs::write(folder.join(".cargo/config.toml"), "[profile.dev.package.\"*\"]\ndebug = false\n").unwrap();
        Self(folder)
    }

    fn project(&self) -> PathBuf {
        self.0.join("project")
    }

    fn new_kind(&self, args: &[&str]) -> Output {
        Command::new(SCRIPT).args(args).current_dir(self.project()).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn invalid_arguments_are_refused_in_one_line() {
    let folder = Folder::new("refused");
    let cases: [(&[&str], &str); 11] = [
        (&[], "want hack/new-kind.sh [--path] GROUP VERSION KIND"),
        (&["example.com", "v1"], "want hack/new-kind.sh [--path] GROUP VERSION KIND"),
        (&["example.com", "v1", "Greeting", "more"], "want hack/new-kind.sh [--path] GROUP VERSION KIND"),
        (&["Example.com", "v1", "Greeting"], "\"Example.com\" is no group"),
        (&["example", "v1", "Greeting"], "\"example\" is no group"),
        (&["example.k8s.io", "v1", "Greeting"], "\"example.k8s.io\" is one of Kubernetes' own groups"),
        (&["example.com", "1", "Greeting"], "\"1\" is no version"),
        (&["example.com", "v1beta", "Greeting"], "\"v1beta\" is no version"),
        (&["example.com", "v1", "greeting"], "\"greeting\" is no Kind"),
        (&["example.com", "v1", "Greet-ing"], "\"Greet-ing\" is no Kind"),
        (&["example.com", "v1", "Result"], "\"Result\" is a name that the code needs"),
    ];
    for (args, why) in cases {
        let answer = folder.new_kind(args);
        let said = text(&answer.stderr);
        assert_eq!(answer.status.code(), Some(2), "{args:?}: {said}");
        assert!(
            said.starts_with(&format!("new-kind.sh: {why}")) && said.lines().count() == 1,
            "{args:?}: {said}"
        );
        assert_eq!(fs::read_dir(folder.project()).unwrap().count(), 0, "{args:?}");
    }
}

#[test]
fn a_folder_that_is_not_empty_is_left_as_it_is() {
    let folder = Folder::new("full");
    fs::write(folder.project().join("Cargo.toml"), "mine").unwrap();
    let answer = folder.new_kind(&["example.com", "v1", "Greeting"]);
    assert_eq!(answer.status.code(), Some(2));
    assert!(text(&answer.stderr).contains("is not empty"), "{}", text(&answer.stderr));
    assert_eq!(fs::read_to_string(folder.project().join("Cargo.toml")).unwrap(), "mine");
    assert_eq!(fs::read_dir(folder.project()).unwrap().count(), 1);
}

#[test]
fn a_project_depends_on_reknit_by_git_by_default() {
    let folder = Folder::new("git");
    assert!(folder.new_kind(&["example.com", "v1", "Greeting"]).status.success());
    let manifest = fs::read_to_string(folder.project().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("reknit = { git = \"https://github.com/reknit/reknit\" }"), "{manifest}");
}

#[test]
fn a_project_is_formatted_compiles_without_warnings_and_passes_its_test() {
    build_all();
    let folder = Folder::new("builds");
    let written = folder.new_kind(&["--path", "shop.example.com", "v1alpha1", "Policy"]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let cargo = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let answer = without_test_variables(&mut command)
            .args(args)
            .current_dir(folder.project())
            .env("CARGO_TARGET_DIR", target)
            .output()
            .unwrap();
        let said = text(&answer.stdout) + &text(&answer.stderr);
        assert!(answer.status.success(), "{args:?}: {said}");
        said
    };
    cargo(&["fmt", "--check"]);
    let tested = cargo(&["test"]);
    assert!(!tested.contains("warning"), "{tested}");
    assert!(tested.contains("test an_object_with_text_is_ready ... ok"), "{tested}");
    let printed = cargo(&["run", "--quiet", "--bin", "crd"]);
    assert!(printed.contains("name: policies.shop.example.com"), "{printed}");
    let rights = fs::read_to_string(folder.project().join("config/200-rbac.yaml")).unwrap();
    assert!(rights.contains("resources: [\"policies/status\"]"), "{rights}");
}
