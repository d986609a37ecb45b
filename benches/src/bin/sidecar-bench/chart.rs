//! The picture: latency by size, both axes logarithmic, one line for each subject. An SVG that reads on light and on dark
//! ground, with no font and no script of its own.

use core::fmt::Write as _;

use crate::report::Latency;
use crate::rounds::Placement;
use crate::rows::bytes;
use crate::subjects::Subject;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 56.0;
/// Between two names beside the lines.
const LEADING: f64 = 17.0;

/// Ours stand out, the floor is grey, the others share a scale of hues that can be told apart in both modes.
const COLOURS: [(Subject, &str, &str); 10] = [
    (Subject::Uring, "#d1242f", "#ff7b72"),
    (Subject::Floor, "#57606a", "#9da7b3"),
    (Subject::Epoll, "#bc4c00", "#ffa657"),
    (Subject::UringPython, "#a40e6e", "#f778ba"),
    (Subject::Fastwebsockets, "#0969da", "#79c0ff"),
    (Subject::Tungstenite, "#1b7c83", "#56d4dd"),
    (Subject::TokioUring, "#116329", "#56d364"),
    (Subject::Beast, "#4d2d00", "#d4a72c"),
    (Subject::Picows, "#6639ba", "#d2a8ff"),
    (Subject::Websockets, "#0a3069", "#a5d6ff"),
];

/// Draws the cells of one placement; sizes of 0 have no place on a logarithmic axis.
pub(crate) fn draw(latencies: &[Latency], placement: Placement) -> String {
    let cells =
        latencies.iter().filter(|cell| cell.placement == placement && cell.bytes > 0 && cell.p50 > 0.0);
    let cells = cells.collect::<Vec<_>>();
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)))
    };
    let (small, large) = range(&mut cells.iter().map(|cell| cell.bytes as f64));
    let (fast, slow) = range(&mut cells.iter().map(|cell| cell.p50));
    let mut svg = head();
    if cells.is_empty() {
        svg.push_str("<text x=\"70\" y=\"90\">nothing was measured</text>\n</svg>\n");
        return svg;
    }
    let bottom = 10_f64.powf(fast.log10().floor());
    let top = 10_f64.powf(slow.log10().ceil()).max(bottom * 10.0);
    let large = large.max(small * 2.0);
    let x = |size: f64| LEFT + (WIDTH - LEFT - RIGHT) * (size / small).ln() / (large / small).ln();
    let y = |micros: f64| {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (micros / bottom).ln() / (top / bottom).ln()
    };

    let mut decade = bottom;
    while decade <= top * 1.001 {
        let at = y(decade);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - RIGHT
        );
        let _ = writeln!(
            svg,
            "<text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{decade}</text>",
            LEFT - 8.0,
            at + 4.0
        );
        decade *= 10.0;
    }
    let mut sizes = cells.iter().map(|cell| cell.bytes).collect::<Vec<_>>();
    sizes.sort_unstable();
    sizes.dedup();
    for (index, size) in sizes.iter().enumerate() {
        let at = x(*size as f64);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>",
            HEIGHT - BOTTOM
        );
        // Neighbours would overlap on one line.
        let row = HEIGHT - BOTTOM + if index % 2 == 0 { 16.0 } else { 30.0 };
        let _ = writeln!(
            svg,
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{at:.1}\" y=\"{row:.1}\">{}</text>",
            bytes(*size)
        );
    }
    let mut ends = Vec::new();
    for (subject, ..) in COLOURS {
        let line =
            cells.iter().filter(|cell| cell.who == subject).map(|cell| (x(cell.bytes as f64), y(cell.p50)));
        let line = line.collect::<Vec<_>>();
        let Some((_, last)) = line.last().copied() else { continue };
        let points = line.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
        let class = class(subject);
        let _ = writeln!(svg, "<polyline class=\"line {class}\" points=\"{points}\"/>");
        for (x, y) in &line {
            let _ = writeln!(svg, "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>");
        }
        ends.push((last, subject));
    }
    names(&mut svg, ends);
    svg.push_str("</svg>\n");
    svg
}

/// Names beside the ends of the lines, moved apart where they would overlap, from the slowest down.
fn names(svg: &mut String, mut ends: Vec<(f64, Subject)>) {
    ends.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut free = TOP;
    let lowest = HEIGHT - BOTTOM - LEADING * ends.len() as f64;
    for (index, (end, subject)) in ends.iter().enumerate() {
        // Room is left for those that follow.
        let at = end.max(free).min(lowest + LEADING * (index + 1) as f64);
        free = at + LEADING;
        let (left, class) = (WIDTH - RIGHT, class(*subject));
        let _ = writeln!(
            svg,
            "<line class=\"line {class}\" x1=\"{:.1}\" y1=\"{end:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\"/>",
            left + 4.0,
            left + 22.0
        );
        let _ = writeln!(
            svg,
            "<text class=\"name {class}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left + 26.0,
            at + 4.0,
            subject.name()
        );
    }
}

fn class(subject: Subject) -> String {
    format!("{subject:?}").to_lowercase()
}

fn head() -> String {
    let mut style = String::new();
    let mut dark = String::new();
    for (subject, light, night) in COLOURS {
        let class = class(subject);
        let _ = write!(style, ".{class}{{color:{light}}}");
        let _ = write!(dark, ".{class}{{color:{night}}}");
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"Latency from observation to action by observation size\">\n\
         <style>svg{{font:13px system-ui,sans-serif}}.grid{{stroke:#d0d7de}}text{{fill:#1f2328}}{style}\
         .line{{fill:none;stroke:currentColor;stroke-width:1.4}}.dot{{fill:currentColor}}.uring.line{{stroke-width:2.6}}\
         .floor.line{{stroke-dasharray:5 4}}\
         text.name{{fill:currentColor}}.uring.name{{font-weight:600}}.grid{{stroke-width:.6}}\
         .tick{{font-size:11px}}\
         @media (prefers-color-scheme:dark){{.grid{{stroke:#30363d}}text{{fill:#e6edf3}}{dark}}}</style>\n\
         <text x=\"{LEFT}\" y=\"24\">Observation to action, all on one CPU: median in microseconds</text>\n\
         <text class=\"tick\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">bytes of the observation</text>\n\
         <text class=\"tick\" text-anchor=\"middle\" transform=\"translate(18 {:.1}) rotate(-90)\">microseconds</text>\n",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        (TOP + HEIGHT - BOTTOM) / 2.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(who: Subject, bytes: usize, p50: f64) -> Latency {
        Latency { placement: Placement::OneCpu, subject: who.name(), bytes, p50, p99: p50, exchanges: 1, who }
    }

    #[test]
    fn every_line_is_drawn_inside_and_named_once() {
        let who = [Subject::Uring, Subject::Floor, Subject::Websockets];
        let cells = who.iter().enumerate().flat_map(|(index, who)| {
            [64, 4096, 2 << 20].map(|size| cell(*who, size, size as f64 / 50.0 + index as f64))
        });
        let svg = draw(&cells.collect::<Vec<_>>(), Placement::OneCpu);
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert!(who.iter().all(|who| svg.matches(&format!(">{}</text>", who.name())).count() == 1));
        for part in svg.split("cy=\"").skip(1) {
            let at: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((TOP..=HEIGHT - BOTTOM).contains(&at), "{at}");
        }
        assert!(draw(&[], Placement::OneCpu).contains("nothing was measured"));
    }
}
