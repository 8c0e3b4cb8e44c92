//! Complex numbers with a bound of their error, and the elementary functions of them.

use crate::math::rational::Rational;
use crate::math::real::Real;

/// Larger values are not computed with: bounds are machine numbers.
const MAX_SIZE: f64 = 1e250;
/// Slack for the rounding of the bounds themselves.
const SLACK: f64 = 1.0 + 1e-12;

/// A complex number that is no further than `radius` from the true value.
#[derive(Debug, Clone)]
pub(crate) struct Ball<R> {
    pub(crate) re: R,
    pub(crate) im: R,
    pub(crate) radius: f64,
}

impl<R: Real> Ball<R> {
    /// An exact number, up to its rounding.
    pub(crate) fn of(value: &Rational) -> Option<Self> {
        Self::settled(R::of(value), R::of(&crate::math::rational::whole(0)), 0.0)
    }

    /// A small whole number.
    pub(crate) fn whole(value: i64) -> Self {
        let of = |value| R::of(&crate::math::rational::whole(value));
        Self { re: of(value), im: of(0), radius: 0.0 }
    }

    /// The imaginary unit.
    pub(crate) fn i() -> Self {
        let one = Self::whole(1);
        Self { re: one.im, im: one.re, radius: 0.0 }
    }

    /// Pi.
    pub(crate) fn pi(constants: &mut R::Constants) -> Option<Self> {
        Self::settled(R::pi(constants), Self::whole(0).im, 0.0)
    }

    /// A result with the error that it inherits; that of its rounding is added.
    fn settled(re: R, im: R, radius: f64) -> Option<Self> {
        let size = re.to_f64().hypot(im.to_f64());
        Self::rounded(re, im, radius, size)
    }

    /// The same where rounding is relative to `scale` rather than to the result.
    fn rounded(re: R, im: R, radius: f64, scale: f64) -> Option<Self> {
        let size = re.to_f64().hypot(im.to_f64());
        let radius = (radius + R::EPSILON * scale) * SLACK;
        (size < MAX_SIZE && radius < MAX_SIZE).then_some(Self { re, im, radius })
    }

    /// The absolute value of the centre.
    pub(crate) fn size(&self) -> f64 {
        self.re.to_f64().hypot(self.im.to_f64())
    }

    /// Whether the value may be real.
    pub(crate) fn is_real(&self) -> bool {
        self.im.is_zero() || self.im.to_f64().abs() <= self.radius
    }

    /// Whether the value may be zero.
    pub(crate) fn has_zero(&self) -> bool {
        self.size() <= self.radius * SLACK
    }

    /// Whether the value is real and below zero.
    pub(crate) fn is_negative(&self) -> bool {
        self.is_real() && self.re.to_f64() < -self.radius
    }

    /// The same value without its imaginary part.
    fn on_real_line(mut self) -> Self {
        self.im = Self::whole(0).im;
        self
    }

    pub(crate) fn negative(&self) -> Self {
        Self { re: self.re.negative(), im: self.im.negative(), radius: self.radius }
    }

    pub(crate) fn add(&self, other: &Self) -> Option<Self> {
        Self::settled(self.re.add(&other.re), self.im.add(&other.im), self.radius + other.radius)
    }

    pub(crate) fn subtract(&self, other: &Self) -> Option<Self> {
        self.add(&other.negative())
    }

    pub(crate) fn multiply(&self, other: &Self) -> Option<Self> {
        let (left, right) = (self.size(), other.size());
        let radius = left * other.radius + right * self.radius + self.radius * other.radius;
        let (re, im) = if self.im.is_zero() && other.im.is_zero() {
            (self.re.multiply(&other.re), self.im.clone())
        } else {
            let re = self.re.multiply(&other.re).add(&self.im.multiply(&other.im).negative());
            (re, self.re.multiply(&other.im).add(&self.im.multiply(&other.re)))
        };
        Self::rounded(re, im, radius, 3.0 * left * right)
    }

    /// One over the value; nothing when it may be zero.
    pub(crate) fn inverse(&self) -> Option<Self> {
        let size = self.size() / SLACK;
        if size <= self.radius {
            return None;
        }
        let radius = self.radius / (size * (size - self.radius));
        let one = Self::whole(1);
        if self.im.is_zero() {
            return Self::settled(one.re.divide(&self.re), one.im, radius);
        }
        let norm = self.re.multiply(&self.re).add(&self.im.multiply(&self.im));
        let (re, im) = (self.re.divide(&norm), self.im.negative().divide(&norm));
        Self::rounded(re, im, radius, 4.0 / size)
    }

    pub(crate) fn divide(&self, other: &Self) -> Option<Self> {
        self.multiply(&other.inverse()?)
    }

