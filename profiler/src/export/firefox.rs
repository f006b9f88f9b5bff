//! A profile for <https://profiler.firefox.com>, in its processed format: each
//! sample at its time, one track a thread. Frames that an option owns have the
//! option as their category.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::time::Duration;

use fxprof_processed_profile::{
    CategoryColor, CategoryPairHandle, CpuDelta, Frame, FrameFlags, FrameHandle, FrameInfo,
    Profile, ReferenceTimestamp, SamplingInterval, StackHandle, StringHandle, ThreadHandle,
    Timestamp, WeightType,
};

use super::By;
use super::group::{self, Key, Part};
use crate::fast_map::FastMap;
use crate::model::{Attribution, comm, frame_name, is_workload};
use crate::recording::{Recording, Sample};
use crate::report::{command_line, escape};

/// Threads that get a track each. A recording with more has one track a name,
/// and one with more names a single track.
const MAX_TRACKS: usize = 2_000;

/// Colours of options, the first in the catalogue first.
const COLORS: [CategoryColor; 8] = [
    CategoryColor::Red,
    CategoryColor::Blue,
    CategoryColor::Green,
    CategoryColor::Purple,
    CategoryColor::Orange,
    CategoryColor::Magenta,
    CategoryColor::LightBlue,
    CategoryColor::Brown,
];

/// Writes the workload's samples, each at its time.
///
/// # Errors
///
/// Whatever `out` fails with.
pub fn write(
    recording: &Recording,
    attribution: &Attribution,
    out: &mut dyn Write,
) -> io::Result<()> {
    let profile = Builder::new(recording, attribution).build();
    serde_json::to_writer(&mut *out, &profile)?;
    out.write_all(b"\n")
}

/// What a track stands for.
#[derive(Clone, Copy)]
enum Tracks {
    Threads,
    Names,
    One,
}

impl Tracks {
    fn of(recording: &Recording) -> Self {
        let samples = || recording.samples.iter().filter(|s| is_workload(s));
        let threads: BTreeSet<(u32, u32)> = samples().map(|s| (s.tgid, s.pid)).collect();
        if threads.len() <= MAX_TRACKS {
            return Self::Threads;
        }
        let names: BTreeSet<&str> = samples().map(|s| comm(recording, s.comm)).collect();
        if names.len() <= MAX_TRACKS {
            Self::Names
        } else {
            Self::One
        }
    }
}

impl Tracks {
    /// The track of a sample: its number and its name.
    const fn of_sample<'r>(self, sample: &Sample, name: &'r str) -> (u32, &'r str) {
        match self {
            Self::Threads => (sample.pid, ""),
            Self::Names => (0, name),
            Self::One => (0, ""),
        }
    }
}

struct Builder<'r> {
    recording: &'r Recording,
    attribution: &'r Attribution,
    profile: Profile,
    kernel: CategoryPairHandle,
    user: CategoryPairHandle,
    options: HashMap<usize, CategoryPairHandle>,
    strings: HashMap<&'r str, StringHandle>,
}

