use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use reknit_injection::{Context, Permission, Verb};
use reknit_reconciler::{Controller, Kinds, Outcome, ReconcileKind, Result, TrackedAny};

use super::*;
use crate::NamespaceFlag;

struct Follower(#[expect(dead_code, reason = "the reconciler does nothing")] TrackedAny);

impl ReconcileKind for Follower {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

fn unnamed(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<ConfigMap>(cx).name("follower-of-all");
    let objects = build.track_any(Kinds::any());
    Ok(build.reconciler(Follower(objects)).build())
}

fn declared(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<ConfigMap>(cx);
    build.allows(Permission::of::<Secret>([Verb::Get]));
    let objects = build.track_any(Kinds::of([("", "services")]));
    Ok(build.reconciler(Follower(objects)).build())
}

fn generate(controller: fn(&Context) -> Result<Controller>, args: &str) -> Result<String, String> {
    let program = Main::new("follower").flags::<NamespaceFlag>().controller(controller);
    let args: Vec<_> = ["rbac"].into_iter().chain(args.split_whitespace()).map(OsString::from).collect();
    program.rbac("system").generate(&args).map(|(text, _)| text).map_err(|failure| failure.to_string())
}

#[test]
fn unnamed_kinds_are_an_error_that_names_the_controller_and_the_remedy() {
    let error = generate(unnamed, "").unwrap_err();
    assert!(error.contains("the controller follower-of-all uses Kinds::any()"), "{error}");
    assert!(error.contains("Kinds::of([(group, plural), …])"), "{error}");
}

#[test]
fn selected_namespaces_get_a_role_each_and_no_cluster_role() {
    let roles = generate(declared, "--kinds Role,ClusterRole -- --namespace a,b").unwrap();
    assert!(!roles.contains("ClusterRole"), "{roles}");
    for namespace in ["a", "b"] {
        let role = generate(declared, &format!("--kinds Role --in {namespace} -- --namespace a,b")).unwrap();
        for rule in ["[secrets]\n    verbs: [get]", "[services]\n    verbs: [list, watch]"] {
            assert!(role.contains(rule), "{role}");
        }
    }
    let everywhere = generate(declared, "--kinds ClusterRole").unwrap();
    assert!(everywhere.contains("[services]\n    verbs: [list, watch]"), "{everywhere}");
}

#[test]
fn without_leader_election_there_are_no_leases() {
    assert!(generate(declared, "").unwrap().contains("leases"));
    for flag in ["--disable-ha", "--leader-elect=false"] {
        assert!(!generate(declared, &format!("-- {flag}")).unwrap().contains("leases"), "{flag}");
    }
}

#[test]
fn secured_metrics_need_the_two_reviews_and_others_do_not() {
    let of = |args: &str| generate(declared, &format!("--kinds ClusterRole -- {args}")).unwrap();
    for rule in ["[tokenreviews]\n    verbs: [create]", "[subjectaccessreviews]\n    verbs: [create]"] {
        assert!(of("--metrics-secure").contains(rule), "{rule}");
        assert!(!of("").contains(rule) && !of("--metrics-secure --metrics-secure=false").contains(rule));
    }
}

#[test]
fn a_disabled_controller_has_no_permissions() {
    let generate = |args: &[&str]| {
        let program = Main::new("follower").controller(declared);
        program.rbac("system").generate(&args.iter().map(OsString::from).collect::<Vec<_>>()).ok().unwrap().0
    };
    assert!(generate(&["rbac"]).contains("resources: [secrets]"));
    assert!(
        !generate(&["rbac", "--", "--disable-controllers", "configmaps"]).contains("resources: [secrets]")
    );
}

#[derive(clap::Args, Clone)]
struct ClashingFlags {
    #[arg(long)]
    kinds: Option<String>,
    #[arg(long = "in")]
    input: Option<String>,
}

fn clashing(cx: &Context) -> Result<Controller> {
    let flags = cx.provided::<ClashingFlags>()?;
    let mut build = Controller::of::<ConfigMap>(cx);
    build.allows(Permission::new("", &flags.kinds.unwrap_or_else(|| "none".into()), [Verb::Get]));
    let objects = build.track_any(Kinds::of([("", "services")]));
    Ok(build.reconciler(Follower(objects)).build())
}

#[test]
fn a_program_may_have_flags_of_the_same_names() {
    let program = || Main::new("follower").flags::<ClashingFlags>().controller(clashing).rbac("system");
    let args = ["rbac", "--kinds", "ClusterRole", "--", "--kinds", "secrets"].map(OsString::from);
    let (roles, _) = program().generate(&args).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(roles.contains("resources: [secrets]") && !roles.contains("kind: Role\n"), "{roles}");
    let roles = program().args(["--kinds=nodes"]).to_yaml().unwrap();
    assert!(roles.contains("resources: [nodes]"), "{roles}");
}

#[test]
fn a_flag_of_the_command_line_replaces_that_of_the_code() {
    let program = Main::new("follower").flags::<ClashingFlags>().controller(clashing).rbac("system");
    let args = ["rbac", "--", "--kinds=secrets"].map(OsString::from);
    let (roles, _) =
        program.args(["--kinds=nodes"]).generate(&args).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(roles.contains("resources: [secrets]") && !roles.contains("resources: [nodes]"), "{roles}");
}

#[derive(clap::Args, Clone)]
struct RequiredFlags {
    #[arg(long)]
    folder: String,
}

#[test]
fn the_error_of_a_required_flag_says_where_to_set_it() {
    let program = || Main::new("follower").flags::<RequiredFlags>().controller(declared).rbac("system");
    let error = program().to_yaml().unwrap_err().to_string();
    assert!(error.contains("--folder") && error.contains("Rbac::args"), "{error}");
    assert!(program().args(["--folder=/data"]).to_yaml().is_ok());
}

fn escalating(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<ConfigMap>(cx);
    let roles = |verb| Permission::new("rbac.authorization.k8s.io", "clusterroles", [verb]);
    build.allows(roles(Verb::Escalate));
    build.allows(roles(Verb::Bind).names(["edit"]));
    build.allows(Permission::new("", "users", [Verb::Impersonate]).cluster_scoped());
    build.allows(Permission::new("", "serviceaccounts", [Verb::Create]).subresource("token"));
    build.allows(Permission::new("", "pods", [Verb::Get]).subresource("exec"));
    build.allows(Permission::new("", "pods", [Verb::Get]).subresource("log"));
    let configurations = |verb| Permission::new(ADMISSION, "validatingwebhookconfigurations", [verb]);
    build.allows(configurations(Verb::List));
    build.allows(configurations(Verb::Patch).names(["own"]));
    build.allows(configurations(Verb::Create));
    build.allows(Permission::new("", "*", [Verb::Create]).subresource("token"));
    build.allows(Permission::new("*", "*", [Verb::Get]));
    let definitions =
        |verb| Permission::new("apiextensions.k8s.io", "customresourcedefinitions", [verb]).cluster_scoped();
    build.allows(definitions(Verb::List));
    build.allows(definitions(Verb::Patch).names(["own.demo.reknit.dev"]));
    build.allows(definitions(Verb::Patch));
    build.allows(Permission::new("apiregistration.k8s.io", "apiservices", [Verb::Update]).cluster_scoped());
    build.allows(Permission::new("", "namespaces", [Verb::Create]).cluster_scoped());
    build.allows(Permission::new("", "persistentvolumes", [Verb::Create]).cluster_scoped());
    let objects = build.track_any(Kinds::of([("", "services")]));
    Ok(build.reconciler(Follower(objects)).build())
}

#[test]
fn rights_that_grant_further_rights_are_printed_with_a_warning() {
    let program = Main::new("follower").controller(escalating);
    let (roles, warnings) = program.rbac("system").generate(&["rbac".into()]).ok().unwrap();
    assert!(roles.contains("resourceNames: [edit]\n    verbs: [bind]\n"), "{roles}");
    let named = [
        "escalate clusterroles.rbac.authorization.k8s.io",
        "impersonate users",
        "create serviceaccounts/token",
        "get pods/exec",
        "create validatingwebhookconfigurations.admissionregistration.k8s.io",
        "create */token",
        "get *.*",
        "patch customresourcedefinitions.apiextensions.k8s.io",
        "update apiservices.apiregistration.k8s.io",
        "create namespaces",
        "create persistentvolumes",
    ];
    assert_eq!(warnings.len(), named.len(), "{warnings:?}");
    assert!(warnings.iter().zip(named).all(|(warning, name)| warning.contains(name)), "{warnings:?}");
}

#[cfg(feature = "webhook")]
mod webhook {
    use reknit_injection::Informer;
    use reknit_webhook::Webhook;
    use serde_json::Value;

    use super::*;

    /// A webhook whose code reads Secrets.
    fn webhook(cx: &Context) -> Result<Webhook> {
        let _secrets: Informer<Secret> = cx.get();
        Ok(Webhook::new("demo.reknit.dev"))
    }

    fn program(component: &str) -> Rbac {
        Main::new(component).controller(declared).webhook(webhook).rbac("system")
    }

    /// Returns true for reviews, which are created to get an answer.
    fn stores_nothing(rule: &Value) -> bool {
        let reviews = ["tokenreviews", "subjectaccessreviews"];
        rule["resources"]
            .as_array()
            .unwrap()
            .iter()
            .all(|resource| reviews.iter().any(|review| resource == review))
    }

    /// The documents whose label names this component.
    fn of_component(yaml: &str, component: &str) -> String {
        let label = format!("app.kubernetes.io/component: {component}\n");
        let documents = yaml.split("---\n").filter(|document| document.contains(&label));
        documents.collect::<Vec<_>>().join("---\n")
    }

    #[test]
    fn the_server_of_a_webhook_has_an_account_that_writes_nothing() {
        let yaml = program("follower").args(["--only=controllers"]).to_yaml().unwrap();
        let server = of_component(&yaml, "webhook");
        let objects: Vec<Value> = serde_saphyr::from_multiple(&server).unwrap();
        let rules = objects.iter().flat_map(|object| object["rules"].as_array().into_iter().flatten());
        for rule in rules.filter(|rule| !stores_nothing(rule)) {
            let verbs = rule["verbs"].as_array().unwrap();
            assert!(
                verbs.iter().all(|verb| ["get", "list", "watch"].iter().any(|read| verb == read)),
                "{rule}"
            );
        }
        assert!(!server.contains("leases") && !server.contains("config-leader-election"), "{server}");
        for rule in [
            "kind: ServiceAccount\nmetadata:\n  name: webhook\n",
            "[secrets]\n    verbs: [list, watch]",
            "resourceNames: [config-logging, config-observability]",
        ] {
            assert!(server.contains(rule), "{rule}: {server}");
        }
        let controllers = of_component(&yaml, "follower");
        for rule in [
            "[secrets]\n    resourceNames: [webhook-certs]\n    verbs: [list, watch, patch]",
            "resourceNames: [config.webhook.demo.reknit.dev]\n    verbs: [list, watch, patch]",
            "[leases]",
        ] {
            assert!(controllers.contains(rule), "{rule}: {controllers}");
        }
        assert!(!controllers.contains("[secrets]\n    verbs: [list, watch]"), "{controllers}");
    }

    #[test]
    fn a_webhook_that_declares_a_right_to_write_is_refused() {
        let generate = |permission: Permission| {
            let webhook = move |cx: &Context| {
                cx.allows(permission.clone());
                Ok(Webhook::new("demo.reknit.dev"))
            };
            Main::new("follower").webhook(webhook).rbac("system").to_yaml().map_err(|error| error.to_string())
        };
        for verb in [Verb::Create, Verb::Patch, Verb::DeleteCollection, Verb::Impersonate, Verb::Other("use")]
        {
            let error = generate(Permission::of::<ConfigMap>([Verb::Get, verb])).unwrap_err();
            let declared = format!("declares `get, {verb} configmaps`");
            assert!(error.contains(&declared) && error.contains("write in a controller"), "{error}");
        }
        generate(Permission::of::<ConfigMap>([Verb::Get, Verb::List, Verb::Watch])).unwrap();
        let reviews = reviews();
        reviews.into_iter().for_each(|review| drop(generate(review).unwrap()));
    }

    #[test]
    fn a_disabled_webhook_needs_no_account() {
        let yaml = program("follower").args(["--disable-controllers=webhook"]).to_yaml().unwrap();
        assert_eq!(yaml.matches("kind: ServiceAccount\nmetadata").count(), 1, "{yaml}");
    }

    #[test]
    fn the_accounts_of_a_program_differ() {
        let error = program("webhook").to_yaml().unwrap_err().to_string();
        assert!(error.contains("the component is named webhook"), "{error}");
        let yaml = program("webhook").service_account("lamps").name("lamps").to_yaml().unwrap();
        for name in ["lamps", "lamps-webhook"] {
            assert!(yaml.contains(&format!("kind: ServiceAccount\nmetadata:\n  name: {name}\n")), "{yaml}");
        }
    }
}
