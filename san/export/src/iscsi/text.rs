//! Texts of a session that has begun: requests and answers that are longer than one PDU.

use loadline_base::iscsi::{Header, NO_TAG, field, flag, opcode};

/// The most bytes of a text that an initiator sends.
const MOST_TEXT: usize = 64 << 10;
/// The tag by which an exchange goes on.
const TAG: u32 = 1;

/// The text of a request that is not complete, and the answer that is not sent: one exchange at a time.
#[derive(Debug, Default)]
pub(super) struct Texts {
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TextRequest {
    /// More of the request follows: an empty answer is sent.
    Unfinished,
    /// What this text asks for.
    Complete(Vec<u8>),
    /// The rest of the last answer.
    Rest,
    /// It is longer than texts may be.
    TooLong,
}

impl Texts {
    /// Takes a text request.
    pub(super) fn take(&mut self, header: &Header, data: &[u8]) -> TextRequest {
        if header.u32(field::TRANSFER_TAG) == NO_TAG {
            // A new exchange: what is left of another one is dropped.
            self.request.clear();
            self.answer.clear();
        } else if !self.answer.is_empty() {
            return TextRequest::Rest;
        }
        if self.request.len() + data.len() > MOST_TEXT {
            self.request.clear();
            return TextRequest::TooLong;
        }
        self.request.extend_from_slice(data);
        match header.has(flag::CONTINUE) {
            true => TextRequest::Unfinished,
            false => TextRequest::Complete(std::mem::take(&mut self.request)),
        }
    }

    /// The answer to what was complete. [`response`](Self::response) sends it.
    pub(super) fn answer(&mut self, answer: Vec<u8>) {
        self.answer = answer;
    }

    /// The next response to this request: its header without numbers, and at most so many bytes of data. A key is in one response as a whole
    /// if it is not longer.
    pub(super) fn response(
        &mut self,
        request: &Header,
        is_unfinished: bool,
        most: usize,
    ) -> (Header, Vec<u8>) {
        let part = match self.answer.len() <= most {
            true => self.answer.len(),
            false => self.answer[..most].iter().rposition(|byte| *byte == 0).map_or(most, |at| at + 1),
        };
        let data: Vec<u8> = self.answer.drain(..part).collect();
        let flags = match (is_unfinished, self.answer.is_empty()) {
            (true, _) => 0,
            (false, true) => flag::FINAL,
            (false, false) => flag::CONTINUE,
        };
        let mut header = Header::new(opcode::TEXT_RESPONSE, flags);
        header.set_u32(field::TASK_TAG, request.task_tag());
        header.set_u32(field::TRANSFER_TAG, if flags == flag::FINAL { NO_TAG } else { TAG });
        (header, data)
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> usize {
        self.request.len() + self.answer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(flags: u8, tag: u32) -> Header {
        let mut header = Header::new(opcode::TEXT, flags);
        header.set_u32(field::TRANSFER_TAG, tag);
        header
    }

    #[test]
    fn a_long_answer_comes_in_parts_of_whole_keys() {
        let mut texts = Texts::default();
        let first = request(flag::FINAL, NO_TAG);
        assert_eq!(
            texts.take(&first, b"SendTargets=All\0"),
            TextRequest::Complete(b"SendTargets=All\0".to_vec())
        );
        texts.answer(b"a=1\0bb=2\0cccccccc=3\0".to_vec());
        let (header, data) = texts.response(&first, false, 10);
        assert_eq!(
            (&data[..], header.flags(), header.u32(field::TRANSFER_TAG)),
            (&b"a=1\0bb=2\0"[..], flag::CONTINUE, TAG)
        );
        let more = request(flag::FINAL, TAG);
        assert_eq!(texts.take(&more, b""), TextRequest::Rest);
        // Longer than a response: it is cut.
        assert_eq!(texts.response(&more, false, 10).1, b"cccccccc=3");
        assert_eq!(texts.take(&more, b""), TextRequest::Rest);
        let (header, data) = texts.response(&more, false, 10);
        assert_eq!(
            (&data[..], header.flags(), header.u32(field::TRANSFER_TAG)),
            (&b"\0"[..], flag::FINAL, NO_TAG)
        );
    }

    #[test]
    fn a_long_request_comes_in_parts_and_has_a_limit() {
        let mut texts = Texts::default();
        assert_eq!(texts.take(&request(flag::CONTINUE, NO_TAG), b"Send"), TextRequest::Unfinished);
        assert_eq!(
            texts.take(&request(flag::FINAL, TAG), b"Targets="),
            TextRequest::Complete(b"SendTargets=".to_vec())
        );
        let many = vec![b'x'; 8192];
        let taken = (0..).map(|_| texts.take(&request(flag::CONTINUE, TAG), &many));
        assert_eq!(taken.take_while(|taken| *taken == TextRequest::Unfinished).count(), 8);
        assert_eq!(texts.bytes(), 0);
    }
}
