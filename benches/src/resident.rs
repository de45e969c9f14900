//! The resident memory of a process, from the kernel.

use std::{fs, io};

use serde::Serialize;

/// Resident memory in megabytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// The current memory. It is meaningful once the process is at rest.
    pub settled: f64,
    /// The peak since the start, or since it was last reset.
    pub peak: f64,
}

/// Reads the memory of this process.
pub fn of(pid: u32) -> io::Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let megabytes = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0 / 1e6)
    };
    let both = || Some(Memory { settled: megabytes("VmRSS:")?, peak: megabytes("VmHWM:")? });
    both().ok_or_else(|| io::Error::other("its status says nothing of memory: it has ended"))
}
