//! What the options that differ predict, and what was seen of them.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{CallerDiff, Explained, MetricDiff, OptionDiff, Predicted, SiteDiff};
use super::side::{Caller, Owned, Side};
use crate::model::report::Estimate;
use crate::recording::Evidence;

/// Options that differ or took time: those that differ first, each part by the
/// time they took.
pub(super) fn options(base: &Side, new: &Side) -> Vec<OptionDiff> {
    let none = Owned::default();
    let names: BTreeSet<&String> = base.options.keys().chain(new.options.keys()).collect();
    let mut found: Vec<OptionDiff> = names
        .into_iter()
        .filter_map(|name| {
            let a = base.options.get(name).unwrap_or(&none);
            let b = new.options.get(name).unwrap_or(&none);
            let states = (text(a), text(b));
            let differs = states.0 != states.1;
            let is_idle = a.samples + b.samples == 0 && a.gain.or(b.gain).is_none();
            if !differs && is_idle {
                return None;
            }
            Some(OptionDiff {
                name: name.clone(),
                differs,
                base_share: a.share,
                new_share: b.share,
                predicted: predicted(a, b),
                observed: observed(base, new, a, b),
                base: states.0,
                new: states.1,
            })
        })
        .collect();
    let time = |option: &OptionDiff| {
        let share = |share: Option<Estimate>| share.map_or(0.0, |share| share.value);
        share(option.base_share).max(share(option.new_share))
    };
    found.sort_by(|a, b| {
        b.differs
            .cmp(&a.differs)
            .then(time(b).total_cmp(&time(a)))
            .then_with(|| a.name.cmp(&b.name))
    });
    found
}

/// The state, or the value of an option that has one.
fn text(option: &Owned) -> String {
    if let Some(value) = &option.state.value {
        return value.clone();
    }
    match option.state.state {
        crate::catalog::State::Y => "y",
        crate::catalog::State::N => "n",
        crate::catalog::State::M => "m",
        crate::catalog::State::Unknown => "unknown",
    }
    .to_owned()
}

/// What the side that has the option on predicts of a run without it.
fn predicted(base: &Owned, new: &Owned) -> Option<Predicted> {
    use crate::catalog::State::N;
    let on = |option: &Owned| option.state.state.is_on();
    let off = |option: &Owned| option.state.state == N;
    if on(base) && off(new) {
        let (gain, from) = gain(base)?;
        Some(Predicted {
            value: -gain.value,
            low: -gain.high,
            high: -gain.low,
            evidence: gain.evidence,
            from: from.to_owned(),
            at_least: is_bound(&gain, from),
        })
    } else if off(base) && on(new) {
        // Of the new's time, gain is the option's: the base is what is left.
        let (gain, from) = gain(new)?;
        let dearer = |gain: f64| gain / (1.0 - gain.clamp(0.0, 0.99));
        Some(Predicted {
            value: dearer(gain.value),
            low: dearer(gain.low),
            high: dearer(gain.high),
            evidence: gain.evidence,
            from: from.to_owned(),
            at_least: is_bound(&gain, from),
        })
    } else {
        None
    }
}

fn gain(option: &Owned) -> Option<(Estimate, &'static str)> {
    match option.gain {
        Some(gain) => Some((gain, "gain_if_off")),
        None => option.share.map(|share| (share, "cpu_share")),
    }
}

/// A timer's share is the least that the option takes.
fn is_bound(gain: &Estimate, from: &str) -> bool {
    from == "cpu_share" && gain.evidence == Evidence::SampledTimer
}

/// The change of the CPU time sampled in an option, a unit of work, as a fraction
/// of all the base's.
fn observed(base: &Side, new: &Side, a: &Owned, b: &Owned) -> Option<Estimate> {
    let whole = base.time_of_work();
    // An option that is off is sampled in neither.
    if whole <= 0.0 || new.samples == 0 || a.share.or(b.share).is_none() {
        return None;
    }
    let scale = new.time_of_work() / whole;
    let part = |share: Option<Estimate>, scale: f64| {
        share.map_or((0.0, 0.0), |share| {
            let spread = (share.high - share.low) / 2.0;
            (share.value * scale, spread * scale)
        })
    };
    let (before, before_spread) = part(a.share, 1.0);
    let (after, after_spread) = part(b.share, scale);
    let spread = before_spread.hypot(after_spread);
    let value = after - before;
    Some(Estimate {
        value,
        low: value - spread,
        high: value + spread,
        evidence: base.first.sampling.evidence,
    })
}

