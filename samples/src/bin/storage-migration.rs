//! Rewrites the objects of CustomResourceDefinitions in their storage version.

use std::process::ExitCode;

use clap::Parser;
use reknit::{prelude::*, sharedmain::connect, webhook::migrate_storage};

/// Rewrites all objects in the storage version of their Kind
///
/// It uses the cluster of KUBECONFIG or ~/.kube/config or, in a pod, the pod's own. It can be repeated.
#[derive(Parser)]
#[command(name = "storage-migration")]
struct Migration {
    /// The CustomResourceDefinitions, such as addressableservices.samples.knative.dev
    #[arg(required = true)]
    definitions: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match migrate(&Migration::parse().definitions).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the migration is incomplete: {}", error.in_full());
            ExitCode::FAILURE
        }
    }
}

async fn migrate(definitions: &[String]) -> Result<()> {
    let client = connect("storage-migration", env!("CARGO_PKG_VERSION")).await?;
    for definition in definitions {
        let count = migrate_storage(&client, definition).await?;
        println!("{definition}: {count} objects are stored in its storage version");
    }
    Ok(())
}
