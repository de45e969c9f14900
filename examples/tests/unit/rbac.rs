//! The rbac.yaml of each example is generated from its constructors.

use std::fs;

use reknit::prelude::*;

use crate::{
    cloud_ide,
    support::{EXAMPLES, file, program_of},
};

/// hack/update-codegen.sh sets UPDATE_DEFINITIONS and runs this test to write the files.
#[test]
fn the_rbac_manifests_are_those_of_the_constructors() -> Result<()> {
    let update = std::env::var_os("UPDATE_DEFINITIONS").is_some();
    let programs = EXAMPLES.map(|example| (example, program_of(example)));
    for (example, program) in programs.into_iter().chain([("cloud-ide", cloud_ide::program())]) {
        let path = file(example, "rbac.yaml");
        let expected = program.rbac(example).to_yaml()?;
        if update {
            fs::write(&path, &expected).expect("the manifests are written");
        }
        let actual = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(actual, expected, "{}: run hack/update-codegen.sh", path.display());
    }
    Ok(())
}