    /// A whole power, by squaring.
    pub(crate) fn power(&self, exponent: u32) -> Option<Self> {
        let (mut result, mut square, mut rest) = (Self::whole(1), self.clone(), exponent);
        while rest > 0 {
            if rest % 2 == 1 {
                result = result.multiply(&square)?;
            }
            rest /= 2;
            if rest > 0 {
                square = square.multiply(&square)?;
            }
        }
        Some(result)
    }

    /// The absolute value.
    pub(crate) fn abs(&self) -> Option<Self> {
        let zero = Self::whole(0).im;
        if self.im.is_zero() {
            let re = if self.re.to_f64() < 0.0 { self.re.negative() } else { self.re.clone() };
            return Self::settled(re, zero, self.radius);
        }
        let norm = self.re.multiply(&self.re).add(&self.im.multiply(&self.im));
        let size = norm.sqrt();
        let scale = 4.0 * size.to_f64();
        Self::rounded(size, zero, self.radius, scale)
    }

    /// The principal root; of what may be negative and real the one above the axis.
    pub(crate) fn sqrt(&self) -> Option<Self> {
        let size = self.size();
        if size <= self.radius {
            // The root of a small ball around zero.
            return Some(Self { radius: (2.0 * (size + self.radius)).sqrt() * SLACK, ..Self::whole(0) });
        }
        let radius = self.radius / (size - self.radius).sqrt();
        if self.is_real() {
            let zero = Self::whole(0).im;
            return if self.re.to_f64() >= 0.0 {
                Self::settled(self.re.sqrt(), zero, radius)
            } else {
                Self::settled(zero, self.re.negative().sqrt(), radius)
            };
        }
        let two = Self::whole(2).re;
        let modulus = self.abs()?.re;
        let half = |value: R| value.divide(&two).sqrt();
        // The part that does not cancel first; the other one follows from it.
        let (re, im) = if self.re.to_f64() >= 0.0 {
            let re = half(modulus.add(&self.re));
            let im = self.im.divide(&re.multiply(&two));
            (re, im)
        } else {
            let im = half(modulus.add(&self.re.negative()));
            let im = if self.im.to_f64() < 0.0 { im.negative() } else { im };
            (self.im.divide(&im.multiply(&two)), im)
        };
        Self::rounded(re, im, radius, 8.0 * size.sqrt())
    }

    pub(crate) fn exp(&self, constants: &mut R::Constants) -> Option<Self> {
        if self.re.to_f64().abs() > 500.0 || self.im.to_f64().abs() > 1e9 {
            return None;
        }
        let size = self.re.exp(constants);
        let scale = size.to_f64();
        let radius = scale * self.radius.exp_m1();
        if self.im.is_zero() {
            return Self::rounded(size, self.im.clone(), radius, 2.0 * scale);
        }
        let (re, im) = (self.im.cos(constants), self.im.sin(constants));
        Self::rounded(size.multiply(&re), size.multiply(&im), radius, 4.0 * scale)
    }

    /// The principal logarithm; of what may be negative and real the one above the axis.
    pub(crate) fn ln(&self, constants: &mut R::Constants) -> Option<Self> {
        let size = self.size() / SLACK;
        if size <= self.radius {
            return None;
        }
        let radius = self.radius / (size - self.radius);
        if self.is_real() {
            let is_negative = self.re.to_f64() < 0.0;
            let modulus = if is_negative { self.re.negative() } else { self.re.clone() };
            let im = if is_negative { R::pi(constants) } else { Self::whole(0).im };
            let re = modulus.ln(constants);
            let scale = re.to_f64().abs() + 4.0;
            return Self::rounded(re, im, radius, scale);
        }
        let modulus = self.abs()?.re.ln(constants);
        let scale = modulus.to_f64().abs() + 16.0;
        Self::rounded(modulus, self.angle(constants), radius, scale)
    }

    /// The angle of what is not real, between minus pi and pi.
    fn angle(&self, constants: &mut R::Constants) -> R {
        let (re, im) = (self.re.to_f64(), self.im.to_f64());
        if re.abs() >= im.abs() {
            let angle = self.im.divide(&self.re).atan(constants);
            if re > 0.0 {
                return angle;
            }
            let pi = R::pi(constants);
            return if im > 0.0 { angle.add(&pi) } else { angle.add(&pi.negative()) };
        }
        let quarter = R::pi(constants).divide(&Self::whole(2).re);
        let quarter = if im > 0.0 { quarter } else { quarter.negative() };
        quarter.add(&self.re.divide(&self.im).atan(constants).negative())
    }

