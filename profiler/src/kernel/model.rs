//! The preemption model in force, from the best source there is.

use super::live::{KernelMemory, LiveModel, live_model};
use super::{BootParameters, Config, INFERRED, Kallsyms, Model, PreemptModel, Release};

/// What is known that bears on the preemption model.
#[derive(Clone, Copy, Debug)]
pub struct ModelInputs<'a> {
    /// `uname -r`.
    pub release: &'a str,
    /// `uname -v`.
    pub version: &'a str,
    /// `uname -m`.
    pub arch: &'a str,
    /// Text of debugfs `sched/preempt` (since 5.12), and its path.
    pub debugfs: Option<(&'a str, &'a str)>,
    /// Text of `/sys/kernel/realtime`, which only kernels with the RT patches have.
    pub realtime: Option<&'a str>,
    /// The configuration, empty when there is none.
    pub config: &'a Config,
    /// Where the configuration comes from.
    pub config_source: &'a str,
    /// The parameters the kernel was booted with.
    pub boot: &'a BootParameters,
    /// The kernel's symbols.
    pub symbols: &'a Kallsyms,
    /// The running kernel's memory, if there is a way to read it.
    pub memory: Option<&'a dyn KernelMemory>,
}

/// Finds the preemption model in force. Best first:
///
/// 1. `PREEMPT_RT`, from `/sys/kernel/realtime`, the configuration, the symbols or
///    `uname -v`: a build-time choice that no other source contradicts, although
///    debugfs shows `full` or `lazy` on such a kernel since 6.13.
/// 2. debugfs `sched/preempt`.
/// 3. The running kernel's memory.
/// 4. The boot parameter `preempt=`, if this kernel heeds the value given.
/// 5. The default of the configuration.
/// 6. What `uname -v` gives away.
pub fn preempt_model(inputs: &ModelInputs<'_>) -> PreemptModel {
    let debugfs = inputs.debugfs.and_then(|(text, path)| {
        let (active, available) = parse_debugfs(text)?;
        Some((active, available, path))
    });
    let live = inputs
        .memory
        .and_then(|memory| live_model(memory, inputs.symbols));
    let available = match &debugfs {
        Some((_, available, _)) => available.clone(),
        None => inputs.available(),
    };
    let (active, source) = if let Some(source) = inputs.realtime() {
        (Model::Rt, source)
    } else if let Some((active, _, path)) = debugfs {
        (active, path.to_owned())
    } else {
        inputs.without_debugfs(live)
    };
    PreemptModel {
        active,
        source,
        available,
    }
}

/// Reads e.g. `none (voluntary) full `: the active model and all of them.
fn parse_debugfs(text: &str) -> Option<(Model, Vec<Model>)> {
    let mut active = None;
    let mut all = Vec::new();
    for word in text.split_whitespace() {
        let inner = word.strip_prefix('(').and_then(|w| w.strip_suffix(')'));
        let model = parse_model(inner.unwrap_or(word))?;
        if inner.is_some() && active.replace(model).is_some() {
            return None;
        }
        all.push(model);
    }
    Some((active?, all))
}

fn parse_model(name: &str) -> Option<Model> {
    Some(match name {
        "none" => Model::None,
        "voluntary" => Model::Voluntary,
        "full" => Model::Full,
        "lazy" => Model::Lazy,
        _ => return None,
    })
}

/// Whether an option is on, off, or not known.
type Tristate = Option<bool>;

