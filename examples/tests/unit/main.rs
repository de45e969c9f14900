//! Single passes of the examples' reconcilers, their definitions and their RBAC manifests.
#![cfg(test)]

#[path = "../../cloud-ide/main.rs"]
#[expect(dead_code, reason = "a program, of which tests use only parts")]
mod cloud_ide;
mod crds;
mod cronjob;
mod eventing;
mod foo;
mod ingress;
mod mydemo;
mod permissions;
mod rbac;
mod sequence;
#[path = "../support/mod.rs"]
mod support;
mod waitdeployment;
