//! Reports for people and for programs. Nothing is computed here that the model
//! has.

pub mod diff;
pub mod diff_markdown;
pub mod doctor;
mod escape;
pub mod html;
pub mod json;
mod ledger;
pub(crate) mod number;
pub mod options;
mod page;
mod quality;
mod runs;
pub mod text;

pub use escape::escape;
pub(crate) use escape::{needs_escape, push_escaped};
pub(crate) use number::{count, nanoseconds, percent};
pub(crate) use text::command_line;
