//! The API asked as commands ask it, over a real core with a database in a temporary directory.

mod accounting;
mod admin;
mod allocation;
mod bill;
mod borrow;
mod dependency;
mod event;
mod forecast;
mod jobs;
mod listing;
mod partition;
mod permission;
mod policy;
mod pool;
mod reload;
mod reservation;
mod slurm;
mod standing;
mod submission;
mod token;
mod trace;
mod web;
