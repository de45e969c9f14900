//! One project from its creation on, with edits between the commands.

use crate::project::Project;

#[test]
fn a_project_compiles_and_passes_its_tests_after_each_command() {
    let project =
        Project::new("orders", &["--group", "shop.example.com", "--version", "v1alpha1", "--kind", "Policy"]);
    project.cargo(&["fmt", "--check"]);
    let tests = project.cargo(&["test"]);
    assert!(!tests.contains("warning"), "{tests}");
    assert!(tests.contains("test an_object_with_text_is_ready ... ok"), "{tests}");
    let definition = project.cargo(&["reknit", "crd"]);
    assert!(definition.contains("name: policies.shop.example.com"), "{definition}");

    project.edit(
        "src/policy/kind.rs",
        "    /// A first field.\n",
        "    /// How often.\n    pub count: Option<u32>,\n    /// A first field.\n",
    );
    project.edit("tests/policy.rs", "text: text.into()", "text: text.into(), count: None");
    project.cargo(&["fmt"]);
    let stale = project.command(&["test", "--test", "config"]).output().unwrap();
    assert!(String::from_utf8_lossy(&stale.stdout).contains("300-crds.yaml is out of date"), "{stale:?}");
    project.cargo(&["reknit", "crd", "--write"]);
    assert!(project.read("config/300-crds.yaml").contains("count:"));

    project.cargo(&["reknit", "add", "kind", "PurchaseOrder"]);
    project.cargo(&["reknit", "crd", "--write"]);
    let stale = project.command(&["test", "--test", "config"]).output().unwrap();
    assert!(String::from_utf8_lossy(&stale.stdout).contains("run `cargo reknit rbac --write`"), "{stale:?}");
    project.cargo(&["reknit", "rbac", "--write"]);
    assert!(project.read("config/200-rbac.yaml").contains("resources: [purchaseorders/status]"));
    project.cargo(&["fmt", "--check"]);
    project.cargo(&["test"]);
    assert!(project.read("config/300-crds.yaml").contains("name: purchaseorders.shop.example.com"));
}
