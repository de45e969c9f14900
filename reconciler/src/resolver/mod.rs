//! Resolves destinations to addresses.

mod error;

use kube::{Resource, api::DynamicObject};
use reknit_apis::{Addressable, Destination, KReference, Kind, Reference, Url, service_host_name};
use serde::Deserialize;

pub(crate) use self::error::NotFound;
use self::error::ResolveError;
use crate::{Builder, Kinds, Result, ResultExt, TrackedAny};

/// Resolves a [`Destination`] to an address for an object, the observer. When the address changes, the observer is
/// reconciled.
///
/// Comes from [`Builder::resolver`]. It is Knative's `URIResolver`: the rules and the messages of errors are the same.
/// A destination can name an object of any Kind with `status.address` or `status.addresses`, which is Knative's duck
/// type Addressable, or a Kubernetes Service.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use reknit_apis::Destination;
/// use reknit_reconciler::{AddressResolver, Result};
///
/// async fn print_sink(resolver: &AddressResolver, pod: &Pod, sink: &Destination) -> Result<()> {
///     let address = resolver.resolve(pod, sink).await?;
///     println!("{:?} sends to {:?}", pod.metadata.name, address.url);
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct AddressResolver {
    objects: TrackedAny,
}

/// The part of an Addressable object's status that is read. Both fields may be null.
#[derive(Default, Deserialize)]
struct AddressableStatus {
    address: Option<Addressable>,
    addresses: Option<Vec<Addressable>>,
}

impl<K: Kind> Builder<K> {
    /// Resolves destinations to addresses, and tracks the objects that they name as [`track_any`](Self::track_any)
    /// does. References may lead only to these Kinds. URLs are not affected.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use reknit_reconciler::{AddressResolver, Builder, Kinds};
    ///
    /// fn sinks(build: &mut Builder<Pod>) -> AddressResolver {
    ///     build.resolver(Kinds::of([("", "services"), ("serving.knative.dev", "services")]))
    /// }
    /// ```
    pub fn resolver(&mut self, kinds: Kinds) -> AddressResolver {
        AddressResolver { objects: self.track_any(kinds) }
    }
}

impl AddressResolver {
    /// Returns the address of the destination. Its `url` is set and absolute.
    ///
    /// | destination | address |
    /// | --- | --- |
    /// | `ref` | the address named `ref.address`, else the first of `status.addresses`, else `status.address` |
    /// | `ref` of a Service of API version `v1` | `http://name.namespace.svc.cluster.local`, or `https` if the destination has CA certificates |
    /// | `ref` and a relative `uri` | the address of the `ref`, with `uri` resolved relative to its URL (RFC 3986) |
    /// | an absolute `uri` | the URI |
    ///
    /// CA certificates and audience are the destination's, else the object's. A reference without a namespace leads to
    /// the observer's namespace.
    ///
    /// # Errors
    ///
    /// If the object does not exist or has no address, the error is permanent: a change of the object reconciles the
    /// observer, so a retry is not needed. A destination without `ref` and `uri`, or with a `uri` that is absolute
    /// where it has to be relative or the reverse, is a permanent error too. Other errors are those of
    /// [`TrackedAny::get`].
    pub async fn resolve<O: Resource + Sync>(
        &self,
        observer: &O,
        destination: &Destination,
    ) -> Result<Addressable> {
        match (&destination.reference, &destination.uri) {
            (Some(reference), None) => self.resolve_reference(observer, reference, destination).await,
            (Some(reference), Some(uri)) => {
                let address = self.resolve_reference(observer, reference, destination).await?;
                join(address, uri).permanent()
            }
            (None, Some(uri)) => resolve_uri(uri, destination).permanent(),
            (None, None) => Err(ResolveError::Empty).permanent(),
        }
    }

    /// Returns the addresses of the objects that the reference names or selects, in the order of their names. An object
    /// without an address is left out, and reconciles the observer when it gets an address.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`TrackedAny::all`].
    pub async fn resolve_all<O: Resource + Sync>(
        &self,
        observer: &O,
        reference: &Reference,
    ) -> Result<Vec<Addressable>> {
        let mut found = self.objects.all(observer, reference).await?;
        found.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        let of_object = |object: &DynamicObject| {
            let object_reference = KReference {
                api_version: reference.api_version.clone(),
                kind: reference.kind.clone(),
                namespace: object.metadata.namespace.clone(),
                name: object.metadata.name.clone().unwrap_or_default(),
                address: None,
            };
            address_of(object, &object_reference, &Destination::default()).ok()
        };
        Ok(found.iter().filter_map(|object| of_object(object)).collect())
    }

