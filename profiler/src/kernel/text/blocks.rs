//! Basic blocks: stretches of code of which all is executed, or none; and which
//! of a function's blocks are executed equally often, whatever it does.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use super::Snapshot;
use crate::kernel::SymbolRef;

/// Instructions of a function that are decoded at most.
const MAX_INSTRUCTIONS: usize = 16_384;

/// The basic blocks of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Where they begin, in ascending order.
    starts: Vec<u64>,
    /// Blocks with the same number are executed equally often.
    classes: Vec<u32>,
}

impl Blocks {
    /// Decodes a function. Calls do not end a block, as they come back.
    pub fn of(snapshot: &Snapshot<'_>, function: &SymbolRef<'_>) -> Self {
        let code = snapshot.text(function.range()).unwrap_or_default();
        let instructions: Vec<Instruction> =
            Decoder::with_ip(64, code, function.start, DecoderOptions::NONE)
                .into_iter()
                .take(MAX_INSTRUCTIONS)
                .collect();
        let range = function.range();
        let mut starts = BTreeSet::from([function.start]);
        for instruction in &instructions {
            match instruction.flow_control() {
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                    starts.insert(instruction.near_branch_target());
                    starts.insert(instruction.next_ip());
                }
                FlowControl::Return
                | FlowControl::IndirectBranch
                | FlowControl::Interrupt
                | FlowControl::Exception => {
                    starts.insert(instruction.next_ip());
                }
                _ => {}
            }
        }
        let starts: Vec<u64> = starts.into_iter().filter(|at| range.contains(at)).collect();
        let classes = match edges(&instructions, &starts) {
            Some(edges) => classes(starts.len(), &edges),
            // Where it goes is not known: then no two blocks are alike.
            None => (0..starts.len() as u32).collect(),
        };
        Self { starts, classes }
    }

    /// Where the blocks begin.
    pub fn starts(&self) -> &[u64] {
        &self.starts
    }

    /// Whether two addresses are in one block.
    pub fn is_one(&self, a: u64, b: u64) -> bool {
        let index = |address: u64| self.starts.partition_point(|start| *start <= address);
        index(a) == index(b)
    }

    /// The class of the block that `address` is in.
    pub fn class(&self, address: u64) -> Option<u32> {
        let after = self.starts.partition_point(|start| *start <= address);
        self.classes.get(after.checked_sub(1)?).copied()
    }
}

/// Where execution goes from block to block, by index; one more than there are
/// blocks is outside of the function, where it comes from and goes to. `None` when
/// that cannot be told: a jump through a table.
fn edges(instructions: &[Instruction], starts: &[u64]) -> Option<Vec<(usize, usize)>> {
    let outside = starts.len();
    let block = |address: u64| starts.binary_search(&address).unwrap_or(outside);
    let mut edges = vec![(outside, 0)];
    let mut entered = vec![false; starts.len()];
    let mut from = 0;
    for instruction in instructions {
        if let Ok(begun) = starts.binary_search(&instruction.ip()) {
            from = begun;
        }
        let next = block(instruction.next_ip());
        let (first, second) = match instruction.flow_control() {
            FlowControl::ConditionalBranch => (block(instruction.near_branch_target()), Some(next)),
            FlowControl::UnconditionalBranch => (block(instruction.near_branch_target()), None),
            FlowControl::Return => (outside, None),
            FlowControl::IndirectBranch => return None,
            // WARN goes on after its trap, and BUG does not: then what follows is
            // not executed, which makes no difference.
            _ if next != outside => (next, None),
            _ => continue,
        };
        for to in [Some(first), second].into_iter().flatten() {
            edges.push((from, to));
            if let Some(entered) = entered.get_mut(to) {
                *entered = true;
            }
        }
    }
    // What nothing leads to is where exceptions are mended.
    let orphans = (1..starts.len()).filter(|block| !entered[*block]);
    edges.extend(orphans.map(|block| (outside, block)));
    Some(edges)
}

