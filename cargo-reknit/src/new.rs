//! `cargo reknit new`: a new project.

use std::{
    env, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, bail};

use crate::{
    built_in::BuiltIn,
    kind_flags::{DEFINITIONS, KindFlags},
    names::{Group, Kind, ProjectName},
    output,
    plan::{Plan, PlanFlags},
    project::cargo,
    template::{CARGO_LOCK, GIT_SOURCE, PROJECT},
    template_names::Names,
};

/// The Kind of a project: one that it defines or that another project installs, or a built-in one.
#[derive(Clone, Debug)]
enum NewKind {
    Own(Kind),
    BuiltIn(BuiltIn),
}

impl FromStr for NewKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.contains('/') {
            true => text.parse().map(Self::BuiltIn),
            false => text.parse().map(Self::Own),
        }
    }
}

/// Creates a project with one Kind, its controller and its tests, and the manifests that deploy it
#[derive(Debug, clap::Args)]
pub(crate) struct New {
    /// The folder of the project, which has to be empty or absent
    folder: PathBuf,
    /// The API group of the project's Kinds, for example example.com. It is also the domain of the finalizers
    #[arg(long)]
    group: Group,
    /// The Kind in CamelCase, for example Greeting; with --built-in for example apps/v1/Deployment or v1/Namespace
    #[arg(long)]
    kind: NewKind,
    /// Makes the controller of a Kind of Kubernetes itself, which needs no definition
    #[arg(long, conflicts_with_all = ["version", "plural", "cluster_scoped", "external"])]
    built_in: bool,
    #[command(flatten)]
    kind_flags: KindFlags,
    /// The name of the package, the namespace and the image; the default is the name of the folder
    #[arg(long)]
    name: Option<ProjectName>,
    /// Depends on a checkout of reknit in this folder, by a relative path if the project's folder is beside it and else
    /// by an absolute one; the default is its git repository
    #[arg(long, value_name = "CHECKOUT")]
    path: Option<PathBuf>,
    #[command(flatten)]
    plan: PlanFlags,
}

impl New {
    pub(crate) fn run(self) -> Result<()> {
        self.check_kind()?;
        self.check_empty()?;
        let name = match &self.name {
            Some(name) => name.clone(),
            None => self.name_of_folder()?,
        };
        let mut plan = self.plan_kind(&name);
        plan.create("Cargo.lock", CARGO_LOCK);
        if let Some(checkout) = &self.path {
            plan.replace("Cargo.toml", GIT_SOURCE, &self.path_source(checkout)?);
        }
        plan.execute(self.plan, false)?;
        if let NewKind::Own(kind) = &self.kind {
            output::resource(&self.kind_flags.plural(kind), &self.group, kind);
        }
        if !self.plan.is_dry_run() {
            self.check_project()?;
            self.update_lock_file();
            self.print_next();
        }
        Ok(())
    }

    /// Fails if the Kind does not fit `--built-in`, or if its group cannot be the project's.
    fn check_kind(&self) -> Result<()> {
        match (&self.kind, self.built_in) {
            (NewKind::Own(kind), true) => match &*BuiltIn::named(kind.as_str()).join(" or --kind ") {
                "" => {
                    bail!("Kubernetes has no Kind {}; without --built-in it is one of yours", kind.as_str())
                }
                named => bail!("--built-in needs the group and the version of the Kind: --kind {named}"),
            },
            (NewKind::BuiltIn(built_in), false) => bail!(
                "{} is a Kind of Kubernetes itself: pass --built-in for its controller",
                built_in.kind.as_str()
            ),
            (NewKind::BuiltIn(_), true) if self.group.is_protected() => bail!(
                "Kubernetes protects the group {}: --group is not that of the built-in Kind, but a domain of yours",
                self.group.as_str()
            ),
            (NewKind::BuiltIn(_), true) => Ok(()),
            (NewKind::Own(kind), false) => {
                let group = format!("{}/", self.group.as_str());
                let named = BuiltIn::named(kind.as_str()).into_iter().find(|named| named.starts_with(&group));
                match named {
                    Some(named) if !self.kind_flags.external => {
                        bail!("Kubernetes has this Kind: use a group of yours, and --kind {named} --built-in")
                    }
                    _ => self.kind_flags.check_group(&self.group),
                }
            }
        }
    }

