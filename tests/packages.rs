//! The published packages: what crates.io requires and shows of each.
#![cfg(test)]

use std::{path::Path, process::Command};

use serde_json::Value;

#[test]
fn each_published_package_has_its_metadata_and_exact_requirements_of_the_others() {
    let args = ["metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"];
    let output = Command::new(env!("CARGO")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let metadata: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let is_published = |package: &&Value| package["publish"].is_null();
    let packages: Vec<_> = metadata["packages"].as_array().unwrap().iter().filter(is_published).collect();
    assert!(packages.len() >= 8, "only {} packages", packages.len());
    for package in packages {
        let name = package["name"].as_str().unwrap();
        for list in ["keywords", "categories"] {
            assert!(!package[list].as_array().unwrap().is_empty(), "{name} has no {list}");
        }
        assert!(package["description"].is_string() && package["license"].is_string(), "{name}");
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        for file in ["README.md", "LICENSE"] {
            assert!(folder.join(file).exists(), "{name} has no {file}");
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let (other, requirement) = (&dependency["name"], dependency["req"].as_str().unwrap());
            let is_exact = requirement == format!("={}", package["version"].as_str().unwrap());
            // A dependency without a version, for tests, is left out of the package.
            let is_local = dependency["path"].is_string() && requirement != "*";
            assert!(is_exact || !is_local, "{name} requires {other} {requirement}");
        }
    }
}
