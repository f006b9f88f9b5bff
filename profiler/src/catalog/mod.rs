//! The catalogue of kernel options: data in `options.toml`, and its matcher.
//!
//! An entry is one Kconfig symbol: what code it adds, which functions are its
//! own, how to turn it off, what production kernels should use and where that
//! is documented. [`Catalog::states`] matches the entries against the facts of
//! one kernel, and [`Owners`] says which enabled option a function belongs to.
//!
//! # Who owns a function
//!
//! Some functions belong to several options: `preempt_count_add` is out of line
//! with `CONFIG_DEBUG_PREEMPT` and with `CONFIG_TRACE_PREEMPT_TOGGLE`. Shares
//! must not overlap, so one option owns it: the most basic enabled option that
//! contains the code. The order of `options.toml` is the order of basicness, and
//! an option stands after every option it selects or depends on (tested). An
//! option that is off owns nothing, whatever symbols exist.
//!
//! A name is matched against the kernel range its entry states first. A name
//! that no enabled option claims for this release goes to the first enabled
//! option that has it for another one: distributions carry code of later
//! releases, and nobody else claims the name.
//!
//! # What goes off with an option
//!
//! [`OptionState::includes`] lists the options that are on and go off together
//! with the option: those it selects that nothing else enabled keeps on, and
//! those that cannot be set without it.

mod frames;
mod live;
mod owners;
mod schema;
mod state;
#[cfg(test)]
mod tests;

pub use frames::{CallerGroups, is_entry_frame, proxy};
pub use owners::{Contradiction, Owner, Owners};
pub use schema::{
    Catalog, Check, Evidence, Group, KernelOption, SymbolGroup, Takes, Toggle, ToggleBy, Versions,
};
pub use state::{OptionState, State};
