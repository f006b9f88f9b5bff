//! `preemptprof doctor` and `preemptprof options`: the host, unmeasured.

use std::io;
use std::path::Path;

use super::args::Format;
use super::attach;
use super::terminal;
use crate::catalog::Catalog;
use crate::host::Host;
use crate::probes::ProbeStatus;
use crate::report::{doctor, json, options};

/// Says what can be measured here; status 1 when the main job cannot run.
pub(super) fn doctor(format: Format) -> anyhow::Result<u8> {
    let host = Host::gather();
    // Attaching is the only proof that something can be attached. It is what
    // `run` would attach, for a moment and to nothing that is watched.
    let rehearsal = Host::check_privileges().and_then(|()| attach::rehearse(&host));
    let ready = rehearsal.is_ok();
    let (probes, programs) =
        rehearsal.unwrap_or_else(|error| (vec![no_sampler(&error)], Vec::new()));
    let mut document = doctor::Doctor::new(
        &host.facts.kernel,
        &host.facts.machine,
        host.capabilities(),
        probes,
        ready,
    );
    document.programs = programs;
    let rendered = match format {
        Format::Text => doctor::render(&document, &terminal::layout(&io::stdout(), 0)),
        Format::Json => json::render(&document)?,
    };
    terminal::print(&rendered)?;
    Ok(if ready { 0 } else { 1 })
}

fn no_sampler(error: &anyhow::Error) -> ProbeStatus {
    ProbeStatus {
        wanted: "sample".to_owned(),
        leg: "none".to_owned(),
        why_not_better: format!("{error:#}"),
        fix: crate::error::hints(error).join("; "),
        ..ProbeStatus::default()
    }
}

/// Lists the catalogue with the state of each option.
pub(super) fn options(format: Format) -> anyhow::Result<u8> {
    let facts = Host::facts_without_privileges(Path::new("/"));
    let document = options::Options::new(Catalog::builtin(), &facts);
    let rendered = match format {
        Format::Text => options::render(&document, &terminal::layout(&io::stdout(), 0)),
        Format::Json => json::render(&document)?,
    };
    terminal::print(&rendered)?;
    Ok(0)
}
