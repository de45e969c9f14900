//! A mark on requests that must not be repeated.

/// An [extension](http::Extensions) of a request that no layer of a [`Transport`](crate::Transport) may retry. The caller
/// retries it, and logs the reason.
#[derive(Clone, Copy, Debug)]
pub struct NotRepeated;
