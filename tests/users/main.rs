//! The code of users, for every case. It is in another crate, so that the orphan rule, coherence and privacy apply.
#![expect(
    clippy::unwrap_used,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "what users write, of which the tests call a part"
)]
mod case0_addressable;
mod case10_main;
mod case11_waking;
mod case1_cluster;
mod case2_selections;
mod case3_roles;
mod case4_handlers;
mod case5_cloud_ide;
mod case6_generic;
mod case7_tables;
mod case8_inject;
mod case9_errors;
mod plain;

/// Sets the metadata that every case needs.
pub fn at<K: kube::Resource>(mut object: K, namespace: Option<&str>, generation: i64) -> K {
    object.meta_mut().namespace = namespace.map(Into::into);
    object.meta_mut().generation = Some(generation);
    object
}
pub fn nowhere() -> kube::Client {
    let refuse = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
    });
    kube::Client::new(refuse, "default")
}
