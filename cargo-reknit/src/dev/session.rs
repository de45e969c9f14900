//! One run of the project against a control plane of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use kube::{
    Api, Client,
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{Scope, pinned_kind},
};
use reknit_testing::ControlPlane;
use serde_json::Value;

use super::{
    build::Executables,
    manifests::{self, Workload},
    process::{Process, Settings},
    table::{self, Resource},
};
use crate::{output, project::Project};

/// The control plane, the running programs, and what was last shown.
pub(crate) struct Session<'a> {
    project: &'a Project,
    cargo_args: &'a [String],
    plane: ControlPlane,
    client: Client,
    webhook_port: u16,
    executables: Executables,
    workloads: Vec<Workload>,
    processes: Vec<Process>,
    /// The objects of `config/` that the API server has.
    applied: Vec<Value>,
    resources: Vec<Resource>,
    examples: Vec<Value>,
    /// The error with which the last attempt to apply the examples ended, or `None` once they are applied.
    pending: Option<String>,
    tables: BTreeMap<String, String>,
    began: Instant,
    built: Instant,
    /// The examples that have been ready.
    ready: BTreeSet<String>,
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
            executables,
            workloads: Vec::new(),
            processes: Vec::new(),
            applied: Vec::new(),
            resources: Vec::new(),
            examples: Vec::new(),
            pending: Some(String::new()),
            tables: BTreeMap::new(),
            began,
            built,
            ready: BTreeSet::new(),
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

    /// The names of the examples that have not been ready yet, and why they could not be applied, if so. With a name,
    /// only this example counts. Returns `None` once all have been ready.
    pub(crate) fn unready(&self, only: Option<&str>) -> Option<String> {
        let mut names = match only {
            Some(name) => vec![name.to_owned()],
            None => self.examples.iter().map(describe).collect(),
        };
        names.retain(|name| !self.ready.contains(name));
        let names = names.join(", ");
        match self.pending.as_deref() {
            None if names.is_empty() => None,
            Some(error) if !error.is_empty() => Some(format!("{names}: {error}")),
            _ => Some(names),
        }
    }

    /// Applies `config/`, and then what the programs `crd` and `rbac` print, except for objects that are applied already.
    /// Warns if `config/` differs from what the programs print.
    async fn apply(&mut self) -> Result<()> {
        let mut objects = manifests::read_folder(&self.project.folder.join("config"))?;
        for program in ["crd", "rbac"] {
            if let Some(text) = self.executables.print(program, &self.project.folder).await? {
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
        self.workloads = manifests::workloads(&objects, self.project.name.as_str());
        let local_objects = manifests::localize(&objects, self.webhook_port);
        // To apply a webhook configuration again would remove the path that the webhook has added to its URL.
        for object in local_objects.iter().filter(|object| !self.applied.contains(object)) {
            self.plane.apply_yaml(&object.to_string()).await.context("cannot apply config/")?;
        }
        self.applied = local_objects;
        let definitions = objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition");
        self.resources = definitions.filter_map(Resource::of).collect();
        self.resources.dedup();
        self.resources.sort_by(|a, b| a.name.cmp(&b.name));
        self.resources.dedup();
        self.examples = manifests::read_folder(&self.project.folder.join("config/example"))?;
        self.pending = Some(String::new());
        Ok(())
    }

    async fn start_programs(&mut self) -> Result<()> {
        for workload in &self.workloads {
            let settings = Settings {
                program: workload.program.clone(),
                namespace: workload.namespace.clone(),
                kubeconfig: self.plane.kubeconfig_as(&workload.namespace, &workload.service_account).await?,
                webhook_port: self.webhook_port,
            };
            let executable = self.executables.find(&workload.program)?;
            self.processes.push(Process::start(executable, &settings, &self.project.folder)?);
            output::step(
                "running",
                &format!("{} as {}/{}", workload.program, workload.namespace, workload.service_account),
            );
        }
        Ok(())
    }

    async fn stop_programs(&mut self) {
        for process in self.processes.drain(..) {
            process.stop().await;
        }
    }

    /// Applies the manifests again, and restarts the programs if they have changed or exited.
    pub(crate) async fn update(&mut self, executables: Executables) {
        let changed = self.executables != executables || self.processes.len() < self.workloads.len();
        self.executables = executables;
        if let Err(error) = self.apply().await {
            output::warning(&format!("{error:#}; the running programs are kept"));
            return;
        }
        if changed || self.processes.len() != self.workloads.len() {
            self.stop_programs().await;
            if let Err(error) = self.start_programs().await {
                output::warning(&format!("{error:#}"));
            }
        }
    }

    /// Applies the examples if they are not applied yet, shows changed tables, and reports programs that exited.
    pub(crate) async fn refresh(&mut self) {
        self.report_exits();
        self.apply_examples().await;
        if self.pending.is_none() {
            self.report_ready().await;
        }
        // Last, so that the tables show the state in which an example was found to be ready.
        self.show_tables().await;
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

    /// Tries to apply the examples, once the webhooks are called. They may still be refused. Prints an error once.
    async fn apply_examples(&mut self) {
        let Some(last) = &self.pending else { return };
        if let Some(name) = self.unregistered_webhook().await {
            self.pending = Some(format!("{name} has no rules, which the webhook sets when it runs"));
            return;
        }
        let mut error = None;
        for example in &self.examples {
            if let Err(refusal) = self.plane.apply_yaml(&example.to_string()).await {
                error = Some(reason(&anyhow::Error::new(refusal)));
                break;
            }
        }
        if let Some(error) = error.as_ref().filter(|error| *error != last) {
            output::warning(&format!("cannot apply config/example/ yet: {error}"));
        }
        self.pending = error;
    }

    /// Reports examples that are ready for the first time, with the time that it took.
    async fn report_ready(&mut self) {
        for example in &self.examples {
            let name = describe(example);
            if !self.ready.contains(&name) && self.is_example_ready(example).await.unwrap_or(false) {
                let (total, since_build) = (seconds(self.began.elapsed()), seconds(self.built.elapsed()));
                output::step("ready", &format!("{name}, {since_build} after the build, {total} in total"));
                self.ready.insert(name);
            }
        }
    }

    /// Returns the webhook configuration that the API server does not use yet, because an entry has no rules.
    async fn unregistered_webhook(&self) -> Option<String> {
        for configuration in self.applied.iter().filter(|object| object["webhooks"].is_array()) {
            let current = self.read(configuration).await.ok();
            let entries = current.as_ref().and_then(|current| current.data["webhooks"].as_array());
            let is_used = |entry: &Value| entry["rules"].as_array().is_some_and(|rules| !rules.is_empty());
            if !entries.is_some_and(|entries| entries.iter().all(is_used)) {
                return Some(describe(configuration));
            }
        }
        None
    }

    /// Tells whether an example has the condition `Ready` or `Available`.
    async fn is_example_ready(&self, example: &Value) -> Result<bool> {
        let object = self.read(example).await?;
        let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_ready = |condition: &Value| {
            ["Ready", "Available"].iter().any(|name| condition["type"] == *name)
                && condition["status"] == "True"
        };
        Ok(conditions.iter().any(is_ready))
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

/// The Kind and the name of an object.
fn describe(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// The error with its causes. Of an error of the API server it has only the message, which kube repeats in each cause.
fn reason(error: &anyhow::Error) -> String {
    match error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>()) {
        Some(kube::Error::Api(status)) => format!("{error}: {}", status.message),
        _ => format!("{error:#}"),
    }
}

/// Returns a port on 127.0.0.1 that nothing listens on.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port for the webhook")?;
    Ok(listener.local_addr().context("cannot find a free port for the webhook")?.port())
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_message_of_the_api_server_is_shown_once() {
        let refused = kube::Error::Api(Status::failure("too many members", "Invalid").boxed());
        let error = anyhow::Error::new(refused).context("cannot apply Team core");
        assert_eq!(reason(&error), "cannot apply Team core: too many members");
    }
}
