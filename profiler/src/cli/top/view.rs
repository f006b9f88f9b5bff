//! One screen of `top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::Key;
use crate::model::Report;
use crate::model::ledger::Times;
use crate::model::report::{Estimate, OptionReport};
use crate::recording::{Evidence, Target};
use crate::report::{count, escape, nanoseconds, percent};

/// What is shown and what of it.
pub(super) struct View {
    pub(super) report: Option<Report>,
    pub(super) window_s: u64,
    pub(super) paused: bool,
    /// The option whose callers are shown, by name: rows change places.
    selected: Option<String>,
}

impl View {
    pub(super) const fn new(window_s: u64) -> Self {
        Self {
            report: None,
            window_s,
            paused: false,
            selected: None,
        }
    }

    /// Does what a key stands for.
    pub(super) fn press(&mut self, key: Key, longest: u64) {
        match key {
            Key::Pause => self.paused = !self.paused,
            Key::Longer => self.window_s = (self.window_s * 2).min(longest),
            Key::Shorter => self.window_s = (self.window_s / 2).max(1),
            Key::Up => self.step(-1),
            Key::Down => self.step(1),
            Key::Quit => {}
        }
    }

    fn step(&mut self, by: isize) {
        let names: Vec<&str> = self
            .report
            .iter()
            .flat_map(costly)
            .map(|(option, _)| option.option.name.as_str())
            .collect();
        let at = self.position(&names).saturating_add_signed(by);
        let last = names.len().saturating_sub(1);
        self.selected = names.get(at.min(last)).map(|name| (*name).to_owned());
    }

    fn position(&self, names: &[&str]) -> usize {
        let selected = self.selected.as_deref();
        names
            .iter()
            .position(|name| Some(*name) == selected)
            .unwrap_or(0)
    }

