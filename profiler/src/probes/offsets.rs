//! Where fields lie on the running kernel: from its BTF, and from the `format`
//! files of its tracepoints. Nothing is guessed; a leg that needs an offset that
//! is not known is not used.

use super::ledger::LedgerOffsets;
use crate::kernel::{Btf, ParamKind, Release, TracepointFormat};

/// Offsets and argument positions for the programs' globals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Which argument of sched_switch is `prev_state`; `None` before 5.18.
    pub prev_state_arg: Option<u32>,
    /// `task_struct.__state`, `state` before 5.14.
    pub task_state: Option<u32>,
    /// `task_struct.pid`.
    pub task_pid: Option<u32>,
    /// `task_struct.comm`.
    pub task_comm: Option<u32>,
    /// `pcpu_hot.preempt_count` (6.2 to 6.14).
    pub preempt_count: Option<u32>,
    /// `prev_state` in the sched_switch record.
    pub switch_prev_state: Option<u32>,
    /// `next_pid` in the sched_switch record.
    pub switch_next_pid: Option<u32>,
    /// `child_pid` in the sched_process_fork record.
    pub fork_child: Option<u32>,
    /// `pid` in the sched_process_free record.
    pub free_pid: Option<u32>,
    /// `comm` in the sched_process_free record.
    pub free_comm: Option<u32>,
    /// What only the ledger reads.
    pub ledger: LedgerOffsets,
}

/// sched_switch got its `prev_state` argument in 5.18 (commit fa2c3254d7cf).
const PREV_STATE_SINCE: Release = Release::new(5, 18);

impl Offsets {
    /// Reads them. `format` gives the format of `sched/NAME`.
    pub fn find(
        btf: Option<&Btf>,
        release: Option<Release>,
        format: impl Fn(&str) -> Option<TracepointFormat>,
    ) -> Self {
        let member = |name: &str| {
            let offset = btf?.member_offset("task_struct", name).ok()?;
            Some(offset.bytes)
        };
        let field = |tracepoint: &str, name: &str, size: u32| {
            let format = format(tracepoint)?;
            let field = format.field(name)?;
            (field.size == size).then_some(field.offset)
        };
        Self {
            prev_state_arg: prev_state_arg(btf, release),
            task_state: member("__state").or_else(|| member("state")),
            task_pid: member("pid"),
            task_comm: member("comm"),
            preempt_count: btf
                .and_then(|btf| btf.member_offset("pcpu_hot", "preempt_count").ok())
                .map(|offset| offset.bytes),
            switch_prev_state: field("sched_switch", "prev_state", 8),
            switch_next_pid: field("sched_switch", "next_pid", 4),
            fork_child: field("sched_process_fork", "child_pid", 4),
            free_pid: field("sched_process_free", "pid", 4),
            free_comm: field("sched_process_free", "comm", 16),
            ledger: LedgerOffsets::find(btf, &format),
        }
    }

    /// Whether raw and BTF tracepoints on sched_switch can tell a voluntary
    /// switch.
    pub fn knows_state(&self) -> bool {
        self.prev_state_arg.is_some() || self.task_state.is_some()
    }
}

/// The position of `prev_state` among sched_switch's arguments (`bool preempt`,
/// two tasks, and since 5.18 the state; second in 5.18, last since 5.19, commit
/// 9c2136be0878). The prototype in BTF begins with the tracepoint's own `void *`.
fn prev_state_arg(btf: Option<&Btf>, release: Option<Release>) -> Option<u32> {
    if let Some(params) = btf.and_then(|btf| btf.func_proto_params("btf_trace_sched_switch").ok()) {
        return params
            .iter()
            .skip(1)
            .position(|param| {
                matches!(
                    param.kind,
                    ParamKind::Int {
                        signed: false,
                        size: 4
                    }
                )
            })
            .and_then(|position| u32::try_from(position).ok())
            .filter(|position| matches!(position, 1 | 3));
    }
    match release? {
        PREV_STATE_SINCE => Some(1),
        release if release > PREV_STATE_SINCE => Some(3),
        _ => None,
    }
}
