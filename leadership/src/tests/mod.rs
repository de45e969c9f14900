mod determinism;
mod logs;
mod metrics;
mod polling;
mod replica;
mod sharing;
mod taking_over;
