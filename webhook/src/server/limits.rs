//! What a webhook takes from its clients.

use std::time::Duration;

/// How much, how many and how long: what goes beyond is refused or cut off, and the others are served meanwhile. Any of it may
/// be `MAX`, which is no limit.
///
/// ```
/// use std::time::Duration;
/// use reknit_webhook::{Limits, Webhook};
///
/// let webhook = Webhook::new("demo.reknit.dev").limits(Limits { answer: Duration::from_secs(5), ..Limits::default() });
/// # let _ = webhook;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many bytes the body of a request may have: 7 MiB, as in controller-runtime: an update carries its object twice, as it
    /// is and as it was, of up to 3 MB each. More is answered 413. Of a conversion, which may be of a whole list, it is
    /// [`bodies`](Self::bodies), and this is how many bytes each object may have: with a larger one the conversion fails.
    pub body: usize,
    /// How many bytes of bodies are held at once, until they are answered: 32 MiB, of which a request counts for 64 KiB at
    /// least, and for everything if it is larger. It counts from before its first byte, with its `Content-Length`, or with all
    /// that it may have where it has none. Those of more than 64 KiB have half of it, so that small ones need not wait for them.
    /// What finds no room waits until its time is over.
    pub bodies: usize,
    /// How many bytes of bodies are decoded and checked at once, of which a request counts for 64 KiB at least, and for half if
    /// it is larger: 3 MiB. Decoded they take up to fifty times the memory. Those of more than 64 KiB have half of it. The
    /// objects of a conversion are decoded one after another.
    pub work: usize,
    /// How many connections there are at once: 1,000. Others wait to be accepted.
    pub connections: usize,
    /// How long a client may take for its TLS handshake, for the head of a request, for its body and to read the answer: 10 s
    /// each. A body that is late is answered 408, the others end the connection.
    pub receive: Duration,
    /// How long a connection may be idle: 120 s, longer than the API server keeps one, so that it is the one to close it.
    pub idle: Duration,
    /// How long an answer may take: 30 s, the longest that an API server can be told to wait. Then it is 504. Code that runs for
    /// three times as long is [stuck](crate::Health::stuck), and probes fail.
    pub answer: Duration,
    /// How long nothing must have been asked, once the process is to end, before the webhook closes: 10 s. Until then it is
    /// still asked by API servers that do not know that it is to end; at the most for twice as long.
    pub quiet: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 7 << 20,
            bodies: 32 << 20,
            work: 3 << 20,
            connections: 1_000,
            receive: Duration::from_secs(10),
            idle: Duration::from_secs(120),
            answer: Duration::from_secs(30),
            quiet: Duration::from_secs(10),
        }
    }
}