    /// Sine and cosine.
    pub(crate) fn sin_cos(&self, constants: &mut R::Constants) -> Option<(Self, Self)> {
        if self.re.to_f64().abs() > 1e9 || self.im.to_f64().abs() > 500.0 {
            return None;
        }
        let (sin, cos) = (self.re.sin(constants), self.re.cos(constants));
        // The derivative is no larger than cosh of the imaginary part.
        let bound = (self.im.to_f64().abs() + self.radius).cosh();
        let radius = self.radius * bound;
        if self.im.is_zero() {
            let zero = self.im.clone();
            return Some((
                Self::rounded(sin, zero.clone(), radius, 1.0)?,
                Self::rounded(cos, zero, radius, 1.0)?,
            ));
        }
        let two = Self::whole(2).re;
        let (up, down) = (self.im.exp(constants), self.im.negative().exp(constants));
        let cosh = up.add(&down).divide(&two);
        let sinh = up.add(&down.negative()).divide(&two);
        let sine = Self::rounded(sin.multiply(&cosh), cos.multiply(&sinh), radius, 8.0 * bound)?;
        let cosine = Self::rounded(cos.multiply(&cosh), sin.multiply(&sinh).negative(), radius, 8.0 * bound)?;
        Some((sine, cosine))
    }

    /// The arc tangent.
    pub(crate) fn atan(&self, constants: &mut R::Constants) -> Option<Self> {
        if self.is_real() {
            // The derivative is no larger than one on the real line.
            let real = self.clone().on_real_line();
            return Self::rounded(real.re.atan(constants), real.im, self.radius, 2.0);
        }
        // (ln(1 - iz) - ln(1 + iz)) i/2
        let turned = self.multiply(&Self::i())?;
        let one = Self::whole(1);
        let difference = one.subtract(&turned)?.ln(constants)?.subtract(&one.add(&turned)?.ln(constants)?)?;
        difference.multiply(&Self::i())?.divide(&Self::whole(2))
    }

    /// The arc sine: `-i ln(iz + sqrt(1 - z^2))`.
    pub(crate) fn asin(&self, constants: &mut R::Constants) -> Option<Self> {
        let one = Self::whole(1);
        let root = one.subtract(&self.multiply(self)?)?.sqrt()?;
        let inner = self.multiply(&Self::i())?.add(&root)?;
        let result = inner.ln(constants)?.multiply(&Self::i().negative())?;
        let is_inside = self.is_real() && self.re.to_f64().abs() <= 1.0;
        Some(if is_inside { result.on_real_line() } else { result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::real::Big;

    fn complex<R: Real>(re: i64, im: i64) -> Ball<R> {
        Ball::whole(re).add(&Ball::whole(im).multiply(&Ball::i()).unwrap()).unwrap()
    }

    fn is_same<R: Real>(left: &Ball<R>, right: &Ball<R>, tolerance: f64) {
        let apart = left.subtract(right).unwrap();
        assert!(apart.size() <= apart.radius, "{} {}", apart.size(), apart.radius);
        assert!(apart.radius < tolerance, "{}", apart.radius);
    }

    /// Identities hold within the bounds, at both precisions and in every quadrant.
    fn identities<R: Real>(tolerance: f64) {
        let mut constants = R::constants().unwrap();
        let c = &mut constants;
        for (re, im) in [(3, 4), (-3, 4), (-3, -4), (3, -4), (5, 1), (-1, 5), (2, 0), (-2, 0), (0, 1)] {
            let z = complex::<R>(re, im);
            let root = z.sqrt().unwrap();
            is_same(&root.multiply(&root).unwrap(), &z, tolerance);
            is_same(&z.ln(c).unwrap().exp(c).unwrap(), &z, tolerance);
            is_same(&z.inverse().unwrap().multiply(&z).unwrap(), &Ball::whole(1), tolerance);
            let (sin, cos) = z.sin_cos(c).unwrap();
            let squares = sin.power(2).unwrap().add(&cos.power(2).unwrap()).unwrap();
            is_same(&squares, &Ball::whole(1), tolerance * 1e6);
            is_same(&z.asin(c).unwrap().sin_cos(c).unwrap().0, &z, tolerance * 1e3);
        }
        for value in [-2, 0, 1, 7] {
            let z = complex::<R>(value, 0);
            let (sin, cos) = z.atan(c).unwrap().sin_cos(c).unwrap();
            is_same(&sin.divide(&cos).unwrap(), &z, tolerance);
        }
        let z = complex::<R>(1, 2);
        let (sin, cos) = z.atan(c).unwrap().sin_cos(c).unwrap();
        is_same(&sin.divide(&cos).unwrap(), &z, tolerance * 100.0);
    }

    #[test]
    fn functions_keep_their_bounds() {
        identities::<f64>(1e-12);
        identities::<Big>(1e-70);
    }

    #[test]
    fn what_may_be_zero_has_no_inverse() {
        let third = Ball::<f64>::of(&Rational::new(1.into(), 3.into())).unwrap();
        let zero = third.multiply(&Ball::whole(3)).unwrap().subtract(&Ball::whole(1)).unwrap();
        assert!(zero.has_zero() && zero.inverse().is_none());
        assert!(Ball::<f64>::whole(600).exp(&mut ()).is_none());
    }
}
