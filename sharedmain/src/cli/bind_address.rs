//! The type of the flags for the addresses of probes and metrics, with controller-runtime's syntax.
use std::{net::IpAddr, str::FromStr};

use crate::process::listen;

/// The address of an endpoint, `[IP]:PORT`, or `0`, which switches it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointAddress {
    Off,
    On { ip: Option<IpAddr>, port: u16 },
}

impl FromStr for EndpointAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "0" {
            return Ok(Self::Off);
        }
        let address = listen::parse_address(text).map(|(ip, port)| Self::On { ip, port });
        address.ok_or("want [IP]:PORT, such as :8080 or 127.0.0.1:8080, or 0 for none")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_an_optional_host_and_0_switches_the_endpoint_off() {
        let on =
            |ip: Option<&str>, port| Ok(EndpointAddress::On { ip: ip.map(|ip| ip.parse().unwrap()), port });
        for (text, expected) in [
            ("0", Ok(EndpointAddress::Off)),
            (":8443", on(None, 8443)),
            (":0", on(None, 0)),
            ("127.0.0.1:8080", on(Some("127.0.0.1"), 8080)),
            ("localhost:8080", on(Some("127.0.0.1"), 8080)),
            ("[::1]:80", on(Some("::1"), 80)),
        ] {
            assert_eq!(text.parse::<EndpointAddress>(), expected, "{text}");
        }
        for text in ["", "8080", ":70000", "example.com:80", "1.2.3.4"] {
            assert!(text.parse::<EndpointAddress>().is_err(), "{text}");
        }
    }
}
