//! Unit attentions: what a session is told before its next command is carried out.

use loadline_base::scsi::{Sense, key};

/// Something that a session is told. Those that come first here are told first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Attention {
    /// The session is new: nothing of an earlier one is left.
    Began,
    /// The unit was reset.
    Reset,
    /// Another session has ended its tasks.
    TasksCleared,
    ModesChanged,
    /// All registrations were cleared.
    ReservationsCleared,
    /// A reservation was released.
    ReservationReleased,
    /// Its registration was removed.
    RegistrationRemoved,
    /// Ports have other states.
    StatesChanged,
    SizeChanged,
}

impl Attention {
    const ALL: [Attention; 9] = [
        Attention::Began,
        Attention::Reset,
        Attention::TasksCleared,
        Attention::ModesChanged,
        Attention::ReservationsCleared,
        Attention::ReservationReleased,
        Attention::RegistrationRemoved,
        Attention::StatesChanged,
        Attention::SizeChanged,
    ];

    fn code(self) -> (u8, u8) {
        match self {
            Attention::Began => (0x29, 0x00),
            Attention::Reset => (0x29, 0x03),
            Attention::TasksCleared => (0x2f, 0x00),
            Attention::ModesChanged => (0x2a, 0x01),
            Attention::ReservationsCleared => (0x2a, 0x03),
            Attention::ReservationReleased => (0x2a, 0x04),
            Attention::RegistrationRemoved => (0x2a, 0x05),
            Attention::StatesChanged => (0x2a, 0x06),
            Attention::SizeChanged => (0x2a, 0x09),
        }
    }
}

/// What a session is still to be told: each at most once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attentions(u16);

impl Attentions {
    /// Adds one. A beginning and a reset make all earlier ones void.
    pub(super) fn add(&mut self, attention: Attention) {
        if matches!(attention, Attention::Began | Attention::Reset) {
            // A beginning includes a reset.
            self.0 &= 1 << Attention::Began as u16;
        }
        self.0 |= 1 << attention as u16;
    }

    /// Takes the next one.
    pub(super) fn take(&mut self) -> Option<Sense> {
        let next = Attention::ALL.into_iter().find(|attention| self.0 & (1 << *attention as u16) != 0)?;
        self.0 &= !(1 << next as u16);
        let (code, qualifier) = next.code();
        Some(Sense::new(key::UNIT_ATTENTION, code, qualifier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_in_the_order_of_the_standard() {
        let mut attentions = Attentions::default();
        for attention in [Attention::SizeChanged, Attention::StatesChanged, Attention::SizeChanged] {
            attentions.add(attention);
        }
        attentions.add(Attention::ModesChanged);
        let told: Vec<_> = std::iter::from_fn(|| attentions.take()).map(|sense| sense.code).collect();
        assert_eq!(told, [(0x2a, 0x01), (0x2a, 0x06), (0x2a, 0x09)]);
    }

    #[test]
    fn a_reset_makes_void_what_was_before_it_and_not_what_comes_later() {
        let mut attentions = Attentions::default();
        attentions.add(Attention::SizeChanged);
        attentions.add(Attention::Reset);
        attentions.add(Attention::StatesChanged);
        let told: Vec<_> = std::iter::from_fn(|| attentions.take()).map(|sense| sense.code).collect();
        assert_eq!(told, [(0x29, 0x03), (0x2a, 0x06)]);
    }
}
