//! A limit on the memory of reviews that wait for validators.

use std::{collections::HashMap, hash::Hash, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

use crate::decoded_size::{DECODED_PER_BYTE, DecodedSize};

/// The largest review that counts as small, in bytes of memory.
const SMALL: usize = 2 << 20;

/// A limit on the memory of decoded reviews that wait for validators. A review for which there is no room is refused. It
/// does not wait, since a validator may wait for another review, which would then wait for the room that the first one holds.
///
/// Small reviews have a room of their own. A client may hold at most as much as it leaves free, so that it shuts out no
/// other client. The API server sends the reviews of all tenants, so the objects of a namespace may hold at most as much as
/// they leave to the other namespaces of the client.
#[derive(Clone)]
pub(crate) struct PendingBudget {
    small: Arc<Mutex<Room>>,
    large: Arc<Mutex<Room>>,
}

struct Room {
    size: usize,
    held: usize,
    clients: HashMap<IpAddr, usize>,
    namespaces: HashMap<Holder, usize>,
}

/// A client, and the namespace of an object about which it asks. Cluster-scoped objects share the empty one.
type Holder = (IpAddr, String);

/// The memory of one review, released on drop.
pub(crate) struct HeldRoom {
    room: Arc<Mutex<Room>>,
    holder: Holder,
    bytes: usize,
}

impl PendingBudget {
    /// Each room holds what this many bytes of bodies may take once they are decoded.
    pub(crate) fn new(bodies: usize) -> Self {
        let room = || Arc::new(Mutex::new(Room::new(bodies.saturating_mul(DECODED_PER_BYTE))));
        Self { small: room(), large: room() }
    }

    /// Holds room for a review of an object in this namespace until the returned value is dropped. Returns `None` if there is
    /// not enough.
    pub(crate) fn hold(&self, client: IpAddr, namespace: String, size: DecodedSize) -> Option<HeldRoom> {
        let room = if size.bytes() <= SMALL { &self.small } else { &self.large };
        let holder = (client, namespace);
        let bytes = room.lock().hold(&holder, size.bytes())?;
        Some(HeldRoom { room: room.clone(), holder, bytes })
    }
}

impl Room {
    fn new(size: usize) -> Self {
        Self { size, held: 0, clients: HashMap::new(), namespaces: HashMap::new() }
    }

    /// A review counts for a quarter of the room at most, so that there is room for each if no other one waits.
    fn hold(&mut self, holder: &Holder, bytes: usize) -> Option<usize> {
        let bytes = bytes.min(self.size / 4);
        let held = self.held + bytes;
        let of_client = self.clients.get(&holder.0).unwrap_or(&0) + bytes;
        let of_namespace = self.namespaces.get(holder).unwrap_or(&0) + bytes;
        // The bytes of the client count twice: they are held, and they are no longer free.
        let left_to_client = self.size.saturating_sub(held).checked_sub(of_client)? / 2;
        if of_namespace > left_to_client {
            return None;
        }
        self.held = held;
        self.clients.insert(holder.0, of_client);
        self.namespaces.insert(holder.clone(), of_namespace);
        Some(bytes)
    }

    fn release(&mut self, holder: &Holder, bytes: usize) {
        self.held -= bytes;
        subtract(&mut self.clients, &holder.0, bytes);
        subtract(&mut self.namespaces, holder, bytes);
    }
}

/// Subtracts from the bytes of a holder, and removes it once it has none.
fn subtract<K: Eq + Hash>(held: &mut HashMap<K, usize>, holder: &K, bytes: usize) {
    let Some(of_holder) = held.get_mut(holder) else { return };
    *of_holder -= bytes;
    if *of_holder == 0 {
        held.remove(holder);
    }
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        self.room.lock().release(&self.holder, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(last: u8, namespace: &str) -> Holder {
        (IpAddr::from([10, 0, 0, last]), namespace.to_owned())
    }

    /// Holds reviews of a byte while there is room. Returns their number.
    fn fill(room: &mut Room, holder: &Holder) -> usize {
        (0..1000).filter(|_| room.hold(holder, 1).is_some()).count()
    }

    #[test]
    fn a_client_holds_at_most_as_much_as_it_leaves_free() {
        let mut room = Room::new(1000);
        let of_one = (0..100).map(|n| fill(&mut room, &holder(1, &n.to_string()))).sum::<usize>();
        let of_other = (0..100).map(|n| fill(&mut room, &holder(2, &n.to_string()))).sum::<usize>();
        assert!((490..=500).contains(&of_one) && (240..=255).contains(&of_other), "{of_one} {of_other}");
    }

    #[test]
    fn a_namespace_holds_at_most_as_much_as_it_leaves_to_the_others_of_its_client() {
        let mut room = Room::new(400);
        let [red, blue] = ["red", "blue"].map(|namespace| holder(1, namespace));
        assert_eq!((fill(&mut room, &red), fill(&mut room, &blue)), (100, 50));
        (0..100).for_each(|_| room.release(&red, 1));
        assert_eq!((room.clients.len(), room.namespaces.len()), (1, 1));
        assert_eq!(room.hold(&red, 1000), None);
        (0..50).for_each(|_| room.release(&blue, 1));
        assert_eq!((room.clients.len(), room.namespaces.len(), room.held), (0, 0, 0));
        assert_eq!((room.hold(&red, 1000), room.hold(&blue, 50)), (Some(100), Some(50)));
    }
}
