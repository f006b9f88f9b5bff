//! Blocking RCU calls of the off-CPU leg, which sees the blocks of a call rather
//! than the call.

use std::collections::HashMap;

use crate::recording::{RcuEvent, Sink, StackId};

/// Calls waited for at once; beyond that, blocks stay blocks.
const PENDING: usize = 4096;

/// One block, or with the other legs one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Start, nanoseconds since the run's start.
    pub(super) start_ns: u64,
    /// End, nanoseconds since the run's start.
    pub(super) end_ns: u64,
    /// Thread id.
    pub(super) pid: u32,
    /// Process id.
    pub(super) tgid: u32,
    /// Task name.
    pub(super) comm: u32,
    /// Stack from the function outwards.
    pub(super) kernel_stack: StackId,
    /// Whether the task belongs to the target.
    pub(super) target: bool,
}

impl Block {
    /// The event it is by itself.
    pub(super) fn event(&self) -> RcuEvent {
        RcuEvent {
            time_ns: self.start_ns,
            duration_ns: self.end_ns.saturating_sub(self.start_ns),
            pid: self.pid,
            tgid: self.tgid,
            comm: self.comm,
            kernel_stack: self.kernel_stack,
            target: self.target,
        }
    }
}

/// Puts the blocks of one call together. A call takes a mutex, then waits once for
/// the callbacks or the grace period (`rcu_barrier`, kernel/rcu/tree.c;
/// `synchronize_rcu_expedited`, kernel/rcu/tree_exp.h; others take none): so a
/// block for the mutex belongs to the next other block of the same function and
/// thread, unless another wait for the mutex comes first (the first call found
/// that a later one had done its work).
#[derive(Debug, Default)]
pub(super) struct RcuCalls {
    in_mutex: HashMap<(u32, usize), Block>,
}

impl RcuCalls {
    /// Takes a block, of a function by its index, and whether it waits for a mutex.
    pub(super) fn block(
        &mut self,
        block: Block,
        (function, in_mutex): (usize, bool),
        sink: &mut dyn Sink,
    ) {
        let key = (block.pid, function);
        let earlier = self.in_mutex.remove(&key);
        if in_mutex {
            if let Some(earlier) = earlier {
                sink.rcu(&earlier.event());
            }
            if self.in_mutex.len() < PENDING {
                self.in_mutex.insert(key, block);
            } else {
                sink.rcu(&block.event());
            }
            return;
        }
        let start_ns = earlier.map_or(block.start_ns, |earlier| earlier.start_ns);
        sink.rcu(&Block { start_ns, ..block }.event());
    }

    /// Ends the run: calls that only waited for the mutex.
    pub(super) fn finish(&mut self, sink: &mut dyn Sink) {
        let mut left: Vec<Block> = self.in_mutex.drain().map(|(_, block)| block).collect();
        left.sort_by_key(|block| block.start_ns);
        for block in left {
            sink.rcu(&block.event());
        }
    }
}
