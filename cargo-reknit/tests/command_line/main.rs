//! The command line: help, exit statuses, and what is refused. Nothing is compiled here.
#![cfg(test)]

mod add;
mod built_in;
mod support;

use std::{fs, process::Command};

use support::{
    assert_no_name_of_the_template, assert_refused, cargo_reknit, files, project, project_with, stderr,
};

/// The checkout of reknit that the tests belong to.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[test]
fn invalid_arguments_are_usage_errors_that_name_the_argument() {
    let folder = tempfile::tempdir().unwrap();
    let new =
        |group, version, kind| ["new", "greetings", "--group", group, "--version", version, "--kind", kind];
    let cases = [
        (new("Example.com", "v1", "Greeting"), "'Example.com' for '--group"),
        (new("example", "v1", "Greeting"), "'example' for '--group"),
        (new("example.com", "1", "Greeting"), "'1' for '--version"),
        (new("example.com", "v1beta", "Greeting"), "'v1beta' for '--version"),
        (new("example.com", "v1", "greeting"), "'greeting' for '--kind"),
        (new("example.com", "v1", "Greet-ing"), "'Greet-ing' for '--kind"),
        (new("example.com", "v1", "Result"), "'Result' for '--kind"),
    ];
    for (args, message) in cases {
        assert_refused(folder.path(), &args, 2, &[message]);
    }
    assert_refused(folder.path(), &["new", "greetings"], 2, &["--group", "--kind"]);
    assert_refused(folder.path(), &["old"], 2, &["unrecognized subcommand 'old'"]);
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_kind_in_a_group_of_kubernetes_is_one_that_another_project_installs() {
    let folder = tempfile::tempdir().unwrap();
    let new = ["new", "routes", "--group", "gateway.networking.k8s.io", "--kind", "HTTPRoute"];
    assert_refused(folder.path(), &new, 1, &["gateway.networking.k8s.io", "--external"]);
    assert!(files(folder.path()).is_empty());
    let external = cargo_reknit(folder.path(), &[&new[..], &["--external", "--dry-run"]].concat());
    assert!(external.status.success(), "{}", stderr(&external));
}

#[test]
fn a_folder_that_is_not_empty_is_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine"), "mine").unwrap();
    let before = files(folder.path());
    let args = ["new", ".", "--group", "example.com", "--kind", "Greeting", "--name", "greetings"];
    assert_refused(folder.path(), &args, 1, &["is not empty"]);
    assert_eq!(files(folder.path()), before);
}

#[test]
fn a_folder_whose_name_is_not_a_projects_needs_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["new", "Greetings!", "--group", "example.com", "--kind", "Greeting"];
    assert_refused(folder.path(), &args, 1, &["\"Greetings!\"", "--name"]);
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_path_that_is_not_a_checkout_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["new", "greetings", "--group", "example.com", "--kind", "Greeting", "--path", "."];
    assert_refused(folder.path(), &args, 1, &["is not a checkout of reknit"]);
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_project_depends_on_reknit_by_git_by_default() {
    let manifest = fs::read_to_string(project().folder.join("Cargo.toml")).unwrap();
    assert_eq!(manifest.matches("git = \"https://github.com/reknit/reknit\"").count(), 2, "{manifest}");
}

#[test]
fn a_project_beside_the_checkout_depends_on_it_by_a_relative_path() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let checkout = root.join("reknit");
    fs::create_dir_all(checkout.join("src")).unwrap();
    fs::write(checkout.join("src/lib.rs"), "").unwrap();
    fs::write(checkout.join("Cargo.toml"), "[package]\nname = \"reknit\"\nversion = \"0.1.0\"\n").unwrap();
    fs::create_dir(root.join("here")).unwrap();
    let absolute = checkout.display().to_string();
    for (current, project, path, expected) in [
        (&root, "greetings", "reknit", "../reknit"),
        (&root.join("here"), ".", "../reknit", "../reknit"),
        (&root, "below/greetings", "reknit", &absolute),
    ] {
        let args = ["new", project, "--group", "example.com", "--kind", "Greeting", "--path", path];
        let output = cargo_reknit(current, &args);
        assert!(output.status.success(), "{}", stderr(&output));
        let manifest = fs::read_to_string(current.join(project).join("Cargo.toml")).unwrap();
        assert_eq!(manifest.matches(&format!("path = \"{expected}\"")).count(), 2, "{manifest}");
    }
}