    /// Draws the screen.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let lines = match self.report.as_ref().map(|report| &report.wakeup_latency) {
            Some(Some(_)) => 5,
            _ => 4,
        };
        let [head, options, callers, foot] = Layout::vertical([
            Constraint::Length(lines),
            Constraint::Fill(3),
            Constraint::Fill(2),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        match &self.report {
            None => frame.render_widget(Paragraph::new("waiting for the first samples ..."), head),
            Some(report) => {
                frame.render_widget(Paragraph::new(self.head(report)), head);
                self.options(frame, options, report);
                self.callers(frame, callers, report);
            }
        }
        frame.render_widget(keys(), foot);
    }

    fn head(&self, report: &Report) -> Vec<Line<'_>> {
        let kernel = &report.kernel;
        let sampling = &report.sampling;
        let whose = match &report.run.target {
            Target::Machine => "the whole machine".to_owned(),
            Target::Pids { pids } => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                format!("processes {}", pids.join(", "))
            }
            Target::Cgroup { path } => format!("cgroup {}", escape(path)),
            Target::Command => "a command".to_owned(),
        };
        let mut first = vec![
            "preemptprof top".bold(),
            format!("  {whose}, last {:.0} s", report.run.wall_s).into(),
        ];
        if self.paused {
            first.push("  paused".bold());
        }
        let hz = kernel.hz.map_or("unknown".to_owned(), |hz| hz.to_string());
        let blind = match sampling.evidence {
            Evidence::SampledTimer => "; shares are at least",
            _ => "",
        };
        let switches = match &report.switches {
            Some(switches) if switches.total > 0 => {
                let rate = |count: u64| (count as f64 / report.run.wall_s).round() as u64;
                format!(
                    "switches  {}/s: {}/s voluntary, {}/s preempted",
                    count(rate(switches.total)),
                    count(rate(switches.voluntary)),
                    count(rate(switches.preempted))
                )
            }
            Some(_) => "switches  none".to_owned(),
            None => "switches  not counted".to_owned(),
        };
        let lost = match report.loss.total {
            0 => "; nothing lost".to_owned(),
            lost => format!("; {} records lost", count(lost)),
        };
        let mut lines = vec![
            Line::from(first),
            Line::from(format!(
                "kernel    {}, preempt {}, HZ {hz}",
                escape(&kernel.release),
                kernel.preempt_model.active
            )),
            Line::from(format!(
                "samples   {} of {} at {} Hz, {} user{blind}",
                count(sampling.samples),
                escape(&sampling.event),
                sampling.hz,
                count(sampling.user_samples)
            )),
            Line::from(switches + &lost),
        ];
        if let Some(latency) = &report.wakeup_latency {
            lines.push(Line::from(waits(&latency.times, report.run.wall_s)));
        }
        lines
    }

    fn options(&self, frame: &mut Frame<'_>, area: Rect, report: &Report) {
        let costly: Vec<_> = costly(report).collect();
        let widest = costly
            .iter()
            .map(|(_, share)| share.value)
            .fold(f64::MIN_POSITIVE, f64::max);
        // Half a number would be a wrong one.
        let columns = match area.width {
            75.. => 5,
            50.. => 4,
            _ => 3,
        };
        let rows = costly.iter().map(|(option, share)| {
            let bar = (share.value / widest * 20.0).round() as usize;
            let cells = [
                Cell::from(short(option).to_owned()),
                Cell::from(option.option.state.as_str()),
                Cell::from(Line::from(format!("{} %", percent(share.value))).right_aligned()),
                Cell::from(format!("{}-{}", percent(share.low), percent(share.high))),
                Cell::from("#".repeat(bar.max(1))),
            ];
            Row::new(cells.into_iter().take(columns))
        });
        let widths = [
            Constraint::Min(12),
            Constraint::Length(7),
            Constraint::Length(8),
            Constraint::Length(12),
            Constraint::Length(20),
        ];
        let names: Vec<&str> = costly
            .iter()
            .map(|(option, _)| option.option.name.as_str())
            .collect();
        let mut state = TableState::default();
        state.select((!names.is_empty()).then(|| self.position(&names)));
        let head = ["OPTION", "STATE", "   SHARE", "95 %", ""];
        let table = Table::new(rows, widths.into_iter().take(columns))
            .header(Row::new(head.into_iter().take(columns)).style(Modifier::BOLD))
            .row_highlight_style(Modifier::REVERSED);
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn callers(&self, frame: &mut Frame<'_>, area: Rect, report: &Report) {
        let costly: Vec<_> = costly(report).collect();
        let names: Vec<&str> = costly
            .iter()
            .map(|(option, _)| option.option.name.as_str())
            .collect();
        let Some((option, _)) = costly.get(self.position(&names)) else {
            let none = "no option that is on took a sample in this time";
            return frame.render_widget(Paragraph::new(none), area);
        };
        let columns = if area.width < 60 { 2 } else { 3 };
        let rows = option.callers.iter().map(|caller| {
            let cells = [
                Cell::from(Line::from(format!("{} %", percent(caller.share))).right_aligned()),
                Cell::from(escape(caller.site.as_ref().unwrap_or(&caller.symbol)).into_owned()),
                Cell::from(caller.group.clone().unwrap_or_default()),
            ];
            Row::new(cells.into_iter().take(columns))
        });
        let widths = [
            Constraint::Length(8),
            Constraint::Min(20),
            Constraint::Length(20),
        ];
        let head = [
            "   SHARE".to_owned(),
            format!("{} IS CALLED FROM", short(option)),
            "GROUP".to_owned(),
        ];
        let table = Table::new(rows, widths.into_iter().take(columns))
            .header(Row::new(head.into_iter().take(columns)).style(Modifier::BOLD));
        frame.render_widget(table, area);
    }
}

/// How long woken tasks waited for a CPU, one line.
fn waits(times: &Times, wall_s: f64) -> String {
    let rate = (times.count as f64 / wall_s).round() as u64;
    let (Some(half), Some(most), Some(longest)) = (times.p50_ns, times.p99_ns, times.max_ns) else {
        return "wake-ups  none".to_owned();
    };
    format!(
        "wake-ups  {}/s waited: half {}, 99 % {}, longest {}",
        count(rate),
        nanoseconds(half),
        nanoseconds(most),
        nanoseconds(longest)
    )
}

fn keys() -> Line<'static> {
    let key = |name: &'static str| Span::styled(name, Style::new().bold());
    Line::from(vec![
        key("q"),
        " quit  ".into(),
        key("up/down"),
        " option  ".into(),
        key("+/-"),
        " longer or shorter time  ".into(),
        key("p"),
        " pause".into(),
    ])
}

/// Options with a share, the most costly first, as a report has them.
fn costly(report: &Report) -> impl Iterator<Item = (&OptionReport, Estimate)> {
    report
        .options
        .iter()
        .filter_map(|option| Some((option, option.cpu_share.filter(|s| s.value > 0.0)?)))
}

