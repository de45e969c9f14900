//! Tests of hack/new-kind.sh and hack/setup-envtest.sh.

mod new_kind;
mod setup_envtest;
