//! Tests of the webhook: admission without a server, the TLS server, and calls by a real API server.

#[cfg(test)]
mod admission;
#[cfg(test)]
mod api_server;
#[cfg(test)]
mod conversion;
#[cfg(test)]
mod lamp;
#[cfg(test)]
mod local_server;
#[cfg(test)]
mod migration;
#[cfg(test)]
mod process;
#[cfg(test)]
mod server;
