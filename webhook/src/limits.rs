//! Limits on the requests to a webhook.

use std::time::Duration;

/// Limits on the size, number and duration of requests. A request beyond a limit is refused or cut off; other requests
/// are not affected. The `MAX` of a field's type means no limit.
///
/// ```
/// use std::time::Duration;
/// use reknit_webhook::{Limits, Webhook};
///
/// let limits = Limits { response_timeout: Duration::from_secs(5), ..Limits::default() };
/// let webhook = Webhook::new("demo.reknit.dev").limits(limits);
/// # let _ = webhook;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest body of a request, in bytes: 7 MiB, as in controller-runtime, since an update carries the new and
    /// the old object of up to 3 MB each. A larger body is answered 413. The body of a conversion may hold a whole list
    /// and be as large as [`bodies`](Self::bodies); then this is the limit for each of its objects, and a larger object
    /// fails the conversion.
    ///
    /// A review is also answered 413 if it would take more than forty times this limit of memory once it is decoded, as
    /// estimated from its fields and items: 280 MiB. An object counts for 6 KiB at least, even an empty one, since a struct of
    /// Kubernetes may be as large; so a list may have some 43,000 objects. Deletions and updates of only the metadata are allowed
    /// nevertheless.
    pub body: usize,
    /// The bytes of bodies that are held at once: 32 MiB. They count as they arrive and until the response is sent. One
    /// half is for the first 64 KiB of every body and the other half for the bytes beyond, so small requests do not
    /// wait for large requests. While a half is full, one body at a time may exceed it and the other bodies wait, in turns
    /// by client. Then a body for which its client has taken more than a second, and another for each 8 MiB, is answered
    /// 408.
    pub bodies: usize,
    /// The bytes of bodies that are decoded and checked at once: 3 MiB. Decoded they take up to forty times the memory; a
    /// body with so many fields and items that it takes more counts as a larger one. A request counts for 64 KiB at least,
    /// and for half of this limit at most. Requests of more than 64 KiB share one half. Clients take turns. The objects of
    /// a conversion are decoded one after another.
    ///
    /// Reviews that wait for [validators](crate::Validator) may hold forty times this limit, and those that take more than
    /// 2 MiB each as much again. A client may hold at most as much as it leaves free, and the objects of a namespace at most as
    /// much as they leave to the other namespaces of the client: of the API server, a quarter. Cluster-scoped objects count as
    /// one namespace. A review counts for a quarter at most. A further review is answered 503.
    pub decoded_bodies: usize,
    /// The number of open connections: 1,000. To make room for another, the server closes one of the client with the most
    /// connections: the one that has waited longest for it, for a handshake, a request, the rest of a body, or for the
    /// client to read a response. No client is shut out by one that has more. If the only client waits for responses on all
    /// of them, the new connection waits until it has one.
    pub connections: usize,
    /// The time that a client may take for the TLS handshake and the head of its first request, for each body, and to
    /// read each response: 10 s. A late body is answered 408. If the handshake, the head or the reading is late, the
    /// connection is closed.
    pub receive_timeout: Duration,
    /// The time from a response to the head of the next request: 120 s, longer than the API server keeps an idle
    /// connection, so that the API server is the one to close it.
    pub idle_timeout: Duration,
    /// The time from a complete request to its response: 30 s, the longest timeout of a webhook configuration. A late
    /// request is answered 504. Code that runs for three times as long is stuck, and probes
    /// fail.
    pub response_timeout: Duration,
    /// The time that the [validators](crate::Validator) of a request may take together: 5 s, so that the client reads
    /// the reason for the refusal, and not that the webhook did not answer. Keep it below the `timeoutSeconds` of the
    /// webhook configuration, 10 s by default, and below [`response_timeout`](Self::response_timeout).
    pub validator_timeout: Duration,
    /// The time without requests after which a stopping webhook closes: 10 s. Until then it answers API servers that do
    /// not know yet that it stops. After twice that time it closes in any case. At most two fifths of the process's
    /// `--shutdown-timeout`.
    pub quiet_period: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 7 << 20,
            bodies: 32 << 20,
            decoded_bodies: 3 << 20,
            connections: 1_000,
            receive_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(120),
            response_timeout: Duration::from_secs(30),
            validator_timeout: Duration::from_secs(5),
            quiet_period: Duration::from_secs(10),
        }
    }
}
