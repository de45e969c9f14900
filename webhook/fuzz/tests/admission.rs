//! A short random run of the fuzz target. hack/fuzz.sh runs it with coverage guidance.

use rand::{Rng, SeedableRng, rngs::StdRng};
use webhook_fuzz::{check, seeds};

const RUNS: usize = 2_000;

#[test]
fn responses_to_edited_reviews_have_the_properties() {
    seeds().iter().for_each(|seed| check(seed.to_string().as_bytes()));
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..RUNS {
        let mut input = vec![0; random.random_range(1..64)];
        random.fill(&mut input[..]);
        // A first byte below a tab selects a seed to edit.
        input[0] %= b'\t';
        check(&input);
    }
}

#[test]
fn responses_to_corrupted_reviews_have_the_properties() {
    let (seeds, mut random) = (seeds(), StdRng::seed_from_u64(2));
    for _ in 0..RUNS {
        let mut body = seeds[random.random_range(0..seeds.len())].to_string().into_bytes();
        for _ in 0..random.random_range(1..4) {
            let index = random.random_range(0..body.len());
            match random.random_range(0..3) {
                0 => body[index] = random.random(),
                1 => body.truncate(index.max(1)),
                _ => drop(body.remove(index)),
            }
            if body.is_empty() {
                break;
            }
        }
        check(&body);
    }
}
