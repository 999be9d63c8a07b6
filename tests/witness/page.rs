//! A how-to as a test follows it: its commands, each with the hosts on which it is typed, and what they are to print.
//!
//! A block of commands is fenced as `sh` and stands below a line that ends with "On HOST:", "On HOST and HOST:" or "On HOST, HOST and
//! HOST:". A block that is fenced as `text` below it has lines that the commands print; "…" in it stands for anything.
//!
//! "On HOST, run the commands for OTHER under [SECTION](#section)." repeats the blocks of these sections that are typed on OTHER; with
//! "each of them again" in place of OTHER, those that are typed on HOST itself.

/// What a section has a person do.
#[derive(Debug)]
pub(crate) enum Step {
    Type(Block),
    Again(Again),
}

/// Commands of other sections, on other hosts.
#[derive(Debug)]
pub(crate) struct Again {
    /// Each host, and the host for which the commands stand there.
    pub(crate) hosts: Vec<(String, String)>,
    /// Headings, as links name them.
    pub(crate) sections: Vec<String>,
}

/// Commands and what they print.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// The line of the page where it begins.
    pub(crate) line: usize,
    /// Names of hosts.
    pub(crate) hosts: Vec<String>,
    pub(crate) commands: String,
    /// Lines that are printed, in any order, perhaps among others. Empty if the page does not say.
    pub(crate) prints: Vec<String>,
}

/// What stands below one heading, up to the next one.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) heading: String,
    pub(crate) steps: Vec<Step>,
}

impl Section {
    /// The heading, as links name it.
    pub(crate) fn link(&self) -> String {
        self.heading.to_lowercase().replace(' ', "-")
    }

    /// The blocks of the section that are typed on this host.
    pub(crate) fn blocks_of(&self, host: &str) -> impl Iterator<Item = &Block> {
        let is_typed = move |block: &&Block| block.hosts.iter().any(|name| name == host);
        let blocks = self.steps.iter().filter_map(|step| match step {
            Step::Type(block) => Some(block),
            Step::Again(_) => None,
        });
        blocks.filter(is_typed)
    }
}

/// The sections of a page, in their order.
pub(crate) fn read(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut before = String::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(fence) = line.strip_prefix("```") {
            let inside: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            let steps = &mut sections.last_mut().expect("a heading comes first").steps;
            match fence {
                "sh" => {
                    let hosts = hosts_before(&before);
                    let hosts = hosts.unwrap_or_else(|| panic!("line {}: on which host?", number + 1));
                    let (commands, prints) = (inside.join("\n"), Vec::new());
                    steps.push(Step::Type(Block { line: number + 1, hosts, commands, prints }));
                }
                "text" => {
                    let Some(Step::Type(block)) = steps.last_mut() else { panic!("commands come first") };
                    let lines = inside.into_iter().filter(|line| !line.is_empty());
                    block.prints.extend(lines.map(str::to_owned));
                }
                other => panic!("line {}: a block of '{other}' is not understood", number + 1),
            }
            before.clear();
        } else if line.starts_with("##") {
            let heading = line.trim_start_matches(['#', ' ']).to_owned();
            sections.push(Section { heading, steps: Vec::new() });
        } else if !line.is_empty() {
            before = line.to_owned();
            if let Some(again) = again(line) {
                sections.last_mut().expect("a heading comes first").steps.push(Step::Again(again));
            }
        }
    }
    sections
}

/// The hosts that a line before a block names.
fn hosts_before(line: &str) -> Option<Vec<String>> {
    let (_, list) = line.strip_suffix(':')?.rsplit_once("On ")?;
    Some(hosts(list))
}

/// The hosts of a list.
fn hosts(list: &str) -> Vec<String> {
    let names = list.split(", ").flat_map(|part| part.split(" and "));
    names.map(|name| name.trim_start_matches("the ").to_owned()).collect()
}

/// What a line has repeated, if it does.
fn again(line: &str) -> Option<Again> {
    let (at, links) = line.strip_prefix("On ")?.split_once(" under ")?;
    let (at, other) = at.split_once(", run the commands for ")?;
    let other = hosts(other).remove(0);
    let host = |name: String| {
        if other == "each of them again" { (name.clone(), name) } else { (name, other.clone()) }
    };
    let links = links.split("](#").skip(1).filter_map(|link| link.split_once(')'));
    let sections = links.map(|(link, _)| link.to_owned()).collect();
    Some(Again { hosts: hosts(at).into_iter().map(host).collect(), sections })
}

/// Which of these lines is not among what was printed.
pub(crate) fn missing<'a>(prints: &'a [String], printed: &str) -> Option<&'a str> {
    prints.iter().map(String::as_str).find(|expected| !printed.lines().any(|line| matches(expected, line)))
}

/// Whether a line is as expected, where "…" stands for anything and the widths of columns do not count.
fn matches(expected: &str, line: &str) -> bool {
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (expected, line) = (squeezed(expected), squeezed(line));
    let mut parts = expected.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = "";
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = part;
    }
    rest.is_empty() || (expected.ends_with('…') && last.is_empty())
}

#[test]
fn a_page_is_read_as_a_person_reads_it() {
    let text = "## One\nDo it. On node-1, node-2 and the witness:\n\n```sh\na\nb\n```\n\n```text\nx …, y\n```\n\
        ## And two\nOn node-3, run the commands for the witness under [One](#one) and [Two](#and-two).\n\
        On node-1 and node-2, run the commands for each of them again under [One](#one).\n";
    let sections = read(text);
    let block = sections[0].blocks_of("witness").next().expect("it is one of the hosts");
    assert_eq!(block.hosts, ["node-1", "node-2", "witness"]);
    assert_eq!((block.line, block.commands.as_str()), (4, "a\nb"));
    assert_eq!(missing(&block.prints, "w\nx  1,  2, y\n"), None);
    assert_eq!(missing(&block.prints, "x 1, z\nx 1, y and more"), Some("x …, y"));
    assert_eq!(sections[1].link(), "and-two");
    let Step::Again(again) = &sections[1].steps[0] else { panic!("it repeats") };
    assert_eq!(again.hosts, [("node-3".to_owned(), "witness".to_owned())]);
    assert_eq!(again.sections, ["one", "and-two"]);
    let Step::Again(again) = &sections[1].steps[1] else { panic!("it repeats") };
    let same = |name: &str| (name.to_owned(), name.to_owned());
    assert_eq!(again.hosts, [same("node-1"), same("node-2")]);
}
