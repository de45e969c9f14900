//! Comparison of the API server in memory with the real one. Both get the same requests, and each response is compared.

mod asked;
mod requests;

use std::error::Error;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use reknit_testing::{ApiServer, ControlPlane};
use serde::Deserialize;
use serde_json::Value;
use similar::TextDiff;

use self::asked::Asked;

/// The Kinds of the requests that are not built in.
const KINDS: &str = include_str!("kinds.yaml");

#[tokio::test]
async fn every_verb_is_answered_as_the_real_api_server_answers_it() -> Result<(), Box<dyn Error>> {
    let plane = ControlPlane::shared().await?;
    plane.apply_yaml(KINDS).await?;
    let mut real = Asked::of(plane.client()?);
    let mut memory = Asked::of(in_memory()?.client());
    requests::send(&mut real).await?;
    requests::send(&mut memory).await?;

    let (real, memory) = (real.answers(), memory.answers());
    assert_eq!(real.len(), memory.len());
    let differ: Vec<_> = real.iter().zip(&memory).filter(|(real, memory)| real != memory).collect();
    for (real, memory) in &differ {
        let diff = TextDiff::from_lines(real.as_str(), memory.as_str());
        println!("{}", diff.unified_diff().context_radius(20).header("real", "in memory"));
    }
    println!("{} requests, {} answered differently", real.len(), differ.len());
    assert!(differ.is_empty());
    Ok(())
}

/// Returns an API server in memory that knows the definitions.
fn in_memory() -> Result<ApiServer, Box<dyn Error>> {
    let server = ApiServer::new();
    for document in serde_yaml_ng::Deserializer::from_str(KINDS) {
        let object = Value::deserialize(document)?;
        if object["kind"] == "CustomResourceDefinition" {
            server.hold(&serde_json::from_value::<CustomResourceDefinition>(object)?);
        }
    }
    Ok(server)
}
