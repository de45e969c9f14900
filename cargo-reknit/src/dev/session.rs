//! One run of the project against a control plane of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    core::GroupVersionKind,
    discovery::{Scope, pinned_kind},
};
use reknit_testing::{ControlPlane, internal::aggregate_cluster_roles};
use serde_json::Value;

use super::{
    build::Executables,
    goal::{Goal, custom_resources, describe},
    manifests, namespaces,
    process::{Process, Settings},
    table::{self, Resource},
    vanished::withdraw,
    workload::{MainProgram, Workload, workloads},
};
use crate::{manifests::rbac_arguments, output, project::Project};

/// The control plane, the running programs, and what was last shown.
pub(crate) struct Session<'a> {
    project: &'a Project,
    cargo_args: &'a [String],
    plane: ControlPlane,
    client: Client,
    webhook_port: u16,
    /// The ports of the consoles by program and account, so that a page stays connected when its process restarts.
    console_ports: BTreeMap<String, u16>,
    executables: Executables,
    workloads: Vec<Workload>,
    processes: Vec<Process>,
    /// The executables and the Deployments of the running processes.
    started: Option<(Executables, Vec<Workload>)>,
    /// The objects of `config/` as they were last applied.
    applied: BTreeMap<manifests::Identity, Value>,
    resources: Vec<Resource>,
    examples: Vec<Value>,
    /// The examples that `--once` awaits, once all are applied.
    awaited: Vec<Goal>,
    /// The error with which the last attempt to apply the examples ended, or `None` once they are applied.
    pending: Option<String>,
    /// The last such error that was printed.
    reported: String,
    tables: BTreeMap<String, String>,
    began: Instant,
    built: Instant,
    /// The states that examples have had.
    reached: BTreeSet<Goal>,
    /// The conditions of the examples that are not ready, as they were last read.
    conditions: BTreeMap<String, String>,
}

impl<'a> Session<'a> {
    /// Builds the project, starts the control plane, and starts the programs.
    pub(crate) async fn start(
        project: &'a Project,
        cargo_args: &'a [String],
        began: Instant,
    ) -> Result<Self> {
        output::step("building", "the project");
        let executables = Executables::build(&project.folder, cargo_args).await?;
        let built = Instant::now();
        output::step("starting", "the control plane");
        let plane = ControlPlane::start().await.context("cannot start a local control plane")?;
        let client = plane.client()?;
        let mut session = Self {
            project,
            cargo_args,
            client,
            plane,
            webhook_port: free_port()?,
            console_ports: BTreeMap::new(),
            executables,
            workloads: Vec::new(),
            processes: Vec::new(),
            started: None,
            applied: BTreeMap::new(),
            resources: Vec::new(),
            examples: Vec::new(),
            awaited: Vec::new(),
            pending: Some(String::new()),
            reported: String::new(),
            tables: BTreeMap::new(),
            began,
            built,
            reached: BTreeSet::new(),
            conditions: BTreeMap::new(),
        };
        session.apply().await?;
        session.start_programs().await?;
        output::step("started", &format!("in {} after the build", seconds(built.elapsed())));
        output::step(
            "next",
            &format!("export KUBECONFIG={}    # in another terminal", session.plane.kubeconfig().display()),
        );
        Ok(session)
    }

    /// Builds the project again.
    pub(crate) async fn build(&self) -> Result<Executables> {
        Executables::build(&self.project.folder, self.cargo_args).await
    }

    /// The examples that have not reached these goals yet, with their conditions, and why they could not be applied, if so.
    /// Without goals, the custom resources among the examples have to be ready. Returns `None` once all are reached.
    pub(crate) fn missed(&self, goals: &[Goal]) -> Option<String> {
        let goals: &[Goal] = if goals.is_empty() { &self.awaited } else { goals };
        let missed = goals.iter().filter(|goal| !self.reached.contains(goal));
        let text = |goal: &Goal| match self.conditions.get(&goal.example) {
            Some(condition) => format!("{goal} ({condition})"),
            None => goal.to_string(),
        };
        let names = missed.map(text).collect::<Vec<_>>().join(", ");
        match self.pending.as_deref() {
            None if names.is_empty() => None,
            Some(error) if !error.is_empty() => Some(format!("{names}: {error}")),
            _ => Some(names),
        }
    }

