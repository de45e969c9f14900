//! RBAC manifests, generated from the constructors of a program.

mod manifest;
mod policy;
mod rules;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, env, ffi::OsString, io, io::Write, process::ExitCode};

use clap::{ArgMatches, Parser, error::ErrorKind};
use k8s_openapi::api::{authentication::v1::TokenReview, authorization::v1::SubjectAccessReview};
use reknit_injection::{Context, Effects, Permission, Verb};
use reknit_reconciler::Result;
use tokio::runtime::{Handle, Runtime};

use self::{
    manifest::{Names, ObjectKind, PolicyName, binding_kind},
    policy::Policy,
    rules::Rules,
};
use crate::{
    Main,
    cli::flags::{self, Flags},
    config::maps::ConfigMapNames,
    process::{
        constructors::{PartContexts, WEBHOOK, WebhookWrites, unreachable_client},
        failure::Failure,
        runtimes::build_workers,
    },
};

/// The label with the name of the component.
const COMPONENT_LABEL: &str = "app.kubernetes.io/component";

/// The advice if the program requires a flag.
const SET_FLAGS: &str = "`Rbac::args` in the code sets flags of the program, or the command line after `--`";

/// The RBAC manifests of a program: its service accounts, and the roles that allow exactly the requests that its
/// constructors declare. Comes from [`Main::rbac`].
///
/// A program with a webhook has two accounts: one for the controllers and the certificate (`--only=controllers`), and the
/// account `webhook` for the server of the webhook (`--only=webhook`), which may write nothing: a permission to do so is an
/// error. A ValidatingAdmissionPolicy bounds what a stolen token of them could do: of Secrets, they may write only the one of the certificate, as a Secret of
/// type `Opaque`, and in webhook configurations and CustomResourceDefinitions only the rules, selectors, paths and CA bundles
/// of the program. If controllers write such objects themselves, the policy leaves these resources out, and refuses only
/// Secrets that hold credentials of the cluster. A program without a webhook has a policy that refuses these Secrets if its
/// controllers write Secrets, and none otherwise. Each object has the label `app.kubernetes.io/component`.
///
/// The builder of a controller, the informers, the webhook and leader election declare what they need themselves.
/// Declare the requests that your own code sends through the client by [`Builder::allows`] or [`Context::allows`].
///
/// Permissions on objects of selected namespaces are in a Role in each of these namespaces, so the manifests of a
/// program with [`NamespaceFlag`](crate::NamespaceFlag) depend on its flag `--namespace`. Permissions on the process's
/// ConfigMaps and Leases, and on the Secret of the webhook, are in a Role in the system namespace. All others are in a
/// ClusterRole. The manifests have the default names of the ConfigMaps and of the Secret.
///
/// [`Builder::allows`]: reknit_reconciler::Builder::allows
///
/// ```
/// use reknit_injection::{Context, Permission, Verb};
/// use reknit_reconciler::{Controller, Outcome, ReconcileKind, Result};
/// use reknit_sharedmain::Main;
/// use k8s_openapi::api::core::v1::{Namespace, Secret};
///
/// struct Reconciler;
///
/// impl ReconcileKind for Reconciler {
///     type Kind = Namespace;
///     async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
///         Ok(Outcome::done())
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     let mut build = Controller::of::<Namespace>(cx);
///     build.allows(Permission::of::<Secret>([Verb::Get]));
///     Ok(build.reconciler(Reconciler).build())
/// }
///
/// fn program() -> Main {
///     Main::new("controller").controller(controller)
/// }
///
/// # fn main() -> Result<()> {
/// // A program src/bin/rbac.rs would call `program().rbac("shop-system").print()`.
/// let manifests = program().rbac("shop-system").to_yaml()?;
/// assert!(manifests.contains("resources: [secrets]\n    verbs: [get]\n"));
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is generated before `print` or `to_yaml`"]
pub struct Rbac {
    program: Main,
    system_namespace: String,
    args: Vec<OsString>,
    name: Option<String>,
    service_account: Option<String>,
    labels: BTreeMap<String, String>,
    is_shadow: bool,
}

