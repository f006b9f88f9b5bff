//! What else of a kernel decides how long tasks wait: its tick, and its RCU.

use serde::{Deserialize, Serialize};

use super::{INFERRED, KernelFacts, Model};

/// The tick of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickFacts {
    /// `periodic`, `NO_HZ_IDLE` or `NO_HZ_FULL` as the configuration has it;
    /// absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Whether high-resolution timers are compiled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_res: Option<bool>,
    /// What the command line says about it, in its own words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boot: Vec<String>,
}

/// The RCU of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RcuFacts {
    /// `CONFIG_PREEMPT_RCU`: readers can be preempted; absent when it is not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt: Option<bool>,
    /// `CONFIG_RCU_NOCB_CPU`: callbacks can be run by threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nocb: Option<bool>,
    /// `CONFIG_RCU_LAZY`: callbacks wait for company, since 6.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lazy: Option<bool>,
    /// What the command line says about it, in its own words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boot: Vec<String>,
}

/// Words of the command line that begin with one of `prefixes`.
fn boot_words(facts: &KernelFacts, prefixes: &[&str]) -> Vec<String> {
    facts
        .boot_parameters
        .split_whitespace()
        .filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix)))
        .map(str::to_owned)
        .collect()
}

/// Whether an option is on; `None` when that is not known. A configuration that
/// was inferred from symbols says yes or nothing.
fn option(facts: &KernelFacts, name: &str) -> Option<bool> {
    let on = facts.config.get(name) == Some("y");
    let known = !facts.config.is_empty() && facts.config_source != INFERRED;
    (on || known).then_some(on)
}

impl From<&KernelFacts> for TickFacts {
    fn from(facts: &KernelFacts) -> Self {
        let mode = [
            ("CONFIG_NO_HZ_FULL", "NO_HZ_FULL"),
            ("CONFIG_NO_HZ_IDLE", "NO_HZ_IDLE"),
            ("CONFIG_HZ_PERIODIC", "periodic"),
        ]
        .into_iter()
        .find(|(name, _)| facts.config.get(name) == Some("y"));
        Self {
            mode: mode.map(|(_, mode)| mode.to_owned()),
            high_res: option(facts, "CONFIG_HIGH_RES_TIMERS"),
            boot: boot_words(
                facts,
                &["nohz", "highres=", "skew_tick=", "tsc=", "clocksource="],
            ),
        }
    }
}

impl From<&KernelFacts> for RcuFacts {
    fn from(facts: &KernelFacts) -> Self {
        Self {
            preempt: option(facts, "CONFIG_PREEMPT_RCU"),
            nocb: option(facts, "CONFIG_RCU_NOCB_CPU"),
            lazy: option(facts, "CONFIG_RCU_LAZY"),
            boot: boot_words(
                facts,
                &["rcu_", "rcupdate.", "rcutree.", "rcu_nocbs", "srcutree."],
            ),
        }
    }
}

/// How the preemption model of a kernel can be changed, one phrase.
pub fn how_to_change_model(facts: &KernelFacts) -> String {
    let model = &facts.preempt_model;
    if !model.available.is_empty() {
        let names: Vec<String> = model.available.iter().map(Model::to_string).collect();
        return format!(
            "echo {} > /sys/kernel/debug/sched/preempt, or boot with preempt=",
            names.join("|")
        );
    }
    match (model.active, facts.config.get("CONFIG_PREEMPT_DYNAMIC")) {
        (Model::Rt, _) => "another kernel: CONFIG_PREEMPT_RT is compiled in".to_owned(),
        (_, Some("y")) => "boot with preempt=; /sys/kernel/debug/sched/preempt where debugfs \
                           can be written"
            .to_owned(),
        _ if facts.config.is_empty() => "not known: no configuration was read".to_owned(),
        _ => "another kernel: CONFIG_PREEMPT_DYNAMIC is off".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Config, PreemptModel};

    fn facts(config: &str, boot: &str) -> KernelFacts {
        KernelFacts {
            config: Config::parse(config),
            boot_parameters: boot.to_owned(),
            ..KernelFacts::default()
        }
    }

    #[test]
    fn tick_and_rcu_are_read_from_configuration_and_command_line() {
        let facts = facts(
            "CONFIG_NO_HZ_IDLE=y\nCONFIG_HIGH_RES_TIMERS=y\nCONFIG_TREE_RCU=y\nCONFIG_RCU_NOCB_CPU=y",
            "quiet nohz=off rcupdate.rcu_expedited=1 root=/dev/vda",
        );
        let tick = TickFacts::from(&facts);
        assert_eq!(tick.mode.as_deref(), Some("NO_HZ_IDLE"));
        assert_eq!(
            (tick.high_res, tick.boot),
            (Some(true), vec!["nohz=off".to_owned()])
        );
        let rcu = RcuFacts::from(&facts);
        assert_eq!(
            (rcu.preempt, rcu.nocb, rcu.lazy),
            (Some(false), Some(true), Some(false))
        );
        assert_eq!(rcu.boot, ["rcupdate.rcu_expedited=1"]);
    }

    #[test]
    fn without_a_configuration_nothing_is_claimed() {
        let facts = facts("", "");
        assert_eq!(TickFacts::from(&facts), TickFacts::default());
        assert_eq!(RcuFacts::from(&facts), RcuFacts::default());
        let mut inferred = self::facts("CONFIG_PREEMPT_RCU=y", "");
        inferred.config_source = INFERRED.to_owned();
        let rcu = RcuFacts::from(&inferred);
        assert_eq!((rcu.preempt, rcu.nocb), (Some(true), None));
        assert!(how_to_change_model(&facts).starts_with("not known"));
    }

    #[test]
    fn the_way_to_another_model_is_named() {
        let mut facts = facts("CONFIG_PREEMPT_DYNAMIC=y", "");
        assert!(how_to_change_model(&facts).starts_with("boot with preempt="));
        facts.preempt_model = PreemptModel {
            active: Model::Lazy,
            available: vec![Model::Full, Model::Lazy],
            ..PreemptModel::default()
        };
        assert!(how_to_change_model(&facts).starts_with("echo full|lazy >"));
    }
}
