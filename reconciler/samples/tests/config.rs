//! What `config/` deploys is what the code says.

use std::{
    collections::BTreeMap,
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit::apis::{EXAMPLE_CHECKSUM_ANNOTATION, example_checksum};

type Checked = Result<(), Box<dyn Error>>;

/// Contents by file name.
type Files = BTreeMap<String, String>;

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config")
}

/// The files of `config/` whose names begin so.
fn files(prefix: &str) -> io::Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(config())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) {
            files.insert(name, fs::read_to_string(entry.path())?);
        }
    }
    Ok(files)
}

fn schema(args: &[&str]) -> io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_schema")).args(args).output()
}

fn without_comments(yaml: &str) -> String {
    yaml.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_definitions_are_those_of_the_types() -> Checked {
    let mut expected = Files::new();
    for kind in String::from_utf8(schema(&["list"])?.stdout)?.lines() {
        let definition = String::from_utf8(schema(&["dump", kind])?.stdout)?;
        expected.insert(format!("300-{}.yaml", kind.to_lowercase()), definition);
    }
    let mut found = files("300-")?;
    found.values_mut().for_each(|yaml| *yaml = without_comments(yaml));
    assert!(!expected.is_empty());
    assert_eq!(found, expected, "run hack/update-codegen.sh");
    Ok(())
}

#[test]
fn an_unknown_kind_is_a_usage_error_that_lists_the_known_ones() -> Checked {
    let answer = schema(&["dump", "Nothing"])?;
    assert_eq!(answer.status.code(), Some(2));
    let said = String::from_utf8(answer.stderr)?;
    assert!(said.contains("Nothing") && said.contains("AddressableService"), "{said}");
    assert_eq!(answer.stdout, b"");
    Ok(())
}

#[test]
fn every_example_carries_its_checksum() -> Checked {
    let maps = files("config-")?;
    let expected = ["config-leader-election.yaml", "config-logging.yaml", "config-observability.yaml"];
    assert!(maps.keys().eq(expected), "{:?}", maps.keys());
    for (file, yaml) in &maps {
        let map: ConfigMap = serde_yaml_ng::from_str(yaml)?;
        let data = map.data.unwrap_or_default();
        let annotations = map.metadata.annotations.unwrap_or_default();
        let example = data.get("_example").ok_or("no example")?;
        assert_eq!(annotations.get(EXAMPLE_CHECKSUM_ANNOTATION), Some(&example_checksum(example)), "{file}");
        assert_eq!(data.len(), 1, "{file} sets something: what is deployed are the defaults");
    }
    Ok(())
}
