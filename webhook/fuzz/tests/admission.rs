//! A short random run of the fuzz target. hack/fuzz.sh runs it with coverage guidance.

use rand::{Rng, SeedableRng, rngs::StdRng};
use webhook_fuzz::{check, seeds};

const RUNS: usize = 2_000;

#[test]
fn edited_reviews_are_answered() {
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
fn corrupted_reviews_are_answered() {
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
