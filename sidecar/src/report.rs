//! What the user reads when something cannot go on: what happened, how things stood, why, and what to do next. What an
//! error does not say itself is said by its [`Code`].

use std::fmt;
use std::io::Write;

use crate::bridge::Standing;
use crate::explain::Code;
use crate::log::Format;

/// An end that the user must be told about. Four lines at most; never a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    code: Code,
    what: String,
    standing: Option<Box<Standing>>,
    why: Option<String>,
    hint: Option<String>,
}

impl Failure {
    /// `what` names what happened and the value that caused it.
    pub fn new(code: Code, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), standing: None, why: None, hint: None }
    }

    /// Adds where the tunnel stood.
    #[must_use]
    pub fn at(mut self, standing: Standing) -> Self {
        self.standing = Some(Box::new(standing));
        self
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

    fn why(&self) -> &str {
        self.why.as_deref().unwrap_or_else(|| self.code.means())
    }

    fn next(&self) -> &str {
        self.hint.as_deref().unwrap_or_else(|| self.code.next())
    }

    /// Writes it to stderr in the chosen form. A closed stderr is nobody to tell.
    pub fn print(&self, format: Format) {
        let text = match format {
            Format::Human => format!("{self}\n"),
            Format::Json => {
                let object = serde_json::json!({
                    "error": self.what,
                    "code": self.code.name(),
                    "standing": self.standing.as_ref().map(ToString::to_string),
                    "why": self.why(),
                    "hint": self.next(),
                });
                format!("{object}\n")
            }
        };
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

/// What Rust's runtime ends a process with whose main thread panicked.
const PANICKED: i32 = 101;

/// From now on a panic of a thread that the main job needs is reported like any other end, too.
pub fn tell_of_panics(format: Format) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        let name = std::thread::current().name().map(str::to_owned);
        if matches!(name.as_deref(), Some("main" | "control")) {
            Failure::new(Code::Bug, "the sidecar panicked")
                .because("a bug; what it said is above")
                .hint("start it again at once: the next one takes region and session over; report this with the log")
                .print(format);
        }
        if name.as_deref() == Some("control") {
            // Its runtime would go on without the task that panicked, and the run without dials, say. A crash is better:
            // that is what successors are made for.
            crate::log::finish();
            #[expect(clippy::exit, reason = "half a sidecar is worse than none")]
            std::process::exit(PANICKED);
        }
    }));
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.what)?;
        if let Some(standing) = &self.standing {
            write!(f, "\n  at: {standing}")?;
        }
        write!(f, "\n  why: {}\n  hint: {}", self.why(), self.next())
    }
}

impl core::error::Error for Failure {}

/// Writes what clap has to say about a command line that it refuses, with the code of such an end.
pub fn refuse(error: &clap::Error) {
    let text = error.render();
    let text = if crate::log::colour() { text.ansi().to_string() } else { text.to_string() };
    let text = text.replacen("error:", &format!("error[{}]:", Code::Arguments), 1);
    // A closed stderr is nobody to tell.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_errors_next_step_becomes_the_hint() {
        let failure =
            |text: &str| Failure::new(Code::Region, "no").because_and_hint(text, "think").to_string();
        assert_eq!(failure("it is full; empty it"), "error[region]: no\n  why: it is full\n  hint: empty it");
        assert_eq!(failure("it is full"), "error[region]: no\n  why: it is full\n  hint: think");
    }

    #[test]
    fn a_failure_reads_as_what_why_and_next_step() {
        let failure = Failure::new(Code::Token, "no token").because("JOB_TOKEN is empty").hint("export it");
        assert_eq!(
            failure.to_string(),
            "error[token]: no token\n  why: JOB_TOKEN is empty\n  hint: export it"
        );
    }

    #[test]
    fn what_a_failure_leaves_out_is_said_by_its_code() {
        let (means, next) = (Code::Capacity.means(), Code::Capacity.next());
        let failure = Failure::new(Code::Capacity, "closed").to_string();
        assert_eq!(failure, format!("error[capacity]: closed\n  why: {means}\n  hint: {next}"));
    }
}
