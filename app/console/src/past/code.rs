//! A figure in 16 bits: a day of each node and each volume is kept so.

/// No figure: nothing is known, or there were no requests.
pub(crate) const NONE: u16 = u16::MAX;
/// The exponent of the smallest figures that differ from 0: 2^-6.
const LEAST: u32 = 127 - 6;
/// Bits of a figure's fraction that are left out.
const CUT: u32 = 13;

/// A figure as 16 bits: 0, or with six bits of exponent and ten of fraction, so that it is at most 0.05 % off. Figures below 2^-6 become
/// 2^-6, and those above 2^57 become 2^57. Negative figures, and what is no number, become [`NONE`].
pub(crate) fn encode(value: f64) -> u16 {
    if value == 0.0 {
        return 0;
    }
    if value.is_nan() || value < 0.0 {
        return NONE;
    }
    let rounded = ((value as f32).to_bits() + (1 << (CUT - 1))) >> CUT;
    let base = LEAST << (23 - CUT);
    (rounded.saturating_sub(base) + 1).min(u32::from(NONE) - 1) as u16
}

/// The figure; -1 of [`NONE`].
pub(crate) fn decode(code: u16) -> f32 {
    match code {
        0 => 0.0,
        NONE => -1.0,
        _ => f32::from_bits((u32::from(code) - 1 + (LEAST << (23 - CUT))) << CUT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_comes_back_within_a_twentieth_of_a_per_cent() {
        let mut value = 0.016;
        while value < 1e17 {
            let back = f64::from(decode(encode(value)));
            assert!((back / value - 1.0).abs() < 0.0005, "{value} becomes {back}");
            value *= 1.013;
        }
        assert_eq!([1.0, 2.0, 1000.0, 65_536.0].map(|of| decode(encode(of))), [1.0, 2.0, 1000.0, 65_536.0]);
    }

    #[test]
    fn nothing_is_not_0_and_0_is_not_nothing() {
        assert_eq!((decode(encode(0.0)), encode(-1.0), encode(f64::NAN)), (0.0, NONE, NONE));
        assert_eq!(decode(NONE), -1.0);
        let (least, most) = (decode(encode(1e-9)), decode(encode(f64::INFINITY)));
        assert!(least > 0.0 && least < 0.02 && most > 1e17, "{least} {most}");
    }
}
