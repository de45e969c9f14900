//! The webhook as its users and its clients see it: its answers without a server, what it answers over HTTP, and what an
//! API server makes of it.

#[cfg(test)]
mod api_server;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod conversion;
#[cfg(test)]
mod lamp;
#[cfg(test)]
mod migration;
#[cfg(test)]
mod process;
#[cfg(test)]
mod served;
#[cfg(test)]
mod serving;
