//! Table tests of the controller of WarmGreeting objects.

use hello_world::warm_greeting::{WarmGreeting, controller};
use reknit::testing::{Want, given, nothing, table};

fn object() -> WarmGreeting {
    let mut object = WarmGreeting::default();
    object.metadata.name = Some("x".into());
    object.metadata.namespace = Some("default".into());
    object
}

#[tokio::test]
async fn an_object_is_left_as_it_is() {
    table(controller)
        .row("present", "default/x", given(object()), Want::done())
        .row("absent", "default/x", nothing(), Want::skip())
        .run()
        .await;
}
