//! The catalogue of kernel options: data in `options.toml`, and its matcher.
