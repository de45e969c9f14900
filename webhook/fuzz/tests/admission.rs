//! A short run of the fuzz target, by chance alone: hack/fuzz.sh has it look for what is new.

use rand::{Rng, SeedableRng, rngs::StdRng};
use webhook_fuzz::{check, seeds};

const RUNS: usize = 2_000;

#[test]
fn every_review_is_answered_whatever_was_done_to_it() {
    seeds().iter().for_each(|seed| check(seed.to_string().as_bytes()));
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..RUNS {
        let mut input = vec![0; random.random_range(1..64)];
        random.fill(&mut input[..]);
        input[0] %= 9;
        check(&input);
    }
}

#[test]
fn every_review_is_answered_also_where_it_is_no_json_any_more() {
    let (seeds, mut random) = (seeds(), StdRng::seed_from_u64(2));
    for _ in 0..RUNS {
        let mut body = seeds[random.random_range(0..seeds.len())].to_string().into_bytes();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..body.len());
            match random.random_range(0..3) {
                0 => body[at] = random.random(),
                1 => body.truncate(at.max(1)),
                _ => drop(body.remove(at)),
            }
            if body.is_empty() {
                break;
            }
        }
        check(&body);
    }
}
