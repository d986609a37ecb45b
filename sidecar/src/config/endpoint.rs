//! `--endpoint`: where the gateway is.

use sidecar_core::agent::Endpoint;

use crate::explain::Code;
use crate::report::Failure;

/// The contest's gateway, when neither flag nor environment nor state file names another.
pub const DEFAULT: &str = "ws://120.92.88.78/api/challenge/tunnel";

/// An endpoint, taken apart once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// `host[:port]` and path as they appear in the request.
    pub endpoint: Endpoint,
    /// The URL as it may be shown: without a query, which is nobody's business.
    pub shown: String,
}

/// Takes `url` apart.
///
/// # Errors
/// Another scheme than `ws`, no host, a user name or password, or parts longer than the protocol core keeps.
pub fn parse(url: &str) -> Result<Target, Failure> {
    let bad = |why: &str| {
        Failure::new(Code::Settings, "the endpoint cannot be used")
            .because(why)
            .hint("give it as ws://HOST[:PORT]/PATH, as the job response's tunnel_endpoint has it")
    };
    let uri: hyper::Uri = url.trim().parse().map_err(|error| bad(&format!("not a URL: {error}")))?;
    match uri.scheme_str() {
        Some("ws") => {}
        Some("wss") => return Err(bad("wss:// (TLS) is not supported by this version")),
        Some(other) => return Err(bad(&format!("its scheme is {other}://, not ws://"))),
        None => return Err(bad("it has no scheme")),
    }
    let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(bad("it holds a user name; the token comes from JOB_TOKEN, never from a URL"));
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(bad("it names no host"));
    }
    let port = match uri.port() {
        None if authority.as_str().ends_with(':') || authority.as_str().len() > authority.host().len() => {
            return Err(bad("its port is not a number from 1 to 65535"));
        }
        None => 80,
        Some(port) => port.as_u16(),
    };
    if port == 0 {
        return Err(bad("its port is 0"));
    }
    let path = uri.path_and_query().map_or("/", hyper::http::uri::PathAndQuery::as_str);
    let too_long = |_| bad("host and path may have at most 255 and 1024 bytes");
    let endpoint = Endpoint {
        host: authority.as_str().try_into().map_err(too_long)?,
        path: path.try_into().map_err(too_long)?,
    };
    let shown = format!("ws://{authority}{}", uri.path());
    Ok(Target { host: host.to_owned(), port, endpoint, shown })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_taken_apart() {
        let target = parse("ws://gateway.example:8080/api/tunnel?x=1").unwrap();
        assert_eq!((target.host.as_str(), target.port), ("gateway.example", 8080));
        assert_eq!(target.endpoint.host.as_str(), "gateway.example:8080");
        assert_eq!(target.endpoint.path.as_str(), "/api/tunnel?x=1");
        assert_eq!(target.shown, "ws://gateway.example:8080/api/tunnel");
        assert_eq!(parse(DEFAULT).unwrap().port, 80);
        let six = parse("ws://[::1]:9/t").unwrap();
        assert_eq!((six.host.as_str(), six.endpoint.host.as_str()), ("::1", "[::1]:9"));
    }

    #[test]
    fn what_cannot_be_dialled_is_refused_with_its_reason() {
        for (url, why) in [
            ("http://h/", "scheme is http"),
            ("wss://h/", "TLS"),
            ("h/path", "not a URL"),
            ("/path", "no scheme"),
            ("ws://me:secret@h/", "user name"),
            ("ws://h:99999/", ""),
            ("ws://h:0/", "port"),
            ("ws://h:/", "port"),
            ("ws:///x", ""),
            ("", "not a URL"),
        ] {
            let failure = parse(url).expect_err(url).to_string();
            assert!(failure.contains(why), "{url}: {failure}");
            assert!(!failure.contains("secret"), "{failure}");
        }
        let long = format!("ws://h/{}", "x".repeat(2000));
        assert!(parse(&long).unwrap_err().to_string().contains("1024"));
    }
}
