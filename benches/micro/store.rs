//! Services in a store: listed, read by key, by namespace, listed anew with one in a hundred changed.
#![expect(clippy::unwrap_used, reason = "what it measures cannot fail")]

use divan::{Bencher, counter::ItemsCount};
use reknit_benches::{
    Server,
    scenarios::{Stored, runtime},
};

fn main() {
    divan::main();
}

const SIZES: [usize; 2] = [1_000, 100_000];

#[divan::bench(args = SIZES, sample_count = 5)]
fn list(bencher: Bencher, objects: usize) {
    let runtime = runtime().unwrap();
    let server = Server::holding(objects, false);
    bencher
        .counter(ItemsCount::new(objects))
        .bench_local(|| runtime.block_on(Stored::listed_from(server.clone(), objects)));
}

#[divan::bench(args = SIZES, sample_count = 5)]
fn relist(bencher: Bencher, objects: usize) {
    let runtime = runtime().unwrap();
    bencher
        .counter(ItemsCount::new(objects))
        .with_inputs(|| runtime.block_on(Stored::outdated(objects)))
        .bench_local_refs(|stored| runtime.block_on(stored.relist()));
}

#[divan::bench(args = SIZES, sample_count = 5)]
fn get(bencher: Bencher, objects: usize) {
    let runtime = runtime().unwrap();
    let stored = runtime.block_on(Stored::listed(objects));
    bencher.counter(ItemsCount::new(objects)).bench_local(|| stored.get_each());
}

#[divan::bench(args = SIZES, sample_count = 5)]
fn list_by_namespace(bencher: Bencher, objects: usize) {
    let runtime = runtime().unwrap();
    let stored = runtime.block_on(Stored::listed(objects));
    bencher.counter(ItemsCount::new(objects)).bench_local(|| stored.list_each_namespace());
}
