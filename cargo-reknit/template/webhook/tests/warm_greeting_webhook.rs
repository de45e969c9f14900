//! Tests of the webhook with WarmGreeting objects, without a server.

use std::fs;

use hello_world::webhook::webhook;
use reknit::{prelude::*, testing::nothing, webhook::TestRequest};
use serde_json::{Value, json};

fn example() -> Result<Value> {
    let file = fs::read_to_string("config/example/warm_greeting.yaml")?;
    Ok(serde_saphyr::from_str(&file)?)
}

#[tokio::test]
async fn the_example_is_admitted_and_gets_its_defaults_once() -> Result<()> {
    let webhook = nothing().webhook(webhook);
    let admitted = webhook.admit(TestRequest::create(example()?)).await?;
    let again = webhook.admit(TestRequest::create(&admitted.object)).await?;
    assert_eq!(again.object, admitted.object);
    Ok(())
}

#[tokio::test]
async fn a_misspelt_field_is_refused() -> Result<()> {
    let mut object = example()?;
    object["spec"]["misspelt"] = json!("a value");
    let request = TestRequest::create(object);
    let refused = nothing().webhook(webhook).admit(request).await.unwrap_err();
    assert!(
        refused.to_string().contains("unknown field \"spec.misspelt\""),
        "{refused}"
    );
    Ok(())
}
