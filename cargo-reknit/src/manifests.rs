//! `cargo reknit crd` and `cargo reknit rbac`: the manifests that the project's own programs print.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    path::Path,
    process::Stdio,
};

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use reknit_apis::check_definition;
use serde_json::Value;

use crate::{
    output,
    project::{Project, ProjectFlags, cargo},
};

/// Runs the program `crd` of the project, which prints the CustomResourceDefinitions, and checks them
#[derive(Debug, clap::Args)]
pub(crate) struct Crd {
    /// Writes them to config/300-crds.yaml
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    project: ProjectFlags,
}

impl Crd {
    pub(crate) fn run(self) -> Result<()> {
        let output = Output { path: "config/300-crds.yaml", write: self.write };
        output.generate(&self.project.project()?, "crd", &[], check_definitions)
    }
}

/// The manifests of the account of `--shadow`.
const SHADOW: &str = "config/shadow/rbac.yaml";

/// Runs the program `rbac` of the project, which prints the service account and the roles that the constructors need
#[derive(Debug, clap::Args)]
pub(crate) struct Rbac {
    /// Writes them to config/200-rbac.yaml, and those of the account of --shadow to config/shadow/rbac.yaml
    #[arg(long)]
    write: bool,
    /// Prints those of the account of --shadow and --plan, which may send only dry runs
    #[arg(long, conflicts_with = "write")]
    shadow: bool,
    #[command(flatten)]
    project: ProjectFlags,
    /// Arguments of the program, such as --namespace=team-a
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

impl Rbac {
    pub(crate) fn run(self) -> Result<()> {
        let (project, write) = (self.project.project()?, self.write);
        let args = rbac_arguments(self.args);
        if !self.shadow {
            Output { path: "config/200-rbac.yaml", write }.generate(&project, "rbac", &args, |_| Ok(()))?;
        }
        if self.shadow || write && project.folder.join(SHADOW).exists() {
            let args = [vec!["--shadow".into()], args].concat();
            Output { path: SHADOW, write }.generate(&project, "rbac", &args, |_| Ok(()))?;
        }
        Ok(())
    }
}

/// Returns the command line of the program `rbac`. The arguments before `--` are those of `Rbac::print`.
pub(crate) fn rbac_arguments(args: Vec<OsString>) -> Vec<OsString> {
    match args.is_empty() {
        true => args,
        false => [vec!["--".into()], args].concat(),
    }
}

/// The destination of the output of a program: the terminal, or a file of the project.
struct Output {
    path: &'static str,
    write: bool,
}

impl Output {
    /// Runs a program of the project, checks its output, and prints or writes it.
    fn generate(
        &self,
        project: &Project,
        program: &str,
        args: &[OsString],
        check: fn(&str) -> Result<()>,
    ) -> Result<()> {
        let mut cargo = cargo();
        cargo.args(["run", "--quiet", "--bin", program, "--"]).args(args).current_dir(&project.folder);
        let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
        let unchanged = if self.write { format!("; {} is unchanged", self.path) } else { String::new() };
        if !output.status.success() {
            bail!("the program {program} of the project failed{unchanged}");
        }
        let text = String::from_utf8(output.stdout)
            .with_context(|| format!("the program {program} of the project printed no text{unchanged}"))?;
        check(&text)
            .with_context(|| format!("the output of the program {program} is not usable{unchanged}"))?;
        match self.write {
            true => self.write_to(&project.folder, &text),
            false => {
                let mut stdout = io::stdout();
                stdout
                    .write_all(text.as_bytes())
                    .and_then(|()| stdout.flush())
                    .context("cannot print the output")
            }
        }
    }

    fn write_to(&self, folder: &Path, text: &str) -> Result<()> {
        let file = folder.join(self.path);
        if fs::read_to_string(&file).is_ok_and(|old| old == text) {
            output::step("unchanged", self.path);
            return Ok(());
        }
        fs::write(&file, text).with_context(|| format!("cannot write {}", self.path))?;
        output::step("changed", self.path);
        Ok(())
    }
}

/// Checks CustomResourceDefinitions by the rules of the API server.
fn check_definitions(yaml: &str) -> Result<()> {
    for definition in
        serde_saphyr::from_multiple::<CustomResourceDefinition>(yaml).context("it is no definition")?
    {
        check_definition(&definition)?;
        for path in large_integers_of_status(&definition) {
            output::warning(&format!(
                "{path} may be above 9223372036854775807, such as a hash in a u64: the API server would refuse the whole \
                 status. Keep a hash as text, or limit the number by #[schemars(range(max = ..))]"
            ));
        }
    }
    Ok(())
}

/// Returns the paths of fields of the status whose Rust type has larger numbers than the API server.
fn large_integers_of_status(definition: &CustomResourceDefinition) -> Vec<String> {
    let mut paths = Vec::new();
    for version in &definition.spec.versions {
        let schema = serde_json::to_value(&version.schema).unwrap_or_default();
        let status = &schema["openAPIV3Schema"]["properties"]["status"];
        let path = format!("{} {}: status", definition.spec.names.kind, version.name);
        find_large_integers(path, status, &mut paths);
    }
    paths
}

fn find_large_integers(path: String, schema: &Value, paths: &mut Vec<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        find_large_integers(format!("{path}.{name}"), field, paths);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if schema[key].is_object() {
            find_large_integers(format!("{path}{suffix}"), &schema[key], paths);
        }
    }
    // Only a type without a sign has a minimum, and only one of 64 bits or more has no maximum.
    if schema["format"] == "int64" && schema["minimum"] == 0.0 && schema["maximum"].is_null() {
        paths.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_that_the_api_server_refuses_is_not_written() {
        let definition = |schema: &str| {
            format!(
                "# Generated.\n---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
                 metadata: {{name: lamps.demo.reknit.dev}}\nspec:\n  group: demo.reknit.dev\n  scope: Namespaced\n  \
                 names: {{kind: Lamp, plural: lamps}}\n  versions:\n  - {{name: v1, served: true, storage: true, \
                 schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {schema}}}}}}}}}\n"
            )
        };
        check_definitions(&definition("{type: string}")).unwrap();
        let error = check_definitions(&definition("{description: anything}")).unwrap_err().to_string();
        assert!(error.contains("lamps.demo.reknit.dev\n  v1: spec: it has no type"), "{error}");
    }
    #[test]
    fn a_number_of_a_status_that_the_api_server_may_refuse_is_named() {
        let unbounded = "{type: integer, format: int64, minimum: 0}";
        let bounded = "{type: integer, format: int64, minimum: 0, maximum: 9}";
        let signed = "{type: integer, format: int64}";
        let definition = format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
             metadata: {{name: lamps.demo.reknit.dev}}\nspec:\n  group: demo.reknit.dev\n  scope: Namespaced\n  \
             names: {{kind: Lamp, plural: lamps}}\n  versions:\n  - {{name: v1, served: true, storage: true, \
             schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {unbounded}, status: {{type: object, \
             properties: {{hashes: {{type: array, items: {unbounded}}}, count: {bounded}, last: {signed}}}}}}}}}}}}}\n"
        );
        let definition = serde_saphyr::from_str(&definition).unwrap();
        assert_eq!(large_integers_of_status(&definition), ["Lamp v1: status.hashes[]"]);
    }
}
