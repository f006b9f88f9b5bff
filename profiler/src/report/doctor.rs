//! What this host lets the profiler do: `preemptprof/doctor/1`.

use anstyle::Style;
use serde::{Deserialize, Serialize};

use super::page::{Page, STRONG, WARNING};
use super::quality::probe_row;
use super::text::{TextOptions, kernel_line};
use crate::kernel::{KernelFacts, MachineFacts};
use crate::model::report::Kernel;
use crate::probes::{ProbeStatus, ProgramInfo};

/// The value of [`Doctor::schema`].
pub const SCHEMA: &str = "preemptprof/doctor/1";

/// What a host offers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Doctor {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Whether the main job can run.
    pub ready: bool,
    /// The running kernel.
    pub kernel: Kernel,
    /// The machine.
    pub machine: MachineFacts,
    /// What the kernel and the caller's privileges allow, in the same form as
    /// `probes`.
    pub capabilities: Vec<ProbeStatus>,
    /// Each measurement and the leg it would use.
    pub probes: Vec<ProbeStatus>,
    /// The programs those legs load.
    pub programs: Vec<ProgramInfo>,
}

impl Doctor {
    /// The document. `ready` says whether the main job can run: the sampler has
    /// a leg.
    pub fn new(
        kernel: &KernelFacts,
        machine: &MachineFacts,
        capabilities: Vec<ProbeStatus>,
        probes: Vec<ProbeStatus>,
        ready: bool,
    ) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            ready,
            kernel: Kernel::from(kernel),
            machine: machine.clone(),
            capabilities,
            probes,
            programs: Vec::new(),
        }
    }
}

/// The document as text, one row for each capability and probe.
pub fn render(doctor: &Doctor, options: &TextOptions) -> String {
    let mut page = Page::new(options.width, options.color);
    if doctor.ready {
        page.line(0, "The main job can run here.", STRONG);
    } else {
        page.line(0, "The main job cannot run here.", WARNING.bold());
    }
    let kernel = kernel_line(&doctor.kernel);
    page.labelled(9, "kernel", &kernel, Style::new());
    for (heading, rows) in [
        ("CAPABILITY", &doctor.capabilities),
        ("PROBE", &doctor.probes),
    ] {
        if rows.is_empty() {
            continue;
        }
        page.blank();
        let last = if heading == "PROBE" { "LEG" } else { "FOUND" };
        let rows: Vec<_> = rows.iter().map(probe_row).collect();
        page.table(
            &[heading, last, "WHY NOT BETTER, AND THE FIX"],
            &rows,
            |_, _| {},
        );
    }
    page.finish()
}
