//! Arithmetic of values in normal form: quotients of polynomials over atoms, with counted work.

use num_traits::{One, Signed, ToPrimitive, Zero};

use crate::math::polynomial::{Atom, Exponent, Monomial, Polynomial, Ring};
use crate::math::rational::{self, Rational};
use crate::math::tree::{Constant, Expr};
use crate::math::unit::Dimension;

/// Larger powers of sums are not multiplied out.
const MAX_POWER: i64 = 40;

/// A quotient; the denominator is one or has several terms.
#[derive(Debug, Clone)]
pub(super) struct Quotient {
    pub(super) above: Polynomial,
    pub(super) below: Polynomial,
}

/// The name of a variable's atom.
pub(super) fn symbol_key(name: &str) -> String {
    format!("x:{name}")
}

/// The ring in which the values of a pair are computed.
pub(super) struct Form {
    pub(super) ring: Ring,
    /// The base of logarithms without one; nothing is e.
    pub(super) log_base: Option<i64>,
}

impl Quotient {
    pub(super) fn of(above: Polynomial) -> Self {
        Self { above, below: Polynomial::constant(Rational::one()) }
    }

    pub(super) fn constant(value: Rational) -> Self {
        Self::of(Polynomial::constant(value))
    }

    pub(super) fn as_constant(&self) -> Option<Rational> {
        let below = self.below.as_constant()?;
        Some(self.above.as_constant()? / below)
    }

    pub(super) fn key(&self) -> String {
        format!("({})/({})", self.above.key(), self.below.key())
    }
}

impl Form {
    /// A ring that may do so many units of work.
    pub(super) fn with_work(work: u64, log_base: Option<i64>) -> Self {
        Self { ring: Ring::with_work(work), log_base }
    }

    /// The numerator of `left - right`.
    pub(super) fn difference(&mut self, left: &Expr, right: &Expr) -> Option<Polynomial> {
        let (left, right) = (self.quotient(left)?, self.quotient(right)?);
        let first = self.ring.product(&left.above, &right.below)?;
        let second = self.ring.product(&right.above, &left.below)?;
        let minus = self.ring.product(&second, &Polynomial::constant(-Rational::one()))?;
        self.ring.add(&first, &minus)
    }

    pub(super) fn quotient(&mut self, expr: &Expr) -> Option<Quotient> {
        self.ring.spend(1)?;
        match expr {
            Expr::Number { value, .. } => Some(Quotient::constant(value.clone())),
            Expr::Constant(Constant::Pi) => self.atom("pi".to_owned(), Atom::Pi),
            Expr::Constant(Constant::E) => self.atom("e".to_owned(), Atom::E),
            Expr::Constant(Constant::I) => self.atom("i".to_owned(), Atom::I),
            Expr::Symbol(name) => self.atom(symbol_key(name), Atom::Symbol),
            Expr::Sum(terms) => {
                let mut sum = Quotient::constant(Rational::zero());
                for term in terms {
                    let term = self.quotient(term)?;
                    sum = self.add(&sum, &term)?;
                }
                Some(sum)
            }
            Expr::Product(factors) => {
                let mut product = Quotient::constant(Rational::one());
                for factor in factors {
                    let factor = self.quotient(factor)?;
                    product = self.multiply(&product, &factor)?;
                }
                Some(product)
            }
            Expr::Power(base, exponent) => {
                let (base, exponent) = (self.quotient(base)?, self.quotient(exponent)?);
                self.power(&base, &exponent)
            }
            Expr::Quantity(value, unit) => {
                let value = self.quotient(value)?;
                let factor = match unit.known.as_ref()? {
                    (Dimension::Percent, size) => Quotient::constant(size.clone()),
                    (Dimension::Angle, size) => {
                        let pi = self.atom("pi".to_owned(), Atom::Pi)?;
                        self.multiply(&pi, &Quotient::constant(size / rational::whole(180)))?
                    }
                    _ => return None,
                };
                self.multiply(&value, &factor)
            }
            Expr::Call(function, arguments) => self.call(*function, arguments),
            Expr::Apply(name, arguments) => {
                let values: Option<Vec<Quotient>> =
                    arguments.iter().map(|argument| self.quotient(argument)).collect();
                let key = self.keys(&values?)?;
                self.atom(format!("apply:{name}({key})"), Atom::Opaque)
            }
            _ => None,
        }
    }

    pub(super) fn atom(&mut self, name: String, atom: Atom) -> Option<Quotient> {
        let number = self.ring.atom(name, atom);
        Some(Quotient::of(self.ring.term(&Rational::one(), vec![(number, Exponent::one())])?))
    }

