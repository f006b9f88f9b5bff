//! Tables for spreadsheets and data frames, as RFC 4180 has them: the options,
//! or the call sites that led into them. Fractions, not percentages.

use std::io::{self, Write};

use crate::model::report::{OptionReport, Report};
use crate::report::escape;

/// Writes one line an option, the whole catalogue. Two last lines hold the kernel
/// samples no option owns and the samples in user mode, so that the column
/// `samples` adds up to all samples of the workload.
///
/// # Errors
///
/// Whatever `out` fails with.
pub fn write_options(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(
        b"option,state,built,value,cpu_share,cpu_share_low,cpu_share_high,evidence,samples,\
          calls,ns_per_call,gain_if_off,gain_if_off_low,gain_if_off_high,how_to_turn_off\r\n",
    )?;
    for option in &report.options {
        let state = &option.option;
        let share = option.cpu_share;
        let number = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
        line(
            out,
            &[
                &state.name,
                state.state.as_str(),
                state.built.as_deref().unwrap_or_default(),
                state.value.as_deref().unwrap_or_default(),
                &number(share.map(|share| share.value)),
                &number(share.map(|share| share.low)),
                &number(share.map(|share| share.high)),
                share.map_or("", |share| share.evidence.as_str()),
                &share.map_or_else(String::new, |_| samples(option).to_string()),
                &number(option.calls.as_ref().map(|calls| calls.value)),
                &number(option.ns_per_call.map(|cost| cost.value)),
                &number(option.gain_if_off.map(|gain| gain.value)),
                &number(option.gain_if_off.map(|gain| gain.low)),
                &number(option.gain_if_off.map(|gain| gain.high)),
                &state.how_to_turn_off,
            ],
        )?;
    }
    let sampling = &report.sampling;
    let owned: u64 = report.options.iter().map(samples).sum();
    let unowned = sampling
        .samples
        .saturating_sub(sampling.user_samples)
        .saturating_sub(owned);
    for (name, count) in [
        ("(no option)", unowned),
        ("(user mode)", sampling.user_samples),
    ] {
        let count = count.to_string();
        let mut fields = [""; 15];
        (fields[0], fields[8]) = (name, &count);
        line(out, &fields)?;
    }
    Ok(())
}

/// Writes one line a call site of each option. A last line of an option, without
/// a symbol, holds its samples whose stack shows no caller, so that the column
/// `samples` adds up to what the options own. The report must hold all callers.
///
/// # Errors
///
/// Whatever `out` fails with.
pub fn write_callers(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"option,symbol,site,group,share,samples\r\n")?;
    for option in &report.options {
        let name = &option.option.name;
        for caller in &option.callers {
            line(
                out,
                &[
                    name,
                    &caller.symbol,
                    caller.site.as_deref().unwrap_or_default(),
                    caller.group.as_deref().unwrap_or_default(),
                    &caller.share.to_string(),
                    &caller.samples.to_string(),
                ],
            )?;
        }
        let known: u64 = option.callers.iter().map(|caller| caller.samples).sum();
        let rest = samples(option).saturating_sub(known);
        if rest > 0 {
            let share = rest as f64 / report.sampling.samples as f64;
            let (share, rest) = (share.to_string(), rest.to_string());
            line(out, &[name, "", "", "", &share, &rest])?;
        }
    }
    Ok(())
}

/// Samples an option owns.
pub(super) fn samples(option: &OptionReport) -> u64 {
    option.functions.iter().map(|f| f.samples).sum()
}

fn line(out: &mut dyn Write, fields: &[&str]) -> io::Result<()> {
    let fields: Vec<String> = fields.iter().map(|text| field(text)).collect();
    write!(out, "{}\r\n", fields.join(","))
}

fn field(text: &str) -> String {
    let text = escape(text);
    if text.contains([',', '"', '\r', '\n']) || text != text.trim() {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_to_themselves() {
        for (text, quoted) in [
            ("preempt_count_add", "preempt_count_add"),
            ("a,b", "\"a,b\""),
            ("say \"no\"", "\"say \"\"no\"\"\""),
            ("<b>;'", "<b>;'"),
            ("two\nlines", "two\\nlines"),
            (" lead", "\" lead\""),
        ] {
            assert_eq!(field(text), quoted);
        }
    }
}
