//! How much CPU time the process's own cgroup may use.

use std::path::Path;

use super::mounts::{Mount, mounts};
use super::root;

/// CPUs' worth of time this process may use, by the `cpu` controllers of its cgroup
/// and all above it that this mount namespace shows, v1 and v2; the smallest limit
/// wins. `None` when there is no limit.
pub fn cgroup_cpu_limit(root: &Path) -> Option<f64> {
    let mounts = mounts(root);
    let own = root::read_text(root, "/proc/self/cgroup").ok()?;
    own.lines()
        .filter_map(|line| limit_of(root, &mounts, line))
        .reduce(f64::min)
}

/// The limit along one line of `/proc/self/cgroup`, `ID:CONTROLLERS:PATH`.
fn limit_of(root: &Path, mounts: &[Mount], line: &str) -> Option<f64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let unified = controllers.is_empty();
    if !unified && !controllers.split(',').any(|name| name == "cpu") {
        return None;
    }
    let mount = mounts.iter().rev().find(|mount| {
        if unified {
            mount.kind == "cgroup2"
        } else {
            mount.kind == "cgroup" && mount.options.split(',').any(|name| name == "cpu")
        }
    })?;
    // A mount may show only a part of the hierarchy, and the path may be given from
    // the hierarchy's root or, in a cgroup namespace, climb out of it.
    let mut below = path;
    if mount.root != "/" {
        below = match path.strip_prefix(mount.root.as_str()) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
            _ => "",
        };
    }
    if below.split('/').any(|part| part == "..") {
        below = "";
    }
    let mut limit: Option<f64> = None;
    loop {
        let directory = format!("{}/{}", mount.point, below.trim_matches('/'));
        let here = if unified {
            limit_v2(root, &directory)
        } else {
            limit_v1(root, &directory)
        };
        limit = [limit, here].into_iter().flatten().reduce(f64::min);
        match below.trim_end_matches('/').rsplit_once('/') {
            Some((parent, _)) => below = parent,
            None => return limit,
        }
    }
}

fn limit_v2(root: &Path, directory: &str) -> Option<f64> {
    parse_v2(&root::read_text(root, &format!("{directory}/cpu.max")).ok()?)
}

/// `QUOTA PERIOD` in microseconds, or `max PERIOD`.
fn parse_v2(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    ratio(quota, period)
}

fn limit_v1(root: &Path, directory: &str) -> Option<f64> {
    let read = |name: &str| root::read_text(root, &format!("{directory}/{name}")).ok();
    ratio(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
}

/// No limit is `max` in v2 and -1 in v1; neither is a positive number.
fn ratio(quota: &str, period: &str) -> Option<f64> {
    let quota: u64 = quota.trim().parse().ok()?;
    let period: u64 = period.trim().parse().ok()?;
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(files: &[(&str, &str)]) -> Option<f64> {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root::join(dir.path(), path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        cgroup_cpu_limit(dir.path())
    }

    const V2: (&str, &str) = (
        "/proc/self/mountinfo",
        "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    );

    #[test]
    fn the_smallest_limit_on_the_way_up_wins() {
        let own = ("/proc/self/cgroup", "0::/a/b/c\n");
        assert_eq!(limit(&[V2, own]), None);
        let files = [
            V2,
            own,
            ("/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"),
            ("/sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            // Not on the way up.
            ("/sys/fs/cgroup/a/z/cpu.max", "10000 100000\n"),
        ];
        assert_eq!(limit(&files), Some(1.5));
    }

    #[test]
    fn version_1_and_2_side_by_side_count_both() {
        let mountinfo = "30 1 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                         31 1 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                         32 1 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("/proc/self/mountinfo", mountinfo),
            (
                "/proc/self/cgroup",
                "3:cpuset:/\n2:cpu,cpuacct:/job\n0::/\n",
            ),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n"),
            (
                "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us",
                "100000\n",
            ),
        ];
        assert_eq!(limit(&files), Some(0.5));
    }

    #[test]
    fn in_a_container_the_path_is_taken_from_the_mounted_part() {
        let part = "30 1 0:26 /docker/1234 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let max = ("/sys/fs/cgroup/cpu.max", "200000 100000\n");
        let inner = ("/sys/fs/cgroup/x/cpu.max", "100000 100000\n");
        for (own, expected) in [
            ("0::/docker/1234\n", 2.0),
            ("0::/docker/1234/x\n", 1.0),
            ("0::/docker/12345/x\n", 2.0),
            ("0::/../x\n", 2.0),
        ] {
            let files = [
                ("/proc/self/mountinfo", part),
                ("/proc/self/cgroup", own),
                max,
                inner,
            ];
            assert_eq!(limit(&files), Some(expected), "{own}");
        }
    }

    #[test]
    fn nonsense_is_no_limit() {
        for text in [
            "",
            "max",
            "max 100000",
            "0 100000",
            "1 0",
            "-5 10",
            "1e9 10",
            "9 x",
        ] {
            assert_eq!(parse_v2(text), None, "{text}");
        }
    }
}