    pub(super) fn keys(&mut self, values: &[Quotient]) -> Option<String> {
        let key = values.iter().map(Quotient::key).collect::<Vec<_>>().join(",");
        // Keys within keys grow: they are work too.
        self.ring.spend(1 + key.len() as u64 / 64)?;
        Some(key)
    }

    pub(super) fn add(&mut self, left: &Quotient, right: &Quotient) -> Option<Quotient> {
        if left.below == right.below {
            return Some(Quotient {
                above: self.ring.add(&left.above, &right.above)?,
                below: left.below.clone(),
            });
        }
        let first = self.ring.product(&left.above, &right.below)?;
        let second = self.ring.product(&right.above, &left.below)?;
        Some(Quotient {
            above: self.ring.add(&first, &second)?,
            below: self.ring.product(&left.below, &right.below)?,
        })
    }

    pub(super) fn multiply(&mut self, left: &Quotient, right: &Quotient) -> Option<Quotient> {
        let above = self.ring.product(&left.above, &right.above)?;
        let below = self.ring.product(&left.below, &right.below)?;
        self.settled(above, below)
    }

    /// A denominator of one term goes into the numerator.
    fn settled(&mut self, above: Polynomial, below: Polynomial) -> Option<Quotient> {
        let Some((monomial, coefficient)) = below.as_term() else {
            return if below.0.is_empty() { None } else { Some(Quotient { above, below }) };
        };
        if monomial.0.is_empty() && coefficient.is_one() {
            return Some(Quotient { above, below });
        }
        let factors = monomial.0.iter().map(|(atom, exponent)| (*atom, -exponent)).collect();
        let inverse = self.ring.term(&coefficient.recip(), factors)?;
        Some(Quotient::of(self.ring.product(&above, &inverse)?))
    }

    fn power(&mut self, base: &Quotient, exponent: &Quotient) -> Option<Quotient> {
        match exponent.as_constant() {
            Some(exponent) if exponent.is_integer() => self.whole_power(base, exponent.numer().to_i64()?),
            Some(exponent) => self.root(base, &exponent),
            None => self.exponential(base, exponent),
        }
    }

    pub(super) fn whole_power(&mut self, base: &Quotient, exponent: i64) -> Option<Quotient> {
        let (above, below) =
            if exponent < 0 { (&base.below, &base.above) } else { (&base.above, &base.below) };
        let exponent = exponent.checked_abs()?;
        if exponent == 0 {
            return if base.above.0.is_empty() { None } else { Some(Quotient::constant(Rational::one())) };
        }
        let (above, below) = (self.natural_power(above, exponent)?, self.natural_power(below, exponent)?);
        self.settled(above, below)
    }

    fn natural_power(&mut self, base: &Polynomial, exponent: i64) -> Option<Polynomial> {
        let Some((monomial, coefficient)) = base.as_term() else {
            return if exponent <= MAX_POWER { self.ring.power(base, exponent as u32) } else { None };
        };
        if exponent > 10_000 && !monomial.0.is_empty() {
            return None;
        }
        let factors = monomial.0.iter().map(|(atom, each)| (*atom, each * exponent)).collect();
        self.ring.term(&rational::power(coefficient, exponent)?, factors)
    }

    /// A fractional power: roots of numbers as roots of primes, at most one variable under it.
    fn root(&mut self, base: &Quotient, exponent: &Rational) -> Option<Quotient> {
        let fraction = Exponent::new(exponent.numer().to_i64()?, exponent.denom().to_i64()?);
        if fraction.numer().abs() > 1000 || *fraction.denom() > 1000 {
            return None;
        }
        if base.above.0.is_empty() {
            return fraction.is_positive().then(|| Quotient::constant(Rational::zero()));
        }
        if base.below.as_constant().is_some()
            && let Some((monomial, coefficient)) = base.above.as_term()
            && let Some(factors) = self.roots_of_atoms(monomial, fraction)
            && let Some((sign, half_turns)) = roots_of_sign(coefficient, fraction, monomial)
        {
            let mut product = self.ring.term(&sign, factors)?;
            if half_turns != 0 {
                let i = self.ring.atom("i".to_owned(), Atom::I);
                let turn = self.ring.term(&Rational::one(), vec![(i, Exponent::from_integer(half_turns))])?;
                product = self.ring.product(&product, &turn)?;
            }
            for (number, sign) in [(coefficient.numer(), 1), (coefficient.denom(), -1)] {
                for (prime, count) in rational::factors(number) {
                    self.ring.spend(10)?;
                    let atom = self.ring.atom(format!("p:{prime}"), Atom::Prime(prime));
                    let exponent = fraction * Exponent::from_integer(i64::from(count) * sign);
                    let root = self.ring.term(&Rational::one(), vec![(atom, exponent)])?;
                    product = self.ring.product(&product, &root)?;
                }
            }
            return Some(Quotient::of(product));
        }
        let key = format!("power:{}^{exponent}", base.key());
        self.atom(key, Atom::Opaque)
    }

