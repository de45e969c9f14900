//! Conditions that change, and keys on the ring of buckets.

use divan::{Bencher, counter::ItemsCount};
use reknit_benches::scenarios::{find_buckets, turn_condition};

fn main() {
    divan::main();
}

const TIMES: usize = 1_000;

#[divan::bench]
fn condition(bencher: Bencher) {
    bencher.counter(ItemsCount::new(TIMES)).bench(|| turn_condition(TIMES));
}

#[divan::bench]
fn bucket(bencher: Bencher) {
    bencher.counter(ItemsCount::new(TIMES)).bench(|| find_buckets(TIMES));
}
