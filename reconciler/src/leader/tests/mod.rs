mod polling;
mod replica;
mod sharing;
mod taking_over;
