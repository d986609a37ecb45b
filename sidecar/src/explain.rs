//! What can go wrong, by a short code that keeps its meaning: the one place for these texts. An error shows its code and,
//! where it knows nothing better, the texts from here; log lines about a run that goes on carry theirs as `code`;
//! `sidecar explain` prints the texts, and README's tables are made of them (a test compares).
//!
//! A code that was released is never given another meaning. Nothing here decides anything.

use std::fmt;
use std::io::Write;

use crate::exit::Exit;
use crate::report::Failure;

/// What a code stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The process ends with exit code 1.
    End,
    /// The run goes on.
    Incident,
}

macro_rules! codes {
    ($($name:ident $text:literal $kind:ident { $sees:literal, $means:literal, $next:literal })+) => {
        /// Why a run ended or could not begin, or what it met and went on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $sees] $name,)+
        }

        impl Code {
            /// Each there is, in the order in which they are shown.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// How it is written.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// Whether it is an end.
            pub const fn kind(self) -> Kind {
                match self { $(Self::$name => Kind::$kind,)+ }
            }

            /// What its reader sees happen.
            pub const fn sees(self) -> &'static str {
                match self { $(Self::$name => $sees,)+ }
            }

            /// What that means.
            pub const fn means(self) -> &'static str {
                match self { $(Self::$name => $means,)+ }
            }

            /// What to do next.
            pub const fn next(self) -> &'static str {
                match self { $(Self::$name => $next,)+ }
            }
        }
    };
}