    /// Plans the files of the project with the controller of its Kind.
    fn plan_kind(&self, name: &ProjectName) -> Plan {
        let mut plan = Plan::new(&self.folder);
        let names = Names::default().project(name).group(&self.group);
        let module = match &self.kind {
            NewKind::Own(kind) => {
                let names = self.kind_flags.names(names, kind);
                plan.create_all(PROJECT, &names);
                self.kind_flags.plan(&mut plan, &names);
                kind.module()
            }
            NewKind::BuiltIn(built_in) => {
                built_in.plan(&mut plan, names, &self.group);
                built_in.kind.module()
            }
        };
        if self.kind_flags.external {
            let krate = name.krate();
            let own = format!("[{krate}::{module}::definition()?]");
            plan.replace("tests/integration.rs", &format!("{krate}::definitions()?"), &own);
        }
        if self.kind_flags.external || self.built_in {
            plan.replace("src/lib.rs", &format!("        {module}::definition()?,\n"), "");
            plan.replace("config/Kustomization", &format!("  {DEFINITIONS}\n"), "");
            plan.create("config/300-crds.yaml", "# Generated by `cargo reknit crd --write`.\n");
        }
        plan
    }

    fn print_next(&self) {
        let folder = format!("cd {}", self.folder.display());
        let mut commands = vec![&*folder];
        if matches!(&self.kind, NewKind::BuiltIn(built_in) if built_in.has_roles_of_the_code()) {
            commands.push("cargo reknit rbac --write");
        }
        commands.extend(["cargo test", "cargo reknit dev"]);
        output::next(&commands);
    }

    /// Fails with cargo's message if cargo does not accept the project where it is.
    fn check_project(&self) -> Result<()> {
        let mut cargo = cargo();
        cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(&self.folder);
        let output = cargo.output().context("cannot run cargo")?;
        if !output.status.success() {
            bail!("cargo refuses the new project: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Adds the project to Cargo.lock, and removes the packages that it does not need.
    fn update_lock_file(&self) {
        let mut cargo = cargo();
        cargo.args(["update", "--workspace", "--offline"]).current_dir(&self.folder);
        // Without a copy of reknit's git repository this fails. The first build does the same with the network.
        let _ = cargo.output();
    }

    fn check_empty(&self) -> Result<()> {
        let folder = &self.folder;
        if !folder.exists() {
            return Ok(());
        }
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
        let names = names
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("cannot read {}", folder.display()))?;
        if names.iter().any(|name| name != ".git") {
            bail!("{} is not empty; choose an empty or absent folder", folder.display());
        }
        Ok(())
    }

    fn name_of_folder(&self) -> Result<ProjectName> {
        let folder = absolute(&self.folder)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.parse().map_err(|error| {
            anyhow::anyhow!("the folder's name {name:?} cannot be the project's: {error}; or pass --name")
        })
    }

    /// Returns the source of reknit in a checkout, after a check that reknit is there. The path is relative if the
    /// project is beside the checkout, so that both can be moved together.
    fn path_source(&self, checkout: &Path) -> Result<String> {
        let resolved =
            checkout.canonicalize().with_context(|| format!("cannot find {}", checkout.display()))?;
        let manifest = fs::read_to_string(resolved.join("Cargo.toml")).unwrap_or_default();
        if !manifest.contains("name = \"reknit\"") {
            bail!(
                "{} is not a checkout of reknit: it has no Cargo.toml of the package reknit",
                resolved.display()
            );
        }
        let path = match resolved.file_name() {
            Some(name) if absolute(&self.folder)?.parent() == resolved.parent() => Path::new("..").join(name),
            _ => resolved,
        };
        // A string of JSON is one of TOML too.
        let path = serde_json::to_string(&path.display().to_string()).context("cannot quote the path")?;
        Ok(format!("path = {path}"))
    }
}

/// Returns the absolute path of a folder, which may be absent. A path that ends in `.` or `..` is resolved, because
/// only then it has a name.
fn absolute(folder: &Path) -> Result<PathBuf> {
    let folder = env::current_dir().context("cannot determine the current folder")?.join(folder);
    let parent = folder.parent().and_then(|parent| parent.canonicalize().ok());
    let beside = parent.zip(folder.file_name()).map(|(parent, name)| parent.join(name));
    Ok(folder.canonicalize().ok().or(beside).unwrap_or(folder))
}