    async fn resolve_reference<O: Resource + Sync>(
        &self,
        observer: &O,
        reference: &KReference,
        destination: &Destination,
    ) -> Result<Addressable> {
        let found = self.objects.get(observer, reference).await?;
        let mut reference = reference.clone();
        if reference.namespace.as_deref().unwrap_or_default().is_empty() {
            reference.namespace.clone_from(&observer.meta().namespace);
        }
        let object = found.ok_or_else(|| ResolveError::NotFound(reference.clone().into())).permanent()?;
        address_of(&object, &reference, destination).permanent()
    }
}

fn join(mut address: Addressable, uri: &Url) -> Result<Addressable, ResolveError> {
    if uri.is_absolute() {
        return Err(ResolveError::AbsoluteUri);
    }
    address.url = address.url.map(|url| url.resolve(uri));
    Ok(address)
}

fn resolve_uri(uri: &Url, destination: &Destination) -> Result<Addressable, ResolveError> {
    if !uri.is_absolute() || uri.host().is_empty() {
        return Err(ResolveError::RelativeUri(uri.to_string()));
    }
    Ok(with_overrides(Addressable { url: Some(uri.clone()), ..Addressable::default() }, destination))
}

/// The address of an object, with the CA certificates and the audience of the destination.
fn address_of(
    object: &DynamicObject,
    reference: &KReference,
    destination: &Destination,
) -> Result<Addressable, ResolveError> {
    if reference.api_version == "v1" && reference.kind == "Service" {
        return Ok(address_of_service(reference, destination));
    }
    let status = object.data.get("status").map(Option::<AddressableStatus>::deserialize).transpose();
    let status = status.map_err(|source| ResolveError::NotAddressable(reference.clone().into(), source))?;
    let address = select_address(status.flatten().unwrap_or_default(), reference)?;
    match &address.url {
        None => Err(ResolveError::NoUrl(reference.clone().into())),
        Some(url) if url.host().is_empty() => Err(ResolveError::NoHost(reference.clone().into())),
        Some(_) => Ok(with_overrides(address, destination)),
    }
}

/// The address of a Kubernetes Service, whose status does not contain one.
fn address_of_service(reference: &KReference, destination: &Destination) -> Addressable {
    let host = service_host_name(&reference.name, reference.namespace.as_deref().unwrap_or_default());
    let has_ca_certs = destination.ca_certs.as_ref().is_some_and(|certificates| !certificates.is_empty());
    let url = if has_ca_certs { Url::https(host) } else { Url::http(host) };
    let address = Addressable { name: reference.address.clone(), url: Some(url), ..Addressable::default() };
    with_overrides(address, destination)
}

fn select_address(status: AddressableStatus, reference: &KReference) -> Result<Addressable, ResolveError> {
    let AddressableStatus { address, addresses } = status;
    let mut addresses = addresses.unwrap_or_default();
    if addresses.is_empty() && address.is_none() {
        return Err(ResolveError::NoAddress(reference.clone().into()));
    }
    if let Some(name) = reference.address.as_ref().filter(|name| !name.is_empty()) {
        let named = addresses.into_iter().find(|address| address.name.as_ref() == Some(name));
        return named.ok_or_else(|| ResolveError::NoAddressOfName(name.clone(), reference.clone().into()));
    }
    let first = if addresses.is_empty() { address } else { Some(addresses.swap_remove(0)) };
    first.ok_or_else(|| ResolveError::NoAddress(reference.clone().into()))
}

fn with_overrides(mut address: Addressable, destination: &Destination) -> Addressable {
    let set = |field: &mut Option<String>, value: &Option<String>| {
        if value.as_ref().is_some_and(|value| !value.is_empty()) {
            field.clone_from(value);
        }
    };
    set(&mut address.ca_certs, &destination.ca_certs);
    set(&mut address.audience, &destination.audience);
    address
}
