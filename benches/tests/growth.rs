//! The cost of the hot paths grows no faster than n log n. The cost is the number of allocations and of allocated
//! bytes, which do not depend on the load of the machine. hack/instructions.sh counts instructions, if valgrind is
//! installed.

use std::error::Error;

use allocation_counter::AllocationInfo;
use reknit_benches::{by_name, scenarios::build_runtime};

const FEW: usize = 500;
const MANY: usize = 8_000;

#[test]
fn allocations_grow_at_most_like_n_log_n_in_every_scenario() -> Result<(), Box<dyn Error>> {
    for name in by_name::NAMES {
        let (few, many) = (measure(name, FEW)?, measure(name, MANY)?);
        println!("{name}: {FEW}: {} allocations, {MANY}: {}", few.count_total, many.count_total);
        assert!(few.count_total > 0, "{name} allocates nothing, so its growth is unknown");
        assert!(
            at_most_n_log_n(few.count_total, many.count_total),
            "{name}: the number of allocations grows faster than n log n"
        );
        assert!(
            at_most_n_log_n(few.bytes_total, many.bytes_total),
            "{name}: the allocated bytes grow faster than n log n"
        );
    }
    Ok(())
}

fn measure(name: &str, size: usize) -> Result<AllocationInfo, Box<dyn Error>> {
    let runtime = build_runtime()?;
    let _entered = runtime.enter();
    let work = by_name::prepare(name, size, &runtime).map_err(|error| error.to_string())?;
    let mut result = Ok(());
    let info = allocation_counter::measure(|| result = work());
    result.map_err(|error| error.to_string())?;
    Ok(info)
}

/// Returns true if the growth is at most a fifth above that of n log n. The fifth is for setup costs.
fn at_most_n_log_n(few: u64, many: u64) -> bool {
    let n_log_n = |n: usize| n as f64 * (n as f64).ln();
    many as f64 <= 1.2 * few as f64 * n_log_n(MANY) / n_log_n(FEW)
}
