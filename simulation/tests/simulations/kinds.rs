//! The kinds of faults.

use reknit_simulation::Fault;

use crate::greeter::greeter;

const SEEDS: u64 = 3;

fn hashes(fault: Fault) -> Vec<u64> {
    greeter().replicas(3).faults([fault]).seeds(0..SEEDS).hashes()
}

/// Reports of ends change nothing where no process ends, so they show the runs without a fault.
#[test]
fn each_kind_of_fault_changes_runs_alone() {
    let without = hashes(Fault::CrashReports);
    for fault in Fault::ALL.into_iter().filter(|fault| *fault != Fault::CrashReports) {
        assert_ne!(hashes(fault), without, "{fault}");
    }
}
