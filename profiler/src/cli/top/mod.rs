//! `preemptprof top`: the options' shares of the last seconds, live.
//!
//! The record loop is that of `run`; this is a sink for it and a thread that
//! shows what the sink keeps.

mod view;

use std::cell::RefCell;
use std::io::{self, IsTerminal as _};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::view::View;
use super::args::{Count, MeasureArgs, TopArgs};
use super::measure::{Measured, measure};
use super::repeat::Occasion;
use crate::catalog::Catalog;
use crate::error::hinted;
use crate::model::{self, AnalyseOptions, Attribution, Knowledge, Report};
use crate::recording::{Header, Window, WindowSink};

/// The longest window, seconds; the sink keeps as much.
const LONGEST: u64 = 60;
/// How often the screen is drawn anew.
const REDRAW: Duration = Duration::from_secs(1);
/// How long a key may wait.
const KEY: Duration = Duration::from_millis(100);
/// Names and stacks are forgotten, by attaching anew, when they take this much.
const MAX_TABLES: usize = 256 << 20;

/// Shows the last seconds until a key or a signal ends it.
pub(super) fn top(args: &TopArgs, began: Instant) -> anyhow::Result<u8> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(hinted(
            "top needs a terminal",
            ["sudo preemptprof run -a --duration 10 reports ten seconds without one"],
        ));
    }
    let measure_args = MeasureArgs {
        frequency: args.frequency,
        all: args.pid.is_empty() && args.cgroup.is_none(),
        pid: args.pid.clone(),
        cgroup: args.cgroup.clone(),
        cpus: args.cpus.clone(),
        duration: args.duration,
        ledger: args.ledger,
        // What is counted is known when a run ends: a window has none of it.
        count: Count::Off,
        ..MeasureArgs::default()
    };
    let stop = Arc::new(Stop::default());
    let mut began = began;
    let mut occasion = Occasion::begin(&measure_args.repeat)?;
    loop {
        let screen = RefCell::new(None);
        let window_s = args.window.clamp(1, LONGEST);
        let measured = measure(
            &measure_args,
            0,
            began,
            &mut occasion,
            |header| {
                let sink = WindowSink::new(header, LONGEST * 1_000_000_000);
                let opened = Screen::open(header, sink.window(), window_s, &stop)?;
                screen.replace(Some(opened));
                Ok(sink)
            },
            drop,
        );
        // The terminal first, whatever came of it: the error is to be read.
        let shown = screen.take().map(Screen::close);
        match measured? {
            Measured::Done(_) => {}
            Measured::Nothing(refused) => return Err(refused.error),
        }
        if let Some(shown) = shown {
            shown?;
        }
        if !stop.take_anew() {
            return Ok(0);
        }
        began = Instant::now();
    }
}

/// Why the screen ends.
#[derive(Debug, Default)]
struct Stop(AtomicU8);

const RUNNING: u8 = 0;
const ENDED: u8 = 1;
const ANEW: u8 = 2;

impl Stop {
    fn is_running(&self) -> bool {
        self.0.load(Ordering::SeqCst) == RUNNING
    }

    /// Ends the run too: its loop reads signals.
    fn end(&self, why: u8) {
        self.0.store(why, Ordering::SeqCst);
        // SAFETY: a signal to ourselves; it is blocked and read by the loop.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    }

    /// Whether to attach anew, now that the run has ended.
    fn take_anew(&self) -> bool {
        self.0.swap(RUNNING, Ordering::SeqCst) == ANEW
    }
}

/// Set when a panic has given the terminal back: nothing is drawn after that.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// The thread that owns the terminal.
struct Screen {
    thread: JoinHandle<io::Result<()>>,
    closing: Arc<AtomicBool>,
}

impl Screen {
    fn open(
        header: &Header,
        window: Window,
        window_s: u64,
        stop: &Arc<Stop>,
    ) -> anyhow::Result<Self> {
        let mut terminal = ratatui::try_init().context("cannot set the terminal up")?;
        // After that of ratatui, which restores the terminal.
        let restore = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICKED.store(true, Ordering::SeqCst);
            restore(info);
        }));
        let knowledge = Knowledge::new(Catalog::builtin(), &header.kernel);
        let closing = Arc::new(AtomicBool::new(false));
        let (stop, closed) = (Arc::clone(stop), Arc::clone(&closing));
        let thread = thread::Builder::new()
            .name("top".to_owned())
            .spawn(move || {
                // However this thread ends, the run ends with it.
                let ending = Ending(&stop);
                let shown = show(&mut terminal, &window, &knowledge, window_s, &stop, &closed);
                drop(ending);
                shown
            })
            .inspect_err(|_| ratatui::restore())
            .context("cannot start a thread")?;
        Ok(Self { thread, closing })
    }

    /// Gives the terminal back.
    fn close(self) -> anyhow::Result<()> {
        self.closing.store(true, Ordering::SeqCst);
        let ended = self.thread.join();
        ratatui::restore();
        match ended {
            Ok(shown) => shown.context("cannot draw on the terminal"),
            Err(_) => Err(anyhow::anyhow!("top has a bug: see the message above")),
        }
    }
}

