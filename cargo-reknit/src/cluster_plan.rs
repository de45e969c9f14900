//! `cargo reknit plan`: what the program would change in a cluster.

use std::{
    env,
    ffi::OsString,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

use crate::{
    dev::{MainProgram, Workload, read_folder, without_flags, workloads},
    project::{Project, ProjectFlags, cargo},
};

/// The flags with a value that a plan refuses.
const NOT_OF_A_PLAN: [&str; 3] = ["--max-unprompted-changes", "--only", "--record-failures"];

/// Builds the program of the project, and prints what it would change in the cluster of the kubeconfig, without changing
/// anything
///
/// The program gets the arguments and the environment of its Deployment in config/.
///
/// The exit status is that of the program: 0 if there is nothing to change, 3 if there is, 4 if the plan is incomplete.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterPlan {
    #[command(flatten)]
    project: ProjectFlags,
    /// Arguments of the program, such as --plan-output=json or --context=production
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

impl ClusterPlan {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let project = self.project.project()?;
        let workload = controllers(&project)?;
        let mut command = self.command(project.name.as_str(), workload.as_ref());
        let status = command.current_dir(&project.folder).status().context("cannot run cargo")?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
    }

    /// The program with `--plan`, as its Deployment runs it. Own arguments and variables of the environment win.
    fn command(&self, program: &str, workload: Option<&Workload>) -> Command {
        let mut command = cargo();
        let given = workload.map(|workload| without_flags(workload.args.clone(), &[], &NOT_OF_A_PLAN));
        command.args(["run", "--quiet", "--bin", program, "--", "--plan"]);
        command.args(given.unwrap_or_default()).args(&self.args);
        let variables = workload.into_iter().flat_map(|workload| &workload.env);
        command.envs(variables.filter(|(name, _)| env::var_os(name).is_none()));
        command
    }
}

/// The Deployment in `config/` that runs the controllers: the program of the project without `--only=webhook`.
fn controllers(project: &Project) -> Result<Option<Workload>> {
    let program = MainProgram::of(project.name.as_str(), &project.folder);
    let found = workloads(&read_folder(&project.folder.join("config"))?, &program);
    let is_webhook = |workload: &Workload| workload.args.iter().any(|arg| arg == "--only=webhook");
    Ok(found.into_iter().find(|workload| workload.program == program.name && !is_webhook(workload)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_program_runs_as_in_its_deployment() {
        let deployment = |name: &str, args: &[&str]| {
            let env = json!([
                {"name": "WORKLOAD_IMAGE", "value": "app:7"},
                {"name": "SYSTEM_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            ]);
            let container = json!({"name": name, "image": "shop", "args": args, "env": env});
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "op"},
                "spec": {"template": {"spec": {"containers": [container]}}},
            })
        };
        let args =
            ["--only=controllers", "--metrics-secure", "--max-unprompted-changes", "100", "--class=gold"];
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("config")).unwrap();
        let manifests = [deployment("webhook", &["--only=webhook"]), deployment("controller", &args)]
            .map(|manifest| manifest.to_string());
        std::fs::write(folder.path().join("config/programs.yaml"), manifests.join("\n---\n")).unwrap();
        let project = Project {
            folder: folder.path().into(),
            name: "shop".parse().unwrap(),
            group: "example.com".parse().unwrap(),
        };
        let workload = controllers(&project).unwrap();
        let plan =
            ClusterPlan { project: ProjectFlags::default(), args: vec!["--context=production".into()] };
        let command = plan.command("shop", workload.as_ref());
        let args: Vec<_> = command.get_args().collect();
        let expected =
            ["run", "--quiet", "--bin", "shop", "--", "--plan", "--class=gold", "--context=production"];
        assert_eq!(args, expected);
        let value =
            |name: &str| command.get_envs().find(|(known, _)| *known == name).and_then(|(_, value)| value);
        assert_eq!(
            ["WORKLOAD_IMAGE", "SYSTEM_NAMESPACE"].map(value),
            [Some("app:7".as_ref()), Some("op".as_ref())]
        );
    }
}