/// How much of the metric's change the options' predictions make. `None` when
/// they predict nothing, or there is no change that chance would not make.
pub(super) fn explained(
    metric: Option<&MetricDiff>,
    options: &[OptionDiff],
    base: &Side,
    new: &Side,
) -> Option<Explained> {
    let metric = metric?;
    let change = metric.time_change();
    // Where there are too few runs to tell, the reader is told so.
    if change == 0.0 || (metric.can_be_significant() && !metric.significant) {
        return None;
    }
    let included: BTreeSet<&String> = options
        .iter()
        .filter(|option| {
            let predicted = option.predicted.as_ref();
            predicted.is_some_and(|predicted| predicted.from == "gain_if_off")
        })
        .flat_map(|option| {
            [base, new]
                .into_iter()
                .filter_map(|side| side.options.get(&option.name))
                .flat_map(|owned| &owned.state.includes)
        })
        .collect();
    // Each option leaves so much of the time; the spreads are those of logarithms.
    let mut log = 0.0;
    let (mut below, mut above) = (0.0_f64, 0.0_f64);
    let mut at_least = false;
    let mut any = false;
    for option in options {
        // What goes off with another one is in that one's gain.
        let Some(predicted) = &option.predicted else {
            continue;
        };
        if included.contains(&option.name) {
            continue;
        }
        any = true;
        at_least |= predicted.at_least;
        let of = |value: f64| value.max(-0.99).ln_1p();
        log += of(predicted.value);
        below = below.hypot(of(predicted.value) - of(predicted.low));
        above = above.hypot(of(predicted.high) - of(predicted.value));
    }
    if !any {
        return None;
    }
    let total = log.exp_m1();
    let fraction = total / change;
    // The uncertainties of prediction and measurement, as of a quotient.
    let predicted = ((log + above).exp_m1() - (log - below).exp_m1()) / 2.0;
    let measured = metric
        .time_interval()
        .map_or(0.0, |(low, high)| (high - low) / 2.0);
    let spread = (predicted / change).hypot(fraction * measured / change);
    Some(Explained {
        fraction,
        low: fraction - spread,
        high: fraction + spread,
        at_least,
    })
}

/// Callers of options' functions, the greatest change first.
pub(super) fn callers(base: &Side, new: &Side) -> Vec<CallerDiff> {
    let whole = base.time_of_work();
    let change = |a: f64, b: f64| {
        if whole > 0.0 {
            (b / new.work() - a / base.work()) / whole
        } else {
            0.0
        }
    };
    let none = Owned::default();
    let nobody = Caller::default();
    let mut found = Vec::new();
    let names: BTreeSet<&String> = base.options.keys().chain(new.options.keys()).collect();
    for name in names {
        let a = &base.options.get(name).unwrap_or(&none).callers;
        let b = &new.options.get(name).unwrap_or(&none).callers;
        let symbols: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for symbol in symbols {
            let a = a.get(symbol).unwrap_or(&nobody);
            let b = b.get(symbol).unwrap_or(&nobody);
            found.push(CallerDiff {
                option: name.clone(),
                symbol: symbol.clone(),
                group: a.group.clone().or_else(|| b.group.clone()),
                base_share: base.share(a.time_s),
                new_share: new.share(b.time_s),
                change: change(a.time_s, b.time_s),
                sites: sites(&a.sites, &b.sites, base, new, &change),
            });
        }
    }
    found.sort_by(|a, b| {
        greater(a.change, b.change)
            .then(b.base_share.total_cmp(&a.base_share))
            .then_with(|| (&a.symbol, &a.option).cmp(&(&b.symbol, &b.option)))
    });
    found
}

/// The greater change first; what differs by rounding alone is the same.
fn greater(a: f64, b: f64) -> std::cmp::Ordering {
    let whole = |change: f64| (change.abs() * 1e9).round();
    whole(b).total_cmp(&whole(a))
}

fn sites(
    a: &BTreeMap<String, f64>,
    b: &BTreeMap<String, f64>,
    base: &Side,
    new: &Side,
    change: &dyn Fn(f64, f64) -> f64,
) -> Vec<SiteDiff> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let time_s = |of: &BTreeMap<String, f64>, name: &String| of.get(name).copied().unwrap_or(0.0);
    let mut found: Vec<SiteDiff> = names
        .into_iter()
        .map(|name| {
            let (a, b) = (time_s(a, name), time_s(b, name));
            SiteDiff {
                site: name.clone(),
                base_share: base.share(a),
                new_share: new.share(b),
                change: change(a, b),
            }
        })
        .collect();
    found.sort_by(|a, b| greater(a.change, b.change).then_with(|| a.site.cmp(&b.site)));
    found
}
