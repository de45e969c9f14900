//! Passes of the controller of InMemoryChannels.

use reknit::{
    apis::service_host_name,
    testing::{each_permission_is_needed, given},
};
use serde_json::json;

use crate::{
    permissions::failed_status_writes,
    support::sequence::{
        channel,
        program::{InMemoryChannel, channels},
    },
};

const KEY: &str = "shop/orders";

/// The channel `shop/orders`.
fn orders() -> InMemoryChannel {
    let mut object = channel("orders");
    object.metadata.namespace = Some("shop".into());
    object
}

#[tokio::test]
async fn a_channel_gets_an_address_and_is_ready() {
    let effects = given(orders()).reconcile(channels, KEY).await;
    assert!(effects.result.is_ok());
    assert_eq!(effects.writes(), ["patch inmemorychannels/status shop/orders"]);
    let after = effects.object::<InMemoryChannel>(KEY).unwrap();
    let status = json!(after.status);
    let host = service_host_name("orders-kn-channel", "shop");
    assert_eq!(status["address"], json!({"url": format!("http://{host}")}));
    assert_eq!(after.status.clone().unwrap().duck.condition("Ready").unwrap().status, "True");

    let again = given(after).reconcile(channels, KEY).await;
    assert_eq!(again.writes(), [""; 0]);
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    each_permission_is_needed(|| failed_status_writes(channels, "inmemorychannels", KEY, || given(orders())))
        .await;
}
