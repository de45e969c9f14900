//! Tests of the conversion of WarmGreeting objects between v1beta1 and the hub, v9alpha1.

use std::fs;

use hello_world::warm_greeting::{WarmGreeting, definition, v1beta1};
use reknit::{apis::Convertible, prelude::*};
use serde::de::DeserializeOwned;
use serde_json::json;

fn example<K: DeserializeOwned>(path: &str) -> Result<K> {
    Ok(serde_saphyr::from_str(&fs::read_to_string(path)?)?)
}

#[test]
fn a_round_trip_from_the_hub_loses_nothing() -> Result<()> {
    let object: WarmGreeting = example("config/example/warm_greeting.yaml")?;
    let converted = v1beta1::WarmGreeting::from_hub(object.clone())?;
    assert_eq!(json!(converted.into_hub()?), json!(object));
    Ok(())
}

#[test]
fn a_round_trip_to_the_hub_loses_nothing() -> Result<()> {
    let object: v1beta1::WarmGreeting = example("config/example/warm_greeting_v1beta1.yaml")?;
    let converted = v1beta1::WarmGreeting::from_hub(object.clone().into_hub()?)?;
    assert_eq!(json!(converted), json!(object));
    Ok(())
}

#[test]
fn the_api_server_serves_both_versions_and_converts_by_the_webhook() -> Result<()> {
    let spec = definition()?.spec;
    let is_served = |name: &str| spec.versions.iter().any(|version| version.name == name && version.served);
    assert!(is_served("v9alpha1") && is_served("v1beta1"));
    assert_eq!(spec.conversion.map(|conversion| conversion.strategy).as_deref(), Some("Webhook"));
    Ok(())
}
