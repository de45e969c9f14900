//! How much memory a process holds, as the kernel counts it.

use std::{fs, io};

use serde::Serialize;

/// Megabytes resident.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Now; it means something once the process has come to rest.
    pub settled: f64,
    /// Since the start, or since it was last forgotten.
    pub peak: f64,
}

/// The memory of this process.
pub fn of(pid: u32) -> io::Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let megabytes = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0 / 1e6)
    };
    let both = || Some(Memory { settled: megabytes("VmRSS:")?, peak: megabytes("VmHWM:")? });
    both().ok_or_else(|| io::Error::other("its status says nothing of memory: it has ended"))
}
