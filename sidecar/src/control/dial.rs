//! Where the gateway is and with which token, for each dial anew.
//!
//! A task of its own: a resolver that hangs delays neither a signal nor a worker. Each look-up runs in a thread that
//! nobody waits for, at most one at a time, and what it finds serves the newest dial: an older one has been given up.
//! A name that was resolved once keeps its addresses for as long as the resolver has no better ones.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;

use sidecar_core::agent::DialFailure;
use tokio::sync::{oneshot, watch};

use crate::config::{Target, Token, TokenSources};
use crate::explain::Code;
use crate::frame_loop::Command;

/// A redial waits this long for the resolver before it goes to the addresses of the last time: the gateway keeps a
/// session for 30 s (tunnel contract A.5), and a resolver may hang for longer than that.
const PATIENCE: Duration = Duration::from_secs(2);

/// A dial that the frame loop asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) dial: u64,
    /// The last token was refused.
    pub(super) reread_token: bool,
}

type Resolve = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// See the module.
pub(super) struct Dialler {
    target: Target,
    tokens: TokenSources,
    token: Token,
    resolve: Arc<Resolve>,
    patience: Duration,
    /// Of the last look-up that found any.
    known: Vec<SocketAddr>,
}

impl Dialler {
    pub(super) fn new(target: Target, tokens: TokenSources, token: Token) -> Self {
        let resolve = |host: &str, port| Ok((host, port).to_socket_addrs()?.collect());
        Self { target, tokens, token, resolve: Arc::new(resolve), patience: PATIENCE, known: Vec::new() }
    }

    /// Serves until nobody can wish any more.
    pub(super) async fn serve(mut self, mut wishes: watch::Receiver<Wish>, tell: impl Fn(Command)) {
        while wishes.changed().await.is_ok() {
            let mut wish = self.take(&mut wishes);
            let mut served = None;
            let mut found = self.look_up();
            let patience = tokio::time::sleep(self.patience);
            tokio::pin!(patience);
            let mut waited = false;
            let found = loop {
                tokio::select! {
                    biased;
                    found = &mut found => break found,
                    changed = wishes.changed() => match changed {
                        Ok(()) => wish = self.take(&mut wishes),
                        Err(_) => return,
                    },
                    () = &mut patience, if !waited => waited = true,
                }
                if waited && !self.known.is_empty() && served != Some(wish) {
                    tracing::warn!(
                        host = %self.target.host,
                        "the gateway's name is not resolved yet; dialling where it was before"
                    );
                    tell(self.answer(wish));
                    served = Some(wish);
                }
            };
            // A thread that panicked has said so.
            self.learn(found.unwrap_or_else(|_| Err(io::Error::other("the resolver's thread panicked"))));
            if served != Some(wish) {
                tell(self.answer(wish));
            }
        }
    }

    /// The newest wish, with the token that it needs.
    fn take(&mut self, wishes: &mut watch::Receiver<Wish>) -> Wish {
        let wish = *wishes.borrow_and_update();
        if wish.reread_token {
            match self.tokens.read() {
                Ok(token) => self.token = token,
                Err(failure) => tracing::warn!(%failure, "the token sources could not be read again"),
            }
        }
        wish
    }

    fn look_up(&self) -> oneshot::Receiver<io::Result<Vec<SocketAddr>>> {
        let (found, finding) = oneshot::channel();
        let port = self.target.port;
        if let Ok(address) = self.target.host.parse::<IpAddr>() {
            // Whoever waits is the caller.
            let _ = found.send(Ok(vec![SocketAddr::new(address, port)]));
            return finding;
        }
        let (host, resolve) = (self.target.host.clone(), Arc::clone(&self.resolve));
        let thread = std::thread::Builder::new().name("resolve".into()).spawn(move || {
            // The process may be ending meanwhile.
            let _ = found.send(resolve(&host, port));
        });
        match thread {
            Ok(_) => finding,
            Err(error) => {
                let (found, failed) = oneshot::channel();
                let _ = found.send(Err(error));
                failed
            }
        }
    }

    fn learn(&mut self, found: io::Result<Vec<SocketAddr>>) {
        let host = &self.target.host;
        match found {
            Ok(addresses) if !addresses.is_empty() => self.known = addresses,
            Ok(_) => {
                let code = Code::Unresolved.name();
                tracing::warn!(code, %host, "the gateway's name has no address; check --endpoint and the resolver")
            }
            Err(error) => tracing::warn!(
                code = Code::Unresolved.name(),
                %host,
                %error,
                known = self.known.len(),
                "the gateway's name cannot be resolved; check --endpoint and the resolver"
            ),
        }
    }

    fn answer(&self, wish: Wish) -> Command {
        let answer = match self.known.as_slice() {
            [] => Err(DialFailure::Dns),
            known => Ok((known.to_vec(), self.token.clone())),
        };
        Command::Dial { dial: wish.dial, answer }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;

    /// What a resolver says, in turn; each answer is one that the test gives when it likes.
    struct Play {
        answers: mpsc::Sender<io::Result<Vec<SocketAddr>>>,
        asked: mpsc::Receiver<()>,
        wishes: watch::Sender<Wish>,
        commands: crate::channel::Receiver<Command>,
    }

    const FIRST: &str = "10.0.0.1:80";
    const OTHER: &str = "10.0.0.2:80";

    fn found(address: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![address.parse().unwrap()])
    }

