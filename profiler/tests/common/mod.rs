//! Recordings built by hand, the same on every run.
#![allow(dead_code, reason = "not every test uses every part")]
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "test code"
)]

pub mod million;

use std::collections::{BTreeMap, HashMap};

use profiler::catalog::Catalog;
use profiler::kernel::{
    Config, KernelFacts, Lockdown, LockdownState, MachineFacts, Model, PreemptModel,
};
use profiler::probes::ProbeStatus;
use profiler::recording::{
    Evidence, Frame, Header, Loss, Metric, Overhead, RcuEvent, Recording, RunInfo, Sample,
    SampleFlags, Sampling, StackId, SwitchCounts, Symbol, Target, Trailer,
};

pub const TARGET: u32 = SampleFlags::TARGET;
pub const USER: u32 = SampleFlags::USER_MODE;
pub const PROFILER: u32 = SampleFlags::PROFILER;

/// The catalogue the snapshots are made with.
pub fn catalog() -> Catalog {
    Catalog::parse(include_str!("../fixtures/report/catalog.toml")).unwrap()
}

/// Interns names and stacks as the recorder does.
#[derive(Default)]
pub struct Builder {
    pub recording: Recording,
    symbols: HashMap<String, u32>,
    frames: HashMap<(u32, u32), u32>,
    stacks: HashMap<Vec<u32>, u32>,
    comms: HashMap<String, u32>,
}

impl Builder {
    pub fn new() -> Self {
        let mut builder = Self::default();
        builder.stack(&[]);
        builder.recording.complete = true;
        builder
    }

    pub fn symbol(&mut self, name: &str) -> u32 {
        let next = u32::try_from(self.recording.symbols.len()).unwrap();
        *self.symbols.entry(name.to_owned()).or_insert_with(|| {
            self.recording.symbols.push(Symbol {
                name: name.to_owned(),
                module: String::new(),
            });
            next
        })
    }

    pub fn comm(&mut self, name: &str) -> u32 {
        let next = u32::try_from(self.recording.comms.len()).unwrap();
        *self.comms.entry(name.to_owned()).or_insert_with(|| {
            self.recording.comms.push(name.to_owned());
            next
        })
    }

    /// A stack from `symbol+0xoff` words, innermost first.
    pub fn stack(&mut self, words: &[&str]) -> StackId {
        let ids: Vec<u32> = words
            .iter()
            .map(|word| {
                let (name, offset) = match word.rsplit_once("+0x") {
                    Some((name, offset)) => (name, u32::from_str_radix(offset, 16).unwrap()),
                    None => (*word, 0x10),
                };
                let symbol = self.symbol(name);
                let next = u32::try_from(self.recording.frames.len()).unwrap();
                *self.frames.entry((symbol, offset)).or_insert_with(|| {
                    self.recording.frames.push(Frame {
                        addr: 0xffff_ffff_8100_0000
                            + u64::from(symbol) * 0x1000
                            + u64::from(offset),
                        symbol,
                        offset,
                    });
                    next
                })
            })
            .collect();
        let next = u32::try_from(self.recording.stacks.len()).unwrap();
        *self.stacks.entry(ids.clone()).or_insert_with(|| {
            self.recording.stacks.push(ids.into_boxed_slice());
            next
        })
    }

    /// `count` samples of one kernel stack.
    pub fn kernel(&mut self, count: u64, comm: &str, flags: u32, words: &[&str]) {
        let kernel_stack = self.stack(words);
        self.samples(
            count,
            Sample {
                comm: 0,
                kernel_stack,
                flags,
                ..Sample::default()
            },
            comm,
        );
    }

    /// `count` samples in user mode.
    pub fn user(&mut self, count: u64, comm: &str, words: &[&str]) {
        let user_stack = self.stack(words);
        self.samples(
            count,
            Sample {
                user_stack,
                flags: TARGET | USER,
                ..Sample::default()
            },
            comm,
        );
    }

    fn samples(&mut self, count: u64, sample: Sample, comm: &str) {
        let comm = self.comm(comm);
        for _ in 0..count {
            let time_ns = self.recording.samples.len() as u64 * 1_003_009;
            self.recording.samples.push(Sample {
                time_ns,
                comm,
                pid: 1000 + comm,
                tgid: 1000 + comm,
                ..sample
            });
        }
    }