    /// Roots of what is positive, and of at most one variable: the root of a product of several is not the product of
    /// their roots where they are negative.
    fn roots_of_atoms(&self, monomial: &Monomial, fraction: Exponent) -> Option<Vec<(u32, Exponent)>> {
        let mut num_signed = 0;
        let mut roots = Vec::new();
        for (atom, exponent) in &monomial.0 {
            match self.ring.kind(*atom) {
                Atom::Prime(_) | Atom::Pi | Atom::E => {}
                Atom::Symbol if exponent.is_one() => num_signed += 1,
                _ => return None,
            }
            roots.push((*atom, exponent * fraction));
        }
        (num_signed <= 1).then_some(roots)
    }

    /// A power whose exponent has variables: `2^(x+1)` is `2 * 2^x`, and `4^x` the square of `2^x`.
    fn exponential(&mut self, base: &Quotient, exponent: &Quotient) -> Option<Quotient> {
        let key = format!("power:{}^{}", base.key(), exponent.key());
        let bases = self.exponential_bases(base);
        let (Some(bases), Some(below)) = (bases, exponent.below.as_constant()) else {
            return self.atom(key, Atom::Opaque);
        };
        let mut product = Quotient::constant(Rational::one());
        for (Monomial(factors), coefficient) in &exponent.above.0 {
            let coefficient = coefficient / &below;
            if factors.is_empty() {
                let part = self.power(base, &Quotient::constant(coefficient))?;
                product = self.multiply(&product, &part)?;
                continue;
            }
            let (above, below) = (coefficient.numer().to_i64()?, coefficient.denom().to_i64()?);
            if above.abs() > 1000 || below > 1000 {
                return self.atom(key, Atom::Opaque);
            }
            for (name, count) in &bases {
                let monomial = Polynomial([(Monomial(factors.clone()), Rational::one())].into());
                let atom = self.ring.atom(format!("exp:{name}^{}", monomial.key()), Atom::Opaque);
                let exponent = Exponent::new(above, below) * Exponent::from_integer(*count);
                let part = Quotient::of(self.ring.term(&Rational::one(), vec![(atom, exponent)])?);
                product = self.multiply(&product, &part)?;
            }
        }
        Some(product)
    }

    /// The names of what a positive base is made of, with their counts.
    fn exponential_bases(&self, base: &Quotient) -> Option<Vec<(String, i64)>> {
        base.below.as_constant()?;
        if let Some(value) = base.as_constant().filter(Rational::is_positive) {
            let mut bases = Vec::new();
            for (number, sign) in [(value.numer(), 1), (value.denom(), -1)] {
                for (prime, count) in rational::factors(number) {
                    bases.push((format!("p{prime}"), i64::from(count) * sign));
                }
            }
            return Some(bases);
        }
        let (monomial, coefficient) = base.above.as_term()?;
        match &monomial.0[..] {
            [(atom, exponent)] if coefficient.is_one() && exponent.is_one() => {
                let is_base = matches!(self.ring.kind(*atom), Atom::E | Atom::Pi | Atom::Symbol);
                is_base.then(|| vec![(format!("a{atom}"), 1)])
            }
            _ => None,
        }
    }
}

/// What the sign of a coefficient becomes under a fractional power: odd roots of negative numbers are negative, square
/// roots turn by i. The absolute value stays with the caller.
fn roots_of_sign(coefficient: &Rational, fraction: Exponent, monomial: &Monomial) -> Option<(Rational, i64)> {
    if coefficient.is_positive() {
        return Some((Rational::one(), 0));
    }
    // Under a root the sign of a variable may cancel that of the coefficient.
    if !monomial.0.is_empty() {
        return None;
    }
    if fraction.denom() % 2 == 1 {
        let is_odd = fraction.numer() % 2 != 0;
        return Some((if is_odd { -Rational::one() } else { Rational::one() }, 0));
    }
    (*fraction.denom() == 2).then(|| (Rational::one(), *fraction.numer()))
}
