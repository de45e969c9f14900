//! A seed decides every request of the electors, and their order.

use http::Method;
use reknit_injection::internal::{Seeded, within};
use serde_json::Value;
use tokio::{runtime::Builder, time::sleep};

use super::replica::{LEASE, Replica};
use crate::fake::FakeApi;

/// The requests of three replicas with two controllers, one of which stops, while a fifth of the requests fails.
fn requests(seed: u64) -> Vec<(Method, Value)> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let run = async {
        let api = FakeApi::default();
        let start = |name| Replica::start_with(&api, name, 5, &["lamps", "fans"]);
        let (a, b, c) = (start("a"), start("b"), start("c"));
        sleep(LEASE).await;
        api.overload(20);
        sleep(LEASE).await;
        a.stop().await;
        sleep(LEASE).await;
        drop((b, c));
        api.all_requests()
    };
    within(&Seeded::environment(seed), || runtime.block_on(run))
}

#[test]
fn the_same_seed_sends_the_same_requests_in_the_same_order() {
    let first = requests(1);
    assert!(first.len() > 100, "only {} requests", first.len());
    for _ in 0..5 {
        let again = requests(1);
        let difference = first.iter().zip(&again).position(|(one, other)| one != other);
        assert_eq!((difference, first.len()), (None, again.len()));
    }
    assert_ne!(first, requests(2));
}
