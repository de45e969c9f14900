//! Reads a `waitProbe`.

use std::{net::SocketAddr, time::Duration};

use reknit::apis::parse_duration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::WaitProbe;

const DEFAULT: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);

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
    /// Reads a probe. The error says what is wrong with it.
    pub(crate) fn of(probe: &WaitProbe) -> Result<Self, String> {
        let timeout = probe.timeout.as_ref().map_or(Ok(DEFAULT), timeout)?;
        if !is_address(&probe.address) {
            return Err("want host:port, with an IPv6 address in brackets".into());
        }
        Ok(Self { address: probe.address.clone(), timeout })
    }
}

fn timeout(given: &Timeout) -> Result<Duration, String> {
    let wrong = |given: &str| format!("its timeout {given} is not more than nothing and at most a minute");
    let read = match given {
        Timeout::Nanoseconds(nanos) => {
            u64::try_from(*nanos).map(Duration::from_nanos).map_err(|_| wrong(&nanos.to_string()))?
        }
        Timeout::Text(text) if text.starts_with('-') => return Err(wrong(text)),
        Timeout::Text(text) => parse_duration(text).map_err(|error| format!("its timeout: {error}"))?,
    };
    match read.is_zero() || read > LONGEST {
        true => Err(wrong(&format!("{read:?}"))),
        false => Ok(read),
    }
}

/// Returns true if there is a host, resolvable, and a port.
fn is_address(address: &str) -> bool {
    if let Ok(plain) = address.parse::<SocketAddr>() {
        return plain.port() != 0;
    }
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let is_name = |c: char| !(c.is_whitespace() || c.is_control() || "/:[]@".contains(c));
    !host.is_empty() && host.chars().all(is_name) && port.parse::<u16>().is_ok_and(|port| port != 0)
}
