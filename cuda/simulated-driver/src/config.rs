//! What a simulated machine looks like and what fails on it, in one line of text:
//!
//! ```text
//! devices=2;seed=7;visible=1,0;nvml=off;map=off;fail=cuMemHostRegister_v2:712;fail=cuEventRecord@2:700:sticky
//! ```
//!
//! | key | meaning | default |
//! |---|---|---|
//! | `devices` | how many there are; CUDA's order is the reverse of the bus order | 1 |
//! | `seed` | goes into the UUIDs, so that tests that run at once lock different GPUs | 0 |
//! | `visible` | `CUDA_VISIBLE_DEVICES`, where the environment cannot be changed | the environment's |
//! | `init` | the code that `cuInit` gives | 0 |
//! | `nvml` | `off`: NVML cannot be initialised | on |
//! | `map` | `off`: the devices cannot map host memory | on |
//! | `ipc` | `off`: nothing can be passed to another process | on |
//! | `exclusive` | `on`: the devices let one process in | off |
//! | `beat` | `off`: what another process waits for is done only if this one waits for it, too | on |
//! | `mig` | `on`: the devices are MIG instances | off |
//! | `slow` | `CALL:MILLISECONDS`: the call takes so long | |
//! | `fail` | `CALL[@N]:CODE[:deferred\|:sticky]`: the call gives this code, each time or only the Nth time | |

use core::time::Duration;

/// How a failure behaves afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aftermath {
    /// None: the next call is a new start.
    Clean,
    /// The next call reports it once more.
    Deferred,
    /// Every later call in a context reports it.
    Sticky,
}

/// A call that fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failing {
    /// The symbol.
    pub call: String,
    /// Only this call of it, counted from 1; `None`: each.
    pub nth: Option<u64>,
    /// What it gives.
    pub code: u32,
    /// And then.
    pub aftermath: Aftermath,
}

/// See the module's text.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the table above")]
pub struct Config {
    pub devices: u32,
    pub seed: u8,
    pub visible: Option<String>,
    pub init: u32,
    pub nvml: bool,
    pub map: bool,
    pub ipc: bool,
    pub exclusive: bool,
    pub beat: bool,
    pub mig: bool,
    pub slow: Vec<(String, Duration)>,
    pub failing: Vec<Failing>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 1,
            seed: 0,
            visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            init: 0,
            nvml: true,
            map: true,
            ipc: true,
            exclusive: false,
            beat: true,
            mig: false,
            slow: Vec::new(),
            failing: Vec::new(),
        }
    }
}

impl Config {
    /// Reads a line as described above.
    ///
    /// # Errors
    /// The part that could not be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut config = Self::default();
        for part in text.split(';').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| part.to_owned())?;
            match key {
                "devices" => config.devices = value.parse().map_err(|_| part.to_owned())?,
                "seed" => config.seed = value.parse().map_err(|_| part.to_owned())?,
                "visible" => config.visible = Some(value.to_owned()),
                "init" => config.init = value.parse().map_err(|_| part.to_owned())?,
                "nvml" => config.nvml = value != "off",
                "map" => config.map = value != "off",
                "ipc" => config.ipc = value != "off",
                "exclusive" => config.exclusive = value == "on",
                "beat" => config.beat = value != "off",
                "mig" => config.mig = value == "on",
                "slow" => config.slow.push(slow(value).ok_or_else(|| part.to_owned())?),
                "fail" => config.failing.push(failing(value).ok_or_else(|| part.to_owned())?),
                _ => return Err(part.to_owned()),
            }
        }
        Ok(config)
    }
}

fn slow(text: &str) -> Option<(String, Duration)> {
    let (call, milliseconds) = text.split_once(':')?;
    Some((call.to_owned(), Duration::from_millis(milliseconds.parse().ok()?)))
}

fn failing(text: &str) -> Option<Failing> {
    let mut parts = text.split(':');
    let call = parts.next()?;
    let code = parts.next()?.parse().ok()?;
    let aftermath = match parts.next() {
        None => Aftermath::Clean,
        Some("deferred") => Aftermath::Deferred,
        Some("sticky") => Aftermath::Sticky,
        Some(_) => return None,
    };
    let (call, nth) = match call.split_once('@') {
        None => (call, None),
        Some((call, nth)) => (call, Some(nth.parse().ok()?)),
    };
    Some(Failing { call: call.to_owned(), nth, code, aftermath })
}
