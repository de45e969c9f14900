//! The objects of `config/`, as the local control plane gets them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// The names of a kustomization's file.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// The Kinds that kustomize and kubectl apply before all others, in their order, and those that they apply last.
const FIRST: [&str; 9] = [
    "Namespace",
    "ResourceQuota",
    "CustomResourceDefinition",
    "ServiceAccount",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "ConfigMap",
];
const LAST: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// The part of a kustomization that names its files.
#[derive(Deserialize)]
struct Kustomization {
    #[serde(default)]
    resources: Vec<String>,
}

/// Reads the objects of a folder: of the resources of its kustomization, or else of its `.yaml` files in the order of
/// their names.
pub(crate) fn read_folder(folder: &Path) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for path in files(folder)? {
        if path.is_dir() {
            objects.extend(read_folder(&path)?);
            continue;
        }
        let text = read(&path)?;
        objects.extend(parse(&text).with_context(|| format!("{} is invalid", path.display()))?);
    }
    Ok(objects)
}

/// The files and folders of a folder's kustomization, or else its `.yaml` files.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    if let Some(file) = KUSTOMIZATIONS.iter().map(|name| folder.join(name)).find(|file| file.exists()) {
        let kustomization: Kustomization = serde_saphyr::from_str(&read(&file)?)
            .with_context(|| format!("{} is invalid", file.display()))?;
        return Ok(kustomization.resources.iter().map(|resource| folder.join(resource)).collect());
    }
    let cannot_read = || format!("cannot read {}", folder.display());
    let entries = fs::read_dir(folder).with_context(cannot_read)?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.with_context(cannot_read)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The API group, the Kind, the namespace and the name of an object.
pub(crate) type Identity = [String; 4];

pub(crate) fn identity(object: &Value) -> Identity {
    let text = |pointer: &str, default: &str| {
        object.pointer(pointer).and_then(Value::as_str).unwrap_or(default).to_owned()
    };
    let version = text("/apiVersion", "");
    let group = version.rsplit_once('/').map_or("", |(group, _)| group);
    [group.to_owned(), text("/kind", ""), text("/metadata/namespace", "default"), text("/metadata/name", "")]
}

/// Returns the objects without those that a later one replaces: the last one of each identity.
pub(crate) fn last_of_each(mut objects: Vec<Value>) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    objects.reverse();
    objects.retain(|object| seen.insert(identity(object)));
    objects.reverse();
    objects
}

/// Sorts objects by their Kinds as `kubectl apply -k` does, so that a Namespace comes before its objects.
pub(crate) fn sort_as_kustomize(objects: &mut [Value]) {
    objects.sort_by_key(|object| {
        let position = |kinds: &[&str]| kinds.iter().position(|kind| object["kind"] == *kind);
        match position(&LAST) {
            Some(last) => FIRST.len() + 1 + last,
            None => position(&FIRST).unwrap_or(FIRST.len()),
        }
    });
}

/// Parses the documents of a YAML text.
pub(crate) fn parse(text: &str) -> Result<Vec<Value>> {
    Ok(serde_saphyr::from_multiple(text)?)
}

/// Returns the objects as JSON documents to apply: also those that do nothing without nodes, which the API server
/// checks. It calls webhooks at this port of 127.0.0.1, because there is no network for Services. The webhook adds its
/// paths.
pub(crate) fn localize(objects: &[Value], webhook_port: u16) -> Vec<Value> {
    let mut objects = objects.to_vec();
    let client_config = json!({"url": format!("https://127.0.0.1:{webhook_port}")});
    for object in &mut objects {
        let entries = object.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten();
        for entry in entries {
            entry["clientConfig"] = client_config.clone();
        }
        if let Some(conversion) = object.pointer_mut("/spec/conversion/webhook") {
            conversion["clientConfig"] = client_config.clone();
        }
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
kind: MutatingWebhookConfiguration
webhooks:
  - {name: defaulting.webhook.example.com, clientConfig: {service: {name: webhook}}}
  - {name: bindings.webhook.example.com, clientConfig: {service: {name: webhook, path: /bindings}}}
---
kind: CustomResourceDefinition
spec: {conversion: {webhook: {clientConfig: {service: {name: webhook}}}}}
"#;

    fn kinds(objects: &[Value]) -> Vec<&str> {
        objects.iter().filter_map(|object| object["kind"].as_str()).collect()
    }

    #[test]
    fn objects_are_applied_in_the_order_of_kustomize() {
        let kind = |kind: &str| json!({ "kind": kind });
        let mut objects =
            ["ValidatingWebhookConfiguration", "Lamp", "ConfigMap", "RoleBinding", "Role", "Namespace"]
                .map(kind);
        sort_as_kustomize(&mut objects);
        let expected =
            ["Namespace", "Role", "RoleBinding", "ConfigMap", "Lamp", "ValidatingWebhookConfiguration"];
        assert_eq!(kinds(&objects), expected);
    }

    #[test]
    fn what_a_program_prints_replaces_the_object_in_config_and_a_reverted_program_restores_it() {
        let role = |version: &str, namespace: &str, verb: &str| {
            let metadata = json!({"name": "controller", "namespace": namespace});
            let api_version = format!("rbac.authorization.k8s.io/{version}");
            json!({"apiVersion": api_version, "kind": "Role", "metadata": metadata, "rules": [{"verbs": [verb]}]})
        };
        let (other, written) = (role("v1", "other", "get"), role("v1", "shop", "get"));
        for printed in [role("v1", "shop", "list"), role("v1beta1", "shop", "get"), written.clone()] {
            let objects = vec![written.clone(), other.clone(), printed.clone()];
            assert_eq!(last_of_each(objects), [other.clone(), printed]);
        }
    }

    #[test]
    fn a_kustomization_says_which_files_are_applied() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("base")).unwrap();
        for (name, kind) in [("a.yaml", "A"), ("b.yaml", "B"), ("base/c.yaml", "C"), ("patch.yaml", "Patch")]
        {
            write(name, &format!("kind: {kind}\n"));
        }
        assert_eq!(kinds(&read_folder(folder.path()).unwrap()), ["A", "B", "Patch"]);
        write("Kustomization", "resources: [b.yaml, base, a.yaml]\npatches: [{path: patch.yaml}]\n");
        assert_eq!(kinds(&read_folder(folder.path()).unwrap()), ["B", "C", "A"]);
        write("Kustomization", "resources: [absent.yaml]\n");
        let error = format!("{:#}", read_folder(folder.path()).unwrap_err());
        assert!(error.contains("cannot read") && error.contains("absent.yaml"), "{error}");
    }

    #[test]
    fn objects_that_do_nothing_without_nodes_are_applied_too() {
        let objects = ["Deployment", "PodDisruptionBudget", "Service"].map(|kind| json!({ "kind": kind }));
        assert_eq!(localize(&objects, 1234), objects);
    }

    #[test]
    fn webhooks_are_called_on_this_machine() {
        let objects = localize(&parse(CONFIG).unwrap(), 1234);
        let url = json!({"url": "https://127.0.0.1:1234"});
        for entry in objects[0]["webhooks"].as_array().unwrap() {
            assert_eq!(entry["clientConfig"], url);
        }
        assert_eq!(objects[1]["spec"]["conversion"]["webhook"]["clientConfig"], url);
        assert_eq!(objects.len(), 2);
    }
}
