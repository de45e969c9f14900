//! The type of flags for an address to listen on.
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use reknit_injection::Context;
use reknit_reconciler::Result;
use tokio::net::TcpListener;

use crate::process::listen::{self, Host};

/// The value of `--bind-address`, which [`ListenAddress::listen`] gets from the Context.
#[derive(Clone, Copy)]
pub(crate) struct BindAddress(pub(crate) Option<IpAddr>);

/// An address to listen on, `[IP]:PORT`: the type of a flag for a [`Task`](crate::Task) that is a server.
///
/// The default for the IP address is `--bind-address`, or else all interfaces, as for probes and metrics. Port 0 picks
/// a free port. The listener has no limits: serve it by `reknit_server::Server`, as all other ports of the process are, or
/// clients can use up its files and memory.
///
/// ```no_run
/// use reknit_injection::Context;
/// use reknit_reconciler::Result;
/// use reknit_sharedmain::{ListenAddress, Task};
///
/// #[derive(Clone, clap::Args)]
/// struct Flags {
///     /// The address to serve greetings on
///     #[arg(long, default_value = ":7000", value_name = "[IP]:PORT")]
///     greetings_address: ListenAddress,
/// }
///
/// fn greetings(cx: &Context) -> Result<Task> {
///     let listening = cx.provided::<Flags>()?.greetings_address.listen(cx, "greetings");
///     Ok(Task::new("greetings", async move {
///         let listener = listening.await?;
///         // … serve until Context::shutdown() …
/// #       drop(listener);
///         Ok(())
///     }))
/// }
/// # let _ = greetings;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    ip: Option<IpAddr>,
    port: u16,
}

impl ListenAddress {
    /// Returns the address with this port and the IP address of `--bind-address`.
    #[cfg(feature = "webhook")]
    pub(crate) const fn with_port(port: u16) -> Self {
        Self { ip: None, port }
    }

    /// Opens the port, and logs the address with the text `listening for WHAT`.
    ///
    /// # Errors
    ///
    /// Fails if the port is in use or privileged, or if this machine does not have the address.
    pub fn listen(
        self,
        cx: &Context,
        what: &'static str,
    ) -> impl Future<Output = Result<TcpListener>> + Send + use<> {
        let bind_address = cx.provided::<BindAddress>().ok().and_then(|BindAddress(ip)| ip);
        let own_host = self.ip.map(|ip| Host { ip, setting: "the flag that names it" });
        async move {
            let host = own_host.or(bind_address.map(Host::bind_address));
            let listener = listen::open(what, host, self.port, None).await?;
            listen::log_address(what, &listener);
            Ok(listener)
        }
    }
}

impl FromStr for ListenAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let port = text.strip_prefix(':').and_then(|port| port.parse().ok());
        let without_ip = port.map(|port| Self { ip: None, port });
        let with_ip = || {
            let address: SocketAddr = text.parse().ok()?;
            Some(Self { ip: Some(address.ip()), port: address.port() })
        };
        without_ip.or_else(with_ip).ok_or("want [IP]:PORT, such as :7000 or 127.0.0.1:7000")
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) => SocketAddr::new(ip, self.port).fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::{Client, client::Body};

    use super::*;

    #[test]
    fn the_ip_address_is_optional() {
        for text in [":6387", "127.0.0.1:0", "[::1]:80"] {
            assert_eq!(text.parse::<ListenAddress>().map(|address| address.to_string()), Ok(text.into()));
        }
        for text in ["", "6387", ":65536", "localhost:80", "127.0.0.1", "::1:x"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn the_default_ip_address_is_the_bind_address() {
        let unreachable = tower::service_fn(|_: http::Request<Body>| async {
            Err::<http::Response<Body>, _>(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
        });
        let cx = Context::preloaded("test", Client::new(unreachable, "default"), vec![]);
        cx.provide(BindAddress(Some(IpAddr::from([127, 0, 0, 1]))));
        for (flag, expected) in [(":0", "127.0.0.1"), ("[::1]:0", "::1")] {
            let listener = flag.parse::<ListenAddress>().unwrap().listen(&cx, "tests").await.unwrap();
            assert_eq!(listener.local_addr().unwrap().ip().to_string(), expected);
        }
    }
}
