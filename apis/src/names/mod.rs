//! Names of objects, resources and hosts, and the rules for them.

mod bounds;
mod derived;
mod rules;

pub(crate) use self::rules::{c_identifier, label_selector};
pub use self::{
    bounds::Bounds,
    derived::{child_name, cluster_domain, kind_to_resource, service_host_name},
    rules::{dns_label, dns_subdomain, qualified_name},
};
