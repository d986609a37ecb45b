//! What the user reads when something cannot go on: what happened, why, and what to do next.

use std::fmt;
use std::io::Write;

use crate::log::Format;

/// An end that the user must be told about. Four lines at most; never a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    what: String,
    why: Option<String>,
    hint: Option<String>,
}

impl Failure {
    /// `what` names what happened and the value that caused it.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), why: None, hint: None }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, why: impl fmt::Display) -> Self {
        self.why = Some(why.to_string());
        self
    }

    /// Adds a typed error: its cause, and the next step that stands behind its last semicolon, or else `hint`.
    #[must_use]
    pub fn because_and_hint(self, error: impl fmt::Display, hint: &str) -> Self {
        let text = error.to_string();
        let (why, hint) = text.rsplit_once("; ").unwrap_or((&text, hint));
        self.because(why).hint(hint)
    }

    /// Adds the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Writes it to stderr in the chosen form. A closed stderr is nobody to tell.
    pub fn print(&self, format: Format) {
        let text = match format {
            Format::Human => format!("{self}\n"),
            Format::Json => {
                let object = serde_json::json!({"error": self.what, "why": self.why, "hint": self.hint});
                format!("{object}\n")
            }
        };
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        if let Some(why) = &self.why {
            write!(f, "\n  why: {why}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl core::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_errors_next_step_becomes_the_hint() {
        let failure = |text: &str| Failure::new("no").because_and_hint(text, "think").to_string();
        assert_eq!(failure("it is full; empty it"), "error: no\n  why: it is full\n  hint: empty it");
        assert_eq!(failure("it is full"), "error: no\n  why: it is full\n  hint: think");
    }

    #[test]
    fn a_failure_reads_as_what_why_and_next_step() {
        let failure = Failure::new("no token").because("JOB_TOKEN is empty").hint("export it");
        assert_eq!(failure.to_string(), "error: no token\n  why: JOB_TOKEN is empty\n  hint: export it");
    }
}
