//! What a user's `main` calls.
use std::{ffi::OsString, io::Write, process::ExitCode};

use clap::{ArgMatches, Args};
use reknit_injection::Context;
use reknit_reconciler::{Controller, ControllerConstructor, Result};
use reknit_webhook::Webhook;

use crate::{
    cli::flags::{self, Augment, Flags},
    process::Task,
    process::constructors::Constructors,
    process::lifecycle::Process,
};

/// Runs these controllers until SIGTERM or Ctrl-C, and returns the exit status: 0 after a clean stop, 1 when
/// something went wrong, 2 for a wrong command line. Before it returns anything else than 0 it has written one line
/// that says why.
///
/// It starts a tokio runtime of its own, so it is called from a plain `fn main()`: within another, such as that of
/// `#[tokio::main]`, it says so and returns 1.
pub fn main(component: &str, controllers: &[ControllerConstructor]) -> ExitCode {
    controllers.iter().fold(Main::new(component), |main, make| main.controller(*make)).run()
}

/// A process that needs more than [`main`] offers: controllers made by closures, tasks beside them, values that
/// constructors ask for, flags of its own.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Key, Outcome, ReconcileKey, Result};
/// use reknit_sharedmain::{Main, Task};
///
/// #[derive(Clone, clap::Args)]
/// struct Flags {
///     /// The namespace to look after
///     #[arg(long, default_value = "default")]
///     namespace: String,
/// }
///
/// struct Looker(String);
///
/// impl ReconcileKey for Looker {
///     async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
///         tracing::info!(%key, namespace = self.0, "looked at");
///         Ok(Outcome::done())
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     let flags = cx.provided::<Flags>()?;
///     Ok(Controller::named("looker", cx).reconciler(Looker(flags.namespace)))
/// }
///
/// fn main() -> ExitCode {
///     Main::new("controller")
///         .version(env!("CARGO_PKG_VERSION"))
///         .flags::<Flags>()
///         .controller(controller)
///         .task(|cx| {
///             let client = cx.client();
///             Ok(Task::new("greeter", async move {
///                 let version = client.apiserver_version().await?.git_version;
///                 tracing::info!(version, "hello");
///                 Ok(())
///             }))
///         })
///         .run()
/// }
/// ```
#[must_use = "nothing happens until it is run"]
pub struct Main {
    component: String,
    version: String,
    flags: Vec<UserFlags>,
    constructors: Constructors,
}

/// One type of flags: how clap learns of them, and how the Context gets what was given.
struct UserFlags {
    augment: Augment,
    provide: fn(&Context, &ArgMatches) -> clap::error::Result<()>,
}

impl Main {
    /// The component is what its lease, its log lines and its level in config-logging are named by.
    pub fn new(component: &str) -> Self {
        Self {
            component: component.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            flags: vec![],
            constructors: Constructors::default(),
        }
    }

    /// What `--version` and the user agent say: `env!("CARGO_PKG_VERSION")`. Without it, reknit's.
    pub fn version(mut self, version: &str) -> Self {
        self.version = version.into();
        self
    }

    /// Another controller, made by a constructor or a closure.
    pub fn controller(mut self, make: impl FnOnce(&Context) -> Result<Controller> + 'static) -> Self {
        self.constructors.controllers.push(Box::new(make));
        self
    }

    /// Something that runs beside the controllers.
    pub fn task(mut self, make: impl FnOnce(&Context) -> Result<Task> + 'static) -> Self {
        self.constructors.tasks.push(Box::new(make));
        self
    }

