//! The files of `template/`. `project/` is what a project starts with; the other folders hold what is added to it.

/// A file of a template: its path in the project, and its content.
pub(crate) type File = (&'static str, &'static str);

macro_rules! files {
    ($folder:literal: $($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../template/", $folder, "/", $path)))),*]
    };
}

/// The files that a new project starts with. `Cargo.toml.in` becomes `Cargo.toml`: cargo leaves folders with a
/// Cargo.toml out of a package.
pub(crate) const PROJECT: &[File] = files!("project":
    "Cargo.toml.in",
    ".gitignore",
    ".dockerignore",
    ".github/workflows/ci.yaml",
    ".github/workflows/plan.yaml",
    ".vscode/launch.json",
    "Dockerfile",
    "README.md",
    "src/main.rs",
    "src/lib.rs",
    "src/bin/crd.rs",
    "src/bin/rbac.rs",
    "tests/integration.rs",
    "tests/manifests.rs",
    "config/Kustomization",
    "config/name-references",
    "config/100-namespace.yaml",
    "config/200-metrics-reader.yaml",
    "config/200-rbac.yaml",
    "config/300-crds.yaml",
    "config/400-config-leader-election.yaml",
    "config/400-disruption-budget.yaml",
    "config/400-network-policies.yaml",
    "config/500-controller.yaml",
    "config/monitoring/dashboard.json",
    "config/monitoring/kustomization.yaml",
    "config/monitoring/rules.yaml",
    "config/monitoring/service-monitor.yaml",
    "config/shadow/deployment.yaml",
    "config/shadow/kustomization.yaml",
    "config/shadow/name-references",
    "config/shadow/rbac.yaml",
    "config/egress/kustomization.yaml",
    "config/egress/network-policy.yaml",
);

/// The files of a Kind.
pub(crate) const KIND_FILES: &[File] = files!("project":
    "src/warm_greeting/mod.rs",
    "src/warm_greeting/kind.rs",
    "src/warm_greeting/controller.rs",
    "tests/warm_greeting.rs",
    "tests/warm_greeting_simulation.rs",
    "config/example/warm_greeting.yaml",
);

/// The files of a built-in Kind, instead of those above. The integration test replaces that of the project.
pub(crate) const BUILT_IN_FILES: &[File] = files!("built_in":
    "src/warm_greeting/mod.rs",
    "src/warm_greeting/controller.rs",
    "tests/warm_greeting.rs",
    "tests/integration.rs",
);

/// The roles of the users of a Kind.
pub(crate) const KIND_ROLES: &[File] = files!("project": "config/200-warm_greeting-roles.yaml");

/// The files of the webhook server, which a project gets once.
pub(crate) const WEBHOOK: &[File] = files!("webhook": "src/webhook.rs");
pub(crate) const WEBHOOK_MANIFESTS: &[File] = files!("webhook":
    "config/400-webhook-disruption-budget.yaml",
    "config/400-webhook-network-policy.yaml",
    "config/400-webhook-service.yaml",
    "config/500-webhook.yaml",
    "config/500-webhook-config.yaml",
    "config/500-webhook-secret.yaml",
);

/// The defaults of a Kind.
pub(crate) const DEFAULTING_CODE: &[File] = files!("webhook": "src/warm_greeting/defaults.rs");
pub(crate) const DEFAULTING_MANIFESTS: &[File] = files!("webhook": "config/500-webhook-defaulting.yaml");

/// The rules of a Kind.
pub(crate) const VALIDATION_CODE: &[File] = files!("webhook": "src/warm_greeting/rules.rs");
pub(crate) const VALIDATION_MANIFESTS: &[File] = files!("webhook": "config/500-webhook-validation.yaml");

/// The tests of the webhook with a Kind.
pub(crate) const WEBHOOK_TESTS: &[File] = files!("webhook": "tests/warm_greeting_webhook.rs");

/// The file of the conversion webhook, which a project gets once.
pub(crate) const CONVERSION: &[File] = files!("version": "src/conversion.rs");

/// The conversion of one added version of a Kind, and its tests.
pub(crate) const VERSION: &[File] =
    files!("version": "src/warm_greeting/v1beta1_conversion.rs", "tests/warm_greeting_v1beta1.rs");

/// Returns true if the code of a template uses this name. A Kind of this name would hide what the code means, or could not
/// be imported beside it.
pub(crate) fn uses(name: &str) -> bool {
    let files =
        [PROJECT, KIND_FILES, WEBHOOK, DEFAULTING_CODE, VALIDATION_CODE, WEBHOOK_TESTS, CONVERSION, VERSION];
    let lines = files.into_iter().flatten().filter(|(path, _)| path.ends_with(".rs"));
    let lines = lines.flat_map(|(_, text)| text.lines()).filter(|line| !line.trim_start().starts_with("//"));
    // Every second part of a line is a literal text, since quotes separate them.
    let mut code = lines.flat_map(|line| line.split('"').step_by(2));
    let is_end = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    // Names with WarmGreeting stand for those of the new Kind.
    code.any(|code| code.split(is_end).any(|word| word == name && !word.starts_with("WarmGreeting")))
}

/// The versions of the dependencies that reknit is tested with: a link to the Cargo.lock of the workspace, which a
/// published package contains as a file. Also lists packages that a project does not need.
pub(crate) const CARGO_LOCK: &str = include_str!("../template/Cargo.lock");

/// The source of reknit in the template.
pub(crate) const GIT_SOURCE: &str = r#"git = "https://github.com/reknit/reknit""#;

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the commands of plan.yaml that write the summary, with this plan.
    fn summary_of(plan: &str) -> String {
        let (_, workflow) = PROJECT.iter().find(|(path, _)| path.ends_with("plan.yaml")).unwrap();
        let (_, commands) = workflow.split_once("|| status=$?\n").unwrap();
        let (commands, _) = commands.split_once("# 3: ").unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plan.txt"), plan).unwrap();
        let mut bash = std::process::Command::new("bash");
        bash.args(["-ec", commands]).current_dir(&folder).env("GITHUB_STEP_SUMMARY", "summary");
        assert!(bash.status().unwrap().success());
        std::fs::read_to_string(folder.path().join("summary")).unwrap()
    }

    #[test]
    fn no_line_of_a_plan_ends_its_block_in_the_summary() {
        let summary = summary_of("~ ConfigMap a\n```\n~~~\r# a heading\r\n\n<h1>\nPlan: 1 to change\n");
        assert!(summary.starts_with("\n    Plan: 1 to change\n\n    ~ ConfigMap a\n"), "{summary}");
        assert!(summary.contains("    ```\n    ~~~\n    # a heading\n") && summary.ends_with('\n'));
        let is_indented = |line: &&str| line.is_empty() || line.starts_with("    ");
        assert_eq!(summary.split(['\n', '\r']).find(|line| !is_indented(line)), None);
    }

    #[test]
    fn the_summary_of_a_long_plan_has_its_last_line_and_says_that_it_is_cut() {
        let summary = summary_of(&format!("{}Plan: 1 to change\n", "a\n".repeat(50_000)));
        assert!(summary.starts_with("\n    Plan: 1 to change\n\n    a\n"));
        assert!(summary.ends_with("\n\nThe plan is cut here: run cargo reknit plan to see all of it.\n"));
        assert!(summary.len() < 65_536, "{}", summary.len());
    }
}
