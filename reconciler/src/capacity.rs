//! The capacity of maps that grow in bursts.

use std::hash::Hash;

use reknit_apis::internal::HashMap;

/// The capacity of a map is not reduced below twice this number of keys.
pub(crate) const MIN_KEYS: usize = 1 << 10;

/// Releases the unused capacity that remains after a burst of keys, such as the first list or a resync.
pub(crate) fn shrink<K: Eq + Hash, T>(map: &mut HashMap<K, T>) {
    let needed = map.len().max(MIN_KEYS);
    if map.capacity() / 8 > needed {
        map.shrink_to(2 * needed);
    }
}