impl ModelInputs<'_> {
    fn release(&self) -> Option<Release> {
        Release::parse(self.release)
    }

    fn at_least(&self, major: u32, minor: u32) -> bool {
        self.release()
            .is_some_and(|release| release >= Release::new(major, minor))
    }

    /// Absence counts only in a configuration that was read, not inferred.
    fn option(&self, name: &str) -> Tristate {
        if self.config.is_set(name) {
            Some(true)
        } else if self.config.is_empty() || self.config_source == INFERRED {
            None
        } else {
            Some(false)
        }
    }

    fn version_says(&self, word: &str) -> bool {
        self.version.split([' ', '_']).any(|part| part == word) && self.version.contains("PREEMPT")
    }

    fn realtime(&self) -> Option<String> {
        if self.realtime.is_some_and(|text| text.trim() == "1") {
            return Some("/sys/kernel/realtime".to_owned());
        }
        match self.option("CONFIG_PREEMPT_RT") {
            Some(true) if self.config_source == INFERRED => {
                Some("symbol rt_spin_lock, which only CONFIG_PREEMPT_RT builds".to_owned())
            }
            Some(true) => Some(format!("CONFIG_PREEMPT_RT=y in {}", self.config_source)),
            Some(false) => None,
            None => self
                .version_says("RT")
                .then(|| "PREEMPT_RT in uname -v".to_owned()),
        }
    }

    /// Whether the model can be chosen at boot and at run time. Since 5.12.
    fn dynamic(&self) -> Tristate {
        self.option("CONFIG_PREEMPT_DYNAMIC").or_else(|| {
            if self.version_says("DYNAMIC") {
                return Some(true);
            }
            // Symbols without a mark of it are proof once there are symbols.
            (!self.symbols.is_empty()).then(|| {
                ["__SCT__preempt_schedule", "dynamic_preempt_schedule"]
                    .iter()
                    .any(|name| self.symbols.contains(name))
            })
        })
    }

    /// Whether `CONFIG_ARCH_HAS_PREEMPT_LAZY`, which exists since 6.13, is on.
    fn has_lazy(&self) -> Tristate {
        if self.release().is_some() && !self.at_least(6, 13) {
            return Some(false);
        }
        self.option("CONFIG_ARCH_HAS_PREEMPT_LAZY").or_else(|| {
            // x86 and riscv from the start; by 7.0 the other 64-bit architectures.
            match self.arch {
                "x86_64" | "riscv64" => Some(true),
                "aarch64" | "loongarch64" | "ppc64le" | "s390x" if self.at_least(7, 0) => {
                    Some(true)
                }
                _ => None,
            }
        })
    }

    /// Whether `preempt=` and debugfs take this model (`sched_dynamic_mode` in
    /// kernel/sched/core.c); `None` where that is not known.
    fn offers(&self, model: Model) -> Tristate {
        match model {
            Model::Full => Some(true),
            Model::Lazy => self.has_lazy(),
            Model::None | Model::Voluntary => {
                // On RT since 6.13, and since 7.0 wherever lazy exists, these two
                // are gone (7dadeaa6e851).
                if self.realtime().is_some() {
                    Some(false)
                } else if self.at_least(7, 0) {
                    self.has_lazy().map(|lazy| !lazy)
                } else {
                    Some(true)
                }
            }
            Model::Rt | Model::Unknown => Some(false),
        }
    }

    fn available(&self) -> Vec<Model> {
        if self.dynamic() != Some(true) {
            return Vec::new();
        }
        [Model::None, Model::Voluntary, Model::Full, Model::Lazy]
            .into_iter()
            .filter(|&model| self.offers(model) == Some(true))
            .collect()
    }

    fn without_debugfs(&self, live: Option<LiveModel>) -> (Model, String) {
        if let Some(live) = live {
            if let [model] = live.possible[..] {
                return (model, live.source);
            }
            let known: Vec<Model> = live
                .possible
                .iter()
                .copied()
                .filter(|&model| self.offers(model) != Some(false))
                .collect();
            if let [model] = known[..] {
                return (model, live.source);
            }
            let (model, source) = self.booted();
            if known.contains(&model) {
                return (model, format!("{}; {source}", live.source));
            }
            let names: Vec<String> = live.possible.iter().map(Model::to_string).collect();
            return (
                Model::Unknown,
                format!("{} leaves {}", live.source, names.join(" or ")),
            );
        }
        self.booted()
    }

    /// The model the kernel was booted with, which a write to debugfs can have
    /// changed since.
    fn booted(&self) -> (Model, String) {
        let mut ignored = String::new();
        match self.boot_parameter() {
            Some(Ok(found)) => return found,
            Some(Err(why)) => ignored = format!(" ({why})"),
            None => {}
        }
        let (model, source) = self.configured().unwrap_or_else(|| self.hinted());
        (model, format!("{source}{ignored}"))
    }

    /// The last value of `preempt=` that this kernel takes, as it takes it.
    fn boot_parameter(&self) -> Option<Result<(Model, String), String>> {
        let last = self.boot.get("preempt")?;
        match self.dynamic() {
            Some(true) => {}
            Some(false) => {
                return Some(Err(format!(
                    "boot parameter preempt={last} is ignored: CONFIG_PREEMPT_DYNAMIC is off"
                )));
            }
            None => {
                return Some(Err(format!(
                    "boot parameter preempt={last} is not taken as proof: \
                     whether CONFIG_PREEMPT_DYNAMIC is on is not known"
                )));
            }
        }
        let taken = self.boot.values("preempt").rev().find_map(|value| {
            let model = parse_model(value)?;
            (self.offers(model) == Some(true)).then_some((model, value))
        });
        Some(match taken {
            Some((model, value)) => Ok((model, format!("boot parameter preempt={value}"))),
            None => Err(format!(
                "boot parameter preempt={last} is ignored: this kernel does not offer it"
            )),
        })
    }

    fn configured(&self) -> Option<(Model, String)> {
        if self.config_source == INFERRED {
            return None;
        }
        // The choice comes first: in the RT patches for kernels before 6.13 a
        // PREEMPT_LAZY of another meaning stands beside it.
        [
            ("CONFIG_PREEMPT_NONE", Model::None),
            ("CONFIG_PREEMPT_VOLUNTARY", Model::Voluntary),
            ("CONFIG_PREEMPT", Model::Full),
            ("CONFIG_PREEMPT_LAZY", Model::Lazy),
        ]
        .into_iter()
        .find(|(name, _)| self.config.is_set(name))
        .map(|(name, model)| {
            let default = match self.dynamic() {
                Some(true) => ", the default at boot",
                _ => "",
            };
            (
                model,
                format!("{name}=y in {}{default}", self.config_source),
            )
        })
    }

    fn hinted(&self) -> (Model, String) {
        let words: Vec<&str> = self.version.split_whitespace().collect();
        if words.contains(&"PREEMPT_DYNAMIC") {
            (
                Model::Unknown,
                "uname -v says PREEMPT_DYNAMIC, which is any model".to_owned(),
            )
        } else if words.contains(&"PREEMPT") && self.has_lazy() == Some(false) {
            (Model::Full, "PREEMPT in uname -v".to_owned())
        } else if words.contains(&"PREEMPT") {
            (
                Model::Unknown,
                "uname -v says PREEMPT, which is full or lazy".to_owned(),
            )
        } else if words.is_empty() {
            (Model::Unknown, "no source could be read".to_owned())
        } else {
            (
                Model::Unknown,
                "uname -v does not say PREEMPT, so none or voluntary".to_owned(),
            )
        }
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
