//! The program of a project as its Deployments run it: each part with its service account, and with leader election.

use std::{collections::BTreeMap, env, path::Path, process::Command, time::Duration};

use k8s_openapi::{
    api::{
        admissionregistration::v1::{
            MutatingWebhookConfiguration, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
        },
        apps::v1::Deployment,
        core::v1::Secret,
        networking::v1::NetworkPolicy,
        rbac::v1::ClusterRoleBinding,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
    core::GroupVersionKind,
    discovery::{Discovery, Scope, verbs},
};
use reknit_testing::{ControlPlane, Program, RunningProgram, eventually};
use serde_json::{Value, json};

use crate::project::{Project, succeed};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The arguments in a Deployment of kubebuilder, with other ports, and the flag whose default differs.
const ARGUMENTS_OF_KUBEBUILDER: [&str; 4] = [
    "--leader-elect",
    "--health-probe-bind-address=127.0.0.1:0",
    "--metrics-bind-address=127.0.0.1:0",
    "--metrics-secure",
];

/// Both parts of a program, against a control plane of their own, to which the project's `config/` is applied.
pub(crate) struct Deployed {
    plane: ControlPlane,
    controllers: RunningProgram,
    webhook: RunningProgram,
    namespace: String,
    group: String,
}

impl Deployed {
    /// Starts the program of this name in the namespace of the same name, which `config/` creates.
    pub(crate) async fn start(project: &Project, name: &str, group: &str) -> Self {
        let plane = ControlPlane::builder().audited().start().await.unwrap();
        plane.apply_path(project.folder.join("config")).await.unwrap();
        let controllers = spawn(&plane, project, name, "controllers", "controller").await;
        let webhook = spawn(&plane, project, name, "webhook", "webhook").await;
        Self { plane, controllers, webhook, namespace: name.into(), group: group.into() }
    }

    /// Plans what the sources of the project would change. Returns the exit status and the output. Fails if an object in the
    /// namespace `default` has changed, or if the plan has sent a write that was not a dry run.
    pub(crate) async fn plan(&self, project: &Project, format: &str) -> (Option<i32>, String) {
        let (before, logged) = (self.versions().await, self.admin_writes().len());
        let planned = self.plan_unchecked(project, format);
        assert_eq!(self.versions().await, before);
        let writes = self.admin_writes();
        let is_dry_run = |event: &Value| event["requestURI"].to_string().contains("dryRun=All");
        let real: Vec<_> = writes.iter().skip(logged).filter(|event| !is_dry_run(event)).collect();
        assert!(real.is_empty(), "{real:#?}");
        planned
    }

    /// The resourceVersions of the objects in the namespace `default`, by Kind and name, but those of events.
    async fn versions(&self) -> BTreeMap<(String, String), Option<String>> {
        let discovery = Discovery::new(self.client()).exclude(&["events.k8s.io"]).run().await.unwrap();
        let mut versions = BTreeMap::new();
        for (resource, capabilities) in discovery.groups().flat_map(|group| group.recommended_resources()) {
            let is_listed =
                capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::LIST);
            if !is_listed || resource.kind == "Event" {
                continue;
            }
            let objects: Api<DynamicObject> = Api::namespaced_with(self.client(), "default", &resource);
            for object in objects.list_metadata(&ListParams::default()).await.unwrap().items {
                versions.insert((resource.kind.clone(), object.name_any()), object.resource_version());
            }
        }
        versions
    }

    /// The writes of the account with which the test plans, from the audit log. The running program has others.
    fn admin_writes(&self) -> Vec<Value> {
        let is_write = |event: &Value| {
            let is_read = ["get", "list", "watch"].iter().any(|verb| event["verb"] == *verb);
            !is_read && !event["user"]["username"].as_str().unwrap_or_default().starts_with("system:")
        };
        self.plane.audit_events().unwrap().into_iter().filter(is_write).collect()
    }

    fn plan_unchecked(&self, project: &Project, format: &str) -> (Option<i32>, String) {
        let mut plan = project.command(&["reknit", "plan", "--", &format!("--plan-output={format}")]);
        let output = plan.env("KUBECONFIG", self.plane.kubeconfig()).output().unwrap();
        println!("{}", String::from_utf8_lossy(&output.stderr));
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    /// Replaces the controllers by those that were planned last, and waits until the objects are as planned. Fails if another
    /// object in the namespace `default` has changed.
    pub(crate) async fn upgrade(&mut self, project: &Project, plan: &Value) {
        let before = self.versions().await;
        let new = spawn(&self.plane, project, &self.namespace, "controllers", "controller");
        std::mem::replace(&mut self.controllers, new.await).stop().await;
        for planned in plan["objects"].as_array().unwrap() {
            let text = |field: &str| planned[field].as_str().unwrap();
            let objects = self.objects(text("apiVersion").rsplit('/').next().unwrap(), text("kind"));
            let name = text("key").rsplit('/').next().unwrap();
            eventually(format!("{} {name} as planned", text("kind")), TIMEOUT, async || {
                let live = objects.get(name).await.map_err(|error| error.to_string())?;
                let live = serde_json::to_value(live).unwrap();
                let parts = ["metadata", "spec", "status"]
                    .map(|part| is_as_planned(&planned["after"][part], &live[part]));
                if parts == [true; 3] { Ok(()) } else { Err(format!("{live}, not {}", planned["after"])) }
            })
            .await;
        }
        let after = self.versions().await;
        for name in before.keys().chain(after.keys()).filter(|&name| before.get(name) != after.get(name)) {
            let is_planned = |planned: &Value| {
                let key = planned["key"].as_str().unwrap();
                planned["kind"] == name.0 && key.rsplit('/').next() == Some(&name.1)
            };
            let objects = plan["objects"].as_array().unwrap();
            assert!(objects.iter().any(is_planned), "{name:?} has changed and was not planned: {plan:#}");
        }
    }

    /// Applies `config/` as the README says, and then by server-side apply. Asserts that a second apply changes nothing,
    /// and that the program sets no field for which the second way conflicts with the first.
    pub(crate) fn assert_applies_again(&self, project: &Project) {
        let kubectl = |arguments: &[&str]| {
            let program = Path::new(&env::var("KUBEBUILDER_ASSETS").unwrap_or_default()).join("kubectl");
            let mut command = Command::new(program);
            command.arg("--kubeconfig").arg(self.plane.kubeconfig()).args(arguments);
            succeed(command.current_dir(&project.folder))
        };
        // There is no network for Services, so that the API server cannot call the webhook about a ConfigMap.
        kubectl(&["label", "namespace", &self.namespace, "webhooks.knative.dev/exclude=true"]);
        kubectl(&["apply", "-k", "config/"]);
        let again = kubectl(&["apply", "-k", "config/"]);
        // kubectl always reports a PodDisruptionBudget as configured: its selector has the patch strategy "replace".
        let is_changed =
            |line: &&str| !line.ends_with(" unchanged") && !line.starts_with("poddisruptionbudget");
        assert_eq!(again.lines().filter(is_changed).collect::<Vec<_>>(), [""; 0]);
        for _ in ["the first apply takes the fields over", "the second changes nothing"] {
            kubectl(&["apply", "--server-side", "-k", "config/"]);
        }
    }

    fn client(&self) -> Client {
        self.plane.client().unwrap()
    }

    /// The objects of a Kind in the namespace `default`.
    fn objects(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(&self.group, version, kind));
        Api::namespaced_with(self.client(), "default", &kind)
    }

    /// Makes the API server call the webhook by its address, since there is no network for Services: for admission, and
    /// for conversions of the CustomResourceDefinition of this name.
    pub(crate) async fn reach_webhook(&self, crd: &str) {
        let (address, group) = (self.webhook.address("webhook").await, &self.group);
        let url = |path: &str| json!({"url": format!("https://{address}/{path}")});
        let (defaulting, validation) =
            (format!("defaulting.webhook.{group}"), format!("validation.webhook.{group}"));
        let entry = "/webhooks/0/clientConfig";
        self.edit::<MutatingWebhookConfiguration>(&defaulting, entry, url("defaulting")).await;
        self.edit::<ValidatingWebhookConfiguration>(&validation, entry, url("resource-validation")).await;
        let conversion = "/spec/conversion/webhook/clientConfig";
        self.edit::<CustomResourceDefinition>(crd, conversion, url("resource-conversion")).await;
    }

    /// Replaces a value in an object. The program writes the same objects, so this is repeated after a conflict.
    async fn edit<K: Resource<DynamicType = ()>>(&self, name: &str, pointer: &str, value: Value) {
        let objects: Api<DynamicObject> = Api::all_with(self.client(), &ApiResource::erase::<K>(&()));
        eventually(format!("a change of {name}"), TIMEOUT, async || {
            let mut object = objects.get(name).await.map_err(|error| error.to_string())?;
            let old = object.data.pointer_mut(pointer).ok_or_else(|| format!("no {pointer}"))?;
            *old = value.clone();
            let replaced = objects.replace(name, &PostParams::default(), &object).await;
            replaced.map_err(|error| error.to_string())
        })
        .await;
    }

    /// Waits until the API server refuses to create an object with a message that contains the text.
    pub(crate) async fn assert_refused(&self, version: &str, kind: &str, spec: Value, text: &str) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&self.group, version, kind));
        let object = DynamicObject::new("refused", &resource).data(json!({ "spec": spec }));
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let objects = self.objects(version, kind);
        eventually(format!("a refusal of {spec}"), TIMEOUT, async || {
            match objects.create(&dry_run, &object).await {
                Err(error) if error.to_string().contains(text) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Asserts that the probes of a Deployment of kubebuilder succeed, and that metrics are read over HTTPS as its
    /// ServiceMonitor reads them: with the token of an account, which has to have the role metrics-reader.
    pub(crate) async fn assert_answers_as_a_project_of_kubebuilder(&self) {
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "reader"}, "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": format!("{}-metrics-reader", self.namespace)}});
        self.plane.apply_yaml(&binding.to_string()).await.unwrap();
        for program in [&self.controllers, &self.webhook] {
            for path in ["/healthz", "/readyz"] {
                assert_eq!(program.probe(path).await.0, 200, "{path}");
            }
            let metrics = self.scrape(program, "reader").await.unwrap();
            assert!(metrics.contains("process_resident_memory_bytes"), "{metrics}");
            let refusal = self.scrape(program, "stranger").await.unwrap_err().to_string();
            assert!(refusal.contains("403"), "{refusal}");
        }
    }

    /// Reads the metrics as this account of the namespace `default`.
    async fn scrape(&self, program: &RunningProgram, account: &str) -> kube::Result<String> {
        let mut config = self.plane.config_as("default", account).await.unwrap();
        config.cluster_url = format!("https://{}", program.address("metrics").await).parse().unwrap();
        config.accept_invalid_certs = true;
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        Client::try_from(config)?.request_text(request).await
    }

    /// Applies the examples.
    pub(crate) async fn apply_examples(&self, project: &Project) {
        self.plane.apply_path(project.folder.join("config/example")).await.unwrap();
    }

    /// Waits until an object is ready, and returns its spec in this version.
    pub(crate) async fn spec_once_ready(&self, version: &str, kind: &str, name: &str) -> Value {
        let objects = self.objects(version, kind);
        eventually(format!("{kind} {name} to be ready"), TIMEOUT, async || {
            let mut object = objects.get(name).await.map_err(|error| error.to_string())?;
            // Ready is the only condition of the Kinds.
            match object.data["status"]["conditions"][0]["status"] == "True" {
                true => Ok(object.data["spec"].take()),
                false => Err(object.data.to_string()),
            }
        })
        .await
    }

    /// Stops the program, and asserts that the API server refused no request of its service accounts, except for the
    /// check at the start that the namespace exists, which is optional, that the webhook wrote nothing, and that the
    /// admission policy bounds the controllers.
    pub(crate) async fn stop(self) {
        let Self { plane, controllers, webhook, namespace, .. } = self;
        webhook.stop().await;
        controllers.stop().await;
        let optional = format!("/api/v1/namespaces/{namespace}");
        let events = plane.audit_events().unwrap();
        for account in ["controller", "webhook"] {
            let user = format!("system:serviceaccount:{namespace}:{account}");
            let requests: Vec<&Value> =
                events.iter().filter(|event| event["user"]["username"] == *user).collect();
            let is_refused = |event: &&&Value| {
                let code = event["responseStatus"]["code"].as_i64();
                matches!(code, Some(401 | 403)) && event["requestURI"] != *optional
            };
            let is_write = |event: &&&Value| {
                let is_review = matches!(
                    event["objectRef"]["resource"].as_str(),
                    Some("tokenreviews" | "subjectaccessreviews")
                );
                !is_review && !matches!(event["verb"].as_str(), Some("get" | "list" | "watch"))
            };
            let uris = |selected: Vec<&&Value>| -> Vec<String> {
                selected.iter().map(|event| event["requestURI"].to_string()).collect()
            };
            assert!(!requests.is_empty(), "the audit log has no requests of {user}");
            assert_eq!(uris(requests.iter().filter(is_refused).collect()), [""; 0]);
            if account == "webhook" {
                assert_eq!(uris(requests.iter().filter(is_write).collect()), [""; 0]);
            }
        }
        assert_bounded(&plane, &namespace).await;
        assert_each_deployment_is_bounded(&plane, &namespace).await;
    }
}

