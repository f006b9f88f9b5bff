//! Whether the kernel is locked down (since 5.4).

use std::path::Path;

use super::mounts::securityfs_path;
use super::{BootParameters, Config, INFERRED, Lockdown, LockdownState, root};

/// Finds the lockdown state: from securityfs if it is mounted, else from what the
/// configuration and the boot parameters set at boot. Someone may have tightened it
/// since, so without securityfs `none` is only said where lockdown is not built in.
pub fn lockdown(
    root: &Path,
    config: &Config,
    config_source: &str,
    boot: &BootParameters,
) -> Lockdown {
    let Some(point) = securityfs_path(root) else {
        return at_boot(root, config, config_source, boot, NOT_MOUNTED);
    };
    let path = format!("{point}/lockdown");
    match root::read_text(root, &path) {
        Ok(text) => match parse(&text) {
            Some(state) => known(state, path),
            None => at_boot(
                root,
                config,
                config_source,
                boot,
                &format!("{path} reads {text:?}, which is not understood"),
            ),
        },
        // The file exists only where the LSM is on.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => known(
            LockdownState::None,
            format!("{path} does not exist: the lockdown LSM is not active"),
        ),
        Err(error) => at_boot(
            root,
            config,
            config_source,
            boot,
            &format!("{path}: {error}"),
        ),
    }
}

const NOT_MOUNTED: &str = "the live state is not visible: securityfs is not mounted \
    (mount -t securityfs securityfs /sys/kernel/security)";

fn known(state: LockdownState, source: impl Into<String>) -> Lockdown {
    Lockdown {
        state,
        source: source.into(),
    }
}

/// `none [integrity] confidentiality`, the active one in brackets.
fn parse(text: &str) -> Option<LockdownState> {
    let (_, rest) = text.split_once('[')?;
    let (active, _) = rest.split_once(']')?;
    state(active)
}

fn state(name: &str) -> Option<LockdownState> {
    Some(match name {
        "none" => LockdownState::None,
        "integrity" => LockdownState::Integrity,
        "confidentiality" => LockdownState::Confidentiality,
        _ => return None,
    })
}

/// What was set at boot. `unseen` says why the live state could not be read.
fn at_boot(
    root: &Path,
    config: &Config,
    config_source: &str,
    boot: &BootParameters,
    unseen: &str,
) -> Lockdown {
    if config.is_empty() || config_source == INFERRED {
        return known(
            LockdownState::Unknown,
            format!("{unseen}; nor could a configuration be read"),
        );
    }
    if !config.is_set("CONFIG_SECURITY_LOCKDOWN_LSM") {
        return known(
            LockdownState::None,
            format!("CONFIG_SECURITY_LOCKDOWN_LSM is off in {config_source}"),
        );
    }
    // With EARLY the LSM runs whatever lsm= says.
    let listed = |list: &str| list.split(',').any(|name| name == "lockdown");
    if !config.is_set("CONFIG_SECURITY_LOCKDOWN_LSM_EARLY") {
        let (list, by) = match boot.get("lsm") {
            Some(list) => (list, "boot parameter lsm="),
            None => (config.get("CONFIG_LSM").unwrap_or_default(), "CONFIG_LSM"),
        };
        if !listed(list) {
            return known(
                LockdownState::None,
                format!("{by} does not list the lockdown LSM"),
            );
        }
    }
    // The kernel never goes back to a weaker state; these are ordered by strength.
    let asked = boot
        .values("lockdown")
        .filter_map(|name| Some((state(name)?, format!("boot parameter lockdown={name}"))));
    let forced = [
        (
            "CONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY",
            LockdownState::Integrity,
        ),
        (
            "CONFIG_LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY",
            LockdownState::Confidentiality,
        ),
    ]
    .into_iter()
    .filter(|(option, _)| config.is_set(option))
    .map(|(option, state)| (state, format!("{option}=y in {config_source}")));
    // Carried by Debian, Fedora and others, not by mainline.
    let secure_boot = [
        "CONFIG_LOCK_DOWN_IN_EFI_SECURE_BOOT",
        "CONFIG_LOCK_DOWN_IN_SECURE_BOOT",
    ]
    .into_iter()
    .filter(|option| config.is_set(option) && efi_secure_boot(root))
    .map(|option| {
        let source = format!("{option}=y in {config_source}, and EFI Secure Boot is on");
        (LockdownState::Integrity, source)
    });
    let strongest = asked
        .chain(forced)
        .chain(secure_boot)
        .filter(|(state, _)| *state != LockdownState::None)
        .max_by_key(|(state, _)| *state == LockdownState::Confidentiality);
    match strongest {
        Some((state, source)) => known(state, format!("{source}; {unseen}")),
        None => known(
            LockdownState::Unknown,
            format!("not locked down at boot by {config_source} or boot parameters; {unseen}"),
        ),
    }
}

