//! Names of objects, resources and hosts, and the rules for them.

mod bounds;
mod derived;
mod rules;

pub(crate) use self::rules::{c_identifier, label_selector};
pub use self::{
    bounds::Bounds,
    derived::{
        child_name, child_name_within, cluster_domain, kind_to_resource, label_value, service_host_name,
    },
    rules::{dns_label, dns_subdomain, qualified_name},
};
