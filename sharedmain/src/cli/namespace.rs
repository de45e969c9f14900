//! The flag that restricts a process to some namespaces.
use reknit_apis::dns_label;
use reknit_injection::{Selection, select};

/// The flag `--namespace`, for programs that can work in some namespaces with the permissions of a Role in each.
///
/// Several names are separated by commas, or each has its own flag: `--namespace a,b` or `--namespace a --namespace b`.
/// The controllers of [`Controller::of`](reknit_reconciler::Controller::of) read only these namespaces. Other code gets
/// them as `cx.get::<Selection>()`. Without the flag, all namespaces are selected.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Outcome, ReconcileKind, Result};
/// use reknit_sharedmain::{Main, NamespaceFlag};
///
/// struct Logger;
///
/// impl ReconcileKind for Logger {
///     type Kind = ConfigMap;
///     async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
///         Ok(Outcome::done())
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     Ok(Controller::of::<ConfigMap>(cx).reconciler(Logger).build())
/// }
///
/// fn main() -> ExitCode {
///     Main::new("logger").flags::<NamespaceFlag>().controller(controller).run()
/// }
/// ```
#[derive(clap::Args, Clone, Debug, Default)]
pub struct NamespaceFlag {
    /// Restrict the controllers to these namespaces, so that a Role in each suffices
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = namespace)]
    pub namespace: Vec<String>,
}

impl NamespaceFlag {
    /// Returns the selection of the namespaces.
    pub fn selection(&self) -> Selection {
        select().namespaces(&self.namespace)
    }
}

/// Parses the name of a namespace, for flags of your own: `value_parser = namespace`.
///
/// # Errors
///
/// Fails if Kubernetes does not accept the name, with the error text of Kubernetes.
pub fn namespace(text: &str) -> Result<String, String> {
    let errors = dns_label(text);
    if errors.is_empty() { Ok(text.to_owned()) } else { Err(errors.join("; ")) }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    #[test]
    fn only_valid_names_of_namespaces_are_accepted() {
        for good in ["a", "team-a", "0"] {
            assert_eq!(namespace(good).as_deref(), Ok(good));
        }
        for bad in ["", "No Such", "a.b", "-a", "a-", &"a".repeat(64)] {
            assert!(namespace(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn without_the_flag_all_namespaces_are_selected() {
        assert_eq!(NamespaceFlag::default().selection(), select());
        let restricted = NamespaceFlag { namespace: vec!["shop".into()] };
        assert_eq!(restricted.selection(), select().namespace("shop"));
    }

    #[test]
    fn several_namespaces_are_separated_by_commas_or_have_a_flag_each() {
        let parse = |args: &str| {
            let command = NamespaceFlag::augment_args(Command::new("test"));
            let matches = command.try_get_matches_from(["test"].into_iter().chain(args.split(' ')))?;
            NamespaceFlag::from_arg_matches(&matches).map(|flag| flag.namespace)
        };
        assert_eq!(parse("--namespace a,b").unwrap(), ["a", "b"]);
        assert_eq!(parse("--namespace=a --namespace b,c").unwrap(), ["a", "b", "c"]);
        assert!(parse("--namespace a,").is_err() && parse("--namespace a,B").is_err());
    }
}
