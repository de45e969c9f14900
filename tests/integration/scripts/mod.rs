//! Tests of the scripts in hack/.

mod fuzz;
mod help;
mod pin;
mod setup_envtest;
mod test;
