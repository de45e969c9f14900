//! Tests of hack/setup-envtest.sh.

mod setup_envtest;
