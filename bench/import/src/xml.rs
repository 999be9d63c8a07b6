//! XML of foreign files: parsed in bounds, and the figures in its elements.

use roxmltree::{Document, Node, ParsingOptions};

use crate::ImportError;
use crate::numbers::{number, whole};
use crate::text::shown;

/// Results nest 8 deep, profiles 9.
const DEEPEST: usize = 64;
/// Bytes of one tag. What checks that attributes do not repeat compares each with each.
const LONGEST_TAG: usize = 16 << 10;
/// Elements and texts: a result of 256 threads with a series of a day stays below it.
const MOST_NODES: u32 = 8_000_000;

/// Parses XML; the document borrows the text.
pub(crate) fn parse<'a>(file: &str, text: &'a str) -> Result<Document<'a>, ImportError> {
    let advice = "give the XML as DISKSPD wrote it, alone in its file";
    in_bounds(text).map_err(|problem| ImportError::new(file, problem, advice))?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MOST_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| {
        let position = error.pos();
        let place = format!("{file}, line {}", position.row);
        let problem = match error {
            roxmltree::Error::DtdDetected => {
                "it has a document type definition (DTD), which no result needs".to_string()
            }
            roxmltree::Error::NodesLimitReached => {
                format!("it has more than {MOST_NODES} elements and texts")
            }
            roxmltree::Error::UnclosedRootNode | roxmltree::Error::UnexpectedEndOfStream => {
                "it ends in the middle".to_string()
            }
            _ if !text.trim_end().ends_with('>') => "it ends in the middle".to_string(),
            other => format!("this is no XML ({})", shown(&other.to_string())),
        };
        ImportError::new(place, problem, advice)
    })
}

/// A look over the tags before anything is built from them.
fn in_bounds(text: &str) -> Result<(), String> {
    let (mut depth, mut rest) = (0_usize, text);
    while let Some((_, after)) = rest.split_once('<') {
        let end = if after.starts_with("!--") {
            "-->"
        } else if after.starts_with("![CDATA[") {
            "]]>"
        } else {
            ">"
        };
        // Text that ends inside a tag is the parser's to report.
        let Some((tag, next)) = after.split_once(end) else { return Ok(()) };
        if end == ">" {
            if tag.len() > LONGEST_TAG {
                return Err(format!("a tag is longer than {LONGEST_TAG} bytes"));
            }
            if tag.starts_with('/') {
                depth = depth.saturating_sub(1);
            } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
                depth += 1;
            }
            if depth > DEEPEST {
                return Err(format!("its elements nest deeper than {DEEPEST}"));
            }
        }
        rest = next;
    }
    Ok(())
}

/// The first child element of that name.
pub(crate) fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.is_element() && child.tag_name().name() == name)
}

/// All child elements of that name.
pub(crate) fn children<'a, 'input>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> + use<'a, 'input> {
    node.children().filter(move |child| child.is_element() && child.tag_name().name() == name)
}

/// The text of the first child of that name; `None` if it is not there or empty.
pub(crate) fn text_in<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    child(node, name)?.text().map(str::trim).filter(|text| !text.is_empty())
}

/// Where an element stands, for messages: `result.xml, Results/TimeSpan[2]/Thread[5]`.
pub(crate) fn place(file: &str, node: Node) -> String {
    let mut path: Vec<String> = node.ancestors().filter(Node::is_element).map(step).collect();
    path.reverse();
    format!("{file}, {}", path.join("/"))
}

/// An element's name, and its number among its siblings of that name from the second on.
fn step(node: Node) -> String {
    let name = node.tag_name().name();
    let before = node.prev_siblings().filter(|other| other.is_element() && other.tag_name().name() == name);
    match before.count() {
        // Itself is among them.
        0 | 1 => shown(name),
        number => format!("{}[{number}]", shown(name)),
    }
}

fn bad(file: &str, node: Node, name: &str, text: &str, expected: &str) -> ImportError {
    let problem = format!("<{name}> is \"{}\", not {expected}", shown(text));
    ImportError::new(place(file, node), problem, "give the XML as DISKSPD wrote it")
}

/// A number of 0 or above in a child; `None` if it is not there.
pub(crate) fn number_in(file: &str, node: Node, name: &str) -> Result<Option<f64>, ImportError> {
    let Some(text) = text_in(node, name) else { return Ok(None) };
    number(text).map(Some).ok_or_else(|| bad(file, node, name, text, "a number of 0 or above"))
}

/// A whole number in a child; `None` if it is not there.
pub(crate) fn whole_in(file: &str, node: Node, name: &str) -> Result<Option<u64>, ImportError> {
    let Some(text) = text_in(node, name) else { return Ok(None) };
    whole(text).map(Some).ok_or_else(|| bad(file, node, name, text, "a whole number"))
}

/// A number that a measurement or a load cannot do without.
pub(crate) fn missing(file: &str, node: Node, name: &str) -> ImportError {
    let problem = format!("<{}> has no <{name}> above 0", node.tag_name().name());
    ImportError::new(place(file, node), problem, "give the XML as DISKSPD wrote it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_type_is_refused_by_name() {
        let bomb = "<!DOCTYPE r [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><r>&b;</r>";
        assert!(parse("f", bomb).unwrap_err().problem.contains("DTD"), "{:?}", parse("f", bomb));
    }

    #[test]
    fn a_million_nested_elements_are_refused_at_once() {
        let deep = "<a>".repeat(1_000_000);
        assert!(parse("f", &deep).unwrap_err().problem.contains("deeper"));
        assert!(parse("f", &format!("{}{}", "<a>".repeat(60), "</a>".repeat(60))).is_ok());
    }

    #[test]
    fn a_tag_of_endless_attributes_is_refused() {
        let wide: String = (0..10_000).map(|n| format!(" a{n}=\"\"")).collect();
        assert!(parse("f", &format!("<a{wide}/>")).unwrap_err().problem.contains("longer"));
    }

    #[test]
    fn a_file_that_is_cut_off_says_so() {
        assert!(parse("f", "<a><b></b>").unwrap_err().problem.contains("ends in the middle"));
    }
}
