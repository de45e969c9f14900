//! The programs of the Deployments in `config/`.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::Value;

/// The flags without a value that `cargo reknit dev` sets itself, or leaves out: it serves on localhost, where `curl` reads
/// the metrics.
const OWN_SWITCHES: [&str; 3] = ["--disable-ha", "--leader-elect", "--metrics-secure"];
/// The flags with a value that `cargo reknit dev` sets itself, or leaves out: each program gets free ports.
const OWN_FLAGS: [&str; 10] = [
    "--bind-address",
    "--health-probe-bind-address",
    "--metrics-bind-address",
    "--webhook-port",
    "--console-bind-address",
    "--shutdown-timeout",
    "--kubeconfig",
    "--context",
    "--cluster",
    "--server",
];

/// A program of a Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// The name of the executable.
    pub(crate) program: String,
    pub(crate) namespace: String,
    pub(crate) service_account: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
}

/// The program that the project's image runs.
pub(crate) struct MainProgram {
    pub(crate) name: String,
    /// Its path in the image.
    path: Option<String>,
}

impl MainProgram {
    /// The program of this name. Its path in the image is the entry point of the project's Dockerfile.
    pub(crate) fn of(name: &str, folder: &Path) -> Self {
        let dockerfile = fs::read_to_string(folder.join("Dockerfile")).unwrap_or_default();
        let words = dockerfile.lines().rev().find_map(|line| line.strip_prefix("ENTRYPOINT"));
        let words = words.and_then(|words| serde_json::from_str::<Vec<String>>(words).ok());
        Self { name: name.into(), path: words.and_then(|words| words.into_iter().next()) }
    }
}

/// Returns the programs of the Deployments, of each the first container. A container without a command runs the entry
/// point of the image, which is the project's main program.
pub(crate) fn workloads(objects: &[Value], main: &MainProgram) -> Vec<Workload> {
    let deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
    deployments.map(|deployment| Workload::of(deployment, objects, main)).collect()
}

/// The program and its account, since two Deployments may run one program.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}/{}", self.program, self.namespace, self.service_account)
    }
}

impl Workload {
    /// Tells whether the pods of the Deployment could be created: without its ServiceAccount, a cluster refuses them.
    pub(crate) fn has_account(&self, objects: &[Value]) -> bool {
        let is_account = |object: &Value| {
            object["kind"] == "ServiceAccount"
                && object["metadata"]["name"] == *self.service_account
                && object["metadata"]["namespace"].as_str().unwrap_or("default") == self.namespace
        };
        self.service_account == "default" || objects.iter().any(is_account)
    }

    fn of(deployment: &Value, objects: &[Value], main: &MainProgram) -> Self {
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let mut workload = Self {
            program: String::new(),
            namespace: deployment["metadata"]["namespace"].as_str().unwrap_or("default").into(),
            service_account: pod["serviceAccountName"].as_str().unwrap_or("default").into(),
            args: Vec::new(),
            env: BTreeMap::new(),
        };
        for source in items(&container["envFrom"]) {
            let prefix = source["prefix"].as_str().unwrap_or_default();
            for (kind, field) in [("ConfigMap", "configMapRef"), ("Secret", "secretRef")] {
                let values = workload.values(kind, &source[field], objects).into_iter();
                workload.env.extend(values.map(|(key, value)| (format!("{prefix}{key}"), value)));
            }
        }
        for variable in items(&container["env"]) {
            let Some(name) = variable["name"].as_str() else { continue };
            if let Some(value) = workload.value(variable, deployment, objects) {
                workload.env.insert(name.into(), value);
            }
        }
        let words = items(&container["command"]).chain(items(&container["args"])).filter_map(Value::as_str);
        let mut words = words.map(|word| workload.expand(word));
        let command = match container["command"].is_array() {
            true => words.next().unwrap_or_default(),
            false => main.name.clone(),
        };
        let program = match main.path.as_ref() == Some(&command) {
            true => &*main.name,
            false => command.rsplit('/').next().unwrap_or(&command),
        };
        Self { program: program.into(), args: without_flags(words, &OWN_SWITCHES, &OWN_FLAGS), ..workload }
    }

