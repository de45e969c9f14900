//! The API server in memory compared with a real one.
#![cfg(test)]

mod same_responses;
