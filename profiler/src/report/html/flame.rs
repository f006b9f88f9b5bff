//! The flame graph: a tree as data, drawn by the page's script.

use std::collections::HashMap;

use serde::Serialize;

use super::COLORS;
use crate::export::By;
use crate::export::group::{self, Numbers, Part};
use crate::fast_map::FastMap;
use crate::model::{Attribution, comm};
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

#[derive(Default)]
struct Node {
    samples: u64,
    /// By name and colour: a function is an option's on some stacks only.
    children: FastMap<(usize, i64), usize>,
}

/// The section with its data; without a sample it says so.
pub(super) fn section(
    recording: &Recording,
    attribution: &Attribution,
    costly: &[&str],
) -> anyhow::Result<String> {
    let mut html = String::from("<section id=\"flame\">\n<h2>Flame graph</h2>\n");
    let (graph, left_out) = graph(recording, attribution, costly);
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
fn graph(recording: &Recording, attribution: &Attribution, costly: &[&str]) -> (Graph, u64) {
    let colors: HashMap<&str, i64> = costly
        .iter()
        .enumerate()
        .map(|(index, name)| (*name, (index % COLORS) as i64))
        .collect();
    let mut numbers = Numbers::new();
    let mut nodes = vec![Node::default()];
    let mut cut = 0;
    let mut path: Vec<(usize, i64)> = Vec::new();
    for (key, weight) in group::groups(recording, By::Time) {
        path.clear();
        for part in group::parts(recording, attribution, key, By::Time) {
            let color = match part {
                Part::Frame(_, Some(option)) => colors
                    .get(attribution.option(option))
                    .copied()
                    .unwrap_or(-1),
                Part::Frame(_, None) | Part::Missing(_) => -1,
            };
            path.push((numbers.of_part(recording, part), color));
        }
        path.push((numbers.of(comm(recording, key.comm)), -1));
        if path.len() > DEEPEST {
            cut += weight;
        }
        nodes[0].samples += weight;
        let mut at = 0;
        for &step in path.iter().rev().take(DEEPEST) {
            let next = nodes.len();
            at = *nodes[at].children.entry(step).or_insert(next);
            if at == next {
                nodes.push(Node::default());
            }
            nodes[at].samples += weight;
        }
    }
    let total = nodes[0].samples;
    let mut walk = Walk {
        nodes: &nodes,
        names: &numbers.names,
        smallest: ((total as f64 * SMALLEST).ceil() as u64).max(1),
        out: Vec::new(),
        left_out: cut,
    };
    if total > 0 {
        walk.children(0, 0);
    }
    let (out, left_out) = (walk.out, walk.left_out);
    let graph = Graph {
        names: numbers.names,
        options: costly
            .iter()
            .map(|name| escape(name).into_owned())
            .collect(),
        nodes: out,
    };
    (graph, left_out)
}

struct Walk<'n> {
    nodes: &'n [Node],
    names: &'n [String],
    smallest: u64,
    out: Vec<(usize, usize, u64, i64)>,
    left_out: u64,
}

impl Walk<'_> {
    /// Appends what is within a node, by name. As deep as [`DEEPEST`] at most.
    fn children(&mut self, node: usize, depth: usize) {
        let mut children: Vec<_> = self.nodes[node].children.iter().collect();
        children.sort_by_key(|&(&(name, color), _)| (&self.names[name], color));
        for (&(name, color), &child) in children {
            let samples = self.nodes[child].samples;
            if samples < self.smallest {
                self.left_out += samples;
                continue;
            }
            self.out.push((depth, name, samples, color));
            self.children(child, depth + 1);
        }
    }
}
