//! `cargo reknit new --built-in`.

use std::{fs, path::Path};

use crate::support::{assert_no_name_of_the_template, assert_refused, cargo_reknit, files, stderr};

fn new<'a>(kind: &'a str, further: &[&'a str]) -> Vec<&'a str> {
    let args = ["new", "spaces", "--group", "example.com", "--kind", kind];
    [&args[..], further].concat()
}

/// Creates the project of a built-in Kind in `spaces/`. Returns the files with their paths in it, and the messages.
fn created(parent: &Path, kind: &str) -> (impl Fn(&str) -> String, String) {
    let output = cargo_reknit(parent, &new(kind, &["--built-in"]));
    assert!(output.status.success(), "{}", stderr(&output));
    let folder = parent.join("spaces");
    assert_no_name_of_the_template(&folder);
    (move |path: &str| fs::read_to_string(folder.join(path)).unwrap(), stderr(&output))
}

#[test]
fn the_project_of_a_built_in_kind_has_its_type_and_neither_a_definition_nor_roles_for_users() {
    let folder = tempfile::tempdir().unwrap();
    let (read, messages) = created(folder.path(), "v1/Namespace");
    assert!(!messages.contains("resource ") && messages.contains("cd spaces\n  cargo test\n"), "{messages}");
    let module = read("src/namespace/mod.rs");
    assert!(module.contains("pub use k8s_openapi::api::core::v1::Namespace;\n"), "{module}");
    assert!(!read("src/lib.rs").contains("definition()"), "{}", read("src/lib.rs"));
    assert!(!read("config/Kustomization").contains("crds"), "{}", read("config/Kustomization"));
    assert!(!read("config/Kustomization").contains("roles"), "{}", read("config/Kustomization"));
    assert!(!read("config/500-controller.yaml").contains("unprompted"));
    for absent in [
        "src/namespace/kind.rs",
        "config/example/namespace.yaml",
        "config/200-namespace-roles.yaml",
        "tests/namespace_simulation.rs",
    ] {
        assert!(!folder.path().join("spaces").join(absent).exists(), "{absent}");
    }
}

#[test]
fn the_scope_of_a_built_in_kind_is_that_of_k8s_openapi() {
    for (kind, test, is_namespaced) in [
        ("v1/ConfigMap", "tests/config_map.rs", true),
        ("apps/v1/Deployment", "tests/deployment.rs", true),
        ("v1/Namespace", "tests/namespace.rs", false),
        ("certificates.k8s.io/v1/CertificateSigningRequest", "tests/certificate_signing_request.rs", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (read, _) = created(folder.path(), kind);
        let test = read(test);
        let keys = if is_namespaced { "\"default/x\"" } else { "\"x\"," };
        assert!(test.contains(keys), "{kind}: {test}");
        assert_eq!(test.contains("metadata.namespace"), is_namespaced, "{kind}: {test}");
    }
}

#[test]
fn the_program_of_a_built_in_kind_may_read_it_and_not_write_its_status() {
    for (kind, group, plural) in [
        ("v1/Endpoints", "\"\"", "endpoints"),
        ("apps/v1/Deployment", "apps", "deployments"),
        (
            "certificates.k8s.io/v1/CertificateSigningRequest",
            "certificates.k8s.io",
            "certificatesigningrequests",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (read, _) = created(folder.path(), kind);
        let rule = format!("  - apiGroups: [{group}]\n    resources: [{plural}]\n    verbs: [list, watch]\n");
        for path in ["config/200-rbac.yaml", "config/shadow/rbac.yaml"] {
            let roles = read(path);
            assert_eq!((roles.matches(&rule).count(), roles.matches("/status").count()), (1, 0), "{roles}");
        }
    }
}

#[test]
fn the_role_of_the_system_namespace_lacks_what_the_cluster_role_grants() {
    for (kind, rule) in [
        ("v1/ConfigMap", "config-observability]\n    verbs: [get]\n"),
        ("v1/Pod", "resources: [pods]\n    verbs: [get]\n"),
        ("coordination.k8s.io/v1/Lease", "resources: [leases]\n    verbs: [get, create, patch, delete]\n"),
        ("apps/v1/Deployment", "resources: [leases]\n    verbs: [get, list, watch, create, patch, delete]\n"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (read, _) = created(folder.path(), kind);
        let roles = read("config/200-rbac.yaml");
        assert_eq!(roles.matches(rule).count(), 1, "{kind}: {roles}");
    }
}

#[test]
fn a_kind_whose_roles_only_the_code_knows_gets_them_by_the_next_command() {
    let folder = tempfile::tempdir().unwrap();
    let (_, messages) = created(folder.path(), "events.k8s.io/v1/Event");
    assert!(messages.contains("cd spaces\n  cargo reknit rbac --write\n  cargo test\n"), "{messages}");
}

#[test]
fn a_built_in_kind_that_k8s_openapi_lacks_is_refused_with_the_one_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    for (args, status, part) in [
        (new("example.com/v1/Greeting", &["--built-in"]), 2, "--external"),
        (new("extensions/v1beta1/Ingress", &["--built-in"]), 2, "networking.k8s.io/v1/Ingress"),
        (new("Deployment", &["--built-in"]), 1, "--kind apps/v1/Deployment"),
        (new("Greeting", &["--built-in"]), 1, "without --built-in"),
        (new("apps/v1/Deployment", &[]), 1, "--built-in"),
        (new("apps/v1/Deployment", &["--built-in", "--external"]), 2, "--external"),
        (new("v1/Namespace", &["--built-in", "--cluster-scoped"]), 2, "--cluster-scoped"),
        (new("apps/v1/Deployment", &["--built-in", "--version", "v1"]), 2, "--version"),
    ] {
        assert_refused(folder.path(), &args, status, &[part]);
    }
    let args = ["new", "x", "--group", "certificates.k8s.io", "--kind", "CertificateSigningRequest"];
    let advice = "--kind certificates.k8s.io/v1/CertificateSigningRequest --built-in";
    assert_refused(folder.path(), &args, 1, &[advice]);
    let args = ["new", "x", "--group", "storage.k8s.io", "--kind", "v1/Node", "--built-in"];
    assert_refused(folder.path(), &args, 1, &["Kubernetes protects the group storage.k8s.io"]);
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_project_of_a_built_in_kind_gets_kinds_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (read, _) = created(folder.path(), "v1/Namespace");
    let project = folder.path().join("spaces");
    for args in [["add", "webhook", "Namespace"].as_slice(), &["add", "version", "Namespace", "v2"]] {
        assert_refused(&project, args, 1, &["src/namespace/kind.rs does not exist", "declares"]);
    }
    assert_refused(&project, &["add", "kind", "Namespace"], 1, &["the project has src/namespace already"]);
    let output = cargo_reknit(&project, &["add", "kind", "Farewell"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(read("src/lib.rs").contains("farewell::definition()?"));
    assert!(read("config/Kustomization").contains("- 300-crds.yaml"));
}
