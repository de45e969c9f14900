//! The same seed sends the same requests in every process.

use std::{env, process::Command};

use crate::greeter::greeter;

const SEEDS: u64 = 50;
/// The prefix of the line with the hashes of the other process.
const PREFIX: &str = "hashes: ";

fn hashes() -> String {
    let alone = greeter().seeds(0..SEEDS).hashes();
    let together = greeter().replicas(3).seeds(0..SEEDS / 3).hashes();
    format!("{alone:?} {together:?}")
}

#[test]
fn fifty_seeds_send_the_same_requests_in_another_process() {
    let test = "determinism::prints_the_hashes_of_fifty_seeds";
    let mut other = Command::new(env::current_exe().unwrap());
    let other =
        other.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]).output().unwrap();
    let output = String::from_utf8(other.stdout).unwrap();
    let other = output.lines().find_map(|line| line.split_once(PREFIX)).map(|(_, hashes)| hashes);
    assert_eq!(other, Some(&*hashes()), "{output}");
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn prints_the_hashes_of_fifty_seeds() {
    println!("{PREFIX}{}", hashes());
}

#[test]
fn a_seed_that_is_not_a_number_is_refused() {
    let mut other = Command::new(env::current_exe().unwrap());
    other.args(["--exact", "greeter::one_replica_survives_faults"]).env("REKNIT_SIM_SEED", "7x");
    let output = String::from_utf8(other.output().unwrap().stdout).unwrap();
    assert!(output.contains("REKNIT_SIM_SEED=7x is not a number"), "{output}");
}