    pub fn rcu(&mut self, comm: &str, duration_ns: u64, target: bool, words: &[&str]) {
        let kernel_stack = self.stack(words);
        let comm = self.comm(comm);
        self.recording.rcu.push(RcuEvent {
            time_ns: 5_000_000,
            duration_ns,
            pid: 1000 + comm,
            tgid: 1000 + comm,
            comm,
            kernel_stack,
            target,
        });
    }
}

/// The tail of every stack of a system call, innermost first.
const SYSCALL: [&str; 2] = ["do_syscall_64+0x38", "entry_SYSCALL_64_after_hwframe+0x64"];

fn in_syscall<'a>(inner: &[&'a str]) -> Vec<&'a str> {
    inner.iter().chain(&SYSCALL).copied().collect()
}

/// Facts of a 6.1 kernel with `CONFIG_DEBUG_PREEMPT`.
pub fn debug_preempt_facts() -> KernelFacts {
    let config = [
        ("CONFIG_HZ", "250"),
        ("CONFIG_PREEMPT_COUNT", "y"),
        ("CONFIG_DEBUG_PREEMPT", "y"),
        ("CONFIG_HARDENED_USERCOPY", "y"),
        ("CONFIG_PSI", "y"),
        ("CONFIG_DEBUG_LIST", "y"),
    ];
    KernelFacts {
        release: "6.1.192".to_owned(),
        version: "#1 SMP PREEMPT_DYNAMIC".to_owned(),
        arch: "x86_64".to_owned(),
        build_id: "00c0ffee".to_owned(),
        preempt_model: PreemptModel {
            active: Model::Voluntary,
            source: "/sys/kernel/debug/sched/preempt".to_owned(),
            available: vec![Model::None, Model::Voluntary, Model::Full],
        },
        hz: Some(250),
        config_source: "/proc/config.gz".to_owned(),
        config: Config(
            config
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        ),
        clock: "tsc".to_owned(),
        lockdown: Lockdown {
            state: LockdownState::None,
            source: "/sys/kernel/security/lockdown".to_owned(),
        },
        present_symbols: [
            "check_preemption_disabled",
            "debug_smp_processor_id",
            "__this_cpu_preempt_check",
            "preempt_count_add",
            "preempt_count_sub",
            "in_lock_functions",
            "__list_add_valid",
            "__list_del_entry_valid",
            "__check_object_size",
            "psi_group_change",
        ]
        .iter()
        .map(|name| (*name).to_owned())
        .collect(),
        ..KernelFacts::default()
    }
}

