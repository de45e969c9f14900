//! An ingress controller: each replica builds the routes of all hosts and streams them to gateways, and the leader of a
//! Route reports once the gateways serve it.

pub(crate) mod prober;
mod reconciler;
mod resolver;
mod server;
pub(crate) mod state;
mod types;

use std::process::ExitCode;

use reknit::{prelude::*, sharedmain::NamespaceFlag};

pub use self::reconciler::controller;
pub use self::types::{Route, RoutePath, RouteSpec};

/// The code that tonic generates from ingress.proto.
#[allow(missing_docs, unreachable_pub, reason = "generated")]
pub mod pb {
    tonic::include_proto!("ingress");
}

/// The program: its controllers and flags.
pub fn program() -> Main {
    let main = Main::new("ingress").flags::<NamespaceFlag>().flags::<server::GrpcFlag>();
    main.controller(controller).task(server::server).plannable()
}

fn main() -> ExitCode {
    program().run()
}
