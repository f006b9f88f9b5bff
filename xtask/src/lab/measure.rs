//! Bare runs of workloads on a pair of kernels, and where their results are
//! kept.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use super::guest::{Guest, Step};
use super::oracle::Tools;
use super::truth::{self, Run, Truth};
use super::workloads::Workload;
use crate::host;
use crate::kernels::Kernel;

/// Two kernels that differ in one option.
#[derive(Clone, Debug)]
pub(crate) struct PairOfKernels {
    /// The pair's name.
    pub(crate) name: String,
    /// The option, as the profiler's reports name it.
    pub(crate) option: String,
    /// The kernel that has it.
    pub(crate) with: Kernel,
    /// The kernel that does not.
    pub(crate) without: Kernel,
    /// The functions that only the option calls, where known.
    pub(crate) owns: Vec<String>,
}

/// How often and with which chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Runs of each workload on each kernel.
    pub(crate) runs: u32,
    /// Boots over which the runs are spread.
    pub(crate) boots: u32,
    /// The seed of the first boot; each further boot takes the next.
    pub(crate) seed: u64,
}

impl Plan {
    /// How many runs each boot makes: as equal as can be, none without any.
    pub(crate) fn runs_of_boots(self) -> Vec<u32> {
        let boots = self.boots.clamp(1, self.runs.max(1));
        (0..boots)
            .map(|boot| self.runs / boots + u32::from(boot < self.runs % boots))
            .collect()
    }
}

/// Runs `workloads` on `kernel` with nothing but the oracle watching; the runs
/// of each, in its order.
///
/// # Errors
///
/// When a guest fails.
pub(crate) fn bare(
    kernel: &Kernel,
    tools: &Tools,
    workloads: &[Workload],
    plan: Plan,
) -> Result<Vec<Vec<Run>>> {
    let mut runs = vec![Vec::new(); workloads.len()];
    for (boot, count) in plan.runs_of_boots().into_iter().enumerate() {
        let guest = Guest {
            kernel,
            tools,
            perf: workloads.iter().any(Workload::needs_perf),
            seed: plan.seed + boot as u64,
        };
        let steps: Vec<Step> = (0..count)
            .flat_map(|run| {
                workloads
                    .iter()
                    .map(move |w| Step::marked(format!("{}-{run}", w.name), w.command))
            })
            .collect();
        eprintln!(
            "{}: boot {} of {}, {} runs of {}",
            kernel.name,
            boot + 1,
            plan.runs_of_boots().len(),
            count,
            workloads
                .iter()
                .map(|w| w.name)
                .collect::<Vec<_>>()
                .join(", ")
        );
        for (index, done) in guest.run(&steps)?.into_iter().enumerate() {
            let (Some(guest_ns), Some(window)) = (done.guest_ns, done.window) else {
                bail!("a marked step without a window");
            };
            runs[index % workloads.len()].push(Run { guest_ns, window });
        }
    }
    Ok(runs)
}

/// Finds out the truth about `workloads` on a pair of kernels, and keeps it unless
/// one of more runs is kept.
///
/// # Errors
///
/// When a guest fails or the result cannot be kept.
pub(crate) fn truths(
    pair: &PairOfKernels,
    tools: &Tools,
    workloads: &[Workload],
    plan: Plan,
) -> Result<Vec<Truth>> {
    let PairOfKernels { with, without, .. } = pair;
    let with_runs = bare(with, tools, workloads, plan)?;
    let without_runs = bare(without, tools, workloads, plan)?;
    workloads
        .iter()
        .zip(with_runs.iter().zip(&without_runs))
        .map(|(workload, (a, b))| {
            let truth = truth::compare(*workload, &pair.owns, (&with.name, a), (&without.name, b))
                .with_context(|| format!("{}: no runs to compare", workload.name))?;
            // One of more runs is the better one to score against.
            if kept(pair, &[*workload], plan.runs + 1).is_empty() {
                keep(&truth, &path(pair, *workload)?)?;
            }
            Ok(truth)
        })
        .collect()
}

/// Writes a truth where it is looked for.
fn keep(truth: &Truth, path: &Path) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(path, serde_json::to_vec(truth)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The truths that earlier calls found out about these very kernels, by the
/// name of the workload; those with too few runs are left out.
pub(crate) fn kept(
    pair: &PairOfKernels,
    workloads: &[Workload],
    runs: u32,
) -> BTreeMap<&'static str, Truth> {
    workloads
        .iter()
        .filter_map(|workload| {
            let text = fs::read(path(pair, *workload).ok()?).ok()?;
            let truth: Truth = serde_json::from_slice(&text).ok()?;
            (truth.schema == truth::SCHEMA
                && truth.command == workload.command
                && truth.with.runs.min(truth.without.runs) >= runs as usize)
                .then_some((workload.name, truth))
        })
        .collect()
}

/// Where a truth is kept: named after everything it depends on.
fn path(pair: &PairOfKernels, workload: Workload) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    for kernel in [&pair.with, &pair.without] {
        let image = fs::read(&kernel.image)
            .with_context(|| format!("cannot read {}", kernel.image.display()))?;
        hash.update(Sha256::digest(image));
    }
    for part in pair
        .owns
        .iter()
        .map(String::as_str)
        .chain([workload.command])
    {
        hash.update(part);
        hash.update([0]);
    }
    let key: String = hash.finalize()[..6]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(host::cache()?
        .join("lab-truth")
        .join(format!("{}-{key}.json", workload.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_spread_over_boots() {
        let plan = |runs, boots| {
            Plan {
                runs,
                boots,
                seed: 1,
            }
            .runs_of_boots()
        };
        assert_eq!(plan(10, 2), [5, 5]);
        assert_eq!(plan(5, 2), [3, 2]);
        assert_eq!(plan(1, 4), [1]);
        assert_eq!(plan(3, 0), [3]);
    }
}