    /// Applies `config/`, and then what the programs `crd` and `rbac` print, except for objects that are applied already.
    /// Warns if `config/` differs from what the programs print.
    async fn apply(&mut self) -> Result<()> {
        let folder = &self.project.folder;
        let main = MainProgram::of(self.project.name.as_str(), folder);
        let mut objects = manifests::read_folder(&folder.join("config"))?;
        let workloads = workloads(&objects, &main);
        // The rules depend on flags such as --namespace.
        let of_main = workloads.iter().find(|workload| workload.program == main.name);
        let args = of_main.into_iter().flat_map(|workload| &workload.args).map(Into::into).collect();
        for (program, args) in [("crd", Vec::new()), ("rbac", rbac_arguments(args))] {
            if let Some(text) = self.executables.print(program, &args, folder).await? {
                let printed = manifests::parse(&text)
                    .with_context(|| format!("the program {program} printed no YAML"))?;
                if printed.iter().any(|object| !objects.contains(object)) {
                    output::warning(&format!(
                        "config/ is out of date, so what the program {program} prints is applied; \
                         `cargo reknit {program} --write` updates it"
                    ));
                }
                objects.extend(printed);
            }
        }
        for workload in workloads.iter().filter(|workload| !workload.has_account(&objects)) {
            output::warning(&format!(
                "{workload}: config/ has no such ServiceAccount, so the program has no rights here, and a cluster \
                 creates no pods of the Deployment; `Rbac::service_account` names the account of the generated roles"
            ));
        }
        let mut objects = manifests::last_of_each(objects);
        manifests::sort_as_kustomize(&mut objects);
        self.apply_changed(manifests::localize(&objects, self.webhook_port)).await?;
        self.workloads = workloads;
        let definitions = objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition");
        self.resources = definitions.filter_map(Resource::of).collect();
        self.resources.dedup();
        self.resources.sort_by(|a, b| a.name.cmp(&b.name));
        self.resources.dedup();
        let examples = folder.join("config/example");
        self.examples = if examples.exists() { manifests::read_folder(&examples)? } else { Vec::new() };
        self.awaited = self.examples.iter().map(Goal::ready).collect();
        self.pending = Some(String::new());
        Ok(())
    }

    /// Applies the objects that differ from what was last applied, and [withdraws](withdraw) those that are no longer there. To
    /// apply a webhook configuration again would remove the path that the webhook has added to its URL.
    async fn apply_changed(&mut self, objects: Vec<Value>) -> Result<()> {
        let objects: Vec<_> =
            objects.into_iter().map(|object| (manifests::identity(&object), object)).collect();
        let named: BTreeSet<_> = objects.iter().map(|(identity, _)| identity.clone()).collect();
        for (identity, object) in objects {
            if self.applied.get(&identity) == Some(&object) {
                continue;
            }
            // An apply that fails may have changed the object.
            self.applied.remove(&identity);
            self.plane.apply_yaml(&object.to_string()).await.context("cannot apply config/")?;
            self.applied.insert(identity, object);
        }
        let vanished = self.applied.iter().filter(|(identity, _)| !named.contains(*identity));
        for (identity, object) in
            vanished.map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>()
        {
            if withdraw(&self.client, &object).await? {
                let [_, kind, _, name] = &identity;
                output::step("deleted", &format!("{kind} {name}, which config/ no longer has"));
            }
            self.applied.remove(&identity);
        }
        Ok(())
    }

    async fn start_programs(&mut self) -> Result<()> {
        self.started = Some((self.executables.clone(), self.workloads.clone()));
        for workload in &self.workloads {
            let process = workload.to_string();
            let console_port = match self.console_ports.get(&process) {
                Some(port) => *port,
                None => free_port()?,
            };
            self.console_ports.insert(process, console_port);
            let settings = Settings {
                kubeconfig: self.plane.kubeconfig_as(&workload.namespace, &workload.service_account).await?,
                webhook_port: self.webhook_port,
                console_port,
            };
            let executable = self.executables.find(&workload.program)?;
            self.processes.push(Process::start(executable, workload, &settings, &self.project.folder)?);
            output::step("running", &workload.to_string());
            output::step("console", &format!("http://127.0.0.1:{console_port}/debug/reknit/"));
        }
        Ok(())
    }

    async fn stop_programs(&mut self) {
        for process in self.processes.drain(..) {
            process.stop().await;
        }
    }