#[test]
fn a_project_names_the_resource_of_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["new", "shop", "--group", "example.com", "--kind", "Shelf"];
    for (args, plural) in
        [(&args[..], "shelfs"), (&[&args[..], &["--plural", "shelves"]].concat(), "shelves")]
    {
        let output = cargo_reknit(folder.path(), args);
        let resource = format!("resource {plural}.example.com, named in src/shelf/kind.rs");
        assert!(stderr(&output).contains(&resource), "{}", stderr(&output));
        for path in ["src/shelf/kind.rs", "config/200-rbac.yaml", "config/300-crds.yaml"] {
            let file = fs::read_to_string(folder.path().join("shop").join(path)).unwrap();
            assert!(file.contains(plural), "{path}: {file}");
        }
        fs::remove_dir_all(folder.path().join("shop")).unwrap();
    }
}

#[test]
fn a_project_in_the_folder_of_a_workspace_is_a_workspace_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("Cargo.toml"), "[workspace]\nmembers = []\nresolver = \"3\"\n").unwrap();
    let args = ["new", "greetings", "--group", "example.com", "--kind", "Greeting"];
    let output = cargo_reknit(folder.path(), &args);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = cargo_reknit(&folder.path().join("greetings"), &["add", "kind", "Farewell"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_project_that_cargo_refuses_is_an_error_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(".cargo")).unwrap();
    fs::write(folder.path().join(".cargo/config.toml"), "broken").unwrap();
    let args = ["new", "greetings", "--group", "example.com", "--kind", "Greeting"];
    assert_refused(folder.path(), &args, 1, &["cargo refuses the new project", ".cargo/config.toml"]);
}

