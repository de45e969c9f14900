mod determinism;
mod logs;
mod metrics;
mod overload;
mod polling;
mod replica;
mod sharing;
mod taking_over;
