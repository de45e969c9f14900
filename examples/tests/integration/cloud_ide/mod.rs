//! Tests of cloud-ide as a process, through its gRPC service.

#[path = "../../../cloud-ide/main.rs"]
#[expect(dead_code, reason = "a program, of which tests use only parts")]
mod program;

mod calls;
mod grpcurl;
mod ide;
mod running;
mod shutdown;
mod waiting;

pub(crate) use self::program::program;
