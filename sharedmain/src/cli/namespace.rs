//! The flag that confines a process to one namespace.
use reknit_apis::dns_label;
use reknit_injection::{Context, Inject, Selection, select};

/// `--namespace`, for programs that can do with the objects of one namespace: a Role there is then all they need.
///
/// Without the flag, and where nobody provided it, everything is selected.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Outcome, ReconcileKind, Result};
/// use reknit_sharedmain::{Main, NamespaceFlag};
///
/// struct Looker;
///
/// impl ReconcileKind for Looker {
///     type Kind = ConfigMap;
///     async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
///         Ok(Outcome::done())
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     let selection = cx.get::<NamespaceFlag>().selection();
///     Ok(Controller::selected::<ConfigMap>(cx, selection).reconciler(Looker).build())
/// }
///
/// fn main() -> ExitCode {
///     Main::new("looker").flags::<NamespaceFlag>().controller(controller).run()
/// }
/// ```
#[derive(clap::Args, Clone, Debug, Default)]
pub struct NamespaceFlag {
    /// Work on the objects of one namespace only, so that a Role there is all the controller needs
    #[arg(long, value_name = "NAME", value_parser = namespace)]
    pub namespace: Option<String>,
}

impl NamespaceFlag {
    /// The objects that the process works on.
    pub fn selection(&self) -> Selection {
        select().namespace(self.namespace.as_deref().unwrap_or_default())
    }
}

impl Inject for NamespaceFlag {
    fn inject(_: &Context) -> Self {
        Self::default()
    }
}

/// Reads the name of a namespace from the command line, for flags of your own: `value_parser = namespace`.
///
/// # Errors
///
/// What is wrong with the name, in Kubernetes' words.
pub fn namespace(text: &str) -> Result<String, String> {
    let wrong = dns_label(text);
    if wrong.is_empty() { Ok(text.to_owned()) } else { Err(wrong.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_name_a_namespace_is_taken() {
        for good in ["a", "team-a", "0"] {
            assert_eq!(namespace(good).as_deref(), Ok(good));
        }
        for bad in ["", "No Such", "a.b", "-a", "a-", &"a".repeat(64)] {
            assert!(namespace(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn without_the_flag_everything_is_selected() {
        assert_eq!(NamespaceFlag::default().selection(), select());
        let confined = NamespaceFlag { namespace: Some("shop".into()) };
        assert_eq!(confined.selection(), select().namespace("shop"));
    }
}
