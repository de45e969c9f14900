//! The manifests in `config/` match the code.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use k8s_openapi::{
    api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
};
use reknit::{
    apis::{EXAMPLE_CHECKSUM_ANNOTATION, example_checksum},
    leadership::LeaderElectionConfig,
    prelude::*,
};
use reknit_samples::manifests;

/// Contents by file name.
type Files = BTreeMap<String, String>;

fn config_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config")
}

/// The files of `config/` with this prefix.
fn files(prefix: &str) -> io::Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(config_folder())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) {
            files.insert(name, fs::read_to_string(entry.path())?);
        }
    }
    Ok(files)
}

#[test]
fn the_custom_resource_definitions_match_the_types() -> Result<()> {
    let file = fs::read_to_string(config_folder().join("300-crds.yaml"))?;
    assert_eq!(file, manifests::definitions_yaml()?, "run hack/update-codegen.sh");
    Ok(())
}

#[test]
fn the_rbac_manifests_match_the_constructors() -> Result<()> {
    let file = fs::read_to_string(config_folder().join("200-rbac.yaml"))?;
    assert_eq!(file, manifests::rbac().to_yaml()?, "run hack/update-codegen.sh");
    Ok(())
}

#[test]
fn the_rbac_manifests_of_the_shadow_match_the_constructors() -> Result<()> {
    let file = fs::read_to_string(config_folder().join("shadow/rbac.yaml"))?;
    assert_eq!(file, manifests::rbac().shadow().to_yaml()?, "run hack/update-codegen.sh");
    Ok(())
}

#[test]
fn the_rbac_manifests_of_one_namespace_match_the_constructors() -> Result<()> {
    let printed = manifests::rbac().args(["--namespace=team-a"]).to_yaml()?;
    let (header, documents) = printed.split_once('\n').ok_or("no header")?;
    for (file, part) in [("rbac", "\n  namespace: team-a\n"), ("cluster-role", "\nkind: ClusterRole\n")] {
        let of_file: Vec<_> = documents.split("---\n").filter(|document| document.contains(part)).collect();
        let expected = format!("{header}\n{}", of_file.join("---\n"));
        let file = fs::read_to_string(config_folder().join(format!("namespaced/{file}.yaml")))?;
        assert_eq!(file, expected, "run hack/update-codegen.sh");
    }
    Ok(())
}

/// The ConfigMaps of `config/` with their examples, by file name.
fn examples() -> Result<BTreeMap<String, (ConfigMap, String)>> {
    let mut examples = BTreeMap::new();
    for (file, yaml) in files("config-")? {
        let map: ConfigMap = serde_saphyr::from_str(&yaml)?;
        let example = map.data.iter().flatten().find(|(key, _)| *key == "_example");
        let example = example.ok_or_else(|| format!("{file} has no example"))?.1.clone();
        examples.insert(file, (map, example));
    }
    let expected = ["config-leader-election.yaml", "config-logging.yaml", "config-observability.yaml"];
    assert!(examples.keys().eq(expected), "{:?}", examples.keys());
    Ok(examples)
}

#[test]
fn the_config_maps_have_the_label_by_which_the_webhook_selects_them() -> Result<()> {
    let (_, yaml) = files("500-webhook-configuration")?.pop_first().ok_or("no configuration")?;
    let selectors: Vec<LabelSelector> = yaml
        .split("\n---\n")
        .map(serde_saphyr::from_str::<ValidatingWebhookConfiguration>)
        .filter_map(Result::ok)
        .flat_map(|configuration| configuration.webhooks.unwrap_or_default())
        .filter(|webhook| webhook.name.starts_with("config."))
        .filter_map(|webhook| webhook.object_selector)
        .collect();
    let [selector] = &selectors[..] else { return Err(format!("{selectors:?}").into()) };
    let [LabelSelectorRequirement { key, operator, values: None }] =
        selector.match_expressions.as_deref().unwrap_or_default()
    else {
        return Err(format!("{selector:?}").into());
    };
    assert_eq!((&**operator, &selector.match_labels), ("Exists", &None));
    for (file, (map, _)) in examples()? {
        assert!(map.metadata.labels.unwrap_or_default().contains_key(key), "{file} lacks the label {key}");
    }
    Ok(())
}

#[test]
fn every_example_has_its_checksum() -> Result<()> {
    for (file, (map, example)) in examples()? {
        let checksum = map.metadata.annotations.unwrap_or_default().remove(EXAMPLE_CHECKSUM_ANNOTATION);
        assert_eq!(checksum, Some(example_checksum(&example)), "{file}");
    }
    Ok(())
}

#[test]
fn the_deployed_config_maps_set_only_the_buckets_and_their_examples_are_maps_of_texts() -> Result<()> {
    for (file, (map, example)) in examples()? {
        let mut data = map.data.unwrap_or_default();
        let buckets = data.remove("buckets");
        assert_eq!(buckets.is_some(), file == "config-leader-election.yaml", "{file}");
        assert_eq!(data.len(), 1, "{file} sets another key besides _example");
        let settings: BTreeMap<String, String> = serde_saphyr::from_str(&example)?;
        assert!(!settings.is_empty(), "{file}");
    }
    Ok(())
}

#[test]
fn the_example_of_leader_election_shows_the_defaults() -> Result<()> {
    let (_, example) = &examples()?["config-leader-election.yaml"];
    let mut parsed = LeaderElectionConfig::from_data(&serde_saphyr::from_str(example)?)?;
    // A prefix has no default. The example shows one for its form.
    assert_eq!(parsed.lease_prefixes.len(), 1);
    parsed.lease_prefixes.clear();
    assert_eq!(parsed, LeaderElectionConfig::default());
    Ok(())
}

#[test]
fn no_member_of_the_workspace_is_excluded_from_the_image_build() -> Result<()> {
    let root = config_folder().join("..");
    let dockerignore = fs::read_to_string(root.join(".dockerignore"))?;
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = "));
    let members: Vec<String> = serde_json::from_str(members.ok_or("the workspace has no members")?)?;
    for member in members {
        let folder = member.split('/').next().unwrap_or_default();
        let is_excluded = dockerignore.lines().any(|line| line == folder || line == member);
        assert!(!is_excluded, "{member} is in .dockerignore");
    }
    Ok(())
}