async fn spawn(
    plane: &ControlPlane,
    project: &Project,
    name: &str,
    part: &str,
    account: &str,
) -> RunningProgram {
    let kubeconfig = plane.kubeconfig_as(name, account).await.unwrap();
    let program = Program::new(project.program(name), &kubeconfig).with_leader_election(name, account);
    let program = program.args([format!("--only={part}")]).args(ARGUMENTS_OF_KUBEBUILDER);
    let program = program.env("WEBHOOK_PORT", "0").spawn();
    program.wait_until_ready().await;
    program
}

/// Returns true if a live value has all planned fields, and lists of the same length. Times are not compared.
fn is_as_planned(planned: &Value, live: &Value) -> bool {
    match (planned, live) {
        (Value::String(time), Value::String(_)) if time == "(now)" => true,
        (Value::Object(fields), _) => fields.iter().all(|(name, field)| is_as_planned(field, &live[name])),
        (Value::Array(items), Value::Array(live)) if items.len() == live.len() => {
            items.iter().zip(live).all(|(item, live)| is_as_planned(item, live))
        }
        _ => planned == live,
    }
}

/// Asserts that the admission policy bounds what the controllers may write.
async fn assert_bounded(plane: &ControlPlane, namespace: &str) {
    let secrets: Api<Secret> =
        Api::namespaced(plane.client_as(namespace, "controller").await.unwrap(), namespace);
    let mut secret = Secret::default();
    secret.metadata.name = Some("other".into());
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    eventually("a refusal by the policy", TIMEOUT, async || match secrets.create(&dry_run, &secret).await {
        Err(error) if error.to_string().contains("may not write this Secret") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// Asserts that a policy matches the account of each Deployment, and that its pods are refused connections by default.
async fn assert_each_deployment_is_bounded(plane: &ControlPlane, namespace: &str) {
    let (client, all) = (plane.client().unwrap(), ListParams::default());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let bindings = json!(bindings.list(&all).await.unwrap().items);
    let rights: Api<ClusterRoleBinding> = Api::all(client.clone());
    let rights = rights.list(&all).await.unwrap().items;
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), namespace);
    let denied = json!(policies.get("default-deny").await.unwrap())["spec"].take();
    assert_eq!((&denied["policyTypes"], &denied["ingress"]), (&json!(["Ingress"]), &Value::Null));
    let deployments: Api<Deployment> = Api::namespaced(client, namespace);
    let deployments = deployments.list(&all).await.unwrap().items;
    assert_eq!(deployments.len(), 2);
    for deployment in deployments {
        let template = json!(deployment)["spec"]["template"].take();
        let bound = [&template["spec"]["serviceAccountName"], &json!(namespace)];
        let is_bound = |binding: &Value| {
            let param = &binding["spec"]["paramRef"]["name"];
            let rights = rights.iter().find(|rights| json!(rights.metadata.name) == *param);
            let subject = rights.map_or(Value::Null, |rights| json!(rights.subjects)[0].take());
            [&subject["name"], &subject["namespace"]] == bound
        };
        assert!(bindings.as_array().unwrap().iter().any(is_bound), "{bound:?} {bindings}");
        let selected = denied["podSelector"]["matchLabels"].as_object().unwrap();
        let labels = &template["metadata"]["labels"];
        assert!(selected.iter().all(|(key, value)| labels[key] == *value), "{labels}");
    }
}