/// Prints the RBAC manifests of the program
///
/// Flags of the program, such as --namespace, follow after `--`.
#[derive(Parser)]
#[command(name = "rbac")]
struct RbacFlags {
    /// Print only objects of these kinds
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    kinds: Vec<ObjectKind>,

    /// Print those of the account of --shadow and --plan instead, which may send only dry runs
    #[arg(long)]
    shadow: bool,

    /// Print only objects in this namespace
    #[arg(long = "in", value_name = "NAME")]
    in_namespace: Option<String>,

    /// Flags of the program. They are a command line of their own, since the program may have flags of these names too
    #[arg(last = true, value_name = "FLAGS")]
    program: Vec<OsString>,
}

impl RbacFlags {
    fn admits(&self, kind: ObjectKind, namespace: Option<&str>) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&kind))
            && (self.in_namespace.is_none() || self.in_namespace.as_deref() == namespace)
    }
}

impl Main {
    /// Returns the RBAC manifests of this program, whose ConfigMaps and Leases are in this namespace
    /// (`SYSTEM_NAMESPACE`).
    pub fn rbac(self, system_namespace: &str) -> Rbac {
        Rbac {
            program: self,
            system_namespace: system_namespace.into(),
            args: Vec::new(),
            name: None,
            service_account: None,
            labels: BTreeMap::new(),
            is_shadow: false,
        }
    }
}

impl Rbac {
    /// Sets the name of the service account. The default is the name of the component. That of the server of the webhook is
    /// `webhook`, or else this name with `-webhook` appended.
    pub fn service_account(mut self, name: &str) -> Self {
        self.service_account = Some(name.into());
        self
    }

