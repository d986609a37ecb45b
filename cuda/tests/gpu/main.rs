//! Everything that needs a driver, against the simulated one: each path, and each failure that a driver can give.

mod ahead;
mod back;
mod discovery;
mod host;
mod pin;
mod simulated;
