//! Control planes, and the API server in memory compared with a real one.
#![cfg(test)]

mod control_plane;
mod ending;
mod nodes;
mod same_answers;
