//! Numbers for people.

/// A fraction as a percentage: `11.3`, `0.57`, `<0.01`, `0`.
pub(crate) fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    if percent >= 0.995 {
        format!("{percent:.1}")
    } else if percent >= 0.005 {
        format!("{percent:.2}")
    } else if percent > 0.0 {
        "<0.01".to_owned()
    } else {
        "0".to_owned()
    }
}

/// An upper bound as a percentage, rounded up so that it stays a bound.
pub(crate) fn percent_up(fraction: f64) -> String {
    let percent = fraction * 100.0;
    if percent >= 1.0 {
        format!("{:.1}", (percent * 10.0).ceil() / 10.0)
    } else {
        format!("{:.2}", (percent * 100.0).ceil() / 100.0)
    }
}

/// A count with its thousands apart: `26,143`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time in the unit that fits it, three digits: `74.0 ms`.
pub(crate) fn nanoseconds(ns: u64) -> String {
    let value = ns as f64;
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (value / 1e3, "us"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Seconds, three digits: `3.29 s`.
pub(crate) fn seconds(value: f64) -> String {
    if value < 1.0 {
        // As the cast saturates, a negative or absurd value is only shown oddly.
        nanoseconds((value * 1e9) as u64)
    } else {
        format!("{} s", three_digits(value))
    }
}

fn three_digits(value: f64) -> String {
    if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(percent(0.113), "11.3");
        assert_eq!(percent(0.0057), "0.57");
        assert_eq!(percent(0.00999), "1.0");
        assert_eq!(percent(0.00001), "<0.01");
        assert_eq!(percent(0.0), "0");
        assert_eq!(percent_up(0.000_101), "0.02");
        assert_eq!(percent_up(0.012_1), "1.3");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(nanoseconds(0), "0 ns");
        assert_eq!(nanoseconds(74_000_000), "74.0 ms");
        assert_eq!(nanoseconds(8_600), "8.60 us");
        assert_eq!(seconds(0.427), "427 ms");
        assert_eq!(seconds(3.285), "3.29 s");
        assert_eq!(seconds(123.4), "123 s");
    }
}
