//! Passes of bindings whose subject has other bindings too.

use k8s_openapi::api::apps::v1::Deployment;
use reknit_apis::KRShaped;
use reknit_reconciler::Event;
use reknit_testing::{Given, Want, given, table};
use serde_json::{Value, json};

use crate::tone::{self, Tone};

const KEY: &str = "default/a";

/// A binding with the status of a successful pass.
fn available(name: &str, variable: &str) -> Tone {
    let mut tone: Tone = serde_json::from_value(tone::tone(name, variable)).unwrap();
    tone.metadata.namespace = Some("default".into());
    tone.metadata.uid = Some(format!("uid-{name}"));
    tone.metadata.generation = Some(1);
    tone.metadata.finalizers = Some(vec!["tones.tests.reknit.dev".into()]);
    let status = tone.status.get_or_insert_default();
    status.observed_generation = Some(1);
    Tone::CONDITIONS.manage(status).mark_true("Available");
    tone
}

/// The Deployment to which both bindings refer, with these variables and their values.
fn web(env: &[(&str, &str)]) -> Deployment {
    let labels = json!({"tones.tests.reknit.dev/a": "bound", "tones.tests.reknit.dev/b": "bound"});
    let container = json!({"name": "main", "image": "i", "env": env_of(env)});
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}});
    serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "web", "labels": labels},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
    }))
    .unwrap()
}

fn env_of(env: &[(&str, &str)]) -> Value {
    env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
}

fn on(variables: [&str; 2], env: &[(&str, &str)]) -> Given {
    given(available("a", variables[0])).and(available("b", variables[1])).and(web(env))
}

#[tokio::test]
async fn a_subject_has_the_injections_of_all_bindings_that_inject_different_names() {
    let containers = json!([{"name": "main", "image": "i", "env": env_of(&[("B", "b"), ("A", "a")])}]);
    let patch = json!({
        "metadata": {"resourceVersion": "1"}, "spec": {"template": {"spec": {"containers": containers}}},
    });
    table(tone::controller)
        .row(
            "the first binding by name is bound beside the other",
            KEY,
            on(["A", "B"], &[("B", "b")]),
            Want::done().patch::<Deployment>("default/web", patch),
        )
        .row(
            "an injection before that of another binding stays there",
            KEY,
            on(["A", "B"], &[("A", "a"), ("B", "b")]),
            Want::done(),
        )
        .row(
            "an injection after that of another binding stays there",
            KEY,
            on(["A", "B"], &[("B", "b"), ("A", "a")]),
            Want::done(),
        )
        .row(
            "a variable of the user after the injection stays there",
            KEY,
            on(["A", "B"], &[("A", "a"), ("OWN", "1"), ("B", "b"), ("LATE", "1")]),
            Want::done(),
        )
        .run()
        .await;
}

#[tokio::test]
async fn a_binding_of_which_another_one_removes_the_injection_has_not_bound_the_subject() {
    let message =
        "default/web is a subject of the Tone b too, which removes the injection: let one Tone have it";
    let mut taken = available("a", "A");
    Tone::CONDITIONS.manage(taken.status.get_or_insert_default()).mark_false(
        "Available",
        "SubjectTaken",
        message,
    );
    table(tone::controller)
        .row(
            "the other binding injects the same name",
            KEY,
            on(["A", "A"], &[("A", "b")]),
            Want::error(message).status(&taken).event(Event::warning("SubjectTaken", message)),
        )
        .run()
        .await;
}
