//! Parses a `waitProbe`.

use std::{net::SocketAddr, time::Duration};

use reknit::apis::parse_duration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::WaitProbe;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// A duration: `2s`, or a number of nanoseconds.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(untagged)]
pub enum Timeout {
    /// Nanoseconds, as Go stores durations.
    Nanoseconds(i64),
    /// Text such as `2s`.
    Text(String),
}

impl JsonSchema for Timeout {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timeout".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

/// An address and the time limit of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) address: String,
    pub(crate) timeout: Duration,
}

impl Target {
    /// Parses a probe. The error says what is wrong with it.
    pub(crate) fn parse(probe: &WaitProbe) -> Result<Self, String> {
        let timeout = probe.timeout.as_ref().map_or(Ok(DEFAULT_TIMEOUT), parse_timeout)?;
        if !is_address(&probe.address) {
            return Err("expected host:port, with an IPv6 address in brackets".into());
        }
        Ok(Self { address: probe.address.clone(), timeout })
    }
}

fn parse_timeout(timeout: &Timeout) -> Result<Duration, String> {
    let out_of_range =
        |timeout: &str| format!("the timeout {timeout} is not above zero and at most a minute");
    let duration = match timeout {
        Timeout::Nanoseconds(nanos) => {
            u64::try_from(*nanos).map(Duration::from_nanos).map_err(|_| out_of_range(&nanos.to_string()))?
        }
        Timeout::Text(text) if text.starts_with('-') => return Err(out_of_range(text)),
        Timeout::Text(text) => parse_duration(text).map_err(|error| format!("the timeout: {error}"))?,
    };
    match duration.is_zero() || duration > MAX_TIMEOUT {
        true => Err(out_of_range(&format!("{duration:?}"))),
        false => Ok(duration),
    }
}

/// Returns true if the address has a port and a host, which may be a name to resolve.
fn is_address(address: &str) -> bool {
    if let Ok(address) = address.parse::<SocketAddr>() {
        return address.port() != 0;
    }
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let is_valid = |c: char| !(c.is_whitespace() || c.is_control() || "/:[]@".contains(c));
    !host.is_empty() && host.chars().all(is_valid) && port.parse::<u16>().is_ok_and(|port| port != 0)
}
