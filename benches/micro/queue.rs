//! Keys through the queue of a controller: added, added again, taken, and worked off by ten workers that do nothing.
#![expect(clippy::unwrap_used, reason = "what it measures cannot fail")]

use divan::{Bencher, counter::ItemsCount};
use reknit_benches::scenarios::{Keys, Lane, runtime};

fn main() {
    divan::main();
}

const SIZES: [usize; 3] = [1, 1_000, 1_000_000];
const LANES: [Lane; 3] = [Lane::Fast, Lane::Slow, Lane::Delayed];

#[divan::bench(args = SIZES, sample_count = 10)]
fn add(bencher: Bencher, keys: usize) {
    let runtime = runtime().unwrap();
    let _within = runtime.enter();
    bencher.counter(ItemsCount::new(keys)).with_inputs(Keys::default).bench_local_refs(|queue| {
        queue.add(keys, Lane::Fast);
    });
}

#[divan::bench(args = SIZES, sample_count = 10)]
fn add_what_waits(bencher: Bencher, keys: usize) {
    let runtime = runtime().unwrap();
    let _within = runtime.enter();
    let full = || {
        let queue = Keys::default();
        queue.add(keys, Lane::Fast);
        queue
    };
    bencher.counter(ItemsCount::new(keys)).with_inputs(full).bench_local_refs(|queue| {
        queue.add(keys, Lane::Fast);
    });
}

#[divan::bench(args = SIZES, consts = [0, 1, 2], sample_count = 10)]
fn work_off<const LANE: usize>(bencher: Bencher, keys: usize) {
    let runtime = runtime().unwrap();
    let _within = runtime.enter();
    let full = || {
        let queue = Keys::default();
        queue.add(keys, LANES[LANE]);
        queue
    };
    bencher
        .counter(ItemsCount::new(keys))
        .with_inputs(full)
        .bench_local_values(|queue| runtime.block_on(queue.work_off(keys)));
}