    /// Applies the manifests again, and restarts the programs if they, or their Deployments, have changed, or if one has
    /// exited.
    pub(crate) async fn update(&mut self, executables: Executables) {
        self.executables = executables;
        if let Err(error) = self.apply().await {
            output::warning(&format!("{}; the running programs are kept", output::reason(&error)));
            return;
        }
        // Compared with what was started: an apply may have failed since then.
        let is_started = self.started.as_ref().is_some_and(|(executables, workloads)| {
            (executables, workloads) == (&self.executables, &self.workloads)
        });
        if !is_started || self.has_exited() {
            self.stop_programs().await;
            if let Err(error) = self.start_programs().await {
                output::warning(&output::reason(&error));
            }
        }
    }

    /// Applies the examples if they are not applied yet, shows changed tables, and reports programs that exited.
    pub(crate) async fn refresh(&mut self) {
        self.report_exits();
        // Tried again at the next refresh.
        let _ = namespaces::finish_deletions(&self.client).await;
        let _ = aggregate_cluster_roles(self.client.clone()).await;
        self.apply_examples().await;
        if self.pending.is_none() {
            self.record_reached().await;
        }
        // Last, so that the tables show the state in which an example was found to be ready.
        self.show_tables().await;
    }

    /// Returns true if a program does not run.
    pub(crate) fn has_exited(&self) -> bool {
        self.processes.len() != self.workloads.len()
    }

    async fn show_tables(&mut self) {
        for resource in &self.resources {
            // The API server does not serve a new Kind at once.
            let Ok(table) = table::list(&self.client, resource).await else { continue };
            if self.tables.get(&resource.name) != Some(&table) {
                output::step("objects", &resource.name);
                anstream::println!("{table}");
                self.tables.insert(resource.name.clone(), table);
            }
        }
    }

    fn report_exits(&mut self) {
        self.processes.retain_mut(|process| match process.exit_status() {
            Some(status) => {
                output::warning(&format!(
                    "{} exited ({status}); it is started again after the next change",
                    process.name()
                ));
                false
            }
            None => true,
        });
    }

    /// Tries to apply the examples, once the webhooks are called. They may still be refused. Prints an error once, if the
    /// next attempt fails with it too: the first one may fail because the API server does not use the newest
    /// configuration of a webhook yet.
    async fn apply_examples(&mut self) {
        let Some(last) = &self.pending else { return };
        if let Some(name) = self.unregistered_webhook().await {
            self.pending =
                Some(format!("the webhook has not filled in {name} yet, which it does when it runs"));
            return;
        }
        let error = match self.create_examples().await {
            Ok(awaited) => {
                self.awaited = awaited;
                None
            }
            Err(refusal) => Some(output::reason(&refusal)),
        };
        if let Some(error) = error.as_ref().filter(|error| *error == last && self.reported != *last) {
            output::warning(&format!("cannot apply config/example/ yet: {error}"));
            self.reported.clone_from(error);
        }
        self.pending = error;
    }

    /// Applies the examples, and returns the states that `--once` awaits.
    async fn create_examples(&self) -> Result<Vec<Goal>> {
        for example in &self.examples {
            self.plane.apply_yaml(&example.to_string()).await?;
        }
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let definitions = definitions.list(&ListParams::default()).await?.items;
        Ok(custom_resources(&self.examples, &definitions).map(Goal::ready).collect())
    }

    /// Records the states of the examples until they are ready, which it reports with the time that it took.
    async fn record_reached(&mut self) {
        for example in &self.examples {
            let ready = Goal::ready(example);
            if self.reached.contains(&ready) {
                continue;
            }
            let Ok(conditions) = self.conditions(example).await else { continue };
            let states: Vec<_> =
                conditions.iter().filter_map(|condition| state(example, condition)).collect();
            let texts: Vec<_> = conditions.iter().filter_map(describe_condition).collect();
            self.conditions.insert(ready.example.clone(), texts.join("; "));
            if states.contains(&ready) {
                let (total, since_build) = (seconds(self.began.elapsed()), seconds(self.built.elapsed()));
                let name = &ready.example;
                output::step("ready", &format!("{name}, {since_build} after the build, {total} in total"));
            }
            self.reached.extend(states);
        }
    }

