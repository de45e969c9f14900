//! Control planes, and the API server in memory beside a real one.
#![cfg(test)]

mod control_plane;
mod ending;
mod nodes;
mod same_answers;
