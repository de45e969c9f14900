//! Table tests of the controller of WarmGreeting objects.

use hello_world::warm_greeting::{WarmGreeting, WarmGreetingSpec, controller};
use reknit::{
    prelude::*,
    testing::{Want, given, nothing, table},
};

fn object_with_text(text: &str) -> WarmGreeting {
    let mut object = WarmGreeting::new("x", WarmGreetingSpec { text: text.into() });
    object.metadata.namespace = Some("default".into());
    object
}

fn ready(mut object: WarmGreeting) -> WarmGreeting {
    let status = object.status.get_or_insert_default();
    WarmGreeting::CONDITIONS.manage(status).mark_true("Ready");
    object
}

fn unready(mut object: WarmGreeting) -> WarmGreeting {
    let status = object.status.get_or_insert_default();
    WarmGreeting::CONDITIONS
        .manage(status)
        .mark_false("Ready", "NoText", "spec.text is empty");
    object
}

#[tokio::test]
async fn an_object_with_text_is_ready() {
    let (full, empty) = (object_with_text("hello"), object_with_text(""));
    table(controller)
        .row(
            "with text",
            "default/x",
            given(full.clone()),
            Want::done().status(&ready(full)),
        )
        .row(
            "without text",
            "default/x",
            given(empty.clone()),
            Want::done().status(&unready(empty)),
        )
        .row("absent", "default/x", nothing(), Want::skip())
        .run()
        .await;
}