/// Whether the firmware says that Secure Boot is on: the byte behind four bytes of
/// attributes.
fn efi_secure_boot(root: &Path) -> bool {
    const PATH: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    root::read(root, PATH).is_ok_and(|bytes| bytes.get(4) == Some(&1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root::join(dir.path(), path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    const MOUNTED: (&str, &str) = (
        "/proc/self/mountinfo",
        "1 0 0:7 / /sys/kernel/security rw - securityfs none rw\n",
    );
    const LSM: &str = "CONFIG_SECURITY_LOCKDOWN_LSM=y\nCONFIG_LSM=\"lockdown,yama\"\n";

    fn find(files: &[(&str, &str)], config: &str, boot: &str) -> (LockdownState, String) {
        let dir = machine(files);
        let found = lockdown(
            dir.path(),
            &Config::parse(config),
            "/proc/config.gz",
            &BootParameters::parse(boot),
        );
        (found.state, found.source)
    }

    #[test]
    fn securityfs_is_believed() {
        let path = "/sys/kernel/security/lockdown";
        for (text, state) in [
            ("[none] integrity confidentiality\n", LockdownState::None),
            (
                "none [integrity] confidentiality\n",
                LockdownState::Integrity,
            ),
            (
                "none integrity [confidentiality]\n",
                LockdownState::Confidentiality,
            ),
        ] {
            let found = find(&[MOUNTED, (path, text)], LSM, "lockdown=integrity");
            assert_eq!(found, (state, path.to_owned()));
        }
        assert_eq!(find(&[MOUNTED], LSM, "").0, LockdownState::None);
    }

    #[test]
    fn without_securityfs_what_boot_set_is_known_and_the_rest_is_not() {
        let unseen = NOT_MOUNTED;
        assert_eq!(
            find(
                &[],
                &format!("{LSM}CONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY=y"),
                ""
            ),
            (
                LockdownState::Integrity,
                format!("CONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY=y in /proc/config.gz; {unseen}")
            )
        );
        assert_eq!(
            find(&[], LSM, "lockdown=confidentiality lockdown=integrity"),
            (
                LockdownState::Confidentiality,
                format!("boot parameter lockdown=confidentiality; {unseen}")
            )
        );
        assert_eq!(
            find(&[], LSM, ""),
            (
                LockdownState::Unknown,
                format!("not locked down at boot by /proc/config.gz or boot parameters; {unseen}")
            )
        );
        assert_eq!(
            find(&[], "", "lockdown=integrity"),
            (
                LockdownState::Unknown,
                format!("{unseen}; nor could a configuration be read")
            )
        );
    }

    #[test]
    fn a_file_that_is_not_understood_is_not_believed() {
        let odd = ("/sys/kernel/security/lockdown", "none [secrecy]\n");
        let found = find(&[MOUNTED, odd], LSM, "lockdown=integrity");
        assert_eq!(found.0, LockdownState::Integrity);
        assert!(found.1.ends_with("which is not understood"), "{}", found.1);
    }

    #[test]
    fn a_kernel_without_the_lsm_cannot_be_locked_down() {
        for (config, boot, source) in [
            (
                "CONFIG_HZ=250",
                "lockdown=integrity",
                "CONFIG_SECURITY_LOCKDOWN_LSM is off in /proc/config.gz",
            ),
            (
                LSM,
                "lsm=yama lockdown=integrity",
                "boot parameter lsm= does not list the lockdown LSM",
            ),
        ] {
            assert_eq!(
                find(&[], config, boot),
                (LockdownState::None, source.to_owned())
            );
        }
    }

    #[test]
    fn secure_boot_locks_down_kernels_that_say_so() {
        let secure = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
        let config = format!("{LSM}CONFIG_LOCK_DOWN_IN_EFI_SECURE_BOOT=y");
        let on = find(&[(secure, "\x06\0\0\0\x01")], &config, "");
        assert_eq!(on.0, LockdownState::Integrity);
        assert!(on.1.contains("Secure Boot is on"), "{}", on.1);
        let off = find(&[(secure, "\x06\0\0\0\0")], &config, "");
        assert_eq!(off.0, LockdownState::Unknown);
    }
}