/// Numbers for blocks, equal for those that are executed equally often.
///
/// As much comes into a block as goes out of it, and what leaves the function
/// enters it again. So two blocks are executed equally often when the graph falls
/// apart without them: what crosses from one half into the other through the one
/// has to come back through the other. Such pairs lie on the same cycles of the
/// graph, its directions left aside. Each edge beside a spanning tree gets a
/// random number, and each edge of the tree the sum, modulo two, of the numbers of
/// those whose cycles it lies on: equal sums are equal cycles.
fn classes(blocks: usize, edges: &[(usize, usize)]) -> Vec<u32> {
    // Each block is an edge from its way in, 2 * block, to its way out.
    let outside = 2 * blocks;
    let way_in = |block: usize| if block == blocks { outside } else { 2 * block };
    let way_out = |block: usize| {
        if block == blocks {
            outside
        } else {
            2 * block + 1
        }
    };
    let through = (0..blocks).map(|block| (way_in(block), way_out(block)));
    let between = edges.iter().map(|&(from, to)| (way_out(from), way_in(to)));
    let all: Vec<(usize, usize)> = through.chain(between).collect();
    let mut beside: Vec<Vec<(usize, usize)>> = vec![Vec::new(); outside + 1];
    for (edge, &(a, b)) in all.iter().enumerate() {
        beside[a].push((b, edge));
        beside[b].push((a, edge));
    }

    let mut random = fastrand::Rng::with_seed(0x626c_6f63_6b73);
    let mut sums = vec![0_u64; outside + 1];
    let mut labels = vec![0_u64; all.len()];
    let mut parent: Vec<Option<(usize, usize)>> = vec![None; outside + 1];
    let mut is_seen = vec![false; outside + 1];
    let mut is_used = vec![false; all.len()];
    let mut order = Vec::with_capacity(outside + 1);
    is_seen[outside] = true;
    let mut waiting = vec![outside];
    while let Some(node) = waiting.pop() {
        order.push(node);
        for &(other, edge) in &beside[node] {
            if std::mem::replace(&mut is_used[edge], true) {
                continue;
            }
            if std::mem::replace(&mut is_seen[other], true) {
                labels[edge] = random.u64(1..);
                sums[node] ^= labels[edge];
                sums[other] ^= labels[edge];
            } else {
                parent[other] = Some((node, edge));
                waiting.push(other);
            }
        }
    }
    for &node in order.iter().rev() {
        if let Some((above, edge)) = parent[node] {
            labels[edge] = sums[node];
            sums[above] ^= sums[node];
        }
    }

    let mut known: Vec<u64> = Vec::new();
    labels[..blocks]
        .iter()
        .map(|&label| {
            // On no cycle: nothing is known of it.
            let same = (label != 0).then(|| known.iter().position(|k| *k == label));
            same.flatten().unwrap_or_else(|| {
                known.push(label);
                known.len() - 1
            }) as u32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes a graph at random and counts.
    fn walk(blocks: usize, edges: &[(usize, usize)], seed: u64) -> Vec<u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut counts = vec![0; blocks];
        let mut at = blocks;
        let mut entered = 0;
        loop {
            let out: Vec<usize> = edges.iter().filter(|e| e.0 == at).map(|e| e.1).collect();
            at = out[random.usize(..out.len())];
            if at == blocks {
                entered += 1;
                if entered > 200 {
                    return counts;
                }
            } else {
                counts[at] += 1;
            }
        }
    }

    #[test]
    fn blocks_before_and_after_a_branch_are_alike() {
        // 0 -> 1 or 2 -> 3 -> outside.
        let diamond = [(4, 0), (0, 1), (0, 2), (1, 3), (2, 3), (3, 4)];
        assert_eq!(classes(4, &diamond), [0, 1, 2, 0]);
        // 0 -> 1, 1 -> 1 or 2 -> outside.
        let repeated = [(3, 0), (0, 1), (1, 1), (1, 2), (2, 3)];
        assert_eq!(classes(3, &repeated), [0, 1, 0]);
        // 1 and 2 are one loop; 0 and 3 are around it.
        let long = [(4, 0), (0, 1), (1, 2), (2, 1), (2, 3), (3, 4)];
        assert_eq!(classes(4, &long), [0, 1, 1, 0]);
    }

    proptest::proptest! {
        #[test]
        fn blocks_of_a_class_are_executed_equally_often(
            pairs in proptest::collection::vec((0_usize..9, 0_usize..9), 0..14),
            seed in 0_u64..1_000,
        ) {
            const BLOCKS: usize = 9;
            // Each block goes on to the next one, so that an end is reached.
            let mut edges = vec![(BLOCKS, 0)];
            edges.extend((0..BLOCKS).map(|block| (block, block + 1)));
            edges.extend(pairs);
            let classes = classes(BLOCKS, &edges);
            let counts = walk(BLOCKS, &edges, seed);
            for (a, count) in counts.iter().enumerate() {
                for b in 0..a {
                    if classes[a] == classes[b] {
                        proptest::prop_assert_eq!(*count, counts[b], "{} {}", a, b);
                    }
                }
            }
        }
    }
}
