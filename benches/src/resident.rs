//! The resident memory of a process, from the kernel.

use std::{fs, io};

use serde::Serialize;

/// Resident memory in megabytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// The current memory, which is meaningful once the process is idle.
    pub settled: f64,
    /// The peak since the process started, or since the last reset of the peak.
    pub peak: f64,
}

/// Reads the memory of the process with this id.
pub fn memory_of(pid: u32) -> io::Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let megabytes = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0 / 1e6)
    };
    let both = || Some(Memory { settled: megabytes("VmRSS:")?, peak: megabytes("VmHWM:")? });
    both().ok_or_else(|| io::Error::other("/proc/PID/status has no memory: the process has ended"))
}
