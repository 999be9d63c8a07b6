//! The lengths of a message.

/// Bytes of a message: those of its head, and of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the head.
    pub head: usize,
    /// Bytes of the data that follows it.
    pub data: usize,
}

impl Shape {
    /// Bytes of both.
    pub fn bytes(&self) -> usize {
        self.head + self.data
    }
}
