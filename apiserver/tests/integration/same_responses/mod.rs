//! Comparison of the API server in memory with the real one: both get the same requests, and each response is compared.

mod alternatives;
mod ratcheting;
mod recorder;
mod requests;
mod schemas;

use std::error::Error;

use reknit_apiserver::ApiServer;
use reknit_testing::ControlPlane;
use similar::TextDiff;

use self::recorder::{Recorder, Server};

type TestResult = Result<(), Box<dyn Error>>;

/// The namespaces and the CustomResourceDefinitions that the requests need.
const SETUP: &str = include_str!("kinds.yaml");

#[tokio::test]
async fn each_response_equals_that_of_the_real_api_server() -> Result<(), Box<dyn Error>> {
    let plane = ControlPlane::start().await?;
    plane.apply_yaml(SETUP).await?;
    let mut real = Recorder::new(Server::Real(Box::new(plane)))?;
    let mut memory = Recorder::new(Server::Memory(in_memory()?))?;
    for server in [&mut real, &mut memory] {
        requests::send(server).await?;
        schemas::send(server).await?;
        alternatives::send(server).await?;
        ratcheting::send(server).await?;
        requests::send_with_controllers(server).await?;
    }

    let (requests, events) = real.counts();
    let (real, memory) = (real.responses(), memory.responses());
    let different: Vec<_> = real.iter().zip(&memory).filter(|(real, memory)| real != memory).collect();
    for (real, memory) in &different {
        let diff = TextDiff::from_lines(real.as_str(), memory.as_str());
        println!("{}", diff.unified_diff().context_radius(20).header("real", "in memory"));
    }
    println!("{requests} requests, {events} watch events, {} different responses", different.len());
    assert!(different.is_empty() && real.len() == memory.len());
    Ok(())
}

/// Returns an API server in memory with the objects of [`SETUP`].
fn in_memory() -> Result<ApiServer, Box<dyn Error>> {
    let server = ApiServer::new().with_required_namespaces();
    recorder::insert(&server, SETUP)?;
    Ok(server)
}