impl<'r> Builder<'r> {
    fn new(recording: &'r Recording, attribution: &'r Attribution) -> Self {
        let header = &recording.header;
        let product = if header.command.is_empty() {
            "preemptprof".to_owned()
        } else {
            escape(&command_line(&header.command)).into_owned()
        };
        let start = ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(
            header.started_unix_ns,
        ));
        let interval = SamplingInterval::from_nanos(per_sample(recording).max(1));
        let mut profile = Profile::new(&product, start, interval);
        profile.set_os_name(&escape(&format!("Linux {}", header.kernel.release)));
        // Every frame has its name already.
        profile.set_symbolicated(true);
        let kernel = profile.add_category("Kernel", CategoryColor::Gray).into();
        let user = profile.add_category("User", CategoryColor::Yellow).into();
        Self {
            recording,
            attribution,
            profile,
            kernel,
            user,
            options: HashMap::new(),
            strings: HashMap::new(),
        }
    }

    fn build(mut self) -> Profile {
        let recording = self.recording;
        let tracks = Tracks::of(recording);
        let delta = CpuDelta::from_nanos(per_sample(recording));
        let samples = || recording.samples.iter().filter(|s| is_workload(s));
        let mut processes = HashMap::new();
        let mut threads: HashMap<(u32, &str), ThreadHandle> = HashMap::new();
        let mut keys: HashMap<ThreadHandle, FastMap<Key, Option<StackHandle>>> = HashMap::new();
        let mut order = Vec::new();
        for sample in samples() {
            let name = comm(recording, sample.comm);
            let track = tracks.of_sample(sample, name);
            let thread = *threads.entry(track).or_insert_with(|| {
                let tgid = match tracks {
                    Tracks::Threads => sample.tgid,
                    Tracks::Names | Tracks::One => 0,
                };
                let label = match tracks {
                    Tracks::One => "all tasks".into(),
                    Tracks::Threads | Tracks::Names => escape(name),
                };
                let time = Timestamp::from_nanos_since_reference(sample.time_ns);
                let profile = &mut self.profile;
                let process = *processes
                    .entry(tgid)
                    .or_insert_with(|| profile.add_process(&label, tgid, time));
                let main = sample.pid == sample.tgid;
                let thread = profile.add_thread(process, track.0, time, main);
                profile.set_thread_name(thread, &label);
                profile.set_thread_samples_weight_type(thread, WeightType::Samples);
                order.push(thread);
                thread
            });
            let key = Key {
                // The track says whose it is.
                comm: 0,
                ..Key::of(sample)
            };
            keys.entry(thread).or_default().insert(key, None);
        }
        // In the order they appeared: a profile is the same on every run.
        for thread in order {
            if let Some(keys) = keys.get_mut(&thread) {
                self.stacks(thread, keys);
            }
        }
        for sample in samples() {
            let track = tracks.of_sample(sample, comm(recording, sample.comm));
            let key = Key {
                comm: 0,
                ..Key::of(sample)
            };
            let thread = threads[&track];
            let time = Timestamp::from_nanos_since_reference(sample.time_ns);
            let stack = keys[&thread][&key];
            self.profile.add_sample(thread, time, stack, delta, 1);
        }
        self.profile
    }

    /// Puts a thread's stacks into the profile, neighbours in the tree one after
    /// the other: what two of them share is looked up once.
    fn stacks(&mut self, thread: ThreadHandle, keys: &mut FastMap<Key, Option<StackHandle>>) {
        let recording = self.recording;
        let inwards = |key: &Key| {
            let user = crate::model::frames(recording, key.user_stack).iter().rev();
            let kernel = crate::model::frames(recording, key.kernel_stack)
                .iter()
                .rev();
            user.chain(kernel)
        };
        let mut sorted: Vec<Key> = keys.keys().copied().collect();
        sorted.sort_unstable_by(|a, b| inwards(a).cmp(inwards(b)).then_with(|| a.cmp(b)));
        let mut handles: FastMap<(&str, CategoryPairHandle), FrameHandle> = FastMap::default();
        // The stack before, outermost first.
        let mut before: Vec<(FrameHandle, StackHandle)> = Vec::new();
        let mut frames: Vec<(&str, CategoryPairHandle)> = Vec::new();
        for key in sorted {
            self.frames(key, &mut frames);
            let mut shares = true;
            let mut parent = None;
            for (depth, &(name, category)) in frames.iter().rev().enumerate() {
                let frame = *handles.entry((name, category)).or_insert_with(|| {
                    let frame = FrameInfo {
                        frame: Frame::Label(self.string(name)),
                        category_pair: category,
                        flags: FrameFlags::empty(),
                    };
                    self.profile.intern_frame(thread, frame)
                });
                shares &= before.get(depth).is_some_and(|(same, _)| *same == frame);
                if !shares {
                    before.truncate(depth);
                    let stack = self.profile.intern_stack(thread, parent, frame);
                    before.push((frame, stack));
                }
                parent = Some(before[depth].1);
            }
            before.truncate(frames.len());
            keys.insert(key, parent);
        }
    }

    /// The names of a stack's frames and their categories, innermost first.
    fn frames(&mut self, key: Key, frames: &mut Vec<(&'r str, CategoryPairHandle)>) {
        let (recording, attribution) = (self.recording, self.attribution);
        let kernel_frames = if key.user_mode {
            0
        } else {
            crate::model::frames(recording, key.kernel_stack).len()
        };
        frames.clear();
        let parts = group::parts(recording, attribution, key, By::Time);
        for (depth, part) in parts.enumerate() {
            let (name, option) = match part {
                Part::Frame(frame, option) => (frame_name(recording, frame), option),
                Part::Missing(name) => (name, None),
            };
            let category = match option {
                Some(option) => self.category(option),
                None if depth < kernel_frames => self.kernel,
                None => self.user,
            };
            frames.push((name, category));
        }
    }

    fn string(&mut self, name: &'r str) -> StringHandle {
        let profile = &mut self.profile;
        *self
            .strings
            .entry(name)
            .or_insert_with(|| profile.intern_string(&escape(name)))
    }

    fn category(&mut self, option: usize) -> CategoryPairHandle {
        let (profile, attribution) = (&mut self.profile, self.attribution);
        *self.options.entry(option).or_insert_with(|| {
            let color = COLORS[option % COLORS.len()];
            profile
                .add_category(attribution.option(option), color)
                .into()
        })
    }
}

/// Nanoseconds of CPU time a sample stands for; 0 when the rate is not known.
fn per_sample(recording: &Recording) -> u64 {
    1_000_000_000_u64
        .checked_div(recording.header.sampling.hz)
        .unwrap_or(0)
}
