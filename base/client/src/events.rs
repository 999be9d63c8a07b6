//! Server-sent events, as they come: the stream of a node, or of another server of ours.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use crate::address::ApiAddress;

/// Bytes of a line at most. A longer one ends the stream.
const LONGEST: u64 = 64 << 20;

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// Its name; `message` if it has none.
    pub name: String,
    /// Its id, if it has one: what a later stream can begin after.
    pub id: Option<String>,
    /// Its content.
    pub data: String,
}

/// A stream of events.
pub struct Events(Box<dyn BufRead + Send>);

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl ApiAddress {
    /// Follows a stream at this path, from after the event with this id. Whenever nothing comes within `idle`, the stream ends with an
    /// error. Errors are for people, and do not name the address.
    pub fn follow(
        &self,
        access: Option<&Path>,
        path: &str,
        after: Option<&str>,
        idle: Duration,
    ) -> Result<Events, String> {
        let agent = self.stream_agent(access, idle)?;
        let mut request = agent.get(self.url(path));
        if let Some(id) = after {
            request = request.header("Last-Event-ID", id);
        }
        let mut answer = request.call().map_err(|why| why.to_string())?;
        if answer.status() != 200 {
            let said = answer.body_mut().with_config().limit(4096).read_to_string().unwrap_or_default();
            return Err(format!("it answers {}: {said}", answer.status().as_u16()));
        }
        let body = answer.into_body().into_with_config().limit(u64::MAX).reader();
        Ok(Events(Box::new(BufReader::with_capacity(64 << 10, body))))
    }
}

impl Events {
    /// The next event; `None` if the stream has ended. The error is for people.
    pub fn receive(&mut self) -> Result<Option<ServerEvent>, String> {
        let mut event = ServerEvent::default();
        let mut data: Vec<String> = Vec::new();
        loop {
            let mut line = String::new();
            let count = (&mut self.0).take(LONGEST).read_line(&mut line).map_err(|why| why.to_string())?;
            if count == 0 {
                // An event whose end did not come is none.
                return Ok(None);
            }
            let Some(line) = line.strip_suffix('\n') else {
                return Err("it sends a line without an end".into());
            };
            let line = line.strip_suffix('\r').unwrap_or(line);
            if line.is_empty() {
                if data.is_empty() {
                    event = ServerEvent::default();
                    continue;
                }
                event.data = data.join("\n");
                if event.name.is_empty() {
                    event.name = "message".into();
                }
                return Ok(Some(event));
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => event.name = value.into(),
                "id" => event.id = Some(value.into()),
                "data" => data.push(value.into()),
                // Also a comment, whose field has no name.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &'static str) -> (Vec<ServerEvent>, Option<String>) {
        let mut events = Events(Box::new(text.as_bytes()));
        let mut all = Vec::new();
        loop {
            match events.receive() {
                Ok(Some(event)) => all.push(event),
                Ok(None) => return (all, None),
                Err(why) => return (all, Some(why)),
            }
        }
    }

    #[test]
    fn events_are_read_as_the_standard_says() {
        let (events, why) =
            all("event: hello\ndata: {}\n\n: a comment\n\ndata: a\ndata:b\nid: 7\r\n\r\nid: 8\n\n");
        let event = |name: &str, id: Option<&str>, data: &str| ServerEvent {
            name: name.into(),
            id: id.map(Into::into),
            data: data.into(),
        };
        assert_eq!(events, [event("hello", None, "{}"), event("message", Some("7"), "a\nb")]);
        assert_eq!(why, None);
    }

    #[test]
    fn an_event_that_was_cut_off_is_none() {
        assert_eq!(all("data: 1\n\ndata: 2\n").0.len(), 1);
        let (events, why) = all("data: 1\n\ndata: 2");
        assert!(events.len() == 1 && why.is_some());
    }
}