    /// A webhook: its server, and a controller named `webhook` that keeps its certificate and has the API server trust it.
    /// It runs beside the controllers, or alone in a process of its own; there is one at most. See [`Webhook::assemble`] for what has to be there.
    ///
    /// It refuses ConfigMaps that this process could not read: `config-logging`, `config-observability`,
    /// `config-leader-election`, and those of [`Webhook::config_validation`].
    ///
    /// ```no_run
    /// # use reknit_apis::{FieldError, Kind, Request, Validatable};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    /// # #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
    /// # struct LampSpec {}
    /// # impl Kind for Lamp { type Status = (); }
    /// # impl Validatable for Lamp { fn validate(&self, _: &Request) -> FieldError { FieldError::none() } }
    /// use std::process::ExitCode;
    ///
    /// use reknit_sharedmain::Main;
    /// use reknit_webhook::Webhook;
    ///
    /// fn main() -> ExitCode {
    ///     let lamps = |_: &_| Ok(Webhook::new("demo.reknit.dev").defaulting::<Lamp>().validation::<Lamp>());
    ///     Main::new("webhook").webhook(lamps).run()
    /// }
    /// ```
    pub fn webhook(mut self, make: impl FnOnce(&Context) -> Result<Webhook> + 'static) -> Self {
        self.constructors.webhooks.push(Box::new(make));
        self
    }

    /// Flags of your own, parsed together with the framework's, and found by `cx.provided::<F>()?`.
    pub fn flags<F: Args + Clone + Send + Sync + 'static>(mut self) -> Self {
        self.flags.push(UserFlags {
            augment: F::augment_args,
            provide: |cx, matches| {
                cx.provide(F::from_arg_matches(matches)?);
                Ok(())
            },
        });
        self
    }

    /// A value that constructors find by `cx.provided::<T>()?`. It wins over what the Context would make itself.
    pub fn provide<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.constructors.values.push(Box::new(|cx| cx.provide(value)));
        self
    }

    /// Runs until SIGTERM or Ctrl-C, and returns the exit status, as [`main`] does: within no other tokio runtime.
    pub fn run(self) -> ExitCode {
        self.run_with(std::env::args_os().collect())
    }

    fn run_with(self, args: Vec<OsString>) -> ExitCode {
        match self.process(&args) {
            Ok(process) => process.run(),
            // Where even this cannot be written the status still tells.
            Err(answer) if flags::is_answer(&answer) => {
                let _ = answer.print();
                ExitCode::SUCCESS
            }
            Err(error) => {
                let failure = flags::usage_failure(&error);
                let _ = writeln!(std::io::stderr(), "{failure}");
                failure.exit_code()
            }
        }
    }

    fn process(self, args: &[OsString]) -> clap::error::Result<Process> {
        let (flags, constructors) = (self.flags, self.constructors);
        let (own, constructors) = parse(&self.component, &self.version, flags, constructors, args)?;
        Ok(Process { component: self.component, version: self.version, flags: own, constructors })
    }

    /// Runs all constructors, as [`run`](Self::run) does before anything starts: with it a test can show that the
    /// process can be put together. Flags have the values that they have on an empty command line.
    ///
    /// # Errors
    ///
    /// That of the first constructor that fails; two controllers of one name, or with one finalizer; flags that
    /// cannot do without a value.
    pub fn construct(self, cx: &Context) -> Result<(Vec<Controller>, Vec<Task>)> {
        let args = [OsString::from(&self.component)];
        let (_, constructors) = parse(&self.component, &self.version, self.flags, self.constructors, &args)?;
        let made = constructors.run(cx, &[]).map_err(|failure| failure.to_string())?;
        Ok((made.controllers, made.tasks))
    }
}

/// Reads the command line. What the user's own flags say is provided before anything is constructed.
fn parse(
    component: &str,
    version: &str,
    users: Vec<UserFlags>,
    mut constructors: Constructors,
    args: &[OsString],
) -> clap::error::Result<(Flags, Constructors)> {
    let augments: Vec<Augment> = users.iter().map(|flags| flags.augment).collect();
    let twice = flags::clashes(&augments);
    if !twice.is_empty() {
        let failure = format!("flags that there are already: {}\n", twice.join(", "));
        return Err(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, failure));
    }
    let (own, matches) = flags::parse(flags::command(component, version, &augments), args)?;
    for flags in users {
        let matches = matches.clone();
        constructors.flags.push(Box::new(move |cx| (flags.provide)(cx, &matches)));
    }
    Ok((own, constructors))
}