fn short(option: &OptionReport) -> &str {
    let name = &option.option.name;
    name.strip_prefix("CONFIG_").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::catalog::{OptionState, State};
    use crate::model::ledger::WakeupLatency;
    use crate::model::report::{CallerShare, Kernel, Run, SCHEMA, SamplingReport, Switches};

    fn option(name: &str, value: f64, caller: &str) -> OptionReport {
        OptionReport {
            option: OptionState {
                name: name.to_owned(),
                state: State::Y,
                ..OptionState::default()
            },
            cpu_share: Some(Estimate {
                value,
                low: value * 0.9,
                high: value * 1.1,
                evidence: Evidence::SampledTimer,
            }),
            callers: vec![CallerShare {
                symbol: caller.to_owned(),
                share: value,
                samples: 10,
                group: Some("locking".to_owned()),
                ..CallerShare::default()
            }],
            ..OptionReport::default()
        }
    }

    fn report() -> Report {
        Report {
            schema: SCHEMA.to_owned(),
            kernel: Kernel {
                release: "6.1.192".to_owned(),
                hz: Some(250),
                ..Kernel::default()
            },
            run: Run {
                target: Target::Machine,
                wall_s: 10.0,
                ..Run::default()
            },
            sampling: SamplingReport {
                event: "cpu-clock".to_owned(),
                hz: 997,
                samples: 12_345,
                user_samples: 678,
                ..SamplingReport::default()
            },
            switches: Some(Switches {
                total: 50_000,
                voluntary: 40_000,
                preempted: 10_000,
                ..Switches::default()
            }),
            options: vec![
                option("CONFIG_DEBUG_PREEMPT", 0.0672, "_raw_spin_lock"),
                option("CONFIG_PREEMPT_RCU", 0.007, "evil\u{1b}[31m"),
                option("CONFIG_PSI", 0.0, "nobody"),
            ],
            ..Report::default()
        }
    }

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn fits_80_columns_and_24_rows() {
        let mut view = View::new(10);
        assert!(screen(&view, 80, 24).contains("waiting for the first samples"));
        view.report = Some(report());
        let first = screen(&view, 80, 24);
        for text in [
            "the whole machine, last 10 s",
            "preempt unknown, HZ 250",
            "12,345 of cpu-clock at 997 Hz, 678 user; shares are at least",
            "5,000/s: 4,000/s voluntary, 1,000/s preempted; nothing lost",
            "DEBUG_PREEMPT                 y          6.7 % 6.0-7.4      ####################",
            "PREEMPT_RCU                   y         0.70 %",
            "DEBUG_PREEMPT IS CALLED FROM",
            "_raw_spin_lock",
            "q quit  up/down option  +/- longer or shorter time  p pause",
        ] {
            assert!(first.contains(text), "no {text}:\n{first}");
        }
        assert!(!first.contains("PSI"));
        assert!(!first.contains("wake-ups"));
        let times = Times {
            count: 123_450,
            p50_ns: Some(4_200),
            p99_ns: Some(1_300_000),
            max_ns: Some(12_000_000),
            ..Times::default()
        };
        view.report.as_mut().unwrap().wakeup_latency = Some(WakeupLatency {
            times,
            ..WakeupLatency::default()
        });
        let line = "wake-ups  12,345/s waited: half 4.20 us, 99 % 1.30 ms, longest 12.0 ms";
        let with_waits = screen(&view, 80, 24);
        assert!(with_waits.contains(line), "{with_waits}");
        view.press(Key::Down, 60);
        view.press(Key::Pause, 60);
        let second = screen(&view, 80, 24);
        for text in ["PREEMPT_RCU IS CALLED FROM", "evil\\x1b[31m", "paused"] {
            assert!(second.contains(text), "no {text}:\n{second}");
        }
    }

    #[test]
    fn keys_stay_within_what_there_is() {
        let mut view = View::new(10);
        view.press(Key::Down, 60);
        view.report = Some(report());
        for _ in 0..5 {
            view.press(Key::Down, 60);
            view.press(Key::Longer, 60);
        }
        assert_eq!(view.selected.as_deref(), Some("CONFIG_PREEMPT_RCU"));
        assert_eq!(view.window_s, 60);
        for _ in 0..9 {
            view.press(Key::Up, 60);
            view.press(Key::Shorter, 60);
        }
        assert_eq!(view.selected.as_deref(), Some("CONFIG_DEBUG_PREEMPT"));
        assert_eq!(view.window_s, 1);
    }

    #[test]
    fn narrow_terminals_have_whole_numbers() {
        let mut view = View::new(10);
        view.report = Some(report());
        for width in [40, 50, 60, 75] {
            let screen = screen(&view, width, 24);
            for text in ["SHARE", " 6.7 %", "DEBUG_PREEMPT ", "_raw_spin_lock"] {
                assert!(screen.contains(text), "{width}: no {text}:\n{screen}");
            }
        }
    }

    #[test]
    fn small_terminals_do_not_panic() {
        let mut view = View::new(10);
        view.report = Some(report());
        for (width, height) in [(1, 1), (10, 3), (20, 5), (300, 2), (3, 100)] {
            screen(&view, width, height);
        }
    }
}
