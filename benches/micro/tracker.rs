//! Observers that are woken by what they read: all of one Service, or each of its own.
#![expect(clippy::unwrap_used, reason = "what it measures cannot fail")]

use divan::{Bencher, counter::ItemsCount};
use reknit_benches::scenarios::{Observers, runtime};

fn main() {
    divan::main();
}

const OBSERVERS: usize = 100_000;

#[divan::bench(consts = [true, false], sample_count = 3)]
fn look<const SHARED: bool>(bencher: Bencher) {
    let runtime = runtime().unwrap();
    let _within = runtime.enter();
    bencher
        .counter(ItemsCount::new(OBSERVERS))
        .with_inputs(|| Observers::of(OBSERVERS, SHARED).unwrap())
        .bench_local_refs(|observers| runtime.block_on(observers.look()).unwrap());
}

#[divan::bench(consts = [true, false], sample_count = 3)]
fn wake<const SHARED: bool>(bencher: Bencher) {
    let runtime = runtime().unwrap();
    let _within = runtime.enter();
    let observers = Observers::of(OBSERVERS, SHARED).unwrap();
    runtime.block_on(observers.look()).unwrap();
    let mut version = 0;
    let later = || {
        version += 1;
        observers.changed(version)
    };
    bencher
        .counter(ItemsCount::new(OBSERVERS))
        .with_inputs(later)
        .bench_local_values(|changed| assert_eq!(observers.wake(changed), OBSERVERS));
}
