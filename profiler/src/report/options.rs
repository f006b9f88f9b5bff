//! The catalogue with the live state: `preemptprof/options/1`.

use anstyle::Style;
use serde::{Deserialize, Serialize};

use super::escape::escape;
use super::page::{Cell, FAINT, Page, STRONG};
use super::text::{TextOptions, kernel_line, short, state};
use crate::catalog::{Catalog, OptionState, State};
use crate::kernel::KernelFacts;
use crate::model::Knowledge;
use crate::model::report::Kernel;

/// The value of [`Options::schema`].
pub const SCHEMA: &str = "preemptprof/options/1";

/// The catalogue, as it stands on one kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The kernel.
    pub kernel: Kernel,
    /// The whole catalogue with the live state.
    pub options: Vec<OptionState>,
}

impl Options {
    /// The document for one kernel.
    pub fn new(catalog: &Catalog, facts: &KernelFacts) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            kernel: Kernel::from(facts),
            options: Knowledge::new(catalog, facts).states().to_vec(),
        }
    }
}

/// The catalogue as text: options that are on first.
pub fn render(options: &Options, layout: &TextOptions) -> String {
    let mut page = Page::new(layout.width, layout.color);
    page.labelled(9, "kernel", &kernel_line(&options.kernel), Style::new());
    page.blank();
    let mut sorted: Vec<&OptionState> = options.options.iter().collect();
    sorted.sort_by_key(|option| (!option.state.is_on(), option.state == State::N));
    let rows: Vec<Vec<Cell>> = sorted
        .into_iter()
        .map(|option| {
            let style = if option.state.is_on() { STRONG } else { FAINT };
            vec![
                Cell::new(short(&option.name), style),
                Cell::plain(state(option)),
                Cell::plain(escape(&option.recommended)),
                Cell::plain(escape(&option.how_to_turn_off)),
            ]
        })
        .collect();
    let headings = ["OPTION", "STATE", "RECOMMENDED", "HOW TO TURN IT OFF"];
    page.table(&headings, &rows, |_, _| {});
    page.finish()
}
