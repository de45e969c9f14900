//! Tests of processes that change nothing: `--plan` and `--shadow`.
use std::time::Duration;

use k8s_openapi::api::{core::v1::Secret, networking::v1::NetworkPolicy};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
};
use reknit_testing::eventually;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    child::{Child, TestCommand, failed_with_one_line, parse_line},
    cluster::{TestCluster, with_cluster},
    life_cycle::{get, wait_for_status},
    number_of,
    scenarios::stamps,
    trials,
};

trials![
    a_shadow_is_silent_beside_the_same_version_and_logs_the_differences_from_another,
    a_program_that_does_not_allow_plans_or_has_no_controllers_ends_with_status_2,
    a_plan_has_the_permissions_of_the_impersonated_account,
    a_plan_whose_impersonation_is_refused_ends_with_status_1,
    a_plan_masks_the_values_that_the_author_names,
    a_plan_shows_the_status_without_a_status_subresource_to_an_account_that_may_only_patch_it;
    ignored: the_cost_of_a_plan,
];

const LIMIT: Duration = Duration::from_secs(90);
const MAPS: usize = 5;

/// The time of the churn: 15 seconds, or that of the environment, such as `SHADOW_CHURN_SECONDS=600`.
fn churn_time() -> Duration {
    Duration::from_secs(number_of("SHADOW_CHURN_SECONDS", 15) as u64)
}

async fn churn(cluster: &TestCluster) {
    let start = Instant::now();
    for n in 0_usize.. {
        cluster.apply_map(&format!("map-{}", n % MAPS), json!({"value": n.to_string()})).await;
        if n % 7 == 0 {
            cluster.apply_map("short-lived", json!({})).await;
            sleep(Duration::from_millis(200)).await;
            let _ = cluster.config_maps().delete("short-lived", &DeleteParams::default()).await.unwrap();
        }
        if start.elapsed() > churn_time() && n >= MAPS {
            return;
        }
        sleep(Duration::from_millis(100 * (n as u64 % 20))).await;
    }
}

/// The lines of a shadow about differences: the message, the key and the changes.
fn differences(shadow: &Child) -> Vec<(String, String, String)> {
    let lines: Vec<Value> = shadow.lines().iter().map(|line| parse_line(line)).collect();
    let is_difference =
        |line: &&Value| line["caller"].as_str().is_some_and(|caller| caller.contains("shadow.rs"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let found = lines.iter().filter(is_difference).filter(|line| line["key"].is_string());
    found.map(|line| (text(&line["message"]), text(&line["key"]), text(&line["changes"]))).collect()
}

async fn wait_for_differing(shadow: &Child, count: usize) {
    let expected = format!("reknit_shadow_differing_keys{{controller=\"painter\"}} {count}\n");
    eventually(&expected, LIMIT, async || {
        let (_, text) = get(&shadow.wait_for_address("metrics"), "/metrics");
        if text.contains(&expected) { Ok(()) } else { Err(format!("{:#?}", differences(shadow))) }
    })
    .await;
}

/// Takes the numbers of masked values out of a text. They depend on the states that the shadow has seen.
fn split_masked(text: &str) -> (String, Vec<&str>) {
    let mut parts = text.split("(masked value ");
    let (mut rest, mut numbers) = (parts.next().unwrap_or_default().to_owned(), Vec::new());
    for (number, after) in parts.filter_map(|part| part.split_once(')')) {
        numbers.push(number);
        rest.push_str("(masked)");
        rest.push_str(after);
    }
    (rest, numbers)
}

fn a_shadow_is_silent_beside_the_same_version_and_logs_the_differences_from_another() {
    with_cluster(async |cluster| {
        let spawn = |color: &str| cluster.command("painter").env("COLOR", color);
        let running = spawn("red").spawn();
        let shadows = ["red", "blue"].map(|color| spawn(color).arg("--shadow").spawn());
        let [same, other] = &shadows;
        for shadow in &shadows {
            wait_for_status(shadow, "/readiness", 200);
            wait_for_status(shadow, "/health", 200);
        }
        churn(&cluster).await;
        wait_for_differing(other, MAPS).await;
        wait_for_differing(same, 0).await;
        assert_eq!(differences(same), []);

        let policies: Api<NetworkPolicy> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let mut seen = std::collections::BTreeSet::new();
        for (message, key, changes) in differences(other) {
            let name = key.rsplit('/').next().unwrap();
            let expected = format!(
                "  ~ NetworkPolicy {key}\n      ~ spec.podSelector.matchLabels.color: \"red\" → \"blue\"\n  ~ Secret {key}\n      \
                 ~ data.color: \"(masked)\" → \"(masked)\""
            );
            let (changes, numbers) = split_masked(&changes);
            assert_eq!((&*message, changes), ("this version would make changes", expected));
            assert!(numbers[0] != numbers[1], "{numbers:?}");
            let policy = serde_json::to_value(policies.get(name).await.unwrap()).unwrap();
            assert_eq!(policy["spec"]["podSelector"]["matchLabels"]["color"], "red");
            assert!(seen.insert(key), "the same difference was logged again");
        }
        assert_eq!(seen.len(), MAPS);
        assert!(!other.lines().iter().any(|line| line.contains("Ymx1ZQ") || line.contains("cmVk")));

        running.signal("TERM");
        running.wait();
        let _upgraded = spawn("blue").spawn();
        wait_for_differing(other, 0).await;
        assert!(differences(other).iter().any(|(message, ..)| message == "no difference any more"));
    });
}

fn a_program_that_does_not_allow_plans_or_has_no_controllers_ends_with_status_2() {
    for flag in ["--plan", "--shadow"] {
        let (status, lines) = TestCommand::with_scenario("maps").arg(flag).run();
        let [line] = &lines[..] else { panic!("{lines:#?}") };
        let message = parse_line(line)["message"].as_str().unwrap().to_owned();
        assert_eq!(status, 2, "{message}");
        assert!(message.starts_with(&format!("{flag}: the program does not allow it")), "{message}");
        assert!(message.ends_with("call Main::plannable"), "{message}");

        let (status, lines) = TestCommand::with_scenario("painter").arg(flag).arg("--only=webhook").run();
        let [line] = &lines[..] else { panic!("{lines:#?}") };
        let message = parse_line(line)["message"].as_str().unwrap().to_owned();
        assert_eq!(status, 2, "{message}");
        assert_eq!(message, format!("{flag}: --only=webhook has no controllers to run; leave it out"));
    }
}

/// Grants these rules in the namespace of the test to a new account. Returns its name.
async fn account_with(cluster: &TestCluster, rules: &str) -> String {
    let namespace = &cluster.namespace;
    let manifests = format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: planner, namespace: {namespace}}}}}
