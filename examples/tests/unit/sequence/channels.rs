//! Passes of the controller of InMemoryChannels.

use reknit::{apis::service_host_name, testing::given};
use serde_json::json;

use crate::support::sequence::{
    channel,
    program::{InMemoryChannel, channels},
};

#[tokio::test]
async fn a_channel_gets_an_address_and_is_ready() {
    let mut object = channel("orders");
    object.metadata.namespace = Some("shop".into());
    let passed = given(object).pass(channels, "shop/orders").await;
    assert!(passed.result.is_ok());
    assert_eq!(passed.writes(), ["patch inmemorychannels/status shop/orders"]);
    let after = passed.object::<InMemoryChannel>("shop/orders").unwrap();
    let status = json!(after.status);
    let host = service_host_name("orders-kn-channel", "shop");
    assert_eq!(status["address"], json!({"url": format!("http://{host}")}));
    assert_eq!(after.status.clone().unwrap().duck.condition("Ready").unwrap().status, "True");

    let again = given(after).pass(channels, "shop/orders").await;
    assert_eq!(again.writes(), [""; 0]);
}
