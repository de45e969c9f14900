//! Whether the machine does anything else.

use std::{fs, time::Duration};

use tokio::time::{sleep, timeout};

use crate::Result;

/// For how long it has to be quiet, and how much of that all processors together may work meanwhile.
const LOOKED_AT: Duration = Duration::from_millis(500);
const WORK: Duration = Duration::from_millis(100);
/// Another program's work is not waited for without end.
const PATIENCE: Duration = Duration::from_secs(15);

/// Waits until next to nothing is done on this machine. An API server that is ready goes on with its start, and one
/// that has sent a list collects its garbage: who starts then would be measured with that as well.
pub(crate) async fn quiet() -> Result<()> {
    let quiet = async {
        let mut before = worked()?;
        loop {
            sleep(LOOKED_AT).await;
            let now = worked()?;
            if now.saturating_sub(before) < WORK {
                return Ok(());
            }
            before = now;
        }
    };
    timeout(PATIENCE, quiet).await.unwrap_or_else(|_| {
        eprintln!("the machine does something else as well");
        Ok(())
    })
}

/// What all processors have done so far: for programs, for the kernel, and for interrupts.
fn worked() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().ok_or("/proc/stat is empty")?;
    // cpu user nice system idle iowait irq softirq
    let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    let ticks: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| fields.get(*at)).sum();
    Ok(Duration::from_millis(ticks * 10)) // USER_HZ is 100
}
