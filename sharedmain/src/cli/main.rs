//! The builder of a process, which a program's `main` calls.
use std::{ffi::OsString, io::Write, process::ExitCode};

use clap::{ArgMatches, Args, Command};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Result};

use crate::{
    cli::flags::{self, AugmentArgs, Part},
    process::Task,
    process::constructors::{Constructors, PartContexts, WEBHOOK},
    process::program::Program,
};

/// A builder for a process: controllers, tasks, a webhook, values for constructors, and flags of the program.
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
///     /// The namespace to work in
///     #[arg(long, default_value = "default")]
///     namespace: String,
/// }
///
/// struct Logger(String);
///
/// impl ReconcileKey for Logger {
///     async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
///         tracing::info!(%key, namespace = self.0, "reconciled");
///         Ok(Outcome::done())
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     let flags = cx.provided::<Flags>()?;
///     Ok(Controller::named("logger", cx).reconciler(Logger(flags.namespace)))
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
    flags: Vec<AugmentArgs>,
    pub(crate) constructors: Constructors,
}

impl Main {
    /// Starts building a process. `component` is its name in leases, in log lines and in config-logging.
    pub fn new(component: &str) -> Self {
        Self {
            component: component.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            flags: vec![],
            constructors: Constructors::default(),
        }
    }

    /// Sets the version for `--version` and the user agent, usually `env!("CARGO_PKG_VERSION")`. The default is the
    /// version of reknit.
    pub fn version(mut self, version: &str) -> Self {
        self.version = version.into();
        self
    }

    /// Adds a controller by its constructor, a function or a closure.
    ///
    /// `--disable-controllers` disables a controller by its [name](Controller::name). The process then opens no informer
    /// for it. To learn the names, it first calls all constructors of controllers in a Context without an API server.
    pub fn controller(mut self, constructor: impl Fn(&Context) -> Result<Controller> + 'static) -> Self {
        self.constructors.controllers.push(Box::new(constructor));
        self
    }

    /// Adds a task that runs beside the controllers.
    pub fn task(mut self, constructor: impl FnOnce(&Context) -> Result<Task> + 'static) -> Self {
        self.constructors.tasks.push(Box::new(constructor));
        self
    }

