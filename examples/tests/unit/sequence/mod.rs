//! Tests of single passes of sequence.

mod channels;
mod children;
mod conditions;
mod sequences;
mod subscriptions;
mod webhook;
