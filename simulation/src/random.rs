//! Random numbers that follow from the seed.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::SmallRng};

/// Streams of random numbers. Each stream depends on the seed, its name and the number of its earlier draws only, so
/// that a fault that is left out does not change the others.
#[derive(Debug)]
pub(crate) struct Random {
    seed: u64,
    streams: BTreeMap<String, SmallRng>,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, streams: BTreeMap::new() }
    }

    pub(crate) fn stream(&mut self, name: &str) -> &mut SmallRng {
        if !self.streams.contains_key(name) {
            // The keys of `DefaultHasher::new` are fixed.
            let mut hasher = DefaultHasher::new();
            (self.seed, name).hash(&mut hasher);
            self.streams.insert(name.into(), SmallRng::seed_from_u64(hasher.finish()));
        }
        #[expect(clippy::expect_used, reason = "it was inserted above")]
        self.streams.get_mut(name).expect("the stream exists")
    }

    /// Returns true with this probability.
    pub(crate) fn chance(&mut self, name: &str, probability: f64) -> bool {
        self.stream(name).random_bool(probability)
    }

    /// A number below `n`.
    pub(crate) fn index(&mut self, name: &str, n: usize) -> usize {
        self.stream(name).random_range(0..n.max(1))
    }

    /// A duration between these two, in milliseconds. Short ones are as likely as long ones, by orders of magnitude.
    pub(crate) fn millis(&mut self, name: &str, min: u64, max: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds are few")]
        let (low, high) = ((min.max(1) as f64).ln(), (max.max(1) as f64).ln());
        let drawn = self.stream(name).random_range(low..=high).exp();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it lies between min and max"
        )]
        Duration::from_millis(drawn as u64)
    }
}
