//! The objects of `config/`, as the local control plane gets them.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The Kinds that do nothing without nodes.
const NEED_NODES: [&str; 3] = ["Deployment", "PodDisruptionBudget", "Service"];

/// A program of a Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// The name of the executable.
    pub(crate) program: String,
    pub(crate) namespace: String,
    pub(crate) service_account: String,
}

/// Reads the objects of the `.yaml` files of a folder, in the order of the files' names.
pub(crate) fn read_folder(folder: &Path) -> Result<Vec<Value>> {
    let cannot_read = || format!("cannot read {}", folder.display());
    let entries = fs::read_dir(folder).with_context(cannot_read)?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.with_context(cannot_read)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    let mut objects = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        objects.extend(parse(&text).with_context(|| format!("{} is invalid", path.display()))?);
    }
    Ok(objects)
}

/// Parses the documents of a YAML text.
pub(crate) fn parse(text: &str) -> Result<Vec<Value>> {
    Ok(serde_saphyr::from_multiple(text)?)
}

/// Returns the programs of the Deployments. A container without a command runs the entry point of the image, which is
/// the project's main program.
pub(crate) fn workloads(objects: &[Value], main_program: &str) -> Vec<Workload> {
    let deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
    deployments
        .map(|deployment| {
            let pod = &deployment["spec"]["template"]["spec"];
            let command = pod["containers"][0]["command"][0].as_str().unwrap_or(main_program);
            Workload {
                program: command.rsplit('/').next().unwrap_or(command).into(),
                namespace: deployment["metadata"]["namespace"].as_str().unwrap_or("default").into(),
                service_account: pod["serviceAccountName"].as_str().unwrap_or("default").into(),
            }
        })
        .collect()
}

/// Returns the objects as JSON documents to apply, without those that need nodes. The API server calls webhooks at this
/// port of 127.0.0.1, because there is no network for Services. The webhook adds its paths.
pub(crate) fn localize(objects: &[Value], webhook_port: u16) -> Vec<Value> {
    let needs_nodes =
        |object: &&Value| object["kind"].as_str().is_some_and(|kind| NEED_NODES.contains(&kind));
    let mut objects: Vec<Value> = objects.iter().filter(|object| !needs_nodes(object)).cloned().collect();
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
apiVersion: apps/v1
kind: Deployment
metadata: {name: controller, namespace: shop}
spec: {template: {spec: {serviceAccountName: controller, containers: [{name: controller}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: webhook, namespace: shop}
spec: {template: {spec: {serviceAccountName: hook, containers: [{name: webhook, command: [/webhook]}]}}}
---
kind: MutatingWebhookConfiguration
webhooks: [{name: defaulting.webhook.example.com, clientConfig: {service: {name: webhook}}}]
---
kind: CustomResourceDefinition
spec: {conversion: {webhook: {clientConfig: {service: {name: webhook}}}}}
"#;

    #[test]
    fn each_deployment_runs_a_program_as_its_service_account() {
        let workload = |program: &str, account: &str| Workload {
            program: program.into(),
            namespace: "shop".into(),
            service_account: account.into(),
        };
        let expected = [workload("orders", "controller"), workload("webhook", "hook")];
        assert_eq!(workloads(&parse(CONFIG).unwrap(), "orders"), expected);
    }

    #[test]
    fn webhooks_are_called_on_this_machine() {
        let objects = localize(&parse(CONFIG).unwrap(), 1234);
        let url = json!({"url": "https://127.0.0.1:1234"});
        assert_eq!(objects[0]["webhooks"][0]["clientConfig"], url);
        assert_eq!(objects[1]["spec"]["conversion"]["webhook"]["clientConfig"], url);
        assert_eq!(objects.len(), 2);
    }
}
