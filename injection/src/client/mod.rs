//! Requests to the API server: the transport, and the delivery of own writes to the informers.

mod own_writes;
mod pass_requests;
mod read_back;
mod recorded;
mod refusal;
mod resource_path;
mod retry_after;
mod term;
mod transport;
mod utf8;
mod warnings;
mod writers;

#[cfg(test)]
pub(crate) use self::transport::AUDIT_ID;
pub(crate) use self::{
    own_writes::deliver_own_writes,
    pass_requests::record_requests,
    recorded::record_exchanges,
    transport::{collect_body, collect_up_to, error_status, into_kube_error, is_without_status},
};
pub use self::{
    own_writes::is_dry_run,
    pass_requests::{PassRequest, PassRequests, RequestEnd, is_apply, is_watch, request_verb},
    refusal::with_retry_after_in_status,
    resource_path::{ResourcePath, path_segment, resource_name},
    retry_after::{retry_after, retry_after_of, retry_after_of_status},
    term::{Term, TermBody, TermEnded, has_term_ended, term_began, within_term},
    transport::{HttpResponse, NoRetry, Transport, is_absence, is_absence_of},
    warnings::header_warnings,
    writers::{Writers, WrittenState},
};