---
{{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {{name: planner, namespace: {namespace}}}, rules: {rules}}}
---
{{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {{name: planner, namespace: {namespace}}},
  subjects: [{{kind: ServiceAccount, name: planner, namespace: {namespace}}}],
  roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: planner}}}}"
    );
    cluster.plane.apply_yaml(&manifests).await.unwrap();
    format!("system:serviceaccount:{namespace}:planner")
}

fn a_plan_has_the_permissions_of_the_impersonated_account() {
    with_cluster(async |cluster| {
        let namespace = cluster.namespace.clone();
        cluster.apply_map("a", json!({"value": "1"})).await;
        let rules = "[{apiGroups: ['', networking.k8s.io], resources: [configmaps, secrets, networkpolicies], verbs: [get, list]},
            {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [create, patch]}]";
        let account = account_with(&cluster, rules).await;
        let plan = |args: &[&str]| {
            let command = cluster.command("painter").env("COLOR", "red").arg("--plan");
            let (status, lines) = args.iter().fold(command, |command, arg| command.arg(arg)).spawn().wait();
            (status, lines.join("\n"))
        };
        let (status, text) = plan(&[]);
        assert_eq!(status, 3, "{text}");
        let (status, text) = plan(&["--as", &account]);
        assert_eq!(status, 4, "{text}");
        let refused = format!(
            "Refused:\n  painter {namespace}/a: PATCH /api/v1/namespaces/{namespace}/secrets/a: secrets \"a\" is forbidden: \
             User \"{account}\" cannot patch resource \"secrets\""
        );
        assert!(text.contains(&refused), "{text}");
        assert!(text.contains(&format!("  + NetworkPolicy {namespace}/a\n")), "{text}");
    });
}

fn a_plan_whose_impersonation_is_refused_ends_with_status_1() {
    with_cluster(async |cluster| {
        let namespace = &cluster.namespace;
        let access = cluster.plane.kubeconfig_as(namespace, "planner").await.unwrap();
        let command = TestCommand::with_scenario("painter").arg("--kubeconfig").arg(access).arg("--plan");
        let account = format!("system:serviceaccount:{namespace}:controller");
        let message = failed_with_one_line(command.env("WATCHED", namespace).args(["--as", &account]).run());
        assert!(message.contains(" cannot impersonate"), "{message}");
    });
}

fn a_plan_masks_the_values_that_the_author_names() {
    with_cluster(async |cluster| {
        cluster.apply_map("a", json!({"value": "1"})).await;
        for args in [&["--plan"][..], &["--plan", "--plan-output=json"]] {
            let command = cluster.command("painter with hidden colors").env("COLOR", "ultramarine");
            let (status, lines) = args.iter().fold(command, |command, arg| command.arg(arg)).spawn().wait();
            let text = lines.join("\n");
            assert_eq!(status, 3, "{text}");
            assert!(text.contains("(masked value ") && !text.contains("ultramarine"), "{text}");
        }
    });
}

