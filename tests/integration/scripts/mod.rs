//! Tests of the scripts in hack/.

mod help;
mod setup_envtest;
mod test;
