//! The scripts in hack/ that install a control plane and write a new project.

mod new_kind;
mod setup_envtest;