/// `perf bench sched messaging` on a 6.1 kernel with `CONFIG_DEBUG_PREEMPT`:
/// 10,000 samples of the workload, 570 of them the option's.
pub fn messaging() -> Recording {
    let mut b = Builder::new();
    let comm = "sched-messaging";
    let send = [
        "skb_queue_tail+0x1a",
        "unix_stream_sendmsg+0x2c5",
        "sock_write_iter+0x97",
        "vfs_write+0x3a5",
        "ksys_write+0x6b",
    ];
    let receive = [
        "unix_stream_read_generic+0x1d6",
        "unix_stream_recvmsg+0x8c",
        "sock_read_iter+0x8f",
        "vfs_read+0x2f3",
        "ksys_read+0x6b",
    ];
    let under = |inner: &[&'static str], path: &[&'static str]| -> Vec<&'static str> {
        in_syscall(&inner.iter().chain(path).copied().collect::<Vec<_>>())
    };
    for (count, words) in [
        (
            210,
            under(
                &["preempt_count_add+0x1b", "_raw_spin_lock_irqsave+0x29"],
                &send,
            ),
        ),
        (
            30,
            under(
                &[
                    "in_lock_functions+0x4",
                    "preempt_count_add+0x5e",
                    "_raw_spin_lock_irqsave+0x29",
                ],
                &send,
            ),
        ),
        (
            250,
            under(
                &["preempt_count_sub+0x2c", "_raw_spin_unlock_irqrestore+0x2a"],
                &receive,
            ),
        ),
        (
            45,
            under(
                &[
                    "check_preemption_disabled+0x3d",
                    "mod_objcg_state+0x39",
                    "memcg_slab_post_alloc_hook+0x1f4",
                    "kmem_cache_alloc_node+0x12b",
                    "__alloc_skb+0x13f",
                ],
                &send,
            ),
        ),
        (
            25,
            under(
                &[
                    "check_preemption_disabled+0x3d",
                    "refill_obj_stock+0x21",
                    "obj_cgroup_uncharge+0x10",
                    "kmem_cache_free+0x1f3",
                ],
                &receive,
            ),
        ),
        (
            10,
            under(
                &[
                    "debug_smp_processor_id+0x2",
                    "__schedule+0x3e",
                    "schedule+0x5e",
                    "schedule_timeout+0x8d",
                ],
                &receive,
            ),
        ),
        (
            120,
            under(
                &[
                    "__check_object_size.part.0+0x51",
                    "simple_copy_to_iter+0x2b",
                ],
                &receive,
            ),
        ),
        (
            40,
            under(
                &[
                    "psi_group_change+0x9b",
                    "psi_task_switch+0x1a1",
                    "__schedule+0x56c",
                    "schedule+0x5e",
                    "schedule_timeout+0x8d",
                ],
                &receive,
            ),
        ),
        // psi takes only its own samples, not those in what it calls.
        (
            5,
            under(
                &[
                    "record_times+0x11",
                    "psi_group_change+0x2ab",
                    "psi_task_switch+0x1a1",
                    "__schedule+0x56c",
                ],
                &receive,
            ),
        ),
        (
            4_200,
            under(
                &[
                    "copy_user_enhanced_fast_string+0xe",
                    "_copy_to_iter+0x8a",
                    "simple_copy_to_iter+0x3d",
                ],
                &receive,
            ),
        ),
        (
            3_065,
            under(
                &[
                    "try_to_wake_up+0x214",
                    "autoremove_wake_function+0xe",
                    "__wake_up_common+0x7e",
                    "sock_def_readable+0x42",
                ],
                &send,
            ),
        ),
        // The interrupted code did not call the interrupt.
        (
            100,
            under(
                &[
                    "update_process_times+0x61",
                    "tick_sched_timer+0x6d",
                    "sysvec_apic_timer_interrupt+0x9d",
                    "asm_sysvec_apic_timer_interrupt+0x16",
                    "preempt_count_add+0x1b",
                    "_raw_spin_lock_irqsave+0x29",
                ],
                &send,
            ),
        ),
    ] {
        b.kernel(count, comm, TARGET, &words);
    }
    b.user(1_800, comm, &[]);
    b.user(
        100,
        comm,
        &["write+0x17", "sender+0x90", "start_thread+0x2f0"],
    );
    b.kernel(
        700,
        "kworker/u4:1",
        0,
        &[
            "preempt_count_add+0x1b",
            "process_one_work+0x1e5",
            "worker_thread+0x50",
            "ret_from_fork+0x22",
        ],
    );
    b.kernel(
        60,
        "preemptprof",
        PROFILER,
        &["preempt_count_sub+0x2c", "perf_poll+0x40"],
    );
    b.kernel(
        20,
        "preemptprof",
        PROFILER | TARGET,
        &["preempt_count_sub+0x2c", "perf_poll+0x40"],
    );
    let netdev = [
        "rcu_barrier+0x5",
        "netdev_run_todo+0x6a",
        "rtnl_unlock+0xe",
        "rtnl_delete_link+0x50",
        "rtnl_dellink+0x1d0",
        "rtnetlink_rcv_msg+0x14f",
    ];
    b.rcu("ip", 80_000_000, true, &in_syscall(&netdev));
    b.rcu("ip", 68_000_000, true, &in_syscall(&netdev));
    b.rcu(
        "sched-messaging",
        1_500_000,
        true,
        &in_syscall(&["rcu_barrier+0x5", "kmem_cache_destroy+0x31"]),
    );
    b.rcu(
        "kworker/u4:1",
        9_000_000,
        false,
        &["rcu_barrier+0x5", "ret_from_fork+0x22"],
    );

    let machine = MachineFacts {
        cpu_model: "Virtual CPU".to_owned(),
        possible_cpus: 2,
        online_cpus: 2,
        hypervisor: "none".to_owned(),
        mitigations: BTreeMap::from([(
            "spectre_v2".to_owned(),
            "Mitigation: Retpolines".to_owned(),
        )]),
        smt: "notsupported".to_owned(),
        governor: "none".to_owned(),
        cgroup_cpu_limit: None,
        steal: Some(0.001),
    };
    let command = [
        "perf",
        "bench",
        "sched",
        "messaging",
        "-g",
        "16",
        "-l",
        "1000",
    ];
    b.recording.header = Header {
        tool_version: "0.1.0".to_owned(),
        kernel: debug_preempt_facts(),
        machine: machine.clone(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        target: Target::Command,
        sampling: Sampling {
            event: "cpu-clock".to_owned(),
            evidence: Evidence::SampledTimer,
            hz: 997,
            cpus: "0-1".to_owned(),
        },
        epoch_ns: 100_000_000,
        started_unix_ns: 1_700_000_000_000_000_000,
        started_mono_ns: 1_000_000_000,
        imported: None,
    };
    b.recording.trailer = Trailer {
        run: RunInfo {
            wall_s: 5.215,
            exit_code: Some(0),
            metric: Some(Metric {
                name: "total time".to_owned(),
                value: 3.315,
                unit: "s".to_owned(),
                better: "lower".to_owned(),
            }),
        },
        probes: probes(),
        machine,
        switches: Some(SwitchCounts {
            voluntary: 120_345,
            preempted: 6_789,
        }),
        other_switches: Some(SwitchCounts::default()),
        task_switches: Vec::new(),
        ledger: None,
        idle_samples: 321,
        losses: Vec::new(),
        gaps: Vec::new(),
        overhead: Overhead {
            bpf_ns: 31_000_000,
            probe_ns: 4_200_000,
            user_ns: 12_400_000,
            setup_ns: 182_000_000,
            share: 0.0046,
            bpf_source: "kernel statistics".to_owned(),
            ..Overhead::default()
        },
        counting: None,
        warnings: Vec::new(),
        ..Trailer::default()
    };
    b.recording
}

