//! A comparison as JUnit XML: a test case for each load, which fails if the load is slower by more than is allowed.

use crate::compare::{Comparison, Load};

/// What every such file begins with: by it one is known that may be written over.
pub const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"loadline compare\">\n";

/// The whole file. A load that could not be judged is skipped.
pub fn document(comparison: &Comparison) -> String {
    let loads = &comparison.loads;
    let failures = loads.iter().filter(|load| load.beyond_allowed).count();
    let skipped = loads.iter().filter(|load| !load.verdict.is_judged()).count();
    let study = escaped(&comparison.runs.b.study);
    let mut xml = format!(
        "{HEAD}  <testsuite name=\"{study}\" tests=\"{}\" failures=\"{failures}\" errors=\"0\" \
         skipped=\"{skipped}\">\n",
        loads.len()
    );
    let runs = [("A", &comparison.runs.a), ("B", &comparison.runs.b)];
    let runs = runs.map(|(name, side)| (name.to_string(), format!("{}, {}", side.folder, side.run_id)));
    let doubts = comparison.doubts.iter().map(|doubt| ("doubtful".to_string(), doubt.clone()));
    let differences =
        comparison.configuration.iter().map(|difference| ("configuration".to_string(), difference.line()));
    xml.push_str("    <properties>\n");
    for (name, value) in runs.into_iter().chain(doubts).chain(differences) {
        xml.push_str(&format!("      <property name=\"{name}\" value=\"{}\"/>\n", escaped(&value)));
    }
    xml.push_str("    </properties>\n");
    loads.iter().for_each(|load| xml.push_str(&case(load, &study)));
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

fn case(load: &Load, study: &str) -> String {
    let doubt = if load.is_doubtful() { " (doubtful)" } else { "" };
    let sentence = escaped(&format!("{}{doubt}", load.sentence()));
    let inside = match (load.beyond_allowed, load.verdict.is_judged()) {
        (true, _) => format!("<failure type=\"slower\" message=\"{sentence}\"/>"),
        (false, false) => format!("<skipped message=\"{sentence}\"/>"),
        (false, true) => format!("<system-out>{sentence}</system-out>"),
    };
    let name = escaped(&load.label);
    format!("    <testcase classname=\"{study}\" name=\"{name}\">\n      {inside}\n    </testcase>\n")
}

/// A file in which every load is skipped, for a reason that holds for all of them.
pub fn all_skipped(study: &str, loads: &[String], why: &str) -> String {
    let (study, why) = (escaped(study), escaped(why));
    let case = |load: &String| {
        format!(
            "    <testcase classname=\"{study}\" name=\"{}\">\n      <skipped message=\"{why}\"/>\n    \
             </testcase>\n",
            escaped(load)
        )
    };
    let cases: String = loads.iter().map(case).collect();
    let count = loads.len();
    format!(
        "{HEAD}  <testsuite name=\"{study}\" tests=\"{count}\" failures=\"0\" errors=\"0\" \
         skipped=\"{count}\">\n{cases}  </testsuite>\n</testsuites>\n"
    )
}

/// Text as XML has it in attributes and between tags. What XML 1.0 cannot say at all, such as most control
/// characters, becomes U+FFFD.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\t' | '\n' | '\r' => escaped.push_str(&format!("&#{};", u32::from(c))),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