    /// Sets the name of the roles and their bindings. The default is `<system namespace>-<component>`, since the name
    /// of a ClusterRole must be unique in the cluster. Those of the server of the webhook are named
    /// `<system namespace>-webhook`, or else this name with `-webhook` appended.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets flags of the program: those that it requires, and those on which the rules may depend. A flag of the command
    /// line replaces the same one here, and a list is continued.
    ///
    /// ```
    /// use reknit_sharedmain::{Main, NamespaceFlag, Rbac};
    ///
    /// fn rbac() -> Rbac {
    ///     Main::new("controller").flags::<NamespaceFlag>().rbac("shop-system").args(["--namespace=shop"])
    /// }
    /// # assert!(rbac().to_yaml().is_ok());
    /// ```
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Selects the manifests of another account, for a process with `--shadow` and for plans (`--as`). Its name, and that
    /// of its roles, ends in `-shadow`. It may do what the controllers may, except for Leases, events, tokens and
    /// impersonation, and a ValidatingAdmissionPolicy refuses each of its writes that is not a dry run.
    ///
    /// ```
    /// # fn main() -> reknit_reconciler::Result<()> {
    /// use reknit_sharedmain::Main;
    ///
    /// let manifests = Main::new("controller").rbac("shop-system").shadow().to_yaml()?;
    /// assert!(manifests.contains("name: controller-shadow\n"));
    /// assert!(manifests.contains("request.dryRun"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self
    }

    /// Adds a label to all objects.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Prints the manifests to standard output, without a cluster, and returns the exit status: 0, or 1 after an error,
    /// such as a full disk, or 2 for an invalid command line.
    ///
    /// The command line has `--kinds` and `--in`, to print only objects of some kinds or in one namespace, and
    /// [`--shadow`](Self::shadow). The flags of the program follow after `--`: `rbac --kinds=Role -- --namespace=shop`.
    pub fn print(self) -> ExitCode {
        match self.generate(&env::args_os().collect::<Vec<_>>()) {
            Ok((text, warnings)) => {
                // A failure to print to standard error, here and below, is ignored: the exit status remains.
                for warning in warnings {
                    let _ = writeln!(io::stderr(), "warning: {warning}");
                }
                let printed = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
                match printed {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => {
                        let _ = writeln!(io::stderr(), "cannot print the manifests: {error}");
                        ExitCode::FAILURE
                    }
                }
            }
            Err(failure) => {
                let _ = writeln!(io::stderr(), "{failure}");
                failure.exit_code()
            }
        }
    }

    /// Returns the manifests with the flags that [`args`](Self::args) sets, for a test that compares them with a file.
    ///
    /// # Errors
    ///
    /// Fails if a constructor fails, if `args` lacks a required flag, if a controller uses
    /// [`Kinds::any`](reknit_reconciler::Kinds::any), or if the constructor of the webhook declares a permission to write.
    pub fn to_yaml(self) -> Result<String> {
        let args = [OsString::from("rbac")];
        Ok(self.generate(&args).map_err(|failure| failure.to_string())?.0)
    }

    /// Returns the manifests, or the help text, and warnings about rights that grant further rights.
    fn generate(self, args: &[OsString]) -> Result<(String, Vec<String>), Failure> {
        let refuse = |error: clap::Error| match flags::is_help(&error) {
            true => Ok((error.render().to_string(), Vec::new())),
            false => Err(flags::usage_failure(&error)),
        };
        let filter = match RbacFlags::try_parse_from(args) {
            Ok(filter) => filter,
            Err(error) => return refuse(error),
        };
        let component = self.program.component().to_owned();
        // A flag of the command line replaces that of `args`.
        let command =
            self.program.command().map_err(|error| flags::usage_failure(&error))?.args_override_self(true);
        let args: Vec<_> =
            [component.clone().into()].into_iter().chain(self.args).chain(filter.program.clone()).collect();
        let (flags, matches) = match flags::parse(command, &args) {
            Ok(parsed) => parsed,
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
                return Err(Failure::usage(format!("{}; {SET_FLAGS}", flags::usage_failure(&error))));
            }
            Err(error) => return refuse(error),
        };
        let is_shadow = self.is_shadow || filter.shadow;
        let names = (self.name, self.service_account);
        let mut accounts = Accounts::new(&component, self.system_namespace, names, &self.labels);
        let namespace = accounts.controllers.system_namespace.clone();
        let Permissions { controllers, webhook } =
            Permissions::declared(self.program, matches, &flags, &namespace, is_shadow)?;
        let admits = |kind, namespace: Option<&str>| filter.admits(kind, namespace);
        if is_shadow {
            let rules = Rules::of(&controllers).without_real_writes();
            let names = accounts.shadow(binding_kind([&rules].into_iter()));
            let documents = manifest::documents(&names, &rules, Some(policy::DRY_RUNS.into()), admits);
            return Ok((manifest::text(&documents.map_err(Failure::new)?), Vec::new()));
        }
        let writes = webhook.as_ref().map(|(_, writes)| writes);
        let webhook_rules = webhook.as_ref().map(|(permissions, _)| Rules::of(permissions));
        let rules = Rules::of(&controllers);
        let policy = Policy { writes, permissions: &controllers, system_namespace: &namespace }.spec();
        if policy.is_some() {
            let kind = binding_kind([&rules].into_iter().chain(&webhook_rules));
            accounts.bound_by_policy(writes.is_some(), kind)?;
        }
        let documents = |names, rules: &Rules, policy| manifest::documents(names, rules, policy, admits);
        let mut text = documents(&accounts.controllers, &rules, policy).map_err(Failure::new)?;
        let of_both = controllers.iter().chain(webhook.iter().flat_map(|(permissions, _)| permissions));
        let warnings = of_both.filter_map(escalation).collect();
        if let Some(rules) = &webhook_rules {
            text.extend(documents(&accounts.webhook, rules, None).map_err(Failure::new)?);
        }
        Ok((manifest::text(&text), warnings))
    }
}

/// The names of the objects of both accounts.
struct Accounts {
    controllers: Names,
    webhook: Names,
}

