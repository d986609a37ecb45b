//! The state file that the contest's tools share between shells: `KEY=VALUE` lines.
//!
//! It is read as text and never run by a shell. What a shell would accept and we do not (expansions, several
//! assignments on a line) is taken literally or skipped; a file that cannot be read at all is an error only
//! when the user named it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The file's name in the home directory.
const FILE_NAME: &str = ".simubotix-challenge.env";

/// Values of one env file. Its `Debug` shows names alone: the values may be tokens.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EnvFile {
    values: HashMap<String, String>,
}

impl EnvFile {
    /// Reads `text`: one optional `export`, a name, `=`, a value with optional single or double quotes.
    /// Comments (`#` first on the line, or after white space behind an unquoted value) and lines of any other
    /// shape are skipped. The last assignment of a name wins.
    pub fn parse(text: &str) -> Self {
        let mut values = HashMap::new();
        for line in text.lines() {
            if let Some((name, value)) = assignment(line) {
                values.insert(name.to_owned(), value);
            }
        }
        Self { values }
    }

    /// Reads the file at `path`; a missing file is an empty one.
    ///
    /// # Errors
    /// Any failure to read other than absence, and text that is not UTF-8.
    pub fn load(path: &Path) -> io::Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// The value of `name`; an empty value counts as absent.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl core::fmt::Debug for EnvFile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// Where the state file lies for this user: `$HOME/.simubotix-challenge.env`.
pub fn default_path() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(|home| PathBuf::from(home).join(FILE_NAME))
}

fn assignment(line: &str) -> Option<(&str, String)> {
    let line = line.trim();
    let line = match line.strip_prefix("export") {
        Some(rest) if rest.starts_with([' ', '\t']) => rest.trim_start(),
        _ => line,
    };
    let (name, value) = line.split_once('=')?;
    let mut characters = name.chars();
    let first = characters.next()?;
    let is_name = (first.is_ascii_alphabetic() || first == '_')
        && characters.all(|character| character.is_ascii_alphanumeric() || character == '_');
    is_name.then(|| (name, unquote(value)))
}

fn unquote(value: &str) -> String {
    let value = value.trim_start();
    match value.chars().next() {
        Some('\'') => value[1..].split('\'').next().unwrap_or_default().to_owned(),
        Some('"') => double_quoted(&value[1..]),
        Some('#') | None => String::new(),
        Some(_) => {
            let end = value.find([' ', '\t']).unwrap_or(value.len());
            value[..end].to_owned()
        }
    }
}

fn double_quoted(value: &str) -> String {
    let mut out = String::new();
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => match characters.next() {
                Some(escaped @ ('"' | '\\' | '$' | '`')) => out.push(escaped),
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_of_an_assignment_is_read() {
        let table = [
            ("A=1", Some("1")),
            ("export A=1", Some("1")),
            ("  export\tA=\"a b\"", Some("a b")),
            ("A='a \"b\" $c'", Some("a \"b\" $c")),
            (r#"A="q\"x\\y""#, Some(r#"q"x\y"#)),
            ("A=plain # why", Some("plain")),
            ("A=a#b", Some("a#b")),
            ("A=", None),
            ("A=''", None),
            ("A= # nothing", None),
            ("# A=1", None),
            ("A", None),
            ("1A=1", None),
            ("exportA=1", None),
            ("A=x=y", Some("x=y")),
        ];
        for (line, value) in table {
            assert_eq!(EnvFile::parse(line).value("A"), value, "{line}");
        }
    }

    #[test]
    fn the_last_assignment_wins_and_crlf_is_no_part_of_a_value() {
        assert_eq!(EnvFile::parse("A=1\r\nA=2\r\n").value("A"), Some("2"));
    }

    #[test]
    fn a_missing_file_is_an_empty_one_and_values_stay_out_of_debug_output() {
        assert_eq!(EnvFile::load(Path::new("/nonexistent/env")).unwrap(), EnvFile::default());
        let shown = format!("{:?}", EnvFile::parse("JOB_TOKEN=sesame"));
        assert!(shown.contains("JOB_TOKEN") && !shown.contains("sesame"), "{shown}");
    }
}