    /// The value of an environment variable. `None` if only a pod has it, such as its uid, or if no object in `config/`
    /// has it.
    fn value(&self, variable: &Value, deployment: &Value, objects: &[Value]) -> Option<String> {
        if let Some(value) = variable["value"].as_str() {
            return Some(self.expand(value));
        }
        let source = &variable["valueFrom"];
        match source["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.namespace") => return Some(self.namespace.clone()),
            Some("metadata.name") => return deployment["metadata"]["name"].as_str().map(Into::into),
            Some("spec.serviceAccountName") => return Some(self.service_account.clone()),
            _ => {}
        }
        let of = |kind: &str, reference: &Value| {
            self.values(kind, reference, objects).remove(reference["key"].as_str()?)
        };
        of("ConfigMap", &source["configMapKeyRef"]).or_else(|| of("Secret", &source["secretKeyRef"]))
    }

    /// The values of the ConfigMap or the Secret in `config/` that a reference names. Those of `stringData` replace those
    /// of `data`, as the API server does it.
    fn values(&self, kind: &str, reference: &Value, objects: &[Value]) -> BTreeMap<String, String> {
        let object = objects.iter().find(|object| {
            object["kind"] == kind
                && object["metadata"]["name"] == reference["name"]
                && object["metadata"]["namespace"].as_str().unwrap_or("default") == self.namespace
        });
        let entries = |field: &str| object.and_then(|object| object[field].as_object()).into_iter().flatten();
        let decode = |value: &Value| match kind {
            "Secret" => String::from_utf8(ByteString::deserialize(value).ok()?.0).ok(),
            _ => value.as_str().map(Into::into),
        };
        let data = entries("data").filter_map(|(key, value)| Some((key.clone(), decode(value)?)));
        let texts =
            entries("stringData").filter_map(|(key, value)| Some((key.clone(), value.as_str()?.into())));
        data.chain(texts).collect()
    }

    /// Replaces `$(NAME)` by the variable of this name, as the kubelet does.
    fn expand(&self, text: &str) -> String {
        self.env
            .iter()
            .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Leaves out these switches, and these flags with their values.
pub(crate) fn without_flags(
    args: impl IntoIterator<Item = String>,
    switches: &[&str],
    flags: &[&str],
) -> Vec<String> {
    let (mut kept, mut is_value) = (Vec::new(), false);
    for arg in args {
        let name = arg.split('=').next().unwrap_or_default();
        let is_flag = flags.contains(&name);
        if !is_flag && !switches.contains(&name) && !is_value {
            kept.push(arg.clone());
        }
        is_value = is_flag && !arg.contains('=');
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::manifests::parse, *};

    const CONFIG: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: controller, namespace: shop}
spec:
  template:
    spec:
      serviceAccountName: controller
      containers:
        - name: controller
          command: [/controller]
          args:
            - --leader-elect
            - --metrics-bind-address=:8443
            - --health-probe-bind-address=:8081
            - --webhook-port
            - "9443"
          envFrom:
            - {prefix: MY_, configMapRef: {name: settings}}
            - secretRef: {name: settings}
          env: [{name: MY_color, value: "dark $(MY_color)"}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: webhook, namespace: shop}
spec:
  template:
    spec:
      serviceAccountName: hook
      containers:
        - name: webhook
          command: [/webhook, --verbose]
          args: [--disable-ha, --metrics-secure, --bind-address, 0.0.0.0, --server=https://x, "--namespace=$(TEAM)", last]
          env:
            - {name: TEAM, value: team-a}
            - {name: SYSTEM_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
            - {name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}
            - {name: TOKEN, valueFrom: {secretKeyRef: {name: settings, key: token}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: shop}, data: {color: red}}
---
apiVersion: v1
kind: Secret
metadata: {name: settings, namespace: shop}
data: {token: b2xk, user: Ym9i}
stringData: {token: x}
"#;

    fn main() -> MainProgram {
        MainProgram { name: "orders".into(), path: Some("/controller".into()) }
    }

    #[test]
    fn each_deployment_runs_a_program_as_its_service_account_with_its_arguments_and_environment() {
        let workload = |program: &str, account: &str| Workload {
            program: program.into(),
            namespace: "shop".into(),
            service_account: account.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
        };
        let args = ["--verbose", "--namespace=team-a", "last"].map(Into::into).to_vec();
        let env = [
            ("TEAM", "team-a"),
            ("SYSTEM_NAMESPACE", "shop"),
            ("POD_NAME", "webhook"),
            ("COLOR", "red"),
            ("TOKEN", "x"),
        ];
        let env = env.map(|(name, value)| (name.into(), value.into())).into();
        let of_main = [("MY_color", "dark red"), ("token", "x"), ("user", "bob")];
        let of_main = of_main.map(|(name, value)| (name.into(), value.into())).into();
        let expected = [
            Workload { env: of_main, ..workload("orders", "controller") },
            Workload { args, env, ..workload("webhook", "hook") },
        ];
        assert_eq!(workloads(&parse(CONFIG).unwrap(), &main()), expected);
    }

    #[test]
    fn the_entry_point_of_the_image_is_the_path_of_the_main_program() {
        let folder = tempfile::tempdir().unwrap();
        let path = || MainProgram::of("orders", folder.path()).path;
        assert_eq!(path(), None);
        for (dockerfile, expected) in [
            (include_str!("../../template/project/Dockerfile"), Some("/controller".to_owned())),
            ("FROM x\nENTRYPOINT [\"/manager\", \"--verbose\"]\nCMD []\n", Some("/manager".to_owned())),
            ("ENTRYPOINT exec /controller\n", None),
        ] {
            fs::write(folder.path().join("Dockerfile"), dockerfile).unwrap();
            assert_eq!(path(), expected, "{dockerfile}");
        }
    }

    #[test]
    fn a_deployment_needs_its_service_account_unless_it_is_the_default_one() {
        let mut workload = workloads(&parse(CONFIG).unwrap(), &main()).remove(0);
        assert_eq!(workload.to_string(), "orders as shop/controller");
        for (account, namespace, has_account) in
            [("controller", "shop", true), ("controller", "other", false), ("webhook", "shop", false)]
        {
            let metadata = json!({"name": account, "namespace": namespace});
            let objects = [json!({"kind": "ServiceAccount", "metadata": metadata})];
            assert_eq!(workload.has_account(&objects), has_account, "{account} in {namespace}");
        }
        workload.service_account = "default".into();
        assert!(workload.has_account(&[]));
    }
}