impl Accounts {
    fn new(
        component: &str,
        system_namespace: String,
        (role, service_account): (Option<String>, Option<String>),
        labels: &BTreeMap<String, String>,
    ) -> Self {
        let names = |component: &str, role, service_account| {
            let component_label = (COMPONENT_LABEL.to_owned(), component.to_owned());
            let labels = labels.clone().into_iter().chain([component_label]).collect();
            let system_namespace = system_namespace.clone();
            Names { role, service_account, system_namespace, labels, policy: None }
        };
        let of_webhook = |name: &Option<String>| name.as_ref().map(|name| format!("{name}-{WEBHOOK}"));
        let default_role = |component: &str| format!("{system_namespace}-{component}");
        let webhook = names(
            WEBHOOK,
            of_webhook(&role).unwrap_or_else(|| default_role(WEBHOOK)),
            of_webhook(&service_account).unwrap_or_else(|| WEBHOOK.into()),
        );
        let role = role.unwrap_or_else(|| default_role(component));
        let service_account = service_account.unwrap_or_else(|| component.to_owned());
        Self { controllers: names(component, role, service_account), webhook }
    }

    /// The names of the account that may send only dry runs.
    fn shadow(self, param_kind: ObjectKind) -> Names {
        let mut names = self.controllers;
        for name in [&mut names.role, &mut names.service_account] {
            name.push_str("-shadow");
        }
        names.labels.insert(COMPONENT_LABEL.into(), names.service_account.clone());
        names.policy = Some(PolicyName { name: names.role.clone(), param_kind });
        names
    }

    /// Binds the accounts to the admission policy. Fails if that of the controllers and that of the webhook would be one.
    fn bound_by_policy(&mut self, has_webhook: bool, param_kind: ObjectKind) -> Result<(), Failure> {
        let Self { controllers, webhook } = self;
        let is_one =
            controllers.service_account == webhook.service_account || controllers.role == webhook.role;
        if has_webhook && is_one {
            return Err(Failure::new(
                "the component is named webhook, which is the account of the webhook's server: give Main::new another name, or \
                 set others by Rbac::name and Rbac::service_account",
            ));
        }
        let policy = Some(PolicyName { name: controllers.role.clone(), param_kind });
        (controllers.policy, webhook.policy) = (policy.clone(), policy);
        Ok(())
    }
}

/// The group of webhook configurations and admission policies. Whoever writes them sees and changes the requests of others.
const ADMISSION: &str = "admissionregistration.k8s.io";
/// The subresources that give the rights of other accounts to whoever uses them, by any verb.
const ACT_AS_OTHERS: [(&str, &str); 6] = [
    ("", "nodes/proxy"),
    ("", "pods/attach"),
    ("", "pods/ephemeralcontainers"),
    ("", "pods/exec"),
    ("", "serviceaccounts/token"),
    ("certificates.k8s.io", "certificatesigningrequests/approval"),
];

/// The resources that give rights over the whole cluster to whoever writes objects of any name: a definition names the server that
/// converts the objects of its Kind, and an APIService the server of a group. The labels of a namespace exempt it from admission
/// and from Pod Security, and a PersistentVolume mounts any folder of a node.
const RULE_THE_CLUSTER: [(&str, &str); 4] = [
    ("", "namespaces"),
    ("", "persistentvolumes"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "apiservices"),
];

/// Describes a permission by which a process can get rights that its roles do not list.
fn escalation(permission: &Permission) -> Option<String> {
    let is_unnamed = permission.object_names().next().is_none();
    let rules_the_cluster = permission.group() == ADMISSION
        || RULE_THE_CLUSTER.iter().any(|(group, resource)| permission.is_on(group, resource));
    let escalates = |verb: Verb| match verb {
        Verb::Bind => is_unnamed,
        Verb::Get | Verb::List | Verb::Watch => false,
        verb => verb.is_escalation() || rules_the_cluster && is_unnamed,
    };
    let acts_as_others = ACT_AS_OTHERS.iter().any(|(group, resource)| permission.is_on(group, resource));
    (acts_as_others || permission.verbs().any(escalates)).then(|| {
        format!(
            "the rules allow {permission}: whoever controls the process can get rights that the rules do not list"
        )
    })
}

/// The permissions of both accounts.
struct Permissions {
    controllers: Vec<Permission>,
    /// Those of the server, and what the controllers write for it. `None` without a webhook.
    webhook: Option<(Vec<Permission>, WebhookWrites)>,
}

