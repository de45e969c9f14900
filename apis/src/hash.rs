//! The hash maps of the framework, whose order a simulation decides.

use std::hash::BuildHasher;

use foldhash::{
    SharedSeed,
    fast::{FoldHasher, SeedableRandomState},
};

use crate::environment;

/// A hash map with a random order, or in a simulation with an order that depends on its environment.
#[expect(clippy::disallowed_types, reason = "the one definition")]
pub type HashMap<K, V> = std::collections::HashMap<K, V, HashState>;

/// A hash set with a random order, or in a simulation with an order that depends on its environment.
#[expect(clippy::disallowed_types, reason = "the one definition")]
pub type HashSet<T> = std::collections::HashSet<T, HashState>;

/// The seed of a hash map: random, or in a simulation that of its environment.
#[derive(Clone, Debug)]
pub struct HashState(SeedableRandomState);

impl Default for HashState {
    fn default() -> Self {
        Self(match environment::current() {
            None => SeedableRandomState::random(),
            Some(environment) => {
                SeedableRandomState::with_seed(environment.hash_seed(), SharedSeed::global_fixed())
            }
        })
    }
}

impl BuildHasher for HashState {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::{Seeded, within};

    #[test]
    fn the_order_of_a_hash_map_in_a_simulation_depends_on_its_seed() {
        let order = |seed| {
            within(&Seeded::environment(seed), || {
                let texts: HashSet<_> = (0..100).map(|n: u32| n.to_string()).collect();
                texts.into_iter().collect::<Vec<_>>()
            })
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
