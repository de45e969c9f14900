//! mydemo, the smallest of them.

#[path = "../../mydemo/main.rs"]
#[expect(dead_code, unreachable_pub, reason = "it is a program: its main runs in a process of its own")]
pub(crate) mod program;
