//! Resolves destinations to addresses.

use kube::{Resource, api::DynamicObject};
use reknit_apis::{KReference, kind_to_resource, service_host_name};
use reknit_reconciler::{Error, Result, ResultExt, TrackedAny};
use serde::Deserialize;

use crate::{addressable::Addressable, destination::Destination, url::Url};

/// Resolves a [`Destination`] to an address for an object, the observer. When the address changes, the observer is
/// reconciled.
///
/// It is Knative's `URIResolver`: the rules and the messages of errors are the same. A destination can name an object
/// of any Kind with `status.address` or `status.addresses`, which is Knative's duck type Addressable, or a Kubernetes
/// Service.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use reknit_knative::{AddressResolver, Destination};
/// use reknit_reconciler::{Builder, Kinds, Result};
///
/// fn sinks(build: &mut Builder<Pod>) -> AddressResolver {
///     let sinks = Kinds::of([("", "services"), ("serving.knative.dev", "services")]);
///     AddressResolver::new(build.track_any(sinks))
/// }
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

impl AddressResolver {
    /// Creates a resolver that reads the objects of destinations from this tracker. URLs may lead anywhere.
    pub fn new(objects: TrackedAny) -> Self {
        Self { objects }
    }

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
    /// where it has to be relative or the reverse, is a permanent error too. So is, unlike in Go, a `ref` with a `uri`
    /// such as `//host/path`, which would replace the host. Other errors are those of
    /// [`TrackedAny::get`].
    pub async fn resolve<O: Resource + Sync>(
        &self,
        observer: &O,
        destination: &Destination,
    ) -> Result<Addressable> {
        match (&destination.reference, &destination.uri) {
            (Some(reference), None) => self.resolve_reference(observer, reference, destination).await,
            (Some(reference), Some(uri)) => {
                join(self.resolve_reference(observer, reference, destination).await?, uri)
            }
            (None, Some(uri)) => resolve_uri(uri, destination),
            (None, None) => Err(Error::permanent("destination missing Ref and URI, expected at least one")),
        }
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
        match found {
            Some(object) => address_of(&object, &reference, destination),
            None => {
                let KReference { api_version, kind, namespace, name, .. } = &reference;
                let namespace = namespace.as_deref().unwrap_or_default();
                let not_found = not_found(api_version, kind, name);
                Err(Error::permanent(format!("failed to get object {namespace}/{name}: {not_found}")))
            }
        }
    }
}

/// The API server's message for a missing object, with the resource's name guessed as client-go does.
pub(crate) fn not_found(api_version: &str, kind: &str, name: &str) -> String {
    let resource = kind_to_resource(kind);
    match api_version.split_once('/') {
        Some((group, _)) => format!("{resource}.{group} {name:?} not found"),
        None => format!("{resource} {name:?} not found"),
    }
}

fn join(mut address: Addressable, uri: &Url) -> Result<Addressable> {
    if uri.is_absolute() {
        let reason = "absolute URI is not allowed when Ref or [apiVersion, kind, name] exists";
        return Err(Error::permanent(reason));
    }
    // Messages would go to that host, with the audience and the CA certificates of the object.
    if uri.has_authority() {
        let reason = "URI with a host is not allowed when Ref or [apiVersion, kind, name] exists";
        return Err(Error::permanent(format!("{reason}: {:?}", uri.to_string())));
    }
    address.url = address.url.map(|url| url.resolve(uri));
    Ok(address)
}

fn resolve_uri(uri: &Url, destination: &Destination) -> Result<Addressable> {
    if !uri.is_absolute() || uri.host().is_empty() {
        let reason = "URI is not absolute (both scheme and host should be non-empty)";
        return Err(Error::permanent(format!("{reason}: {:?}", uri.to_string())));
    }
    Ok(with_overrides(Addressable { url: Some(uri.clone()), ..Addressable::default() }, destination))
}

/// The address of an object, with the CA certificates and the audience of the destination.
fn address_of(
    object: &DynamicObject,
    reference: &KReference,
    destination: &Destination,
) -> Result<Addressable> {
    if reference.api_version == "v1" && reference.kind == "Service" {
        return Ok(address_of_service(reference, destination));
    }
    let status = object.data.get("status").map(Option::<AddressableStatus>::deserialize).transpose();
    let status = status
        .context(format_args!("{} is not an AddressableType", describe(reference)))
        .permanent()?
        .flatten();
    let address = select_address(status.unwrap_or_default(), reference)?;
    let missing = match &address.url {
        None => "URL",
        Some(url) if url.host().is_empty() => "hostname",
        Some(_) => return Ok(with_overrides(address, destination)),
    };
    Err(Error::permanent(format!("{missing} missing in address of {}", describe(reference))))
}

/// The address of a Kubernetes Service, whose status does not contain one.
fn address_of_service(reference: &KReference, destination: &Destination) -> Addressable {
    let host = service_host_name(&reference.name, reference.namespace.as_deref().unwrap_or_default());
    let has_ca_certs = destination.ca_certs.as_ref().is_some_and(|certificates| !certificates.is_empty());
    let url = if has_ca_certs { Url::https(host) } else { Url::http(host) };
    let address = Addressable { name: reference.address.clone(), url: Some(url), ..Addressable::default() };
    with_overrides(address, destination)
}

fn select_address(
    AddressableStatus { address, addresses }: AddressableStatus,
    reference: &KReference,
) -> Result<Addressable> {
    let addresses = addresses.unwrap_or_default();
    let name = reference.address.as_ref().filter(|name| !name.is_empty());
    if let Some(name) = name.filter(|_| address.is_some() || !addresses.is_empty()) {
        let named = addresses.into_iter().find(|address| address.name.as_ref() == Some(name));
        let missing = || format!("address with name {name:?} not found for {}", describe(reference));
        return named.ok_or_else(missing).permanent();
    }
    let first = addresses.into_iter().next().or(address);
    first.ok_or_else(|| format!("address not set for {}", describe(reference))).permanent()
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

/// A reference as Knative's messages show it.
fn describe(KReference { api_version, kind, namespace, name, address }: &KReference) -> String {
    let (namespace, address) = (namespace.as_deref().unwrap_or(""), address.as_deref().unwrap_or(""));
    format!(
        "Kind = {kind}, Namespace = {namespace}, Name = {name}, APIVersion = {api_version}, Group = , \
         Address = {address}"
    )
}
