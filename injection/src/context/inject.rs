//! What a Context makes for whoever asks.

use kube::Client;

use super::{Context, Shutdown};
use crate::informer::{Cached, Informer, Informers, select};

/// Something the [`Context`] can make, once, the first time it is asked for.
///
/// ```
/// use k8s_openapi::api::core::v1::Service;
/// use reknit_injection::{Context, Informer, Inject};
///
/// #[derive(Clone)]
/// struct Prober {
///     services: Informer<Service>,
/// }
///
/// impl Inject for Prober {
///     fn inject(cx: &Context) -> Self {
///         Self { services: cx.get() }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "the Context does not know how to make a `{Self}`",
    note = "`impl Inject for {Self}`, or `cx.provide(value)` in main and `cx.provided::<{Self}>()?` here",
    note = "`Tracked`, `Owned` and `Config` belong to one controller: `build.track()`, `build.owns()`, `build.config()`"
)]
pub trait Inject: Clone + Send + Sync + 'static {
    /// Makes it, of whatever else the Context has.
    fn inject(cx: &Context) -> Self;
}

/// A value was asked for that nobody provided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {0} was provided")]
pub struct Missing(pub(crate) &'static str);

impl<K: Cached<DynamicType = ()>> Inject for Informer<K> {
    fn inject(cx: &Context) -> Self {
        cx.informer(select())
    }
}

impl Inject for Client {
    fn inject(cx: &Context) -> Self {
        cx.client()
    }
}

impl Inject for Informers {
    fn inject(cx: &Context) -> Self {
        cx.informers()
    }
}

impl Inject for Shutdown {
    fn inject(cx: &Context) -> Self {
        cx.shutdown()
    }
}
