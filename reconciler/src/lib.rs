//! What turns a key into a status: queue, driver, finalizers, events, tracker, leadership.

pub mod leader;
