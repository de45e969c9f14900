//! One project from its creation on, with edits between the commands.

use serde_json::{Value, json};

use crate::{deployed::Deployed, project::Project};

const GROUP: &str = "shop.example.com";

#[tokio::test(flavor = "multi_thread")]
async fn a_project_compiles_passes_its_tests_and_runs_after_its_commands() {
    let project = Project::new("orders", &["--group", GROUP, "--version", "v1alpha1", "--kind", "Policy"]);
    assert_tests_pass(&project, &["an_object_with_text_is_ready", "an_object_gets_ready_whatever_fails"]);

    add_field(&project);
    project.cargo(&["reknit", "add", "kind", "PurchaseOrder"]);
    assert_config_is_stale(&project);

    project.cargo(&["reknit", "add", "webhook", "Policy"]);
    add_default_and_rule(&project);
    project.cargo(&["reknit", "add", "webhook", "PurchaseOrder", "--validation"]);
    project.cargo(&["reknit", "add", "version", "Policy", "v1beta1"]);
    project.cargo(&["reknit", "crd", "--write"]);
    project.cargo(&["reknit", "rbac", "--write"]);
    assert!(project.read("config/300-crds.yaml").contains("name: purchaseorders.shop.example.com"));
    assert!(project.read("config/200-rbac.yaml").contains("resources: [purchaseorders/status]"));
    assert!(!project.cargo(&["reknit", "rbac", "--", "--disable-ha"]).contains("resources: [leases]"));
    assert_tests_pass(&project, &["a_misspelt_field_is_refused", "a_round_trip_from_the_hub_loses_nothing"]);

    assert_runs_as_its_service_account(&project).await;
}

#[tokio::test]
async fn the_project_of_a_built_in_kind_compiles_passes_its_tests_and_runs() {
    let project = Project::new("maps", &["--group", GROUP, "--kind", "v1/ConfigMap", "--built-in"]);
    assert_tests_pass(&project, &["an_object_is_left_as_it_is"]);
    let printed = project.cargo(&["reknit", "dev", "--once"]);
    assert!(printed.contains("running maps as maps/controller"), "{printed}");

    project.cargo(&["reknit", "add", "kind", "Policy"]);
    project.cargo(&["reknit", "crd", "--write"]);
    project.cargo(&["reknit", "rbac", "--write"]);
    assert_tests_pass(&project, &["an_object_is_left_as_it_is", "an_object_with_text_is_ready"]);
}

/// Asserts that the sources are formatted, that they compile without warnings, and that all tests pass, including
/// these.
fn assert_tests_pass(project: &Project, included: &[&str]) {
    project.cargo(&["fmt", "--check"]);
    let tests = project.cargo(&["test", "--locked"]);
    assert!(!tests.contains("warning"), "{tests}");
    assert!(included.iter().all(|test| tests.contains(&format!("test {test} ... ok"))), "{tests}");
    let tests = project.cargo(&["test", "--locked", "--test", "integration"]);
    assert!(tests.contains("1 passed"), "{tests}");
}

/// Asserts that the tests name the commands that bring `config/` up to date.
fn assert_config_is_stale(project: &Project) {
    let tests = project.command(&["test", "--test", "manifests"]).output().unwrap();
    let printed = String::from_utf8_lossy(&tests.stdout);
    for command in ["run `cargo reknit crd --write`", "run `cargo reknit rbac --write`"] {
        assert!(printed.contains(command), "{tests:?}");
    }
}

fn add_field(project: &Project) {
    let field = "    /// A first field.\n";
    let optional = "    /// How often.\n    pub count: Option<u32>,\n";
    project.edit("src/policy/kind.rs", field, &format!("{optional}{field}"));
    project.edit("tests/policy.rs", "text: text.into()", "text: text.into(), count: Some(1)");
    project.cargo(&["fmt"]);
}

fn add_default_and_rule(project: &Project) {
    let hint = "// For an optional field: self.spec.count.get_or_insert(1);";
    project.edit("src/policy/defaults.rs", hint, "self.spec.count.get_or_insert(1);");
    let rule = "if self.spec.count == Some(0) {
            return FieldError::invalid_value(0, \"spec.count\");
        }
        FieldError::none()";
    project.edit("src/policy/rules.rs", "FieldError::none()", rule);
}

async fn assert_runs_as_its_service_account(project: &Project) {
    let mut deployed = Deployed::start(project, "orders", GROUP).await;
    deployed.assert_applies_again(project);
    deployed.assert_answers_as_a_project_of_kubebuilder().await;
    deployed.reach_webhook("policies.shop.example.com").await;
    let invalid = json!({"text": "hello", "count": 0});
    let message = "invalid value: 0: spec.count";
    deployed.assert_refused("v1alpha1", "Policy", invalid.clone(), message).await;
    deployed.assert_refused("v1beta1", "Policy", invalid, message).await;

    deployed.apply_examples(project).await;
    let expected = json!({"text": "hello", "count": 1});
    for name in ["hello", "hello-v1beta1"] {
        for version in ["v1alpha1", "v1beta1"] {
            assert_eq!(deployed.spec_once_ready(version, "Policy", name).await, expected, "{version} {name}");
        }
    }
    deployed.spec_once_ready("v1alpha1", "PurchaseOrder", "hello").await;
    assert_does_what_it_plans(project, &mut deployed).await;
    deployed.stop().await;
}

/// Plans the running version, and then a changed one, runs that, and plans it.
async fn assert_does_what_it_plans(project: &Project, deployed: &mut Deployed) {
    let nothing = "Plan: 0 to create, 0 to change, 0 to change in status only, 0 to delete; 0 failed\n";
    let nothing = (Some(0), nothing.to_owned());
    assert_eq!(deployed.plan(project, "text").await, nothing);
    let changed = "mark_false(\"Ready\", \"Changed\", \"by the test\")";
    project.edit("src/policy/controller.rs", "mark_true(\"Ready\")", changed);
    let (status, plan) = deployed.plan(project, "json").await;
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!((status, &plan["summary"]["changeStatus"]), (Some(3), &json!(2)), "{plan:#}");
    deployed.upgrade(project, &plan).await;
    assert_eq!(deployed.plan(project, "text").await, nothing);
}
