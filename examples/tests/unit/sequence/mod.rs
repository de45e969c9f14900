//! Tests of single passes of sequence, and simulations.

mod channels;
mod children;
mod conditions;
mod sequences;
mod simulations;
mod subscriptions;
mod webhook;
