//! cloud-ide, over gRPC as its clients see it.

#[path = "../../../cloud-ide/main.rs"]
#[expect(dead_code, reason = "it is a program: its main runs in a process of its own")]
mod program;

mod calls;
mod ending;
mod grpcurl;
mod ide;
mod running;
mod waiting;