    /// Returns the webhook configuration or the definition that the API server cannot use yet: an entry has no rules, or
    /// a conversion has no CA bundle.
    async fn unregistered_webhook(&self) -> Option<String> {
        for object in self.applied.values().filter(|object| calls_webhook(object)) {
            let current = self.read(object).await.ok();
            if !current.is_some_and(|current| is_registered(&current.data)) {
                return Some(describe(object));
            }
        }
        None
    }

    /// The conditions `Ready` and `Available` of an example.
    async fn conditions(&self, example: &Value) -> Result<Vec<Value>> {
        let object = self.read(example).await?;
        let conditions = object.data["status"]["conditions"].as_array().into_iter().flatten();
        let named = conditions
            .filter(|condition| ["Ready", "Available"].iter().any(|name| condition["type"] == *name));
        Ok(named.cloned().collect())
    }

    /// Reads the current state of an object.
    async fn read(&self, object: &Value) -> Result<DynamicObject> {
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let types = object.types.as_ref().context("no apiVersion and kind")?;
        let (resource, capabilities) = pinned_kind(&self.client, &GroupVersionKind::try_from(types)?).await?;
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
            Scope::Namespaced => {
                let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
                Api::namespaced_with(self.client.clone(), namespace, &resource)
            }
        };
        Ok(api.get(object.metadata.name.as_deref().unwrap_or_default()).await?)
    }

    /// Stops the programs, and then the control plane, which removes its data.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.stop_programs().await;
        self.plane.stop().await.context("cannot stop the control plane")
    }
}

/// The state of an example with this condition.
fn state(example: &Value, condition: &Value) -> Option<Goal> {
    Some(Goal::new(describe(example), condition["status"].as_str()?))
}

/// A condition with its reason and its message, such as `Ready is Unknown: NoPods: 0 of 2 pods are ready`.
fn describe_condition(condition: &Value) -> Option<String> {
    let text = |field: &str| condition[field].as_str().filter(|text| !text.is_empty());
    let mut described = format!("{} is {}", text("type")?, text("status")?);
    for part in [text("reason"), text("message")].into_iter().flatten() {
        described += &format!(": {part}");
    }
    Some(described)
}

/// True for webhook configurations, and for definitions that are converted by a webhook.
fn calls_webhook(object: &Value) -> bool {
    object["webhooks"].is_array() || object.pointer("/spec/conversion/webhook").is_some()
}

/// True if the webhook has filled in what the API server needs to call it.
fn is_registered(object: &Value) -> bool {
    if let Some(conversion) = object.pointer("/spec/conversion/webhook") {
        return conversion["clientConfig"]["caBundle"].is_string();
    }
    let is_called = |entry: &Value| entry["rules"].as_array().is_some_and(|rules| !rules.is_empty());
    object["webhooks"].as_array().is_some_and(|entries| entries.iter().all(is_called))
}

/// Returns a port on 127.0.0.1 that nothing listens on.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    Ok(listener.local_addr().context("cannot find a free port")?.port())
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn examples_wait_for_the_rules_of_admission_and_the_ca_bundle_of_conversion() {
        let definition =
            |config: Value| json!({"spec": {"conversion": {"webhook": {"clientConfig": config}}}});
        for (object, registered) in [
            (json!({"webhooks": [{"name": "a"}]}), false),
            (json!({"webhooks": [{"name": "a", "rules": [{}]}]}), true),
            (definition(json!({"url": "https://127.0.0.1:1"})), false),
            (definition(json!({"url": "https://127.0.0.1:1", "caBundle": "Q0E="})), true),
        ] {
            assert!(calls_webhook(&object), "{object}");
            assert_eq!(is_registered(&object), registered, "{object}");
        }
        assert!(!calls_webhook(&json!({"spec": {"group": "example.com"}})));
    }

    #[test]
    fn a_condition_is_described_with_its_reason_and_its_message_if_it_has_them() {
        for (condition, text) in [
            (json!({"type": "Ready", "status": "Unknown"}), "Ready is Unknown"),
            (
                json!({"type": "Ready", "status": "False", "reason": "NoPods", "message": ""}),
                "Ready is False: NoPods",
            ),
            (
                json!({"type": "Ready", "status": "False", "reason": "NoPods", "message": "0 of 2 pods are ready"}),
                "Ready is False: NoPods: 0 of 2 pods are ready",
            ),
        ] {
            assert_eq!(describe_condition(&condition).as_deref(), Some(text));
        }
    }
}
