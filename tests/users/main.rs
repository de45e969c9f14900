//! Code as users of reknit write it. It is in a crate of its own, so that the orphan rule, coherence and privacy apply.
#![expect(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "user code, of which the tests call a part"
)]
mod addressable_service;
mod cloud_ide;
mod cluster_scoped;
mod enqueueing;
mod entry_points;
mod errors;
mod generic;
mod inject;
mod key_sources;
mod roles;
mod selections;
mod table_tests;
mod without_conditions;

/// Sets the namespace and the generation of an object.
pub fn with_metadata<K: kube::Resource>(mut object: K, namespace: Option<&str>, generation: i64) -> K {
    object.meta_mut().namespace = namespace.map(Into::into);
    object.meta_mut().generation = Some(generation);
    object
}
/// A client whose requests fail.
pub fn unreachable_client() -> kube::Client {
    let refuse = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
    });
    kube::Client::new(refuse, "default")
}
