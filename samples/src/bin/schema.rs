//! Prints the CustomResourceDefinitions of the sample Kinds, for `config/`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand, ValueEnum};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use reknit::apis::kubernetes_schema;
use reknit_samples::{AddressableService, SimpleDeployment};

/// The schemas of the sample Kinds
#[derive(Parser)]
struct Schema {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the names of the Kinds, one a line
    List,
    /// Prints the CustomResourceDefinition of a Kind as YAML
    Dump {
        /// The Kind
        kind: SampleKind,
    },
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum SampleKind {
    AddressableService,
    SimpleDeployment,
}

impl SampleKind {
    fn definition(self) -> CustomResourceDefinition {
        kubernetes_schema(match self {
            Self::AddressableService => AddressableService::crd(),
            Self::SimpleDeployment => SimpleDeployment::crd(),
        })
    }
}

fn main() -> ExitCode {
    let result = match Schema::parse().command {
        Command::List => list(),
        Command::Dump { kind } => dump(kind),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot print the schema: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> io::Result<()> {
    let names = SampleKind::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    names.into_iter().try_for_each(|name| writeln!(io::stdout(), "{}", name.get_name()))
}

fn dump(kind: SampleKind) -> io::Result<()> {
    let yaml = serde_yaml_ng::to_string(&kind.definition()).map_err(io::Error::other)?;
    io::stdout().write_all(yaml.as_bytes())
}
