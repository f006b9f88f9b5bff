//! The plan: for each wanted measurement an ordered list of legs, the loader,
//! and a status table that says which leg was used and why not a better one.

mod status;

pub use status::ProbeStatus;