#[test]
fn a_flag_selects_the_project_of_another_folder() {
    let project = project();
    let manifest = project.folder.join("Cargo.toml").display().to_string();
    let elsewhere = tempfile::tempdir().unwrap();
    let output = cargo_reknit(elsewhere.path(), &["add", "kind", "Farewell", "--manifest-path", &manifest]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(project.folder.join("src/farewell/kind.rs").exists());
    for command in [&["add", "webhook", "Greeting"][..], &["crd"], &["rbac"], &["dev"]] {
        let args = [command, &["--manifest-path", "absent/Cargo.toml"]].concat();
        assert_refused(elsewhere.path(), &args, 1, &["cannot find absent/Cargo.toml"]);
    }
    let folder = project.folder.display().to_string();
    assert_refused(elsewhere.path(), &["crd", "--manifest-path", &folder], 1, &["a path to a Cargo.toml"]);
}

#[test]
fn a_kind_can_be_cluster_scoped_and_of_another_group() {
    let project = project_with(&["--cluster-scoped"]);
    let read = |path: &str| fs::read_to_string(project.folder.join(path)).unwrap();
    assert!(!read("src/greeting/kind.rs").contains("namespaced"));
    assert!(read("config/300-crds.yaml").contains("scope: Cluster"));
    for path in ["tests/greeting.rs", "tests/greeting_simulation.rs"] {
        let test = read(path);
        assert!(!test.contains("\"default") && !test.contains("let mut object"), "{test}");
    }
    let args = ["add", "kind", "Team", "--group", "teams.example.com", "--cluster-scoped"];
    let output = cargo_reknit(&project.folder, &args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(read("src/team/kind.rs").contains("group = \"teams.example.com\""));
    let output = cargo_reknit(&project.folder, &["add", "version", "Team", "v1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(read("config/example/team_v1.yaml").contains("apiVersion: teams.example.com/v1\n"));
}

#[test]
fn the_definition_of_an_external_kind_is_not_in_config() {
    let project = project_with(&["--external"]);
    let read = |path: &str| fs::read_to_string(project.folder.join(path)).unwrap();
    assert!(!read("src/lib.rs").contains("greeting::definition"), "{}", read("src/lib.rs"));
    assert!(!read("config/300-crds.yaml").contains("CustomResourceDefinition"));
    assert!(
        read("tests/integration.rs").contains("[greetings::greeting::definition()?]"),
        "it installs the Kind"
    );
    assert!(!read("config/Kustomization").contains("crds"), "{}", read("config/Kustomization"));
    let output = cargo_reknit(&project.folder, &["add", "kind", "Farewell"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(read("src/lib.rs").contains("farewell::definition()?"));
    assert_eq!(read("config/Kustomization").matches("- 300-crds.yaml").count(), 1);
}

#[test]
fn the_lock_file_has_exactly_the_packages_of_the_project() {
    let project = project_with(&["--path", CHECKOUT]);
    let args = ["tree", "--locked", "--offline"];
    let tree = Command::new(env!("CARGO")).args(args).current_dir(&project.folder).output().unwrap();
    assert!(tree.status.success(), "{}", stderr(&tree));
    let lock = fs::read_to_string(project.folder.join("Cargo.lock")).unwrap();
    let locks = |name: &str| lock.contains(&format!("name = \"{name}\"\n"));
    assert!(
        locks("greetings") && locks("reknit") && !locks("reknit-samples") && !locks("trybuild"),
        "{lock}"
    );
}

#[test]
fn the_program_has_no_packages_that_only_tests_need() {
    let project = project_with(&["--path", CHECKOUT]);
    let args = ["tree", "--locked", "--offline", "--edges", "normal,build"];
    let tree = Command::new(env!("CARGO")).args(args).current_dir(&project.folder).output().unwrap();
    let packages = String::from_utf8_lossy(&tree.stdout).into_owned();
    assert!(packages.contains("reknit-reconciler") && !packages.contains("reknit-testing"), "{packages}");
}

#[test]
fn no_name_of_the_template_is_left_in_a_project() {
    let project = project();
    for args in [&["add", "webhook", "Greeting"][..], &["add", "version", "Greeting", "v1"]] {
        let output = cargo_reknit(&project.folder, args);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_no_name_of_the_template(&project.folder);
}

#[test]
fn a_dry_run_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["new", "greetings", "--group", "example.com", "--kind", "Greeting", "--dry-run"];
    let output = cargo_reknit(folder.path(), &args);
    assert!(
        output.status.success() && stderr(&output).contains("would create src/lib.rs"),
        "{}",
        stderr(&output)
    );
    assert!(files(folder.path()).is_empty());
}

#[test]
fn commands_for_a_project_are_refused_outside_of_one() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["add", "kind", "Farewell"][..],
        &["add", "webhook", "Greeting"],
        &["add", "version", "Greeting", "v1"],
        &["crd"],
        &["rbac"],
        &["dev"],
    ] {
        assert_refused(folder.path(), args, 1, &["no project in", "cargo reknit new"]);
    }
}

#[test]
fn messages_have_no_colours_unless_they_go_to_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let output = cargo_reknit(folder.path(), &["crd"]);
    assert!(stderr(&output).starts_with("error: no project"), "{}", stderr(&output));
}

#[test]
fn help_lists_the_commands_as_cargo_runs_them_and_directly() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["--help"][..], &["reknit", "--help"]] {
        let output = cargo_reknit(folder.path(), args);
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && help.contains("cargo reknit <COMMAND>"), "{help}");
        assert!(
            ["new", "add", "crd", "rbac", "dev", "completions"].iter().all(|command| help.contains(command)),
            "{help}"
        );
    }
}

#[test]
fn completions_name_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = cargo_reknit(folder.path(), &["completions", shell]);
        let script = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && script.contains("cargo-reknit") && script.contains("new"),
            "{shell}"
        );
    }
}