    /// Adds flags of your own, parsed together with the framework's. Constructors get them by `cx.provided::<F>()?`. The
    /// project depends on clap 4 with its feature `derive`.
    ///
    /// Every process of the program parses them. So a flag without a default has to be in the arguments of each Deployment,
    /// also of that with `--only=webhook`, in [`Rbac::args`](crate::Rbac::args), and in those of `Program` in tests.
    ///
    /// ```
    /// use reknit_injection::Context;
    /// use reknit_reconciler::{Controller, Result};
    /// use reknit_sharedmain::Main;
    ///
    /// #[derive(clap::Args, Clone)]
    /// struct Flags {
    ///     /// Copies Secrets whose annotations do not allow it, too.
    ///     #[arg(long)]
    ///     allow_all: bool,
    /// }
    ///
    /// fn controller(cx: &Context) -> Result<Controller> {
    ///     let Flags { allow_all } = cx.provided()?;
    /// #   let _ = allow_all;
    ///     // …
    /// #   Err("".into())
    /// }
    ///
    /// fn program() -> Main {
    ///     Main::new("replicator").flags::<Flags>().controller(controller)
    /// }
    /// # let _ = program;
    /// ```
    pub fn flags<F: Args + Clone + Send + Sync + 'static>(mut self) -> Self {
        self.flags.push(F::augment_args);
        self.constructors.flags.push(|cx, matches| {
            cx.provide(F::from_arg_matches(matches)?);
            Ok(())
        });
        self
    }

    /// Adds a value that constructors get by `cx.provided::<T>()?`. The value overrides one that the Context would
    /// construct.
    pub fn provide<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.constructors.values.push(Box::new(move |cx| cx.provide(value.clone())));
        self
    }

    /// Declares that `--plan` may run the program to print what it would change. Without it, `--plan` fails.
    ///
    /// A plan runs the controllers against the live API server, and makes each of their writes a dry run. So code that
    /// changes anything else must ask [`Effects`](reknit_injection::Effects) first. Tasks and the webhook do not run.
    pub fn plannable(mut self) -> Self {
        self.constructors.is_plannable = true;
        self
    }

    /// Hides the values at these JSON pointers, beside those of Secrets, wherever the framework shows parts of objects: in
    /// plans, in the log lines of shadows, in the events, log lines and causes of fights and storms, in the errors of objects
    /// that cannot be decoded, and in the files of `--record-failures`. The pointers lead into objects of all Kinds, also into
    /// ConfigMaps. The segment `*` is any key and any index.
    ///
    /// The texts of your own code, in errors, events and log lines, are only redacted in the files of `--record-failures`.
    ///
    /// ```no_run
    /// use reknit_sharedmain::Main;
    ///
    /// let main = Main::new("controller").redact(["/spec/password", "/spec/users/*/token"]);
    /// # let _ = main;
    /// ```
    pub fn redact<P: Into<String>>(mut self, pointers: impl IntoIterator<Item = P>) -> Self {
        self.constructors.redacted.extend(pointers.into_iter().map(Into::into));
        self
    }

    /// Runs until SIGTERM or Ctrl-C, and returns the exit status: 0 after a clean shutdown, 1 after a failure, 2 for an
    /// invalid command line; and of a plan, 0 if there is nothing to change, 3 if there is, and 4 if the plan is
    /// incomplete. A failure is written as one line to the log.
    ///
    /// This function starts a tokio runtime of its own, so call it from a plain `fn main()`. Within another runtime, such
    /// as that of `#[tokio::main]`, it fails with status 1.
    pub fn run(self) -> ExitCode {
        match self.into_program(&std::env::args_os().collect::<Vec<_>>()) {
            Ok(program) => program.run(),
            // A failure to print, here and below, is ignored: the exit status remains.
            Err(help) if flags::is_help(&help) => {
                let _ = help.print();
                ExitCode::SUCCESS
            }
            Err(error) => {
                let failure = flags::usage_failure(&error);
                let _ = writeln!(std::io::stderr(), "{failure}");
                failure.exit_code()
            }
        }
    }

    /// Parses the command line. [`Constructors::run`] provides the values of user flags from the matches.
    pub(crate) fn into_program(mut self, args: &[OsString]) -> clap::error::Result<Program> {
        let (mut flags, matches) = flags::parse(self.command()?, args)?;
        self.constructors.matches = matches;
        let Self { mut component, version, constructors, .. } = self;
        if flags.only == Some(Part::Webhook) {
            component = WEBHOOK.into();
            // Every replica serves, and none of them writes.
            flags.disable_ha = true;
        }
        Ok(Program { component, version, flags, constructors })
    }

    /// Returns the command line of the program. Fails if a flag is defined twice.
    pub(crate) fn command(&self) -> clap::error::Result<Command> {
        let duplicates = flags::find_duplicates(&self.flags);
        if !duplicates.is_empty() {
            let error = format!("flags are defined twice: {}\n", duplicates.join(", "));
            return Err(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, error));
        }
        Ok(flags::command(&self.component, &self.version, &self.flags))
    }

    pub(crate) fn component(&self) -> &str {
        &self.component
    }

    /// Returns the constructors, which read user flags from these matches.
    pub(crate) fn into_constructors(self, matches: ArgMatches) -> Constructors {
        Constructors { matches, ..self.constructors }
    }

    /// Runs all constructors and starts nothing, so that a test can check the results. Flags have the values of an
    /// empty command line.
    ///
    /// # Errors
    ///
    /// Returns the error of the first constructor that fails. Fails if two controllers have the same name or finalizer,
    /// or if a flag is required.
    pub fn construct(self, cx: &Context) -> Result<(Vec<Controller>, Vec<Task>)> {
        let args = [OsString::from(&self.component)];
        let constructors = self.into_program(&args)?.constructors;
        let constructed =
            constructors.run(PartContexts::of(None, cx), &[]).map_err(|failure| failure.to_string())?;
        Ok((constructed.controllers, constructed.tasks))
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use reknit_injection::{Selection, select};

    use super::*;
    use crate::NamespaceFlag;

    #[tokio::test]
    async fn the_namespace_flag_selects_the_namespaces_of_all_controllers() {
        for (args, expected) in
            [(vec!["test", "--namespace", "a,b"], select().namespaces(["a", "b"])), (vec!["test"], select())]
        {
            let refused = tower::service_fn(|_: http::Request<Body>| async {
                Err::<http::Response<Body>, _>("refused")
            });
            let cx = Context::new("test", kube::Client::new(refused, "default"));
            let args: Vec<_> = args.into_iter().map(OsString::from).collect();
            let program = Main::new("test").flags::<NamespaceFlag>().into_program(&args).unwrap();
            program
                .constructors
                .run(PartContexts::of(None, &cx), &[])
                .map(drop)
                .map_err(|failure| failure.to_string())
                .unwrap();
            assert_eq!(cx.get::<Selection>(), expected);
        }
    }
}
