//! The code examples of the README and of the pages in docs/, compiled as doctests.
//!
//! The tutorial is not among them, because an integration test follows it in a project of its own.

macro_rules! pages {
    ($($name:ident: $path:literal,)*) => {
        $(
            #[doc = include_str!($path)]
            mod $name {}
        )*
    };
}

pages! {
    readme: "../README.md",
    api_server_in_memory: "../docs/how-to/api-server-in-memory.md",
    children: "../docs/how-to/children.md",
    conditions: "../docs/how-to/conditions.md",
    configuration: "../docs/how-to/configuration.md",
    enqueueing: "../docs/how-to/enqueueing.md",
    events: "../docs/how-to/events.md",
    finalizers: "../docs/how-to/finalizers.md",
    from_controller_runtime: "../docs/moving-from/controller-runtime.md",
    from_knative: "../docs/moving-from/knative.md",
    from_kube_runtime: "../docs/moving-from/kube-runtime.md",
    knative: "../docs/how-to/knative.md",
    metrics: "../docs/how-to/metrics.md",
    namespaces: "../docs/how-to/namespaces.md",
    pause: "../docs/how-to/pause.md",
    rbac: "../docs/how-to/rbac.md",
    recorded_passes: "../docs/how-to/recorded-passes.md",
    references: "../docs/how-to/references.md",
    restore: "../docs/how-to/restore.md",
    upgrades: "../docs/how-to/upgrades.md",
    shared_state: "../docs/how-to/shared-state.md",
    simulation: "../docs/how-to/simulation.md",
    testing: "../docs/how-to/testing.md",
    time: "../docs/how-to/time.md",
    webhooks: "../docs/how-to/webhooks.md",
}
