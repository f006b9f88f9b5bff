//! Runs of preemptprof in a guest that several checks judge: a start of it is what is
//! dear in an emulator, not what it watches.

use std::ops::RangeInclusive;

use super::checks::Subject;
use crate::vm::SHARE;

/// Round trips of the pipe benchmark.
pub(super) const ROUND_TRIPS: u64 = 400;
/// Waits of the timers benchmark.
pub(super) const WAITS: u64 = 20;

/// Shell functions that every check has.
///
/// `under N` switches to the N-th preemption model, counted on from the first when
/// there are fewer and from `TURN` on, and closes debugfs, as lockdown does; `said
/// FILE` takes down what a document of preemptprof says of the model, and opens
/// debugfs again. Both do nothing where the model is fixed. So models are switched
/// and read from memory without a run of their own.
///
/// `trace_calls FUNCTION...` has the function tracer see calls, and `calls_traced`
/// prints those.
const PRELUDE: &str = r#"
under() {
    [ -e /sys/kernel/debug/sched/preempt ] || return 0
    set -- $1 $(tr -d '()' </sys/kernel/debug/sched/preempt)
    shift $((($1 - 1 + TURN) % ($# - 1) + 1))
    echo $1 >/sys/kernel/debug/sched/preempt || exit 1
    echo "$1: $(cat /sys/kernel/debug/sched/preempt)" >>/tmp/switched
    echo $1 >/tmp/model
    umount /sys/kernel/debug || exit 1
}
said() {
    [ -e /tmp/model ] || return 0
    echo "$(cat /tmp/model) $(tr -d '\n ' <$1 | sed 's/.*"preempt_model":{\([^}]*\)}.*/\1/')" >>/tmp/said
    rm /tmp/model
    mount -t debugfs none /sys/kernel/debug || exit 1
}
trace_calls() {
    cd /sys/kernel/tracing || exit 1
    echo 0 >tracing_on; echo >trace; echo >set_ftrace_filter
    for function; do echo $function >>set_ftrace_filter || exit 1; done
    echo function >current_tracer || exit 1
    echo 1 >tracing_on
}
calls_traced() {
    echo 0 >tracing_on; cat trace
    echo nop >current_tracer; echo >set_ftrace_filter; echo 1 >tracing_on
}
"#;

/// What is watched: benchmarks of which it is known what they do. Tasks that ended
/// and that nobody waits for keep their counts in `/proc/PID/status`, to the last
/// switch: so the root turns into one that never waits, until they were read.
const TREE: &str = "\
preemptprof bench pipe --same-cpu -l 400 >/dev/null & a=$!
preemptprof bench messaging -t -g 1 -l 5 >/dev/null & b=$!
yes | head -c 400000 | cat >/dev/null & c=$!
preemptprof bench timers --via socket --wait-ms 1 -n 20 >/dev/null & d=$!
(exec >/tmp/hold
for p in $a $b $c $d; do until grep -q '^State:.Z' /proc/$p/status; do sleep 0.2; done; done
sleep 0.5
for s in /proc/[0-9]*/status; do ! grep -q '^State:.Z' $s || cat $s; done >/tmp/counts) &
exec cat /tmp/hold
";

/// Network namespaces end, which makes kernel workers call rcu_barrier and
/// synchronize_rcu_expedited; the function tracer sees every call, and marks say which
/// were made while the profiler was surely attached. It ends when no call was made for
/// a while; one that comes all the same has time to return.
const NAMESPACES: &str = "\
cd /sys/kernel/tracing || exit 1
echo begin >trace_marker
before=$(grep -c 'rcu_barrier <-' trace)
for i in 1 2 3; do unshare -n true; done
was=0 tries=0
while [ $tries -lt 20 ]; do
    sleep 0.4; now=$(grep -c 'rcu_barrier <-' trace)
    [ $now -gt $before ] && [ $now = $was ] && break
    was=$now tries=$((tries + 1))
done
echo end >trace_marker
sleep 0.2
";

/// A run of the benchmarks, and what the kernel says of their tasks.
pub(super) fn watched(part: &str) -> String {
    format!(
        "under 2; mkfifo /tmp/hold || exit 1\n\
         preemptprof run --ledger --max-overhead 10 --format json --report /tmp/watched.json -- \
         sh /vm/tree >/tmp/own 2>&1 || {{ cat /tmp/own; exit 1; }}\n\
         said /tmp/watched.json; cat /tmp/watched.json; echo {part}; cat /tmp/counts"
    )
}

/// A run of the whole machine while network namespaces end, and what the function
/// tracer saw.
pub(super) fn machine(part: &str) -> String {
    format!(
        "trace_calls rcu_barrier synchronize_rcu_expedited; under 3\n\
         preemptprof run -a --ledger --count off --format json --report /tmp/machine.json -- \
         sh /vm/namespaces || exit 1\n\
         said /tmp/machine.json; cat /tmp/machine.json; echo {part}; calls_traced"
    )
}

/// The script of a check that judges what [`source`] printed.
pub(super) fn as_before(_: &Subject) -> String {
    String::new()
}

/// The check that prints what a check judges.
pub(super) fn source(check: &'static str) -> &'static str {
    match check {
        "counting" | "ledger" | "switches-by-task" | "ledger-timers" => "switches",
        "synchronize_rcu" => "rcu_barrier",
        own => own,
    }
}

/// The files that the shared runs need in the guest, by path.
pub(super) const FILES: [(&str, &str); 2] = [("/vm/tree", TREE), ("/vm/namespaces", NAMESPACES)];

/// The first of the models is another one on some kernels, so that the run that is
/// compared with the kernel's own counts is made under each of them on one.
const TURNS: [(&str, u32); 4] = [("6.1", 1), ("6.12", 2), ("7.3-rt", 1), ("6.1-plain", 1)];

/// What goes before the script of each check.
pub(super) fn prelude(subject: &Subject) -> String {
    let name = subject.name.trim_start_matches("vm/");
    let turn = TURNS.iter().find(|(kernel, _)| *kernel == name);
    let turn = turn.map_or(0, |(_, turn)| *turn);
    format!("TURN={turn}\n{PRELUDE}")
}

/// A recording of the pipe benchmark without the kernel's BTF, where other legs do
/// the same. The host judges it.
pub(super) fn record(file: &str) -> String {
    format!(
        "mount -t tmpfs none /sys/kernel/btf || exit 1\n\
         preemptprof record --count off -o {SHARE}/{file} -- \
         preemptprof bench pipe --same-cpu -l {ROUND_TRIPS} >/dev/null\n\
         status=$?; umount /sys/kernel/btf; exit $status"
    )
}

/// Calls of rcu_barrier without the kernel's BTF, and what the function tracer saw.
pub(super) fn barriers_without_btf(part: &str) -> String {
    format!(
        "trace_calls rcu_barrier; mount -t tmpfs none /sys/kernel/btf || exit 1\n\
         preemptprof run -a --count off --format json --report /tmp/legs.json -- \
         sh /vm/namespaces || exit 1\n\
         umount /sys/kernel/btf; cat /tmp/legs.json; echo {part}; calls_traced"
    )
}

/// How often the function tracer saw a function called: while the profiler was surely
/// attached, and at the most, from before it was until after.
pub(super) fn traced(trace: &str, function: &str) -> RangeInclusive<u64> {
    let called = format!(": {function} <-");
    let (mut least, mut most, mut inside) = (0, 0, false);
    for line in trace.lines() {
        if line.ends_with("mark_write: begin") {
            inside = true;
        } else if line.ends_with("mark_write: end") {
            inside = false;
        } else if line.contains(&called) {
            most += 1;
            least += u64::from(inside);
        }
    }
    least..=most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_by_when_they_were_made() {
        let call = "kworker/u4:1-31 [000] ..... 7.1: rcu_barrier <-cleanup_net\n";
        let other = "kworker/u4:1-31 [000] ..... 7.1: rcu_barrier_func <-x\n";
        let mark = |name: &str| format!("sh-9 [000] ..... 7.2: tracing_mark_write: {name}\n");
        let (begin, end) = (mark("begin"), mark("end"));
        let trace = format!("{call}{begin}{call}{other}{call}{end}{call}");
        assert_eq!(traced(&trace, "rcu_barrier"), 2..=4);
        assert_eq!(traced("", "rcu_barrier"), 0..=0);
    }

    #[test]
    fn the_prelude_goes_through_all_models() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        // A plain file does not mark what was written into it.
        let script = PRELUDE
            .replace("/tmp/", &at(""))
            .replace("/sys/kernel/debug/sched/preempt", &at("models"));
        let body = "mount() { echo \"none (voluntary) full\" >$M; }; umount() { :; }\n\
             for n in 1 2 3 4; do mount; under $n; said $D; done; cat $S";
        let document = at("document");
        std::fs::write(
            &document,
            "{\n \"kernel\": {\"preempt_model\": {\n\"active\": \"full\"}}}",
        )
        .unwrap();
        let output = std::process::Command::new("sh")
            .args(["-c", &format!("{script}\n{body}")])
            .env("M", at("models"))
            .env("D", document)
            .env("S", at("said"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            text,
            "none \"active\":\"full\"\nvoluntary \"active\":\"full\"\n\
             full \"active\":\"full\"\nnone \"active\":\"full\"\n",
            "{output:?}"
        );
    }

    #[test]
    fn the_workload_is_what_the_checks_expect() {
        assert!(TREE.contains(&format!("pipe --same-cpu -l {ROUND_TRIPS} ")));
        assert!(TREE.contains(&format!("--wait-ms 1 -n {WAITS} ")));
    }
}