codes! {
    Arguments "arguments" End {
        "the command line is refused",
        "a flag is missing, unknown, or has a value that it cannot have",
        "`--help` lists the flags; the error names the one that is meant"
    }
    Settings "settings" End {
        "a value is missing or cannot be used",
        "a job id, endpoint, agent id or file, from a flag, the environment or the state file",
        "correct the value that the error names"
    }
    Token "token" End {
        "there is no token, or none that a header can carry",
        "neither `--token-file` nor `JOB_TOKEN` nor `CHALLENGE_TOKEN` has a usable one",
        "export `JOB_TOKEN` (the job response's `job_token`), alone and without quotes"
    }
    Gpu "gpu" End {
        "the GPU cannot be used",
        "there is none of that number, or no driver that shows one to this process; the error says which",
        "`sidecar gpus` lists them; in a container `--gpus all`; `--gpu none` runs without one, and the worker may use any GPU that it sees"
    }
    GpuInUse "gpu-in-use" End {
        "the GPU cannot be had",
        "other sidecars of this user have it; the error names their pids",
        "another `--gpu`, or `--share-gpu N` on all that share it"
    }
    Region "region" End {
        "the region cannot be made or taken over",
        "its path is in use by another sidecar, is something else, or has no room: a default container's `/dev/shm` has 64 MB, of which 35 MB are needed by default",
        "a `--shm` of its own for each sidecar; a larger `/dev/shm` (`--shm-size`), or fewer and smaller slots"
    }
    Start "start" End {
        "something that a run needs from the system is refused",
        "open files, threads, a core to pin to, a signal handler",
        "raise the limits (`ulimit -n`, `ulimit -u`), or drop the flag that the error names"
    }
    Io "io" End {
        "the I/O driver cannot be used",
        "io_uring was asked for and the kernel or a seccomp profile forbids it, or the driver failed in the middle of a run",
        "`--io epoll`; if it failed in the middle of a run, report it"
    }
    Unreachable "unreachable" End {
        "the gateway could not be reached within `--dial-timeout`",
        "no such host, connection refused, no answer, `429` or `5xx`, until the time was up",
        "check `--endpoint` and the network, or raise `--dial-timeout`"
    }
    TokenRefused "token-refused" End {
        "the gateway refused the token at the start (`401`, `403`)",
        "token and job do not belong together, or the job has ended",
        "compare `JOB_UUID` with the job that the token was issued for; the error names where the token came from"
    }
    JobOver "job-over" End {
        "the gateway refused the token on a redial (`401`, `403`)",
        "the job has ended while the tunnel was down",
        "look at the job's result before you submit another"
    }
    Capacity "capacity" End {
        "the gateway closed the tunnel right after the upgrade",
        "as many agents as the job's parallelism allows are connected already",
        "end another agent, or wait for one to end with `--wait-for-slot`"
    }
    WindowOver "window-over" End {
        "the tunnel could not be restored in time",
        "the gateway's window is over, 75 s after the last byte or 33 s after a close: the open session is lost",
        "submit a new job; the network or the gateway was away for longer than a tunnel is kept"
    }
    WorkerFailed "worker-failed" End {
        "the worker could not be warmed up",
        "it reported a failure, or ended before it was ready, after each of three restarts too; the error has its words",
        "run the worker's command by hand, and look at its output"
    }
    RegionDamaged "region-damaged" End {
        "the region was damaged while it was in use",
        "another process truncated or overwrote its file: nothing in it can be believed",
        "find the process that did it (its own worker can); then start the sidecar again at once"
    }
    Bug "bug" End {
        "a part of the sidecar itself failed",
        "it panicked, or lost something that it cannot lose; see the lines above",
        "report it with the log; look whether the worker has ended"
    }
    WorkerAlone "worker-alone" End {
        "a built-in worker cannot attach or go on",
        "no sidecar has a region at its `--shm`, it has a worker already, or it went away for good",
        "start `sidecar --shm` with the same path first, and one worker for it; look at the sidecar's log"
    }
    NoStatistics "no-statistics" End {
        "`sidecar stat` finds no region",
        "no sidecar made one at that path, or it has ended and removed it",
        "name the path that a running sidecar was given with `--shm`"
    }
    Rehearsal "rehearsal" End {
        "`sidecar gateway` or `sidecar demo` cannot play",
        "an address that is taken, no token, no room, or a process of the demo that ended early; its message is above",
        "`sidecar gateway --help`; for the demo, some free space in `/dev/shm`"
    }
    Unsolved "unsolved" End {
        "a rehearsal is over, and not every case of it was solved",
        "an answer was late, wrong or missing; the report on stdout says how many cases and steps were played",
        "look at the worker and at the sidecar's log of that time"
    }
    Redialling "redialling" Incident {
        "the connection is gone, or none came about yet",
        "a cut, a close, a refusal or a broken rule; the line says which, and for how long it is dialled again: once there was a connection, that is how long the gateway may still keep the session",
        "nothing, if it comes back; what waits is kept. At the start check that the gateway runs, and `--endpoint`"
    }
    Unresolved "unresolved" Incident {
        "the gateway's name cannot be resolved",
        "the resolver does not know it, or does not answer",
        "check `--endpoint` and the resolver; a redial goes to where the gateway was before"
    }
    WorkerEnded "worker-ended" Incident {
        "the worker ended, and is started again",
        "it crashed, was killed, or left by itself; `status` says which, and what it held comes again to its successor",
        "look at the worker's output; a kill by the system means that memory was short"
    }
    ReadyOverdue "ready-overdue" Incident {
        "no `ready` 60 s after `warmup`",
        "the worker has not finished its warm-up, and the gateway waits for it",
        "look at the worker's output"
    }
    SlotsTaken "slots-taken" Incident {
        "all observation slots are taken",
        "the worker is behind, or holds on to observations; the next one waits in the network",
        "release each observation once it is answered; more `--slots` only help against bursts"
    }
    TooLarge "too-large" Incident {
        "an observation is larger than a slot",
        "it was discarded, and `--on-failure` decided",
        "raise `--slot-bytes`: the line names the size"
    }
    WorkerError "worker-error" Incident {
        "the worker failed on an observation",
        "it said so itself, and `--on-failure` decided",
        "fix the worker; its message is in the line"
    }
    WorkerDies "worker-dies" Incident {
        "workers die on an observation, which comes again to each successor, marked as redelivered",
        "three died on the same one, and `--on-failure` decided",
        "fix the worker; run it by hand with that observation"
    }
    WorkerSlow "worker-slow" Incident {
        "the worker did not answer within `--worker-timeout`",
        "it is stuck, or slower than it was allowed to be; `--on-failure` decided",
        "look at the worker, or raise `--worker-timeout`"
    }
    WorkerDetached "worker-detached" Incident {
        "the worker broke the shared region's rules",
        "it wrote nonsense where the sidecar reads, and was detached; a successor is let in",
        "use the worker libraries; look for a write past the end of a payload"
    }
    WorkerRefused "worker-refused" Incident {
        "a second worker is refused",
        "one is attached already, and did not end within two seconds",
        "end that one, or close its handle; a successor is let in as soon as its predecessor is gone"
    }
    Resent "resent" Incident {
        "the connection was restored, nothing came, and the last action was sent once more",
        "the action or the next observation was lost in the cut; a lockstep simulator would wait for ever",
        "nothing; `--unfreeze off` forbids it"
    }
    ActionNotKept "action-not-kept" Incident {
        "an action is too long to be kept for a successor",
        "over about 7 KiB, `--unfreeze` works for as long as this process lives, not for the sidecar that takes over from one that died; said once in a run",
        "nothing; shorter actions (fewer steps of a chunk, smaller numbers) are kept"
    }
    Wedged "wedged" Incident {
        "the tunnel is up and a session is open, but nothing has come for `--wedge-after`",
        "the gateway may have lost the session",
        "wait, or start again under another agent id (`--fresh-agent-on-wedge`), which forfeits the session"
    }
    FrameIgnored "frame-ignored" Incident {
        "a frame of the gateway was dropped or ignored",
        "it is for a session that is not open, is not what the contract allows, or is of a type that is not known here; one line for each kind",
        "nothing; if cases fail at the same time, report the line"
    }
}

