//! `cargo reknit add`: what is refused, and what is inserted.

use std::{fs, path::Path, process::Command};

use crate::support::{Files, assert_refused, cargo_reknit, files, project, stderr};

const WEBHOOK: &[&str] = &["add", "webhook", "Greeting"];
const VERSION: &[&str] = &["add", "version", "Greeting", "v1"];

fn succeed(folder: &Path, args: &[&str]) {
    let output = cargo_reknit(folder, args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
}

/// Asserts that the command is refused with a message that contains the parts, and that no file is changed.
fn assert_refused_and_unchanged(folder: &Path, args: &[&str], parts: &[&str]) {
    let before = files(folder);
    assert_refused(folder, args, 1, parts);
    assert_eq!(files(folder), before, "{args:?}");
}

/// Asserts that all lines of all files are still there, in the same order.
fn assert_only_insertions(before: Files, after: &Files) {
    for (path, content) in before {
        let (_, new) = after.iter().find(|(other, _)| *other == path).unwrap();
        let (old, new) = (String::from_utf8_lossy(&content), String::from_utf8_lossy(new));
        let mut kept = new.lines();
        assert!(old.lines().all(|line| kept.any(|other| other == line)), "{path}: {new}");
    }
}

fn replace(folder: &Path, path: &str, old: &str, new: &str) {
    let text = fs::read_to_string(folder.join(path)).unwrap();
    assert!(text.contains(old), "{path}: {text}");
    fs::write(folder.join(path), text.replace(old, new)).unwrap();
}

fn read(folder: &Path, path: &str) -> String {
    fs::read_to_string(folder.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn a_kind_that_exists_is_refused() {
    let project = project();
    assert_refused_and_unchanged(&project.folder, &["add", "kind", "Greeting"], &["src/greeting already"]);
}

#[test]
fn a_plural_that_another_kind_has_is_refused() {
    let project = project();
    assert_refused_and_unchanged(
        &project.folder,
        &["add", "kind", "Salute", "--plural", "greetings"],
        &["src/greeting/kind.rs has the plural greetings already", "--plural"],
    );
}

#[test]
fn a_flag_sets_the_plural_of_a_kind() {
    let project = project();
    let output = cargo_reknit(&project.folder, &["add", "kind", "Shelf", "--plural", "shelves"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("resource shelves.example.com"), "{}", stderr(&output));
    assert!(read(&project.folder, "src/shelf/kind.rs").contains("plural = \"shelves\""));
}

/// ClusterRoles of one name would replace each other.
#[test]
fn the_user_roles_of_a_kind_begin_with_the_name_of_the_project() {
    let project = project();
    let roles = read(&project.folder, "config/200-greeting-roles.yaml");
    let names: Vec<&str> = roles.lines().filter_map(|line| line.strip_prefix("  name: ")).collect();
    assert_eq!(names, ["greetings-greeting-viewer", "greetings-greeting-editor"]);
}

#[test]
fn a_kind_can_be_named_like_a_folder_of_the_project() {
    let project = project();
    succeed(&project.folder, &["add", "kind", "Config"]);
    assert!(read(&project.folder, "tests/config.rs").contains("use greetings::config::"));
}

#[test]
fn a_kind_that_does_not_exist_gets_no_webhook_and_no_version() {
    let project = project();
    let parts = ["no Kind Farewell", "src/farewell/kind.rs", "cargo reknit add kind Farewell"];
    assert_refused_and_unchanged(&project.folder, &["add", "webhook", "Farewell"], &parts);
    assert_refused_and_unchanged(&project.folder, &["add", "version", "Farewell", "v1"], &parts);
    // The module is the same.
    succeed(&project.folder, &["add", "kind", "HttpRoute"]);
    let parts = ["no Kind HTTPRoute", "`kind = \"HTTPRoute\"`"];
    assert_refused_and_unchanged(&project.folder, &["add", "webhook", "HTTPRoute"], &parts);
}

#[test]
fn each_command_only_creates_files_and_inserts_lines() {
    let project = project();
    let commands: [&[&str]; 5] = [
        &["add", "kind", "Farewell"],
        WEBHOOK,
        &["add", "webhook", "Farewell", "--validation"],
        &["add", "webhook", "Farewell", "--defaulting"],
        VERSION,
    ];
    for args in commands {
        let before = files(&project.folder);
        succeed(&project.folder, args);
        let after = files(&project.folder);
        assert!(after.len() > before.len(), "{args:?}");
        assert_only_insertions(before, &after);
    }
    let webhook = read(&project.folder, "src/webhook.rs");
    for line in [
        "let webhook = webhook.defaulting::<crate::greeting::Greeting>();",
        "let webhook = webhook.validation::<crate::greeting::Greeting>();",
        "let webhook = webhook.validation::<crate::farewell::Farewell>();",
        "let webhook = webhook.defaulting::<crate::farewell::Farewell>();",
        "let webhook = webhook.conversion::<crate::greeting::v1::Greeting>();",
    ] {
        assert_eq!(webhook.matches(line).count(), 1, "{line} in {webhook}");
    }
    let resources = read(&project.folder, "config/Kustomization");
    for name in ["service", "config", "defaulting", "validation"] {
        assert_eq!(resources.matches(&format!("-webhook-{name}.yaml")).count(), 1, "{resources}");
    }
}

#[test]
fn a_flag_selects_one_half_of_a_webhook() {
    for (flag, module, other) in
        [("--defaulting", "defaults", "rules"), ("--validation", "rules", "defaults")]
    {
        let project = project();
        succeed(&project.folder, &["add", "webhook", "Greeting", flag]);
        assert!(project.folder.join(format!("src/greeting/{module}.rs")).exists());
        assert!(!project.folder.join(format!("src/greeting/{other}.rs")).exists());
        let without = match flag {
            "--defaulting" => "validation",
            _ => "defaulting",
        };
        assert!(!read(&project.folder, "config/Kustomization").contains(without));
    }
}

#[test]
fn a_webhook_that_exists_is_refused() {
    let project = project();
    succeed(&project.folder, &["add", "webhook", "Greeting", "--validation"]);
    let parts = [
        "validation of Greeting already",
        "src/webhook.rs contains `.validation::<crate::greeting::Greeting>()`",
    ];
    assert_refused_and_unchanged(&project.folder, WEBHOOK, &[parts[0], parts[1], "pass --defaulting"]);
    assert_refused_and_unchanged(&project.folder, &["add", "webhook", "Greeting", "--validation"], &parts);
}

#[test]
fn defaults_that_a_kind_declares_are_kept() {
    let project = project();
    replace(
        &project.folder,
        "src/greeting/kind.rs",
        "    // reknit:scaffold:defaults\n",
        "    defaults: |_| {},\n",
    );
    succeed(&project.folder, &["add", "webhook", "Greeting", "--defaulting"]);
    assert!(!project.folder.join("src/greeting/defaults.rs").exists());
    assert!(read(&project.folder, "src/webhook.rs").contains("defaulting::<crate::greeting::Greeting>"));
}

#[test]
fn a_version_that_exists_is_refused() {
    let project = project();
    let of_kind = ["add", "version", "Greeting", "v1alpha1"];
    assert_refused_and_unchanged(
        &project.folder,
        &of_kind,
        &["v1alpha1 already, in src/greeting/kind.rs", "choose another"],
    );
    succeed(&project.folder, VERSION);
    assert_refused_and_unchanged(
        &project.folder,
        VERSION,
        &["v1 already, in src/greeting/v1.rs", "choose another"],
    );
    assert_refused(&project.folder, &["add", "version", "Greeting", "one"], 2, &["'one' for '<VERSION>'"]);
}

#[test]
fn a_version_is_a_copy_of_the_kind_in_its_own_module() {
    let project = project();
    succeed(&project.folder, WEBHOOK);
    let field = "    /// A first field.\n";
    replace(&project.folder, "src/greeting/kind.rs", field, &format!("    pub count: Option<u32>,\n{field}"));
    succeed(&project.folder, VERSION);
    let copy = read(&project.folder, "src/greeting/v1.rs");
    assert!(copy.starts_with("//! The version v1 of the Kind Greeting.\n"), "{copy}");
    for part in ["version = \"v1\"", "pub count: Option<u32>,", "kind!(Greeting {"] {
        assert!(copy.contains(part), "{part} in {copy}");
    }
    assert!(!copy.contains("v1alpha1") && !copy.contains("set_spec_defaults"), "{copy}");
    let example = read(&project.folder, "config/example/greeting_v1.yaml");
    assert!(
        example.contains("apiVersion: example.com/v1\n") && example.contains("name: hello-v1\n"),
        "{example}"
    );
}

#[test]
fn a_further_version_is_converted_by_the_same_hub() {
    let project = project();
    succeed(&project.folder, VERSION);
    succeed(&project.folder, &["add", "version", "Greeting", "v2beta1"]);
    let definition = read(&project.folder, "src/greeting/mod.rs");
    assert_eq!(definition.matches("conversion::by_webhook").count(), 1, "{definition}");
    for version in ["v1", "v2beta1"] {
        assert!(
            definition.contains(&format!("        definition_of::<{version}::Greeting>()?,\n")),
            "{definition}"
        );
        let conversion = read(&project.folder, &format!("src/greeting/{version}_conversion.rs"));
        assert!(!conversion.contains("v1beta1"), "{conversion}");
        assert!(conversion.contains(&format!("between {version} and the hub, v1alpha1")), "{conversion}");
    }
}

#[test]
fn missing_markers_are_all_named_with_the_lines_that_belong_there() {
    let project = project();
    for (path, marker) in [("src/greeting/kind.rs", "defaults"), ("src/greeting/mod.rs", "modules")] {
        replace(&project.folder, path, &format!("// reknit:scaffold:{marker}\n"), "\n");
    }
    let parts = [
        "`// reknit:scaffold:defaults` is missing from src/greeting/kind.rs",
        "\n    defaults: Greeting::set_spec_defaults,\n",
        "`// reknit:scaffold:modules` is missing from src/greeting/mod.rs",
        "\n    mod defaults;\n    mod rules;\n",
    ];
    assert_refused_and_unchanged(&project.folder, WEBHOOK, &parts);
    let parts = ["\n    pub mod v1;\n    mod v1_conversion;\n"];
    assert_refused_and_unchanged(&project.folder, VERSION, &parts);
}

#[test]
fn files_with_uncommitted_changes_are_refused_unless_allowed() {
    let project = project();
    let git = |args: &[&str]| {
        let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
        let git =
            Command::new("git").args(identity).args(args).current_dir(&project.folder).output().unwrap();
        assert!(git.status.success(), "{git:?}");
    };
    git(&["init", "--quiet"]);
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", "first"]);
    replace(&project.folder, "src/greeting/mod.rs", "//! The Kind", "//! A Kind");
    for args in [WEBHOOK, VERSION] {
        let parts = ["src/greeting/mod.rs", "--allow-dirty"];
        assert_refused_and_unchanged(&project.folder, args, &parts);
        succeed(&project.folder, &[args, &["--dry-run"]].concat());
        succeed(&project.folder, &[args, &["--allow-dirty"]].concat());
    }
}

#[test]
fn a_dry_run_prints_what_would_change_and_changes_nothing() {
    let project = project();
    let cases: [(&[&str], [&str; 3]); 2] = [
        (WEBHOOK, ["would create src/webhook.rs", "+ \"webhook\",", "+ mod rules;"]),
        (
            VERSION,
            [
                "would create src/webhook.rs",
                "would create src/greeting/v1.rs",
                "+ definition_of::<v1::Greeting>()?,",
            ],
        ),
    ];
    for (args, parts) in cases {
        let before = files(&project.folder);
        let output = cargo_reknit(&project.folder, &[args, &["--dry-run"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(parts.iter().all(|part| stderr(&output).contains(part)), "{}", stderr(&output));
        assert_eq!(files(&project.folder), before);
    }
}

#[test]
fn an_example_that_is_missing_is_refused() {
    let project = project();
    fs::remove_file(project.folder.join("config/example/greeting.yaml")).unwrap();
    assert_refused_and_unchanged(&project.folder, VERSION, &["cannot read config/example/greeting.yaml"]);
}
