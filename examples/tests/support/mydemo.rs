//! The program mydemo, and its object.

#[path = "../../mydemo/main.rs"]
#[expect(dead_code, unreachable_pub, reason = "it is a program: its main runs in a process of its own")]
pub(crate) mod program;

use self::program::{Mydemo, MydemoSpec};

pub(crate) fn demo() -> Mydemo {
    Mydemo::new("demo", MydemoSpec { ip: "10.0.0.1".into(), port: 8080 })
}
