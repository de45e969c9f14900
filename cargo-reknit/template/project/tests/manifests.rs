//! Tests that the generated files in `config/` match the code.

use std::fs;

use reknit::prelude::*;

#[test]
fn the_definitions_in_config_match_the_code() -> Result<()> {
    let file = fs::read_to_string("config/300-crds.yaml")?;
    let is_current = file == hello_world::definitions_yaml()?;
    assert!(
        is_current,
        "config/300-crds.yaml is out of date: run `cargo reknit crd --write`"
    );
    Ok(())
}

#[test]
fn the_rbac_manifests_in_config_match_the_code() -> Result<()> {
    let file = fs::read_to_string("config/200-rbac.yaml")?;
    let is_current = file == hello_world::rbac().to_yaml()?;
    assert!(
        is_current,
        "config/200-rbac.yaml is out of date: run `cargo reknit rbac --write`"
    );
    Ok(())
}

#[test]
fn the_rbac_manifests_of_the_shadow_match_the_code() -> Result<()> {
    let file = fs::read_to_string("config/shadow/rbac.yaml")?;
    let is_current = file == hello_world::rbac().shadow().to_yaml()?;
    assert!(
        is_current,
        "config/shadow/rbac.yaml is out of date: run `cargo reknit rbac --write`"
    );
    Ok(())
}
