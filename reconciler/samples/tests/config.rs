//! What `config/` deploys is what the code says.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use k8s_openapi::api::core::v1::ConfigMap;

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config")
}

fn schema(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_schema")).args(args).output().unwrap()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn without_comments(yaml: &str) -> String {
    yaml.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

/// The files whose names begin so, by name.
fn files(prefix: &str) -> BTreeMap<String, String> {
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        name.starts_with(prefix).then(|| (name, fs::read_to_string(&path).unwrap()))
    };
    fs::read_dir(config()).unwrap().filter_map(|entry| read(entry.unwrap().path())).collect()
}

#[test]
fn the_definitions_are_those_of_the_types() {
    let kinds = text(schema(&["list"]).stdout);
    let expected: BTreeMap<String, String> = kinds
        .lines()
        .map(|kind| (format!("300-{}.yaml", kind.to_lowercase()), text(schema(&["dump", kind]).stdout)))
        .collect();
    let found: BTreeMap<String, String> =
        files("300-").into_iter().map(|(name, yaml)| (name, without_comments(&yaml))).collect();
    assert!(!expected.is_empty());
    assert_eq!(found, expected, "run hack/update-codegen.sh");
}

#[test]
fn an_unknown_kind_is_a_usage_error_that_lists_the_known_ones() {
    let answer = schema(&["dump", "Nothing"]);
    assert_eq!(answer.status.code(), Some(2));
    let said = text(answer.stderr);
    assert!(said.contains("Nothing") && said.contains("AddressableService"), "{said}");
    assert_eq!(text(answer.stdout), "");
}

#[test]
fn every_example_carries_its_checksum() {
    let maps = files("config-");
    let names: Vec<&str> = maps.keys().map(String::as_str).collect();
    assert_eq!(names, ["config-leader-election.yaml", "config-logging.yaml", "config-observability.yaml"]);
    for (name, yaml) in &maps {
        let map: ConfigMap = serde_yaml_ng::from_str(yaml).unwrap();
        let example = map.data.unwrap().remove("_example").unwrap();
        let noted = map.metadata.annotations.unwrap().remove("knative.dev/example-checksum").unwrap();
        assert_eq!(noted, reknit::apis::example_checksum(&example), "{name}");
    }
}
