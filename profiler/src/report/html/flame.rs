//! The flame graph: a tree as data, drawn by the page's script.

use std::io;

use serde::Serialize;

use super::COLORS;
use crate::export::By;
use crate::export::group;
use crate::export::tree::{Limits, Step, Tree, Visitor};
use crate::model::Attribution;
use crate::recording::Recording;
use crate::report::{count, escape};

/// A frame below this share of all samples is not drawn.
const SMALLEST: f64 = 1.0 / 5_000.0;
/// Frames deeper than this are not drawn.
const DEEPEST: usize = 200;

/// What the script draws: names by number, and nodes in the order of a walk.
#[derive(Serialize)]
struct Graph {
    names: Vec<String>,
    /// Options by colour.
    options: Vec<String>,
    /// Depth, name, samples, colour (-1: no option's).
    nodes: Vec<(usize, usize, u64, i64)>,
}

/// The section with its data; without a sample it says so.
pub(super) fn section(
    recording: &Recording,
    attribution: &Attribution,
    costly: &[&str],
) -> anyhow::Result<String> {
    let mut html = String::from("<section id=\"flame\">\n<h2>Flame graph</h2>\n");
    let (graph, left_out) = graph(recording, attribution, costly)?;
    if graph.nodes.is_empty() {
        html.push_str("<p>No sample hit the workload.</p>\n</section>\n");
        return Ok(html);
    }
    // Nothing in the data may end the element it is in.
    let data = serde_json::to_string(&graph)?.replace('<', "\\u003c");
    html.push_str(
        "<p class=\"tools\"><label>Search <input id=\"flame-search\" type=\"search\" \
         autocomplete=\"off\" spellcheck=\"false\"></label> \
         <button id=\"flame-reset\" type=\"button\" disabled>Reset zoom</button> \
         <output id=\"flame-matched\"></output></p>\n\
         <div id=\"flame-graph\" role=\"tree\" aria-label=\"Flame graph\"></div>\n\
         <p id=\"flame-detail\" aria-live=\"polite\">Outermost frames are at the top. Click a \
         frame to zoom in.</p>\n\
         <noscript><p>The flame graph needs scripts; <code>preemptprof export -o a.svg</code> \
         makes a picture.</p></noscript>\n",
    );
    if left_out > 0 {
        html.push_str(&format!(
            "<p><small>{} samples have frames too small or too deep to be drawn; the frames \
             around them include them.</small></p>\n",
            count(left_out)
        ));
    }
    html.push_str("<script type=\"application/json\" id=\"flame-data\">");
    html.push_str(&data);
    html.push_str("</script>\n</section>\n");
    Ok(html)
}

/// The graph, and the samples with a frame that is not in it.
fn graph(
    recording: &Recording,
    attribution: &Attribution,
    costly: &[&str],
) -> io::Result<(Graph, u64)> {
    let smallest = (group::total(recording, By::Time) as f64 * SMALLEST).max(1.0);
    let mut tree = Tree::new(recording, attribution, By::Time);
    let mut drawn = Drawn {
        numbers: vec![None; tree.names.len()],
        all: std::mem::take(&mut tree.names),
        colors: attribution
            .options()
            .map(|option| costly.iter().position(|name| *name == option))
            .map(|place| place.map_or(-1, |place| (place % COLORS) as i64))
            .collect(),
        graph: Graph {
            names: Vec::new(),
            options: costly
                .iter()
                .map(|name| escape(name).into_owned())
                .collect(),
            nodes: Vec::new(),
        },
        left_out: 0,
    };
    let limits = Limits {
        smallest,
        deepest: DEEPEST,
        owners: false,
        options: true,
    };
    tree.walk(limits, &mut drawn)?;
    Ok((drawn.graph, drawn.left_out))
}

/// Writes down what is drawn.
struct Drawn<'r> {
    all: Vec<&'r str>,
    /// Numbers of names in the graph by those in the tree.
    numbers: Vec<Option<usize>>,
    /// By option.
    colors: Vec<i64>,
    graph: Graph,
    left_out: u64,
}

impl Visitor for Drawn<'_> {
    fn enter(&mut self, depth: usize, step: Step, weight: u64) -> io::Result<()> {
        let Step::Name(name, option) = step else {
            return Ok(());
        };
        let name = name as usize;
        let (names, all) = (&mut self.graph.names, &self.all);
        let number = *self.numbers[name].get_or_insert_with(|| {
            names.push(escape(all[name]).into_owned());
            names.len() - 1
        });
        let color = option
            .and_then(|option| self.colors.get(usize::from(option)))
            .copied()
            .unwrap_or(-1);
        self.graph.nodes.push((depth, number, weight, color));
        Ok(())
    }

    fn ends(&mut self, _: usize, _: u64, left_out: u64) -> io::Result<()> {
        self.left_out = self.left_out.saturating_add(left_out);
        Ok(())
    }
}
