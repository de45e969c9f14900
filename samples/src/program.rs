//! The programs of the samples, each with its constructors and flags.

use reknit::{
    prelude::*,
    sharedmain::{NamespaceFlag, Rbac},
};

use crate::{addressable_service, simple_deployment, webhook};

/// The namespace of the programs.
const SYSTEM_NAMESPACE: &str = "knative-samples";

/// The program of the controllers.
pub fn controllers() -> Main {
    Main::new("controller")
        .flags::<NamespaceFlag>()
        .named_controller("addressableservices.samples.knative.dev", addressable_service::controller)
        .named_controller("simpledeployments.samples.knative.dev", simple_deployment::controller)
        .version(env!("CARGO_PKG_VERSION"))
}

/// The program of the webhook.
pub fn webhook_server() -> Main {
    Main::new("webhook").webhook(webhook).version(env!("CARGO_PKG_VERSION"))
}

/// The RBAC manifests of one of the programs, with the labels of `config/`.
pub fn rbac(component: &str, program: Main) -> Rbac {
    program
        .rbac(SYSTEM_NAMESPACE)
        .label("app.kubernetes.io/name", "knative-samples")
        .label("app.kubernetes.io/component", component)
        .label("app.kubernetes.io/version", "devel")
        .label("samples.knative.dev/release", "devel")
}
