//! The plan: for each wanted measurement an ordered list of legs, the loader,
//! and a status table that says which leg was used and why not a better one.

pub mod allow;
pub mod breakpoint;
mod checks;
mod ledger;
mod legs;
mod loader;
mod logs;
mod mapped;
mod memory;
mod object;
mod offsets;
pub mod perf;
mod privileges;
mod rcu;
mod refusal;
mod session;
mod status;
pub mod target;
mod text;
mod trial;

pub use ledger::{LedgerMaps, LedgerOffsets, LedgerSettings};
pub use legs::Surroundings;
pub use logs::Logs;
pub use mapped::Mapped;
pub use memory::Memory;
pub use object::{IDLE_TEXTS, Maps, Plain, Settings};
pub use offsets::Offsets;
pub use session::{Request, Session};
pub use status::{ProbeStatus, ProgramInfo};
pub use text::read_text;
pub use trial::Burst;