    impl Play {
        /// Runs the dialler on a thread of its own.
        fn start(patience: Duration, token_file: &std::path::Path) -> Self {
            let (answers, answering) = mpsc::channel();
            let (asking, asked) = mpsc::channel();
            let (sender, commands) = crate::channel::unbounded();
            let (wishes, wished) = watch::channel(Wish::default());
            let answering = Mutex::new(answering);
            let resolve = move |_: &str, _: u16| {
                asking.send(()).unwrap();
                answering.lock().unwrap().recv().unwrap_or_else(|_| found(FIRST))
            };
            let target = crate::config::parse_endpoint("ws://gateway.example/tunnel").unwrap();
            let tokens = TokenSources { file: Some(token_file.to_owned()), env_file: None };
            let token = tokens.read().unwrap();
            let dialler =
                Dialler { target, tokens, token, resolve: Arc::new(resolve), patience, known: Vec::new() };
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(dialler.serve(wished, |command| sender.send(command).unwrap()));
            });
            Self { answers, asked, wishes, commands }
        }

        fn wish(&self, dial: u64, reread_token: bool) {
            self.wishes.send_replace(Wish { dial, reread_token });
        }

        /// The next answer: of which dial, where to and with which token.
        fn heard(&self) -> (u64, Result<(String, String), DialFailure>) {
            match self.commands.recv_timeout(Duration::from_secs(60)).unwrap() {
                Command::Dial { dial, answer } => {
                    (dial, answer.map(|(to, token)| (to[0].to_string(), token.secret().to_owned())))
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn token_file(token: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), token).unwrap();
        file
    }

    fn to(address: &str, token: &str) -> Result<(String, String), DialFailure> {
        Ok((address.to_owned(), token.to_owned()))
    }

    #[test]
    fn one_look_up_serves_the_newest_dial_only() {
        let file = token_file("one");
        let play = Play::start(Duration::from_secs(60), file.path());
        play.wish(1, false);
        play.asked.recv().unwrap();
        play.wish(2, false);
        std::fs::write(file.path(), "two").unwrap();
        play.wish(3, true);
        play.answers.send(found(FIRST)).unwrap();
        let mut last = play.heard();
        if last.0 != 3 {
            // The look-up was done before the wish was seen.
            play.answers.send(found(FIRST)).unwrap();
            last = play.heard();
        }
        assert_eq!(last, (3, to(FIRST, "two")));
        assert!(play.commands.is_empty());
    }

    #[test]
    fn a_name_that_cannot_be_resolved_any_more_is_dialled_where_it_was() {
        let file = token_file("one");
        let play = Play::start(Duration::from_secs(60), file.path());
        for (dial, answer, heard) in [
            (1, Err(io::Error::other("no")), Err(DialFailure::Dns)),
            (2, found(FIRST), to(FIRST, "one")),
            (3, Err(io::Error::other("no")), to(FIRST, "one")),
            (4, Ok(Vec::new()), to(FIRST, "one")),
            (5, found(OTHER), to(OTHER, "one")),
        ] {
            play.wish(dial, false);
            play.answers.send(answer).unwrap();
            assert_eq!(play.heard(), (dial, heard));
        }
    }

    #[test]
    fn a_resolver_that_hangs_on_a_redial_holds_it_up_for_a_moment_only() {
        let file = token_file("one");
        let play = Play::start(Duration::from_millis(20), file.path());
        play.wish(1, false);
        play.answers.send(found(FIRST)).unwrap();
        assert_eq!(play.heard(), (1, to(FIRST, "one")));
        // No answer to this look-up: each dial goes to the known address, and no second look-up is begun.
        for dial in 2..5 {
            play.wish(dial, false);
            assert_eq!(play.heard(), (dial, to(FIRST, "one")));
        }
        assert_eq!(play.asked.try_iter().count(), 2);
        // Whatever it finds in the end is where later dials go.
        let mut dial = 5;
        loop {
            play.answers.send(found(OTHER)).unwrap();
            play.wish(dial, false);
            let heard = play.heard();
            assert_eq!(heard.0, dial);
            if heard.1 == to(OTHER, "one") {
                return;
            }
            dial += 1;
        }
    }

    #[test]
    fn an_address_needs_no_resolver() {
        let file = token_file("one");
        let mut dialler = Dialler::new(
            crate::config::parse_endpoint("ws://[::1]:9/tunnel").unwrap(),
            TokenSources { file: None, env_file: None },
            TokenSources { file: Some(file.path().to_owned()), env_file: None }.read().unwrap(),
        );
        dialler.resolve = Arc::new(|_: &str, _: u16| panic!("asked"));
        assert_eq!(dialler.look_up().try_recv().unwrap().unwrap(), ["[::1]:9".parse().unwrap()]);
    }
}