fn probes() -> Vec<ProbeStatus> {
    let row = |wanted: &str, leg: &str, why: &str, fix: &str| ProbeStatus {
        wanted: wanted.to_owned(),
        leg: leg.to_owned(),
        why_not_better: why.to_owned(),
        fix: fix.to_owned(),
        ..ProbeStatus::default()
    };
    vec![
        row(
            "sample",
            "cpu-clock",
            "cycles: no PMU (ENOENT)",
            "run on bare metal, or give the guest a PMU",
        ),
        row("switch", "tp_btf", "", ""),
        row("rcu_barrier", "fentry", "", ""),
        row(
            "check",
            "sampled",
            "noinstr: counted at call sites (not in this version)",
            "",
        ),
    ]
}

/// The same run gone wrong in every way a report has words for.
pub fn troubled() -> Recording {
    let mut recording = messaging();
    let trailer = &mut recording.trailer;
    trailer.losses = [
        (0, "ring_full", 120),
        (1, "ring_full", 3),
        (0, "map_full", 7),
        (1, "stack_truncated", 55),
    ]
    .map(|(cpu, reason, count)| Loss {
        cpu,
        reason: reason.to_owned(),
        count,
    })
    .to_vec();
    trailer.gaps = vec![profiler::recording::Gap {
        cpu: 1,
        from_ns: 1_200_000_000,
        to_ns: 2_700_000_000,
        reason: "CPU went offline".to_owned(),
    }];
    trailer.switches = None;
    trailer.probes.retain(|probe| probe.wanted == "sample");
    trailer.probes.push(ProbeStatus {
        wanted: "switch".to_owned(),
        leg: "none".to_owned(),
        why_not_better: "tp_btf: EPERM; raw_tp: EPERM".to_owned(),
        fix: "run with CAP_BPF and CAP_PERFMON".to_owned(),
        ..ProbeStatus::default()
    });
    trailer.warnings = vec!["2.3 % of the CPUs' time was stolen by the hypervisor.".to_owned()];
    recording.header.command = vec![
        "/tmp/evil\u{1b}[2J name".to_owned(),
        String::new(),
        "it's\n".to_owned(),
    ];
    recording.comms[0] = "me\u{1b}]0;x\u{7}".to_owned();
    for sample in recording.samples.iter_mut().take(50) {
        sample.flags |= SampleFlags::KERNEL_TRUNCATED;
    }
    recording.complete = false;
    recording
}
