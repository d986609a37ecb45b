//! Durations as they are written on a command line.

use core::time::Duration;

use thiserror::Error;

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no duration: write a number with us, ms, s, m or h behind it, as in 20s or 500ms")]
pub struct DurationError(String);

/// Reads `20s`, `1.5s`, `500ms`, `150us`, `2m`, `1h`; a bare number is seconds.
///
/// # Errors
/// Anything else, also negative numbers and what does not fit.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let refused = || DurationError(text.to_owned());
    let end = text.find(|letter: char| letter != '.' && !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(refused()),
    };
    let number: f64 = number.parse().map_err(|_| refused())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_is_read() {
        let table = [
            ("20s", 20_000_000),
            ("500ms", 500_000),
            ("150us", 150),
            ("2m", 120_000_000),
            ("1h", 3_600_000_000),
            ("1.5s", 1_500_000),
            ("3", 3_000_000),
            ("0", 0),
        ];
        for (text, us) in table {
            assert_eq!(parse(text), Ok(Duration::from_micros(us)), "{text}");
        }
    }

    #[test]
    fn nothing_else_is() {
        for text in ["", "s", "-1s", "1d", "1 s", "1e3s", "nan", "1.2.3s", "99999999999999999999h"] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}
