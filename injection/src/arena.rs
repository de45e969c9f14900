//! Bytes of many small records, packed without gaps of their own.
//!
//! An allocator rounds each record up and keeps what churn leaves behind. Here records are appended to chunks that are
//! mapped directly, a chunk without records is given back to the system, and one that has become sparse is emptied by
//! its owner, who alone knows where the records are looked up: [`Arena::sparse`] says which.

use memmap2::MmapMut;

/// Chunks grow with what is held, so that a small arena wastes little and a large one has few of them.
const SMALLEST: usize = 16 << 10;
const LARGEST: usize = 1 << 20;

/// Where a record is, until it is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    chunk: u32,
    at: u32,
}

/// Records of any size, each found by its [`Slot`]. Every record begins with its own length.
#[derive(Default)]
pub(crate) struct Arena {
    chunks: Vec<Option<Chunk>>,
    /// The one that is appended to, if there is one.
    open: usize,
    used: usize,
    live: usize,
}

struct Chunk {
    memory: MmapMut,
    used: usize,
    live: usize,
}

impl Chunk {
    fn of(size: usize) -> Self {
        let memory = MmapMut::map_anon(size).unwrap_or_else(|_| out_of_memory(size));
        Self { memory, used: 0, live: 0 }
    }
}

/// As every allocation of the standard library ends where there is no memory left.
fn out_of_memory(size: usize) -> ! {
    std::alloc::handle_alloc_error(
        std::alloc::Layout::array::<u8>(size).unwrap_or(std::alloc::Layout::new::<u8>()),
    )
}

/// How long the record is that begins here.
fn length(bytes: &[u8]) -> usize {
    match bytes.first_chunk() {
        Some(head) => u32::from_le_bytes(*head) as usize,
        None => 0,
    }
}

impl Arena {
    /// Holds a record, which begins with its length in four bytes, the lowest first.
    pub(crate) fn put(&mut self, record: &[u8]) -> Slot {
        let (index, chunk) = self.room_for(record.len());
        let at = chunk.used;
        chunk.memory[at..at + record.len()].copy_from_slice(record);
        chunk.used += record.len();
        chunk.live += record.len();
        self.used += record.len();
        self.live += record.len();
        Slot { chunk: index as u32, at: at as u32 }
    }

    pub(crate) fn get(&self, slot: Slot) -> &[u8] {
        let Some(Some(chunk)) = self.chunks.get(slot.chunk as usize) else { return &[] };
        let record = &chunk.memory[slot.at as usize..chunk.used];
        &record[..length(record)]
    }

    /// Holds another record of the same length in its place.
    pub(crate) fn replace(&mut self, slot: Slot, record: &[u8]) {
        if let Some(Some(chunk)) = self.chunks.get_mut(slot.chunk as usize) {
            chunk.memory[slot.at as usize..][..record.len()].copy_from_slice(record);
        }
    }

    pub(crate) fn free(&mut self, slot: Slot) {
        let length = self.get(slot).len();
        let Some(place) = self.chunks.get_mut(slot.chunk as usize) else { return };
        let Some(chunk) = place else { return };
        chunk.live -= length;
        self.live -= length;
        if chunk.live == 0 {
            self.used -= chunk.used;
            *place = None;
        }
    }

    /// A chunk that its owner should empty by putting its records anew, where more is wasted than a part of what is
    /// held.
    pub(crate) fn sparse(&self) -> Option<u32> {
        let wasted = self.used - self.live;
        if wasted < SMALLEST + self.live / 8 {
            return None;
        }
        let share = |chunk: &Chunk| ((chunk.live as u64) << 16) / (chunk.used.max(1) as u64);
        let chunks = self.chunks.iter().enumerate();
        let sparsest = chunks.filter_map(|(index, chunk)| Some((share(chunk.as_ref()?), index))).min()?;
        Some(sparsest.1 as u32)
    }

    /// Where the records of a chunk are, also those that were freed. Nothing is appended to it from now on.
    pub(crate) fn close(&mut self, index: u32) -> Vec<Slot> {
        if self.open == index as usize {
            self.open = usize::MAX;
        }
        let Some(Some(chunk)) = self.chunks.get(index as usize) else { return Vec::new() };
        let mut slots = Vec::new();
        let mut at = 0;
        while at < chunk.used {
            slots.push(Slot { chunk: index, at: at as u32 });
            at += length(&chunk.memory[at..]).max(1);
        }
        slots
    }

    fn room_for(&mut self, length: usize) -> (usize, &mut Chunk) {
        let fits = |chunk: &Option<Chunk>| chunk.as_ref().is_some_and(|c| c.memory.len() - c.used >= length);
        if !self.chunks.get(self.open).is_some_and(fits) {
            self.open = self.chunks.iter().position(Option::is_none).unwrap_or(self.chunks.len());
        }
        if self.open == self.chunks.len() {
            self.chunks.push(None);
        }
        let size = (self.live / 16).next_power_of_two().clamp(SMALLEST, LARGEST).max(length);
        (self.open, self.chunks[self.open].get_or_insert_with(|| Chunk::of(size)))
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    fn record(content: u8, length: usize) -> Vec<u8> {
        let mut record = u32::try_from(length).unwrap().to_le_bytes().to_vec();
        record.resize(length, content);
        record
    }

    /// Puts the records of a sparse chunk anew, as an owner does.
    fn tidy(arena: &mut Arena, held: &mut [(Slot, Vec<u8>)]) {
        while let Some(chunk) = arena.sparse() {
            for slot in arena.close(chunk) {
                if let Some((at, record)) = held.iter_mut().find(|(at, _)| *at == slot) {
                    arena.free(slot);
                    *at = arena.put(record);
                }
            }
        }
    }

    #[test]
    fn what_is_put_is_found_until_it_is_freed_however_records_come_and_go() {
        let (mut arena, mut held) = (Arena::default(), Vec::<(Slot, Vec<u8>)>::new());
        let mut random = StdRng::seed_from_u64(7);
        for round in 0..3_000_u32 {
            let new = record(round as u8, random.random_range(4..3_000));
            if held.len() < 200 || random.random_bool(0.4) {
                held.push((arena.put(&new), new));
            } else {
                let gone = held.swap_remove(random.random_range(0..held.len()));
                arena.free(gone.0);
            }
            tidy(&mut arena, &mut held);
            assert!(arena.used - arena.live < SMALLEST + arena.live / 8);
        }
        assert!(held.iter().all(|(slot, record)| arena.get(*slot) == record));
        assert_eq!(arena.live, held.iter().map(|(_, record)| record.len()).sum::<usize>());
        for (slot, _) in held {
            arena.free(slot);
        }
        assert_eq!((arena.used, arena.live, arena.chunks.iter().flatten().count()), (0, 0, 0));
    }

    #[test]
    fn a_record_larger_than_a_chunk_has_one_of_its_own() {
        let mut arena = Arena::default();
        let (small, large) = (record(1, 100), record(2, 5 << 20));
        let slots = [arena.put(&small), arena.put(&large), arena.put(&small)];
        assert_eq!(slots.map(|slot| arena.get(slot).len()), [100, 5 << 20, 100]);
        arena.replace(slots[0], &record(3, 100));
        assert_eq!(arena.get(slots[0]), record(3, 100));
        arena.free(slots[1]);
        assert_eq!(arena.used, 200);
    }
}