/// Ends the run when it goes out of scope, in a panic too.
struct Ending<'s>(&'s Stop);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if self.0.is_running() {
            self.0.end(ENDED);
        }
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    window: &Window,
    knowledge: &Knowledge,
    window_s: u64,
    stop: &Stop,
    closing: &AtomicBool,
) -> io::Result<()> {
    let mut view = View::new(window_s);
    let mut drawn: Option<Instant> = None;
    let mut more = false;
    let mut size = ratatui::crossterm::terminal::size()?;
    while stop.is_running() && !closing.load(Ordering::SeqCst) && !PANICKED.load(Ordering::SeqCst) {
        if drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW) {
            if !view.paused {
                view.report = report(window, knowledge, view.window_s);
            }
            terminal.draw(|frame| view.draw(frame))?;
            drawn = Some(Instant::now());
        }
        if window.table_bytes() > MAX_TABLES {
            stop.end(ANEW);
        }
        let input = wait_for_input(if more { Duration::ZERO } else { KEY })?;
        let new_size = ratatui::crossterm::terminal::size()?;
        if new_size != size {
            (size, drawn) = (new_size, None);
        }
        match input {
            Input::Gone => return Ok(()),
            Input::None if !more => continue,
            Input::None | Input::Some => {}
        }
        // Keys that came together were all taken from stdin with the first.
        more = event::poll(Duration::ZERO)?;
        if !more {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => match key_of(key) {
                Some(Key::Quit) => stop.end(ENDED),
                Some(key) => view.press(key, LONGEST),
                None => {}
            },
            Event::Resize(..) => {}
            _ => continue,
        }
        drawn = None;
    }
    Ok(())
}

/// What stdin has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    None,
    Some,
    /// Nothing any more: the terminal was closed.
    Gone,
}

/// Waits for input. The reader of keys must not: once the terminal is closed it
/// reads nothing from it for ever, and nothing ends that.
fn wait_for_input(patience: Duration) -> io::Result<Input> {
    let mut stdin = libc::pollfd {
        fd: libc::STDIN_FILENO,
        events: libc::POLLIN,
        revents: 0,
    };
    let patience = patience.as_millis().try_into().unwrap_or(libc::c_int::MAX);
    // SAFETY: one descriptor, which `stdin` describes.
    match unsafe { libc::poll(&raw mut stdin, 1, patience) } {
        0 => Ok(Input::None),
        1 if stdin.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 => {
            Ok(Input::Gone)
        }
        1 => Ok(Input::Some),
        _ => match io::Error::last_os_error() {
            // A change of the terminal's size is a signal.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(Input::None),
            error => Err(error),
        },
    }
}

/// The report of the last seconds.
fn report(window: &Window, knowledge: &Knowledge, seconds: u64) -> Option<Report> {
    window.last(seconds.saturating_mul(1_000_000_000), |recording| {
        let attribution = Attribution::new(recording, knowledge);
        let options = AnalyseOptions::default();
        model::analyse_with(recording, knowledge, &attribution, &options)
    })
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Quit,
    Up,
    Down,
    Pause,
    Longer,
    Shorter,
}

fn key_of(event: KeyEvent) -> Option<Key> {
    let control = event.modifiers.contains(KeyModifiers::CONTROL);
    match event.code {
        KeyCode::Char('c' | 'd') if control => Some(Key::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Down),
        KeyCode::Char('p' | ' ') => Some(Key::Pause),
        KeyCode::Char('+' | '=') => Some(Key::Longer),
        KeyCode::Char('-') => Some(Key::Shorter),
        _ => None,
    }
}
