//! The scripts that install a control plane and that write a new project.

mod new_kind;
mod setup_envtest;