impl Code {
    /// The code that is written like this.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The exit codes: number, meaning, what to do.
pub const EXITS: &[(u8, &str, &str)] = &[
    (
        Exit::Done.code(),
        "the gateway drained the tunnel: the job is done; or the sidecar left for an upgrade (SIGUSR2)",
        "nothing",
    ),
    (
        Exit::Failed.code(),
        "it could not start or go on; the error on stderr has a code in brackets",
        "`sidecar explain CODE`",
    ),
    (PANICKED, "a panic: a bug of the sidecar", "report it with the log; `--supervise` starts it again"),
    (
        Exit::Interrupted.code(),
        "Ctrl-C: session and socket were closed in order, or at once after a second one",
        "nothing",
    ),
    (Exit::Terminated.code(), "SIGTERM: the same", "nothing"),
];

/// What Rust's runtime exits with after a panic.
const PANICKED: u8 = 101;

/// `sidecar explain`
#[derive(Debug, Clone, clap::Args)]
pub struct ExplainArgs {
    /// The word in brackets behind `error`, the `code` of a log line, or an exit code; all of them without one
    #[arg(value_name = "CODE")]
    pub code: Option<String>,
}

/// Prints what a code means, or all codes.
///
/// # Errors
/// There is no such code.
pub fn run(args: &ExplainArgs) -> Result<Exit, Failure> {
    let text = match &args.code {
        None => overview(),
        Some(word) => explanation(word).ok_or_else(|| {
            Failure::new(Code::Arguments, format!("no code is called \"{}\"", word.escape_debug()))
                .because("it is neither an exit code nor a word that a run prints")
                .hint("`sidecar explain` lists them")
        })?,
    };
    // A closed pipe is a reader that has seen enough.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(Exit::Done)
}

fn explanation(word: &str) -> Option<String> {
    if let Some((number, means, next)) = EXITS.iter().find(|(number, ..)| word == number.to_string()) {
        return Some(format!("exit code {number}\n{}", rows(&[("it means", means), ("do", next)])));
    }
    let code = Code::named(word)?;
    let kind = match code.kind() {
        Kind::End => "the sidecar ends, exit code 1",
        Kind::Incident => "the run goes on",
    };
    Some(format!("{code} ({kind})\n{}", texts(code)))
}

/// All of README's tables, one entry below the other.
fn overview() -> String {
    let mut text = "EXIT CODES\n\n".to_owned();
    for (number, means, next) in EXITS {
        text += &format!("{number}\n{}\n", rows(&[("it means", means), ("do", next)]));
    }
    let titles =
        [(Kind::End, "THE SIDECAR ENDS, WITH EXIT CODE 1"), (Kind::Incident, "THE RUN GOES ON, AND SAYS SO")];
    for (kind, title) in titles {
        text += &format!("{title}\n\n");
        for code in of(kind) {
            text += &format!("{code}\n{}\n", texts(code));
        }
    }
    text
}

fn texts(code: Code) -> String {
    rows(&[("you see", code.sees()), ("it means", code.means()), ("do", code.next())])
}

/// What a terminal shows without breaking a line by itself.
const WIDTH: usize = 80;

/// Labels and texts in two columns, the texts in lines that fit a terminal.
fn rows(rows: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (label, text) in rows {
        let mut line = format!("  {label:<8}  ");
        let indent = line.len();
        for word in text.split(' ') {
            if line.len() > indent && line.len() + 1 + word.len() > WIDTH {
                out += &line;
                out.push('\n');
                line = " ".repeat(indent);
            }
            if line.len() > indent {
                line.push(' ');
            }
            line += word;
        }
        out += &line;
        out.push('\n');
    }
    out
}

fn of(kind: Kind) -> impl Iterator<Item = Code> {
    Code::ALL.iter().copied().filter(move |code| code.kind() == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as README has it.
    fn table(kind: Kind) -> String {
        let head = "| code | you see | it means | do |\n| --- | --- | --- | --- |\n";
        of(kind).fold(head.to_owned(), |table, code| {
            table + &format!("| `{code}` | {} | {} | {} |\n", code.sees(), code.means(), code.next())
        })
    }

    fn exits() -> String {
        let head = "| exit code | it means | do |\n| --- | --- | --- |\n";
        EXITS.iter().fold(head.to_owned(), |table, (number, means, next)| {
            table + &format!("| {number} | {means} | {next} |\n")
        })
    }

    #[test]
    fn readme_has_the_tables_that_explain_prints() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
        let readme = std::fs::read_to_string(path).unwrap();
        for table in [table(Kind::End), table(Kind::Incident), exits()] {
            assert!(readme.contains(&table), "README.md lacks this table:\n\n{table}");
        }
    }

    #[test]
    fn without_a_code_all_of_every_table_is_printed_in_lines_that_fit_a_terminal() {
        let text = overview();
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let all = words(&text);
        for code in Code::ALL {
            let (sees, means, next) = (code.sees(), code.means(), code.next());
            let entry = words(&format!("{code} you see {sees} it means {means} do {next}"));
            assert!(all.contains(&entry), "{entry}");
        }
        for (number, means, next) in EXITS {
            assert!(all.contains(&format!("{number} it means {means} do {next}")), "{number}");
        }
    }

    #[test]
    fn each_code_has_one_short_name_and_texts_that_fit_a_table() {
        for (index, code) in Code::ALL.iter().enumerate() {
            let name = code.name();
            assert_eq!(Code::named(name), Some(*code));
            assert!(Code::ALL[..index].iter().all(|other| other.name() != name), "{name} is there twice");
            assert!(name.len() <= 16 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
            for text in [code.sees(), code.means(), code.next()] {
                assert!(!text.is_empty() && !text.contains(['|', '\n']) && !text.ends_with('.'), "{text}");
            }
        }
        assert_eq!(Code::named("no-such-code"), None);
    }

    #[test]
    fn every_code_is_printed_by_something() {
        let sources = format!("{}/src", env!("CARGO_MANIFEST_DIR"));
        let mut directories = vec![std::path::PathBuf::from(sources)];
        let mut text = String::new();
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.file_name().is_some_and(|name| name != "explain.rs") {
                    text.push_str(&std::fs::read_to_string(path).unwrap());
                }
            }
        }
        for code in Code::ALL {
            assert!(text.contains(&format!("Code::{code:?}")), "nothing prints {code}");
        }
    }

    #[test]
    fn every_exit_code_is_explained() {
        for exit in Exit::ALL {
            assert!(explanation(&exit.code().to_string()).is_some(), "{exit:?}");
        }
        assert_eq!(explanation("2"), None);
    }
}
