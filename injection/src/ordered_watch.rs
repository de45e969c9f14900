//! A channel that holds one value, whose receivers wait for changes, with the interface of tokio's `watch`.
//!
//! Tokio's channel wakes its receivers in random order. This one wakes them in the order in which they began to wait, so
//! that a simulation can be repeated.

use std::{
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
use tokio::sync::Notify;

/// The sending half of the channel. Dropping it closes the channel.
pub struct Sender<T>(Arc<Shared<T>>);

/// The receiving half of the channel. A clone has seen the same values.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The version of the value that was seen last.
    seen: u64,
}

/// A reference to the current value, which cannot change while the reference is held.
pub type Ref<'a, T> = MappedRwLockReadGuard<'a, T>;

/// The error of a wait whose condition can no longer come true, because the sender was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

struct Shared<T> {
    state: RwLock<State<T>>,
    changed: Notify,
    is_closed: AtomicBool,
}

struct State<T> {
    value: T,
    /// The number of changes.
    version: u64,
}

impl<T> Shared<T> {
    fn borrow(&self) -> Ref<'_, T> {
        RwLockReadGuard::map(self.state.read(), |state| &state.value)
    }
}

impl<T> Sender<T> {
    /// Creates a channel with this value.
    pub fn new(value: T) -> Self {
        let state = RwLock::new(State { value, version: 0 });
        Self(Arc::new(Shared { state, changed: Notify::new(), is_closed: AtomicBool::new(false) }))
    }

    /// Creates a receiver, which has seen the current value.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver { seen: self.0.state.read().version, shared: self.0.clone() }
    }

    /// Returns the current value.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.0.borrow()
    }

    /// Replaces the value, and wakes the receivers.
    pub fn send_replace(&self, value: T) {
        self.send_modify(|current| *current = value);
    }

    /// Changes the value in place, and wakes the receivers.
    pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            modify(value);
            true
        });
    }

    /// Changes the value in place. Wakes the receivers if `modify` returns true, and returns its result.
    pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let mut state = self.0.state.write();
        let is_modified = modify(&mut state.value);
        state.version += u64::from(is_modified);
        drop(state);
        if is_modified {
            self.0.changed.notify_waiters();
        }
        is_modified
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl<T> Receiver<T> {
    /// Returns the current value, and does not mark it as seen.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// Returns the current value, and marks it as seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let state = self.shared.state.read();
        self.seen = state.version;
        RwLockReadGuard::map(state, |state| &state.value)
    }

    /// Marks the current value as seen.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.shared.state.read().version;
    }

    /// Waits until there is a value that was not seen, and marks it as seen. Cancel safe.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            // Created before the version is read, so that a change in between wakes it.
            let changed = self.shared.changed.notified();
            // Read before the version, so that a value sent before the end is seen.
            let is_closed = self.shared.is_closed.load(Ordering::Acquire);
            let seen = mem::replace(&mut self.seen, self.shared.state.read().version);
            if self.seen != seen {
                return Ok(());
            }
            if is_closed {
                return Err(Closed);
            }
            changed.await;
        }
    }

    /// Waits until the value fulfills the condition. Cancel safe.
    pub async fn wait_for(&mut self, mut condition: impl FnMut(&T) -> bool) -> Result<(), Closed> {
        while !condition(&self.borrow_and_update()) {
            self.changed().await?;
        }
        Ok(())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&*self.borrow()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&*self.borrow()).finish()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use parking_lot::Mutex;
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn a_change_is_seen_once_by_each_receiver() {
        let sender = Sender::new(0);
        let (mut one, mut other) = (sender.subscribe(), sender.subscribe());
        assert!(!sender.send_if_modified(|value| {
            *value = 1;
            false
        }));
        assert_eq!((one.changed().now_or_never(), *one.borrow()), (None, 1));
        sender.send_replace(2);
        assert_eq!((one.changed().await, one.changed().now_or_never()), (Ok(()), None));
        other.mark_unchanged();
        assert_eq!(other.changed().now_or_never(), None);
        sender.send_modify(|value| *value += 1);
        assert_eq!(*one.borrow_and_update(), 3);
        drop(sender);
        assert_eq!((one.changed().await, other.changed().await), (Err(Closed), Ok(())));
        assert_eq!(
            (one.wait_for(|value| *value == 3).await, one.wait_for(|_| false).await),
            (Ok(()), Err(Closed))
        );
    }

    #[tokio::test]
    async fn a_receiver_that_waits_is_woken_by_a_change_and_by_the_end() {
        let sender = Sender::new(0);
        let mut receiver = sender.subscribe();
        let waiting =
            tokio::spawn(
                async move { (receiver.wait_for(|value| *value == 2).await, receiver.changed().await) },
            );
        for value in 1..=2 {
            tokio::task::yield_now().await;
            sender.send_replace(value);
        }
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(waiting.await.unwrap(), (Ok(()), Err(Closed)));
    }

    #[tokio::test]
    async fn receivers_are_woken_in_the_order_in_which_they_began_to_wait() {
        let (sender, woken) = (Sender::new(()), Arc::new(Mutex::new(Vec::new())));
        let mut waiting = JoinSet::new();
        for n in 0..20 {
            let (mut receiver, woken) = (sender.subscribe(), woken.clone());
            waiting.spawn(async move {
                receiver.changed().await.unwrap();
                woken.lock().push(n);
            });
        }
        tokio::task::yield_now().await;
        sender.send_replace(());
        waiting.join_all().await;
        assert_eq!(*woken.lock(), (0..20).collect::<Vec<_>>());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_change_is_missed_by_receivers_on_other_threads() {
        let sender = Sender::new(0);
        let mut waiting = JoinSet::new();
        for _ in 0..4 {
            let mut receiver = sender.subscribe();
            waiting.spawn(async move { receiver.wait_for(|value| *value == 100_000).await });
        }
        (1..=100_000).for_each(|value| sender.send_replace(value));
        waiting.join_all().await.into_iter().for_each(|result| result.unwrap());
    }
}