impl Permissions {
    /// Runs the constructors of all parts, and returns the permissions that they and their processes need. A shadow has
    /// only the controllers.
    fn declared(
        program: Main,
        matches: ArgMatches,
        flags: &Flags,
        namespace: &str,
        is_shadow: bool,
    ) -> Result<Self, Failure> {
        // A Context needs a runtime. A test may already be in one.
        let runtime = Handle::try_current().is_err().then(|| build_workers(1)).transpose();
        let runtime =
            runtime.map_err(|error| Failure::new(format!("failed to start the tokio runtime: {error}")))?;
        let _guard = runtime.as_ref().map(Runtime::enter);
        let context = || {
            Context::builder(program.component(), unreachable_client())
                .system_namespace(Some(namespace.into()))
                .preloaded(Vec::new())
                .build()
        };
        let (controllers, webhook) = (context(), context());
        let parts = PartContexts::separate(&controllers, &webhook);
        // The controllers and tasks are dropped, and their declarations stay in the Contexts.
        let constructors = program.into_constructors(matches);
        let constructors = match is_shadow {
            true => constructors.for_plan(Effects::planned(|_, _| {})),
            false => constructors,
        };
        let constructed = constructors.run(parts, &flags.disable_controllers)?;
        let declared = |cx: &Context, is_elected| {
            let mut permissions = cx.permissions().all().map_err(Failure::new)?;
            permissions.extend(process_permissions(namespace, is_elected));
            let has_reviews = flags.reviews_readers() && !is_shadow;
            permissions.extend(has_reviews.then(reviews).into_iter().flatten());
            Ok(permissions)
        };
        let of_webhook = |writes| {
            let permissions = declared(&webhook, false)?;
            check_reads_only(&permissions)?;
            Ok((permissions, writes))
        };
        Ok(Self {
            controllers: declared(&controllers, !is_shadow && !flags.is_without_election())?,
            webhook: constructed.webhook_writes.map(of_webhook).transpose()?,
        })
    }
}

/// Fails if the account of the webhook's server would have a right to write: its process reads what anybody sends. A review is
/// created to get its answer, and is not stored.
fn check_reads_only(permissions: &[Permission]) -> Result<(), Failure> {
    let reviews = reviews();
    let is_review = |permission: &Permission| {
        let resource =
            |permission: &Permission| (permission.group().to_owned(), permission.resource().to_owned());
        reviews.iter().any(|review| resource(review) == resource(permission))
    };
    let writes = |permission: &&Permission| {
        permission.verbs().any(|verb| match verb {
            Verb::Get | Verb::List | Verb::Watch => false,
            Verb::Create => !is_review(permission),
            _ => true,
        })
    };
    permissions.iter().find(writes).map_or(Ok(()), |permission| {
        Err(Failure::new(format!(
            "the constructor of the webhook declares `{permission}`, but the account of its server may only get, list and \
             watch, since the process reads what anybody sends: write in a controller, and declare the permission there"
        )))
    })
}

/// The permissions of the process itself: its ConfigMaps and its Leases.
fn process_permissions(namespace: &str, is_elected: bool) -> Vec<Permission> {
    let ConfigMapNames { logging, observability, leader_election } = ConfigMapNames::default();
    let mut names = vec![logging, observability];
    let mut permissions = Vec::new();
    if is_elected {
        names.push(leader_election);
        permissions = reknit_leadership::internal::permissions();
    }
    // A rule with a resource name also covers a list or watch of that name.
    let config_maps = Permission::new("", "configmaps", [Verb::Get, Verb::List, Verb::Watch]).names(names);
    permissions.insert(0, config_maps);
    permissions.into_iter().map(|permission| permission.namespaces([namespace])).collect()
}

/// The reviews by which a process decides who reads its metrics.
fn reviews() -> [Permission; 2] {
    let create = [Verb::Create];
    [Permission::of::<TokenReview>(create), Permission::of::<SubjectAccessReview>(create)]
        .map(Permission::cluster_scoped)
}