fn a_plan_shows_the_status_without_a_status_subresource_to_an_account_that_may_only_patch_it() {
    with_cluster(async |cluster| {
        let schema =
            json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "stamps.process.reknit.dev"},
            "spec": {
                "group": "process.reknit.dev", "scope": "Namespaced", "names": {"plural": "stamps", "kind": "Stamp"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
            },
        });
        cluster.plane.apply_yaml(&definition.to_string()).await.unwrap();
        cluster.apply_map("a", json!({})).await;
        let namespace = &cluster.namespace;
        let stamp = json!({
            "apiVersion": "process.reknit.dev/v1", "kind": "Stamp", "metadata": {"name": "a"},
            "status": {"color": "red", "shade": "red"},
        });
        let stamp = serde_json::from_value(stamp).unwrap();
        let stamps: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), namespace, &stamps());
        eventually("the stamp", LIMIT, async || stamps.create(&PostParams::default(), &stamp).await).await;
        let rules = "[{apiGroups: [''], resources: [configmaps], verbs: [list]},
            {apiGroups: [process.reknit.dev], resources: [stamps], verbs: [patch]}]";
        let account = account_with(&cluster, rules).await;
        let plan = |color: &str| {
            let command = cluster.command("stamper").env("COLOR", color).args(["--plan", "--as", &account]);
            let (status, lines) = command.spawn().wait();
            (status, lines.join("\n"))
        };
        let (status, text) = plan("blue");
        let expected = format!(
            "  ~ Stamp {namespace}/a\n      ~ status.color: \"red\" → \"blue\"\n      ~ status.shade: \"red\" → \"blue\"\n"
        );
        assert!(
            status == 3 && text.contains(&expected) && text.contains("1 to change in status only"),
            "{text}"
        );
        let (status, text) = plan("red");
        assert_eq!(status, 0, "{text}");
    });
}

/// Measures plans of as many objects as the environment says, such as `PLAN_OBJECTS=5000`: each object has two children.
fn the_cost_of_a_plan() {
    with_cluster(async |cluster| {
        let count = number_of("PLAN_OBJECTS", 100);
        for n in 0..count {
            cluster.apply_map(&format!("map-{n}"), json!({"value": "1"})).await;
        }
        measure(&cluster, "red", "all children to create").await;
        let running = cluster.command("painter").env("COLOR", "red").arg("--disable-ha").spawn();
        let policies: Api<NetworkPolicy> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        eventually("all children", Duration::from_secs(1200), async || {
            let (all, error) = (ListParams::default(), |error: kube::Error| error.to_string());
            let found = policies.list_metadata(&all).await.map_err(error)?.items.len();
            let found = found.min(secrets.list_metadata(&all).await.map_err(error)?.items.len());
            if found == count { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
        drop(running);
        measure(&cluster, "red", "nothing to change").await;
        measure(&cluster, "blue", "all children to change").await;
    });
}

/// Prints the time, the memory and the requests of a plan.
async fn measure(cluster: &TestCluster, color: &str, what: &str) {
    let requests = async || {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = cluster.client.request_text(request).await.unwrap();
        let sum = |is_wanted: &dyn Fn(&str) -> bool| {
            let lines =
                text.lines().filter(|line| line.starts_with("apiserver_request_total") && is_wanted(line));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
        };
        let count = |part: &str| sum(&|line| line.contains(part));
        let is_real_write = |line: &str| {
            let verbs = ["POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"];
            let resources = ["configmaps", "secrets", "networkpolicies"];
            line.contains("dry_run=\"\"")
                && resources.iter().any(|resource| line.contains(&format!("resource=\"{resource}\"")))
                && verbs.iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")))
        };
        let real = sum(&is_real_write);
        (count("dry_run=\"All\""), count("verb=\"LIST\""), count("verb=\"GET\""), real)
    };
    let (before, start) = (requests().await, Instant::now());
    let plan = cluster.command("painter").env("COLOR", color).arg("--plan").spawn();
    let (mut memory, mut lines) = (0, 0);
    let last = loop {
        sleep(Duration::from_millis(50)).await;
        if let Some(last) = plan.lines().iter().find(|line| line.starts_with("Plan: ")) {
            lines = lines.max(plan.lines().len());
            break last.clone();
        }
        memory = memory.max(plan.resident_mib());
    };
    let (took, after) = (start.elapsed(), requests().await);
    let (dry, list, get) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
    assert_eq!(after.3, before.3, "the plan has written");
    println!(
        "{what}: {took:?}, {memory} MiB, {dry} dry runs, {list} lists, {get} gets, {lines} lines; {last}"
    );
}
