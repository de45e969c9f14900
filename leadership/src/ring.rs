//! The bucket that owns a key, by consistent hashing with the arithmetic of Knative's Go library.
//!
//! Replicas in Rust and in Go agree on the owner of each key, so they can replace each other.

use std::collections::{BTreeMap, BTreeSet};

use reknit_apis::Key;

/// The number of slots on the ring.
const UNIVERSE: u64 = 1 << 11;

/// A set of buckets, of which exactly one owns each key.
///
/// ```
/// use reknit_apis::Key;
/// use reknit_leadership::Ring;
///
/// let ring = Ring::new(["controller.demo.00-of-02", "controller.demo.01-of-02"]);
/// assert_eq!(ring.owner(&Key::new("default", "web")), "controller.demo.01-of-02");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ring {
    buckets: BTreeSet<String>,
}

impl Ring {
    /// Creates a ring of buckets with these names, in any order.
    ///
    /// At most 2048 names are used, one for each slot. Of further names, the last in byte order are ignored.
    pub fn new<S: Into<String>>(buckets: impl IntoIterator<Item = S>) -> Self {
        let mut buckets: BTreeSet<String> = buckets.into_iter().map(Into::into).collect();
        while buckets.len() as u64 > UNIVERSE {
            buckets.pop_last();
        }
        Self { buckets }
    }

    /// Returns the name of the bucket that owns the key. The name is empty for a ring without buckets.
    pub fn owner(&self, key: &Key) -> &str {
        if self.buckets.len() <= 1 {
            return self.buckets.first().map_or("", String::as_str);
        }
        // As Knative's NamespacedName, which has the slash without a namespace too.
        let target = format!("{}/{}", key.namespace.as_deref().unwrap_or_default(), key.name);
        let slots = self.slots(&target);
        slot_from(&slots, start_slot(&target)).map_or("", |(_, bucket)| bucket)
    }

    /// Returns `n` buckets for this target in byte order, or all buckets if there are not more.
    pub fn subset(&self, target: &str, n: usize) -> Vec<&str> {
        if n >= self.buckets.len() {
            return self.buckets.iter().map(String::as_str).collect();
        }
        let all_slots = self.slots(target);
        let mut unchosen_slots = all_slots.clone();
        let step = slot(fnv(&[target, "step-angle-salt"]));
        let mut angle = start_slot(target);
        let mut chosen = BTreeSet::new();
        while chosen.len() < n {
            // The bucket at this angle, or the next one that is not chosen yet.
            let first = slot_from(&all_slots, angle).map_or(0, |(slot, _)| slot);
            let Some((slot, bucket)) = slot_from(&unchosen_slots, first) else { break };
            unchosen_slots.remove(&slot);
            chosen.insert(bucket);
            angle = (angle + step) % UNIVERSE;
        }
        chosen.into_iter().collect()
    }

    /// The buckets by their slot on the ring. The slots depend on the target.
    fn slots(&self, target: &str) -> BTreeMap<u64, &str> {
        let mut slots = BTreeMap::new();
        for bucket in &self.buckets {
            let mut text = format!("{bucket}{target}");
            let mut hash = fnv(&[&text]);
            while slots.contains_key(&slot(hash)) {
                text.push_str(&format!("{hash:x}"));
                hash = fnv(&[&text]);
            }
            slots.insert(slot(hash), bucket.as_str());
        }
        slots
    }
}

/// The first occupied slot at or after this one, wrapping around, and its bucket.
fn slot_from<'a>(slots: &BTreeMap<u64, &'a str>, from: u64) -> Option<(u64, &'a str)> {
    slots.range(from..).next().or_else(|| slots.iter().next()).map(|(slot, bucket)| (*slot, *bucket))
}

fn start_slot(target: &str) -> u64 {
    slot(fnv(&[target, "start-angle-salt"]))
}

fn slot(hash: u64) -> u64 {
    hash % UNIVERSE
}

/// FNV-1a, 64 bits, of the texts one after the other.
pub(crate) fn fnv(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_bucket_owns_every_key() {
        let key = Key::new("default", "web");
        assert_eq!(Ring::new(["only"]).owner(&key), "only");
        assert_eq!(Ring::default().owner(&key), "");
    }

    #[test]
    fn the_order_of_names_does_not_matter() {
        let (one, other) = (Ring::new(["a", "b", "c"]), Ring::new(["c", "a", "b"]));
        for number in 0..100 {
            let key = Key::new("default", &number.to_string());
            assert_eq!(one.owner(&key), other.owner(&key));
        }
    }

    #[test]
    fn removing_a_bucket_moves_only_its_own_keys() {
        let names: Vec<_> = (0..10).map(|number| format!("bucket-{number}")).collect();
        let (before, after) = (Ring::new(&names), Ring::new(&names[1..]));
        let mut moved = 0;
        for number in 0..1000 {
            let key = Key::new("default", &number.to_string());
            if before.owner(&key) == "bucket-0" {
                moved += 1;
            } else {
                assert_eq!(before.owner(&key), after.owner(&key), "{key}");
            }
        }
        assert!((1..500).contains(&moved), "{moved} of 1000 moved");
    }

    #[test]
    fn there_are_at_most_as_many_buckets_as_slots() {
        assert_eq!(Ring::new((0..3000).map(|number| number.to_string())).buckets.len(), 2048);
    }
}
