//! A limit on the memory of reviews that wait for validators.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

use crate::decoded_size::{DECODED_PER_BYTE, DecodedSize};

/// The largest review that counts as small, in bytes of memory.
const SMALL: usize = 2 << 20;

/// A limit on the memory of decoded reviews that wait for validators. A review for which there is no room is refused. It
/// does not wait, since a validator may wait for another review, which would then wait for the room that the first one holds.
///
/// Small reviews have a room of their own. A client may hold at most as much as it leaves free, so that it shuts out no
/// other client.
#[derive(Clone)]
pub(crate) struct PendingBudget {
    small: Arc<Mutex<Room>>,
    large: Arc<Mutex<Room>>,
}

struct Room {
    size: usize,
    held: usize,
    clients: HashMap<IpAddr, usize>,
}

/// The memory of one review, released on drop.
pub(crate) struct HeldRoom {
    room: Arc<Mutex<Room>>,
    client: IpAddr,
    bytes: usize,
}

impl PendingBudget {
    /// Each room holds what this many bytes of bodies may take once they are decoded.
    pub(crate) fn new(bodies: usize) -> Self {
        let size = bodies.saturating_mul(DECODED_PER_BYTE);
        let room = || Arc::new(Mutex::new(Room { size, held: 0, clients: HashMap::new() }));
        Self { small: room(), large: room() }
    }

    /// Holds room for a review until the returned value is dropped. Returns `None` if there is not enough.
    pub(crate) fn hold(&self, client: IpAddr, size: DecodedSize) -> Option<HeldRoom> {
        let room = if size.bytes() <= SMALL { &self.small } else { &self.large };
        let bytes = room.lock().hold(client, size.bytes())?;
        Some(HeldRoom { room: room.clone(), client, bytes })
    }
}

impl Room {
    /// A review counts for half of the room at most, so that there is room for each if no other one waits.
    fn hold(&mut self, client: IpAddr, bytes: usize) -> Option<usize> {
        let bytes = bytes.min(self.size / 2);
        let (held, of_client) = (self.held + bytes, self.clients.get(&client).unwrap_or(&0) + bytes);
        if of_client > self.size.saturating_sub(held) {
            return None;
        }
        self.held = held;
        self.clients.insert(client, of_client);
        Some(bytes)
    }

    fn release(&mut self, client: IpAddr, bytes: usize) {
        self.held -= bytes;
        let left = self.clients.remove(&client).unwrap_or(bytes) - bytes;
        if left > 0 {
            self.clients.insert(client, left);
        }
    }
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        self.room.lock().release(self.client, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_holds_at_most_as_much_as_it_leaves_free() {
        let mut room = Room { size: 100, held: 0, clients: HashMap::new() };
        let [one, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let count = |room: &mut Room, client| (0..100).filter(|_| room.hold(client, 1).is_some()).count();
        assert_eq!((count(&mut room, one), count(&mut room, other)), (50, 25));
        (0..50).for_each(|_| room.release(one, 1));
        assert_eq!(room.clients.len(), 1);
        assert_eq!(room.hold(one, 1000), None);
        (0..25).for_each(|_| room.release(other, 1));
        assert_eq!((room.hold(one, 1000), room.held), (Some(50), 50));
    }
}
