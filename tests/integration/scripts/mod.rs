//! Tests of the scripts in hack/.

mod fuzz;
mod help;
mod setup_envtest;
mod test;
