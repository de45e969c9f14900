//! A short random run of the fuzz target. hack/fuzz.sh runs it with coverage guidance.

use rand::{Rng, SeedableRng, rngs::StdRng};
use webhook_fuzz::{URLS, check, check_page, check_url, check_watch, pages, seeds, watches};

const RUNS: usize = 2_000;

#[test]
fn responses_to_edited_reviews_have_the_properties() {
    seeds().iter().for_each(|seed| check(seed.to_string().as_bytes()));
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..RUNS {
        let mut input = vec![0; random.random_range(2..64)];
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

/// Changes, removes or cuts some bytes.
fn corrupted(text: &str, random: &mut StdRng) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..random.random_range(1..4) {
        let index = random.random_range(0..bytes.len());
        match random.random_range(0..4) {
            0 => bytes[index] = random.random(),
            1 => bytes[index] = b":/?#@[]{}\"\\\n"[random.random_range(0..12)],
            2 => bytes.truncate(index.max(1)),
            _ if bytes.len() > 1 => drop(bytes.remove(index)),
            _ => {}
        }
    }
    bytes
}

#[test]
fn corrupted_watches_pages_and_urls_have_the_properties() {
    let (watches, pages, mut random) = (watches(), pages(), StdRng::seed_from_u64(3));
    watches.iter().for_each(|watch| check_watch(watch.as_bytes()));
    pages.iter().for_each(|page| check_page(page.as_bytes()));
    URLS.iter().for_each(|url| check_url(url.as_bytes()));
    for _ in 0..RUNS {
        check_watch(&corrupted(&watches[random.random_range(0..watches.len())], &mut random));
        check_page(&corrupted(&pages[random.random_range(0..pages.len())], &mut random));
        check_url(&corrupted(URLS[random.random_range(0..URLS.len())], &mut random));
    }
}
