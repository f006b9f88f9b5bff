//! Log lines for `-vv`, through aya-log. Without the feature they are nothing.

/// Writes a log line. For cold paths only: each takes a lock and wakes a reader.
macro_rules! log {
    ($($message:tt)*) => {{
        #[cfg(feature = "log")]
        ::aya_log_ebpf::info!((), $($message)*);
    }};
}
